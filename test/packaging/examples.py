#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""examples.py SERVICE - what the manual pages show under EXAMPLES is true; prints TAP.

With a service (redis, redlock, etcd, zk, consul, postgres, mysql), the commands that
name its URL are run, with the server of $HF_TEST_URL in place of the one of the page.
With "local", all commands that name no server are run.  With "c", every piece of C
must compile, inside of a function that has the names it uses.

Programs that a page only names are scripts that write their name.  What is not run is
in SKIPPED, with the reason.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

PAGES = pathlib.Path(__file__).resolve().parents[2] / "doc" / "man"
HOLDFAST = os.environ.get("HOLDFAST", "holdfast")
URL = os.environ.get("HF_TEST_URL", "")
SERVER = re.compile(r"\b(redis|redlock|etcd|zk|consul|postgres|mysql)://[^\s'\"?]*(\?[^\s'\"]*)?")
SKIPPED = {
    "holdfast-serve.1": "test/serve runs it",
    "holdfast-top.1": "it needs a terminal; test/cli/top.sh has one",
    "holdfast-torture.1": "test/torture runs it",
}
STUBS = ["backup", "sync", "nightly", "psql", "convert", "step_one", "step_two"]
PRELUDE = """
#include <holdfast.h>
#include <err.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
struct job { const char *name; bool done; };
struct step { int64_t worst_case_ms; };
"""
NAMES = """hf_client *client, hf_lock *lock, struct hf_error err, hf_status st,
    const char *key, const char *from, const char *to, const char *account,
    const char *request_id, const char *temporary_name, const char *final_name,
    struct hf_lock_opts opts, struct hf_info info, struct hf_event event,
    struct step step, int batch, int child, int child_pidfd, int connection, int listing"""


def examples(page):
    """Each display of the section, as the text that a reader sees."""
    section = re.search(r"^\.Sh EXAMPLES\n(.*?)(?=^\.Sh |\Z)", page.read_text(), re.M | re.S)
    shown = r"^\.Dl ([^\n]*)$|^\.Bd -literal.*?\n(.*?)^\.Ed$"
    for match in re.finditer(shown, section.group(1) if section else "", re.M | re.S):
        text = match.group(1) or match.group(2)
        yield text.replace("\\(dq", '"').replace("\\e", "\\").replace("\\&", "").strip("\n")


def service_of(text):
    match = SERVER.search(text)
    return match.group(1) if match else "local"


def with_our_server(match):
    """The URL of the page, at our server; its database, rights and path are ours."""
    if match.group(1) in ("postgres", "mysql", "redlock"):
        return URL
    hosts = URL.split("?")[0].split("/")[2]
    path = match.group(0).split("?")[0].split("/")[3:]
    return "/".join([f"{match.group(1)}://{hosts}", *path]) + (match.group(2) or "")


def prepared(text, place):
    """The commands of the example, with files and programs of this test."""
    text = "\n".join(re.sub(r"^[*/0-9]+( [*0-9]+){4} ", "", line) for line in text.split("\n"))
    for there in ("/usr/local/bin/", "/run/lock/", "/var/lib/", "/etc/"):
        text = text.replace(there, "./" if "bin" in there else f"{place}{there}")
    for name in set(re.findall(r"\./([a-z-]+(?:\.sh)?)", text)) | set(STUBS):
        stub = place / name
        stub.write_text(f"#!/bin/sh\necho {name} ran\n[ {name} != server ] || sleep 2\n")
        stub.chmod(0o755)
    if "$ " in text:
        return transcript(text)
    if " watch " in text:
        return f"timeout 2 {text} || [ $? = 124 ]"
    return text + "\nwait"


def transcript(text):
    """Its commands, while somebody holds the key, with the fence of that holder."""
    commands = [line[2:] for line in text.split("\n") if line.startswith("$ ")]
    key = commands[0].split()[-1]
    fence = f"$(holdfast status {key} | sed -n 's/.*fence \\([0-9]*\\).*/\\1/p')"
    holder = f"holdfast elect --value alpha {key} -- sleep 100 & until holdfast status {key}; do sleep 0.05; done"
    return "\n".join([holder, *(re.sub(r"\d{16}", lambda _: fence, one) for one in commands), "kill $!; wait || true"])


def run(text):
    """What went wrong, or nothing."""
    with tempfile.TemporaryDirectory() as name:
        place = pathlib.Path(name)
        (place / "settle.sql").touch()
        for part in ("run/lock/app", "var/lib/app", "etc/app"):
            (place / part).mkdir(parents=True)
        text = prepared(SERVER.sub(with_our_server, text), place)
        # A lock that can be kept over several steps needs a service that can.
        local = "sqlite:" if "acquire" in text else "file:"
        env = dict(os.environ, HOME=name, USER="you", HOLDFAST_URL=f"{local}{name}/locks",
                   PATH=f"{name}:{os.path.dirname(HOLDFAST)}:{os.environ['PATH']}")
        if "HF_TEST_CONSUL" in env:
            env["PATH"] = os.path.dirname(env["HF_TEST_CONSUL"]) + ":" + env["PATH"]
            env["CONSUL_HTTP_ADDR"] = "http://" + URL.split("/")[2]
        done = subprocess.run(["timeout", "-k5", "60", "sh", "-euc", text], cwd=name, env=env, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return "" if done.returncode == 0 else f"{text}\n-> {done.returncode}\n{done.stdout}"


def compiled(text):
    """What the compiler says against the piece; functions come before the rest."""
    parts = re.split(r"(^static [^;{]*;$|^static .*?^}$)", text, flags=re.M | re.S)
    outside, inside = "\n".join(parts[1::2]), "\n".join(parts[0::2])
    if re.search(r"^case ", inside, re.M):
        inside = f"switch (event.type) {{\n{inside}\ndefault:;\n}}"
    source = f"{PRELUDE}{outside}\nint piece({NAMES})\n{{\n{{\n{inside}\n}}\nreturn 0;\n}}\n"
    if "int main(" in text:
        source = text
    done = subprocess.run(
        ["cc", "-std=c11", "-D_GNU_SOURCE", "-w", "-fsyntax-only", f"-I{PAGES.parents[1]}/include", "-xc", "-"],
        input=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    header = (PAGES.parents[1] / "include" / "holdfast.h").read_text()
    unknown = set(re.findall(r"\b(?:hf|HF)_\w+", text)) - set(re.findall(r"\b\w+\b", header))
    return "" if done.returncode == 0 and not unknown else f"unknown: {unknown}\n{done.stdout}"


def is_shell(text):
    return re.search(r"^(\$ |[*/0-9]+ .*)?(holdfast|export|lock=)|^(etcdctl|consul|flock) lock|^flock ", text, re.M)


def cases(kind):
    for page in sorted(PAGES.glob("*.3" if kind == "c" else "*.[17]")):
        for text in examples(page):
            if kind == "c" and not text.startswith(("UPDATE", "SELECT")):
                yield page.name, text, compiled
            elif kind != "c" and is_shell(text) and service_of(text) == kind:
                yield page.name, text, run


def main(kind):
    count = failed = 0
    for page, text, judge in cases(kind):
        count += 1
        name = f"{page}: {text.splitlines()[0]}".replace("#", "")
        reason = SKIPPED.get(page) or ("it starts servers at fixed ports" if "redis-server" in text else None)
        if reason:
            print(f"ok {count} - {name} # SKIP {reason}")
            continue
        wrong = judge(text)
        failed += bool(wrong)
        print("".join(f"# {line}\n" for line in wrong.splitlines()), end="")
        print(f"{'not ok' if wrong else 'ok'} {count} - {name}", flush=True)
    print(f"1..{count}")
    return failed > 0 or count == 0


sys.exit(main(sys.argv[1]))
