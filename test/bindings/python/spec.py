# SPDX-License-Identifier: MIT
"""Run the scripts of test/bindings/spec with the Python package.

    spec.py aio|threads URL FILE...
    spec.py aio|threads --child PREFIX URL

spec/README.md defines the language.  The two kinds of clients have methods of the same
names, so the verbs are written once: settle() awaits what is to be awaited.  With
threads, `start` is a thread that waits, and `cancel` is Client.cancel().
"""
import asyncio
import inspect
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import holdfast

PATIENCE = 30
FLAGS = ("shared", "manual", "fair", "poll")
TIMES = ("ttl", "retry", "linger", "max_hold", "min_hold")
MODE = sys.argv[1]
OPEN = {"aio": holdfast.AsyncClient, "threads": holdfast.Client}[MODE]
KIND = {"aio": holdfast.AsyncLock, "threads": holdfast.Lock}[MODE]


async def settle(value):
    return await value if inspect.isawaitable(value) else value


def yes(value):
    return "yes" if value else "no"


class Script:
    def __init__(self, url, prefix):
        self.url, self.prefix = url, prefix
        self.clients, self.locks, self.requests = {}, {}, {}
        self.handles, self.processes, self.observers = {}, {}, {}
        self.threads = ThreadPoolExecutor(64)

    def options(self, words):
        options = {}
        for word in words:
            name, _, value = word.partition("=")
            if name == "wait":
                options["timeout"] = None if value == "-1" else int(value) / 1000
            elif name in TIMES:
                options[name] = int(value) / 1000
            elif name in FLAGS:
                options[name] = True
            else:
                options[name] = value if name in ("owner", "note") else int(value)
        return options

    def to_lock(self, words):
        """What `lock`, `all`, `start` and `startall` have in common: the names of the
        locks, and an object that has acquire()."""
        client, names, keys = words[:3]
        options = {"timeout": 0, **self.options(words[3:])}
        names, keys = names.split(","), [self.prefix + key for key in keys.split(",")]
        make = self.clients[client]
        return names, make.lock_all(keys, **options) if len(keys) > 1 else \
            make.lock(keys[0], **options)

    def keep(self, names, got):
        self.locks.update(zip(names, [got] if isinstance(got, KIND) else got))

    async def until(self, what):
        end = time.monotonic() + PATIENCE
        while not await settle(what()):
            if time.monotonic() > end:
                return "silence"
            await asyncio.sleep(0.005)
        return "ok"

    # -- clients and locks -------------------------------------------------------

    async def do_open(self, name, *more):
        url = dict(word.split("=", 1) for word in more).get("url", self.url)
        client = OPEN(url)
        if MODE == "aio":
            await client.__aenter__()
        self.clients[name] = client

    async def do_close(self, name):
        client = self.clients.pop(name)
        await settle(client.aclose() if MODE == "aio" else client.close())

    async def do_lock(self, *words):
        names, lock = self.to_lock(words)
        self.keep(names, await settle(lock.acquire()))

    do_all = do_lock

    async def do_start(self, *words):
        names, lock = self.to_lock(words)
        for name in names:
            self.locks.pop(name, None)
        if MODE == "aio":
            task = asyncio.ensure_future(lock.acquire())
        else:
            task = asyncio.get_running_loop().run_in_executor(self.threads, lock.acquire)
        self.requests[names[0]] = task, names, self.clients[words[0]]
        await asyncio.sleep(0)

    do_startall = do_start

    async def do_cancel(self, name):
        task, _, client = self.requests[name]
        if MODE == "aio":
            task.cancel()
        else:
            # One that comes before the wait begins has no effect.
            return await self.until(lambda: client.cancel() or task.done())

    async def do_pending(self, name):
        await asyncio.sleep(0)
        return yes(not self.requests[name][0].done())

    async def do_wait(self, name):
        task, names, _ = self.requests[name]
        await asyncio.wait([task], timeout=PATIENCE)
        if not task.done():
            return "pending"
        try:
            self.keep(names, task.result())
        except asyncio.CancelledError:
            return "canceled"

    async def do_release(self, name):
        await settle(self.locks[name].release())

    async def do_extend(self, name, *more):
        await settle(self.locks[name].extend(self.options(more).get("ttl")))

    async def do_downgrade(self, name):
        await settle(self.locks[name].downgrade())

    async def do_held(self, name):
        return yes(self.locks[name].held)

    async def do_lost(self, name):
        lost = self.locks[name].lost
        told = await asyncio.wait_for(lost.wait(), PATIENCE) if MODE == "aio" else \
            lost.wait(PATIENCE)
        held = self.locks[name].held
        return "held" if held else self.locks[name].loss if told else "silence"

    async def do_risk(self, name):
        lock = self.locks[name]
        if MODE == "aio":
            await asyncio.wait_for(lock.at_risk.wait(), PATIENCE)
        else:
            return await self.until(lambda: lock.remaining < lock._options["ttl"] / 3)

    async def do_fences(self, names):
        fences = [self.locks[name].fence for name in names.split(",")]
        pairs = list(zip(fences, fences[1:]))
        return ("unfenced" if not fences[0] else
                "rise" if all(a < b for a, b in pairs) else
                "same" if all(a == b for a, b in pairs) else "no")

    async def do_slots(self, names):
        slots = [self.locks[name].slot for name in names.split(",")]
        return yes(sorted(slots) == list(range(len(slots))))

    async def do_transfer(self, name, note):
        await settle(self.locks[name].transfer(note))

    # -- looking -------------------------------------------------------------------

    @staticmethod
    def words(info, names):
        values = {
            "held": "held" if info.held else "free",
            "mode": "shared" if info.shared else "exclusive",
            "holders": info.holders, "permits": info.permits or 0, "note": info.note,
            "waiters": -1 if info.waiters is None else info.waiters,
            "kept": yes(info.kept), "broken": yes(info.broken),
        }
        return " ".join(str(values[name]) for name in names)

    async def do_inspect(self, client, key, *names):
        info = await settle(self.clients[client].inspect(self.prefix + key))
        return self.words(info, names)

    async def do_holders(self, client, key):
        return str(len(await settle(self.clients[client].holders(self.prefix + key))))

    async def do_list(self, client, prefix):
        prefix = self.prefix + ("" if prefix == "*" else prefix)
        found = await settle(self.clients[client].list(prefix))
        return ",".join(sorted(key[len(self.prefix):] for key in found)) or "none"

    async def do_waiters(self, client, key, count):
        async def reached():
            info = await settle(self.clients[client].inspect(self.prefix + key))
            return info.waiters is None or info.waiters == int(count)
        return await self.until(reached)

    async def do_observe(self, client, name, key, *prefix):
        key = self.prefix + ("" if key == "*" else key)
        self.observers[name] = self.clients[client].observe(key, prefix=bool(prefix))

    async def do_change(self, name, *names, want=()):
        """Wait for changes until one is as expected; else the last one is told."""
        changes, got, end = self.observers[name], "silence", time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if MODE == "aio":
                change = await asyncio.wait_for(changes.wait(), PATIENCE)
            else:
                change = changes.wait(0.1)
            if change is not None:
                got = self.words(change.info, names)
            if got in want:
                break
        return got

    async def do_unobserve(self, name):
        self.observers.pop(name).close()

    async def do_check(self, client, name):
        lock = self.locks[name]
        stands = await settle(self.clients[client].check(lock.key, lock.fence))
        return "ok" if stands else "lost"

    async def do_break(self, client, name, *force):
        lock = self.locks[name]
        await settle(self.clients[client].break_lock(lock.key, lock.fence, force=bool(force)))

    async def do_detach(self, name, handle):
        self.handles[handle] = str(await settle(self.locks[name].detach()))

    async def do_attach(self, client, name, key, handle, *more):
        handle = holdfast.Handle.parse(self.handles[handle])
        assert handle.key == self.prefix + key
        attach = self.clients[client].attach(handle, **self.options(more))
        self.locks[name] = await settle(attach)

    async def do_extendhandle(self, client, _key, handle, *more):
        ttl = self.options(more).get("ttl")
        await settle(self.clients[client].extend(self.handles[handle], ttl))

    async def do_releasehandle(self, client, _key, handle):
        await settle(self.clients[client].release(self.handles[handle]))

    async def do_collect(self, client, older, *dry):
        collect = self.clients[client].collect(int(older) / 1000, dry_run=bool(dry))
        return "some" if (await settle(collect)).looked_at else "none"

    async def do_stats(self, client, *names, want=()):
        """A task that is cancelled does not wait for the end of its request: that is
        counted a moment later."""
        got = ""

        async def counted():
            nonlocal got
            stats = await settle(self.clients[client].stats())
            values = dict(stats._asdict(), waits=stats.wait.count, holds=stats.hold.count,
                          lost=sum(stats.lost.values()))
            got = " ".join(str(values[name]) for name in names)
            return got in want
        await self.until(counted)
        return got

    async def do_metrics(self, client):
        granted = (await settle(self.clients[client].stats())).granted
        text = await settle(self.clients[client].stats_text())
        return yes('result="granted"} %d\n' % granted in text and text.endswith("\n# EOF\n"))

    # -- processes -------------------------------------------------------------------

    async def do_process(self, name):
        self.processes[name] = subprocess.Popen(
            [sys.executable, __file__, MODE, "--child", self.prefix, self.url], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1)

    async def in_process(self, word, line):
        name, mark = word[:-1], word[-1]
        process = self.processes[name]
        if mark != ".":
            process.stdin.write(line + "\n")
        if mark == "&":
            return "ok"
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(self.threads, process.stdout.readline)
        return answer.strip() or name + " is gone"

    def signal(self, name, number):
        if name != "server":
            pid = self.processes[name].pid
        else:
            with open(os.environ["HF_TEST_MEMBERS"] + "/1/pid") as file:
                pid = int(file.read())
        os.kill(pid, number)

    async def do_freeze(self, name):
        self.signal(name, signal.SIGSTOP)

    async def do_thaw(self, name):
        self.signal(name, signal.SIGCONT)

    async def do_kill(self, name):
        self.signal(name, signal.SIGKILL)
        if name != "server":
            self.processes[name].wait()

    async def do_restart(self, _server):
        subprocess.run([os.environ["HF_TEST_MEMBERS"] + "/1/run"], check=True)

    # -- scripts -----------------------------------------------------------------------

    async def line(self, line, wanted=("ok",)):
        """Run a line without its `=>`: its result, and perhaps a text behind it."""
        words = line.split()
        if words[0][-1] in ":&.":
            return await self.in_process(words[0], line[len(words[0]):].strip())
        more = {"want": wanted} if words[0] in ("change", "stats") else {}
        try:
            return await getattr(self, "do_" + words[0])(*words[1:], **more) or "ok"
        except holdfast.Error as error:
            return "%s %s" % (error.status, error)

    def lacks(self, traits):
        with holdfast.Client(self.url) as client:
            has = client.service.traits
        return any(not os.environ.get("HF_TEST_MEMBERS") if name == "server" else
                   not has & holdfast.Trait[name.upper()] for name in traits)

    async def run(self, lines):
        for number, line in enumerate(lines, 1):
            line, _, want = line.strip().partition(" => ")
            if not line or line[0] == "#":
                continue
            if line.startswith("needs "):
                if self.lacks(line.split()[1:]):
                    return "skip"
                continue
            wanted = (want.strip() or "ok").split("|")
            got = await self.line(line, wanted)
            if not any(got == one or got.startswith(one + " ") for one in wanted):
                print("# line %d: %s\n# expected %s, got %s" % (
                    number, line, "|".join(wanted), got))
                return "fail"
        return "pass"

    async def close(self):
        if os.environ.get("HF_TEST_MEMBERS"):
            self.signal("server", signal.SIGCONT)
        for process in self.processes.values():
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
        for name in list(self.clients):
            await self.do_close(name)
        for task, _, _ in self.requests.values():
            await asyncio.wait([task])
            task.cancelled() or task.exception()
        self.threads.shutdown()


async def child(prefix, url):
    script = Script(url, prefix)
    loop = asyncio.get_running_loop()
    while True:
        line = await loop.run_in_executor(None, sys.stdin.readline)
        if not line:
            break
        print(await script.line(line), flush=True)
    await script.close()


async def one(url, number, path):
    script = Script(url, "spec-%d-%d-" % (os.getpid(), number))
    try:
        with open(path) as file:
            return await script.run(file)
    finally:
        await script.close()


def main():
    if sys.argv[2] == "--child":
        return asyncio.run(child(*sys.argv[3:5]))
    url, files, failed = sys.argv[2], sys.argv[3:], False
    print("1..%d" % len(files))
    for number, path in enumerate(files, 1):
        end = asyncio.run(one(url, number, path))
        print("%sok %d - %s%s" % (
            "not " if end == "fail" else "", number, os.path.basename(path),
            " # SKIP the service has it not" if end == "skip" else ""), flush=True)
        failed = failed or end == "fail"
    return failed


sys.exit(main())
