# SPDX-License-Identifier: MIT
"""Which candidates there are for each service, and what is expected of ours.

A candidate is (name, words of its command).  The first is the limit: the raw
client library doing the least.  One that is not here is left out by name.
"""
import os
import re
import shutil
import subprocess

from . import proxy
from .report import Goal

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(HERE)
BUILD = os.path.abspath(os.environ.get("BUILD") or os.path.join(ROOT, "build"))
HOLDFAST = os.environ.get("HOLDFAST") or os.path.join(BUILD, "cli", "holdfast")
PEERS = os.environ.get("HF_PEERS") or os.path.join(BUILD, "bench", "peers")


def is_built(name):
    return name in ("mem", "file") or os.path.exists(
        os.path.join(BUILD, "src", "holdfast-%s.so" % name))


def ours(*more):
    return [os.path.join(BUILD, "bench", "cand-holdfast"), *more]


def url(more):
    """$HF_TEST_URL with another parameter, put in when it is started."""
    return ours("URL" + more)


def raw(name, *more):
    return [os.path.join(BUILD, "bench", "cand-" + name), *more]


def python(name, *more):
    return ["/usr/bin/python3", "-B", os.path.join(HERE, "peers", name + ".py"), *more]


def python_package(*more):
    return python("holdfast_py", os.path.join(BUILD, "bindings", "python"), *more)


def node(library):
    return ["node", os.path.join(HERE, "peers", "redis.mjs"), PEERS, library]


def node_ours():
    return ["node", os.path.join(HERE, "peers", "redis.mjs"),
            os.path.join(BUILD, "bindings", "node"), "holdfast"]


def built(name, *more):
    return [os.path.join(PEERS, name), *more]


def command(*words):
    return python("command", os.path.join(BUILD, "bench", "bench-stamp"), *words)


class Service:
    """`limit` is what ratios are formed to; `rival`, by which the hand-over is
    judged where the raw library has no way to wait."""

    def __init__(self, server, candidates, protocol=None, goals=None, **more):
        self.server = server
        self.candidates = candidates
        self.protocol = protocol
        self.goals = goals or {}
        self.limit = candidates[0][0]
        self.version = more.get("version")
        self.crowd = more.get("crowd", {})  # name: most contenders
        self.slow = more.get("slow", ())  # a process for each lock


    def is_raw(self, name):
        """The bare library, which has nothing that could mind a lock."""
        program = os.path.basename(dict(self.candidates)[name][0])
        return program.startswith("cand-") and program != "cand-holdfast"


AT_MOST, AT_LEAST = "at most", "at least"

SERVICES = {
    "mem": Service(
        None,
        [("pthread mutex", raw("mutex")), ("holdfast", ours("mem:")),
         ("holdfast in Python", python_package("mem:"))],
        crowd={"holdfast": 0, "holdfast in Python": 0, "pthread mutex": 0}),
    "file": Service(
        None,
        [("open+flock(2)+close", raw("file")), ("holdfast", ours("file:DIR")),
         ("flock(1)", command("flock", "DIR/%.flock")),
         ("holdfast run", command(HOLDFAST, "-u", "file:DIR", "run", "%", "--"))],
        slow=("flock(1)", "holdfast run")),
    "redis": Service(
        "redis",
        [("hiredis", raw("redis")), ("hiredis, piped", raw("redis", "piped")),
         ("hiredis, piped, same scripts", raw("redis", "same")),
         ("holdfast", ours()), ("holdfast acquire=set", url("?acquire=set")),
         ("holdfast in Python", python_package()),
         ("redis-py", python("redis_py")), ("node-redlock", node("redlock")),
         ("redis-semaphore", node("redis-semaphore")),
         ("holdfast for Node.js", node_ours()), ("holdfast for Go", built("holdfast-go"))],
        proxy.Redis,
        {"pair": {"holdfast": Goal(AT_MOST, 1.15), "holdfast acquire=set": Goal(AT_MOST, 1.15)},
         "threads": [("holdfast", "hiredis, piped, same scripts", 64, Goal(AT_LEAST, 0.8)),
                     ("holdfast acquire=set", "hiredis, piped", 64, Goal(AT_LEAST, 0.8)),
                     ("holdfast", "node-redlock", 64, Goal(AT_LEAST, 2)),
                     ("holdfast for Node.js", "node-redlock", 64, Goal(AT_LEAST, 1))],
         "handover": {"pollers": (("redis-py", "node-redlock", "redis-semaphore"),
                                  Goal(AT_LEAST, 20)),
                      "trips": Goal(AT_MOST, 3), "share": Goal(AT_LEAST, 0.9)},
         "bindings": [("holdfast in Python", "redis-py", {"pair": Goal(AT_LEAST, 2),
                                                        "handover": Goal(AT_LEAST, 10)})]},
        version="redis-server --version"),
    "redlock": Service(
        "redlock",
        [("hiredis to 5", raw("redlock")), ("holdfast", ours()),
         ("holdfast fence=off", url("&fence=off")), ("node-redlock", node("redlock"))],
        proxy.Redis,
        {"pair": {"holdfast fence=off": Goal(AT_MOST, 1.3)}},
        version="redis-server --version"),
    "etcd": Service(
        "etcd",
        [("raw gRPC", raw("etcd")), ("holdfast", ours()),
         ("Go concurrency.Mutex", built("etcd-go")), ("holdfast for Go", built("holdfast-go"))],
        proxy.Etcd,
        {"pair": {"holdfast": Goal(AT_MOST, 1.15)},
         "threads": [("holdfast", "Go concurrency.Mutex", 64, Goal(AT_LEAST, 1.2)),
                     ("holdfast for Go", "Go concurrency.Mutex", 64, Goal(AT_LEAST, 1.5))],
         "handover": {"rival": ("Go concurrency.Mutex", Goal(AT_LEAST, 8))}},
        version="etcd --version"),
    "zk": Service(
        "zk",
        [("libzookeeper", raw("zk")), ("holdfast", ours()),
         ("Curator", built("curator")), ("kazoo", python("kazoo_lock"))],
        proxy.ZooKeeper,
        {"pair": {"holdfast": Goal(AT_MOST, 1.15)},
         "threads": [("holdfast", "Curator", 64, Goal(AT_LEAST, 1.3))],
         "handover": {"rival": ("Curator", Goal(AT_LEAST, 1.5))}},
        crowd={"Curator": 8},
        version="dpkg-query -W -f ${Version} zookeeper"),
    "consul": Service(
        "consul",
        [("raw HTTP", raw("consul")), ("holdfast", ours()),
         ("consul lock", command("CONSUL", "lock", "-http-addr=HOST", "%")),
         ("holdfast run", command(HOLDFAST, "-u", "URL", "run", "%", "--"))],
        proxy.Http,
        {"pair": {"holdfast": Goal(AT_MOST, 1.15)}},
        slow=("consul lock", "holdfast run"), version="CONSUL version"),
    "postgres": Service(
        "postgres",
        [("libpq, same SQL", raw("postgres")), ("libpq, advisory", raw("postgres", "advisory")),
         ("holdfast", ours()), ("holdfast strategy=row", url("?strategy=row&table=byrow"))],
        proxy.Postgres,
        {"pair": {"holdfast": Goal(AT_MOST, 1.15)}},
        version="postgres --version"),
    "mysql": Service(
        "mysql",
        [("libmariadb, same SQL", raw("mysql")), ("libmariadb, GET_LOCK", raw("mysql", "advisory")),
         ("holdfast", ours()), ("holdfast strategy=row", url("?strategy=row&table=byrow"))],
        proxy.MySQL,
        {"pair": {"holdfast": Goal(AT_MOST, 1.15)}},
        version="mariadbd --version"),
    "sqlite": Service(
        None,
        [("sqlite3, same SQL", raw("sqlite")), ("holdfast", ours("sqlite:DIR/locks.db"))],
        None,
        {"pair": {"holdfast": Goal(AT_MOST, 1.15)}}),
}


QUESTIONS = ("pair", "threads", "handover", "requests", "loss", "many")


def asked():
    """What $QUESTIONS names, or all.  `held` and `growth` are two sides of one
    question."""
    text = os.environ.get("QUESTIONS") or ",".join(QUESTIONS)
    words = ["many" if word in ("held", "growth") else word for word in text.split(",")]
    for word in words:
        if word not in QUESTIONS:
            raise SystemExit("bench: no question is called '%s'; there are: %s"
                             % (word, " ".join(QUESTIONS)))
    return list(dict.fromkeys(words))


def mode():
    """Which plan $QUICK or $LONG asks for."""
    for name in ("quick", "long"):
        if os.environ.get(name.upper(), "0") not in ("", "0"):
            return name
    return "usual"


def ports():
    """The ports of the servers that test/servers/NAME started for us."""
    text = os.environ.get("HF_TEST_URL", "")
    return [int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", text)]


def environment(proxies=()):
    """What a candidate finds: with proxies, every mention of a server's port
    is that of its proxy."""
    env = dict(os.environ, HOLDFAST_MODULE_DIR=os.path.join(BUILD, "src"), LC_ALL="C.UTF-8")
    for one in proxies:
        for name, value in env.items():
            if name.startswith(("HF_", "ETCD", "CONSUL")):
                env[name] = re.sub(r"(?<!\d)%d(?!\d)" % one.to, str(one.port), value)
    return env


def words_of(words, env, directory):
    """A candidate's command with the places filled in."""
    host = env.get("HF_TEST_URL", "").split("//")[-1].split("?")[0]
    at = {"DIR": directory, "URL": env.get("HF_TEST_URL", ""), "HOST": host,
          "CONSUL": env.get("HF_TEST_CONSUL", "consul")}
    found = []
    for word in words:
        for name, value in at.items():
            word = re.sub(r"\b%s(?=\b|[?&])" % name, lambda _: value, word)
        found.append(word.replace("?quarantine=off?", "?quarantine=off&"))
    return found


def shown(words):
    """A command as others can read it: without this machine's directories."""
    text = " ".join(words)
    for path, name in ((BUILD, "build"), (ROOT + "/", ""), (os.path.expanduser("~"), "~"),
                       (os.environ.get("HF_BENCH_DIR") or BUILD, "DIR")):
        text = text.replace(path, name)
    return text


def missing(words):
    """Why a candidate cannot be had, or None."""
    program = words[0]
    if not shutil.which(program) and not os.access(program, os.X_OK):
        return "%s is not there" % os.path.basename(program)
    if os.path.basename(program) == "node":
        if words[-1] == "holdfast":
            ours = os.path.isfile(os.path.join(words[2], "holdfast.node"))
            return None if ours else "the package for Node.js is not built"
        if not os.path.isdir(os.path.join(PEERS, "node_modules", words[-1])):
            return "npm could not install it"
    if words[0] == "/usr/bin/python3":
        if "holdfast_py" in words[2] and not os.path.isdir(os.path.join(words[3], "holdfast")):
            return "the Python package is not built"
        module = {"redis_py.py": "redis", "kazoo_lock.py": "kazoo"}.get(os.path.basename(words[2]))
        if module and subprocess.run([program, "-c", "import " + module],
                                     stderr=subprocess.DEVNULL).returncode:
            return "python3-%s is not installed" % module
        if os.path.basename(words[2]) == "command.py" and not shutil.which(words[4]):
            return "%s is not there" % words[4]
    return None
