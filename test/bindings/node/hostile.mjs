// SPDX-License-Identifier: MIT
//
// hostile.mjs - arguments, moments and orders that nobody should choose, and
// somebody does.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { after, test } from "node:test";
import { promisify } from "node:util";
import { Worker } from "node:worker_threads";

const holdfast = process.env.HOLDFAST_NODE + "/index.mjs";
const { Client, Lock } = await import(holdfast);

const alive = setInterval(() => {}, 1000);
after(() => clearInterval(alive));

let names = 0;
const url = () => `mem:hostile-${names++}`;
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const wrong = (call) =>
  assert.rejects(
    async () => call(),
    (error) => error instanceof TypeError || error instanceof RangeError || error.code === "HF_INVALID"
  );

// In a process of its own, whose end is looked at.
const run = (code, ...args) =>
  promisify(execFile)(process.execPath, ["--input-type=module", "-e", code, holdfast, ...args], {
    timeout: 60000,
    env: { ...process.env, ASAN_OPTIONS: "detect_leaks=0" },
  });

test("a text is never cut or changed", async () => {
  const client = await Client.open(url());
  const lock = await client.lock("a");
  // A lone surrogate has no UTF-8: three keys would be one.
  for (const bad of ["a\0b", "\ud800", "x\udfff", "k".repeat(1025), "", 5, null, Symbol("k")]) {
    await wrong(() => client.tryLock(bad));
    await wrong(() => client.inspect(bad));
    await wrong(() => client.tryLock(["x", bad]));
  }
  for (const bad of ["a\0b", "\ud800", "n".repeat(300)]) {
    await wrong(() => client.tryLock("x", { note: bad }));
    await wrong(() => client.tryLock("x", { owner: bad }));
  }
  await wrong(() => lock.transfer("a\0b"));
  await wrong(() => Client.open("mem:a\0b"));
  assert.equal((await client.inspect("x")).held, false);
  await client.close();
});

test("a number is never cut", async () => {
  const client = await Client.open(url());
  const lock = await client.lock("k", { ttl: 60000 });
  const over = lock.fence + 2n ** 64n;
  for (const fence of [over, -1n, lock.fence - 2n ** 64n]) {
    await wrong(() => client.check("k", fence));
    await wrong(() => client.break("k", fence));
  }
  assert(lock.held);
  for (const [name, values] of Object.entries({
    permits: [2 ** 32 + 1, 1.5, Infinity, NaN],
    tries: [2 ** 32 + 1, "3"],
    ttl: [Infinity, NaN, 1e300, -5],
    wait: [NaN, 1e300],
  }))
    for (const value of values) await wrong(() => client.lock("x", { wait: 0, [name]: value }));
  // Less than a millisecond is one, and not the default.
  const short = await client.lock("y", { ttl: 10.5, manual: true });
  assert(short.remaining <= 11);
  await assert.rejects(client.lock("k", { wait: 0.5 }), { code: "HF_TIMEOUT" });
  await client.close();
});

test("what only the package makes cannot be made", async () => {
  const client = await Client.open(url());
  const lock = await client.lock("k");
  await wrong(() => new Client());
  await wrong(() => new Lock());
  await wrong(() => new Lock(client, {}, 0, "k"));
  await wrong(() => new lock.constructor(client, lock, 0, "k"));
  for (const name of ["lock", "inspect", "stats", "close"])
    await wrong(() => Client.prototype[name].call(Object.create(Client.prototype), "k"));
  assert(lock.held);
  await client.close();
});

test("options that are none are refused", async () => {
  const client = await Client.open(url());
  for (const bad of [5, "x", null, true, [], () => {}]) {
    await wrong(() => client.lock("k", bad));
    await wrong(() => client.tryLock("k", bad));
    await wrong(() => Client.open(url(), bad));
  }
  for (const bad of [{ shared: "no" }, { manual: 1 }, { signal: {} }])
    await wrong(() => client.lock("k", bad));
  await wrong(() => client.using("k", 5, () => {}));
  const trap = new Proxy({}, { get: () => { throw new TypeError("mine"); } });
  await assert.rejects(client.lock("k", trap), /mine/);
  assert.equal((await client.inspect("k")).held, false);
  await client.close();
});

test("a flag is true or false", async () => {
  const client = await Client.open(url());
  const lock = await client.lock("k");
  for (const bad of ["no", "", 0, 1, null, {}]) {
    await wrong(() => client.break("k", lock.fence, { force: bad }));
    await wrong(() => client.collect({ dryRun: bad }));
    await wrong(() => client.observe("k", { prefix: bad }).next());
  }
  assert.equal(await client.tryLock("k"), null);
  assert(lock.held);
  await client.close();
});

test("options may be inherited, and getters of a class", async () => {
  class Readers {
    get shared() {
      return true;
    }
    get wait() {
      return 60000;
    }
  }
  const client = await Client.open(url());
  const first = await client.lock("k", new Readers());
  const second = await client.tryLock("k", Object.create(new Readers()));
  assert(second.held);
  assert.equal(await client.tryLock("k", { wait: 60000 }), null);
  const { signal } = new AbortController();
  for await (const info of client.leaders("k", Object.create({ signal }))) {
    assert(info.held);
    break;
  }
  await assert.rejects(
    () => client.leaders("k", Object.create({ signal: AbortSignal.abort("enough") })).next(),
    (error) => error === "enough"
  );
  await Promise.all([first.release(), second.release()]);
  await client.close();
});

test("whatever is thrown is what is told", async () => {
  const at = url();
  const [client, other] = [await Client.open(at), await Client.open(at)];
  for (const what of [undefined, null, 5]) {
    const leads = client.elect("k", async (lock, signal) => {
      await other.break("k", lock.fence);
      if (!signal.aborted) await once(signal, "abort");
      throw what;
    });
    await assert.rejects(leads, (error) => error === what);
  }
  const aborted = AbortSignal.abort(null);
  await assert.rejects(client.tryLock("k", { signal: aborted }), (error) => error === null);
  await Promise.all([client.close(), other.close()]);
});

test("a handle that is no handle is refused", async () => {
  const client = await Client.open(url());
  const lock = await client.lock("k");
  const handle = await lock.detach();
  await wrong(() => client.attach("k", { ...handle, token: handle.token + "x".repeat(99) }));
  await wrong(() => client.extendHandle("k", { ...handle, ref: "x".repeat(99) }));
  await wrong(() => client.releaseHandle("k", { ...handle, fence: "-1" }));
  await client.releaseHandle("k", handle);
  await client.close();
});

test("close may come at any moment", async () => {
  const at = url();
  for (let i = 0; i < 60; i++) {
    const client = await Client.open(at);
    const ends = [];
    for (let n = 0; n < 8; n++)
      ends.push(
        (async () => {
          for (;;) {
            const lock = await client.lock("k");
            await Promise.all([lock.extend(), client.inspect("k"), client.holders("k")]);
            client.stats();
            await lock.release();
          }
        })().catch((error) => error)
      );
    const observed = (async () => {
      for await (const _ of client.observe("k"));
    })().catch((error) => error);
    if (i % 3) await sleep(i % 7);
    const closed = client.close();
    assert.throws(() => client.stats(), { code: "HF_INVALID" });
    await closed;
    for (const end of await Promise.all(ends))
      assert.match(end.code, /^HF_(CANCELED|INVALID|LOST)$/);
    assert.match((await observed)?.code ?? "HF_INVALID", /^HF_INVALID$/);
  }
});

test("a release that comes while the client closes is a release", async () => {
  const client = await Client.open(url());
  const [a, b] = [await client.lock("a"), await client.lock("b")];
  const first = a.release();
  const closed = client.close();
  const second = b.release();
  await first;
  await second.catch((error) => assert.equal(error.code, "HF_LOST"));
  await closed;
});

// Whatever the worker is at, it ends, and what it held is free.
test("a worker is terminated at any moment", { timeout: 120000 }, async () => {
  const at = url();
  const client = await Client.open(at);
  const code = `
    const { parentPort, workerData } = require("node:worker_threads");
    import(workerData.holdfast).then(async ({ Client }) => {
      parentPort.postMessage("begins");
      for (;;) {
        const client = await Client.open(workerData.at, { log() {}, logLevel: "debug" });
        const lock = await client.lock("k");
        client.lock("k").catch(() => {});
        client.observe("k").next();
        await Promise.all([lock.extend(), client.holders("k"), client.list("")]);
        await lock.release();
        await client.close().catch(() => {});
      }
    });`;
  for (let i = 0; i < 25; i++) {
    const worker = new Worker(code, { eval: true, workerData: { holdfast, at } });
    await once(worker, "message");
    await sleep(i % 13);
    await worker.terminate();
    await (await client.lock("k", { wait: 30000 })).release();
  }
  await client.close();
});

test("waiters are told", async () => {
  const at = url();
  const [a, b] = [await Client.open(at), await Client.open(at)];
  const lock = await a.lock("k");
  const next = b.lock("k", { note: "next" });
  for (;;) {
    const [one] = await a.waiters("k");
    if (one?.note === "next" && one.place === 1) break;
    await sleep(2);
  }
  await lock.release();
  await next;
  await wrong(() => a.waiters("a\0b"));
  await Promise.all([a.close(), b.close()]);
});

test("counters are those of the client", async () => {
  const client = await Client.open(url());
  const lock = await client.lock("k", { maxHold: 20 });
  await once(lock, "lost");
  await lock.release().catch(() => {});
  const stats = client.stats();
  assert.equal(stats.granted, 1);
  assert.deepEqual(stats.lost, { "max-hold": 1 });
  assert.equal(stats.wait.buckets.length, 32);
  assert.equal(stats.wait.buckets.reduce((a, b) => a + b), stats.wait.count);
  assert.match(client.statsText(), /\n# EOF\n$/);
  await client.close();
});

// holdfast's own handler of the exit closes the clients; others may come later.
test("what is used after the exit has closed it is closed", async () => {
  const code = `
    const { Client } = await import(process.argv[1]);
    const client = await Client.open("mem:");
    const one = await client.lock("a");
    const [two] = await client.lock(["b", "c"]);
    const seen = client.observe("a");
    await seen.next();
    const wrong = (call) => { try { call()?.catch?.(() => {}); } catch (error) { return error.code; } };
    for (const lock of [one, two]) lock.on("lost", () => console.log("an event"));
    process.on("exit", () => {
      for (const lock of [one, two]) {
        console.log(lock.held, lock.remaining, lock.lostReason, client.closed);
        for (const name of ["extend", "downgrade", "detach", "release"]) wrong(() => lock[name]());
        wrong(() => lock.transfer("x"));
      }
      for (const name of ["lock", "inspect", "holders", "list", "attach", "close"])
        wrong(() => client[name]("k", one));
      wrong(() => seen.next());
      wrong(() => seen.return());
      console.log(wrong(() => client.stats()), wrong(() => client.statsText()));
    });
    if (process.argv[2]) process.exit(0);`;
  const closed = "false 0 closed true\n".repeat(2) + "HF_INVALID HF_INVALID\n";
  assert.equal((await run(code)).stdout, closed);
  assert.equal((await run(code, "exit")).stdout, closed);
});

test("an event for a lock that is being detached finds nobody", async () => {
  const client = await Client.open(url());
  const ends = [];
  for (let i = 0; i < 200; i++)
    ends.push(
      client
        .lock("k" + i, { ttl: 10 + (i % 5), manual: true })
        .then(async (lock) => (await sleep(8 + (i % 9)), lock.detach()))
        .catch((error) => assert.equal(error.code, "HF_LOST"))
    );
  await Promise.all(ends);
  await client.close();
});

// In a process of its own: a lock that is not there was a crash.
test("the array of keys is read once", async () => {
  const { stdout } = await run(`
    const { Client } = await import(process.argv[1]);
    const client = await Client.open("mem:");
    for (const change of [(a) => { a.length = 0; }, (a) => { for (let i = 0; i < 4000; i++) a.push("x" + i); },
                          (a) => { a[0] = 5; }]) {
      const keys = ["a", "b"];
      const set = client.lock(keys);
      change(keys);
      await set.then(async (set) => (console.log(set.locks.map((lock) => lock.key).join(), set.held), set.release()));
      console.log(client.stats().held);
    }
    for (const bad of [5, "a\\0b", "\\ud800", "c"]) {
      const keys = ["a", "b"];
      const set = await client.lock(keys, { get ttl() { keys[0] = bad; return 30000; } });
      console.log(set.locks.map((lock) => lock.key).join());
      await set.release();
    }
    await client.close();`);
  assert.equal(stdout, "a,b true\n0\n".repeat(3) + "a,b\n".repeat(4));
});

test("a listener that throws does not stop the end of a client", async () => {
  const { stdout } = await run(`
    const { Client } = await import(process.argv[1]);
    const client = await Client.open("mem:");
    process.on("uncaughtException", (error) => console.log("uncaught", error.message));
    const first = await client.lock("a");
    const set = await client.lock(["c", "d"]);
    const second = await client.lock("b");
    first.on("lost", () => { throw new Error("of the lock"); });
    set.on("lost", () => { throw new Error("of the set"); });
    set.locks[0].on("lost", () => console.log("part of the set"));
    second.on("lost", (reason) => console.log("second", reason));
    const waits = client.lock("a").catch((error) => console.log("waits", error.code));
    await client.close();
    await waits;
    console.log(client.closed, first.held, first.lostReason);
    const other = await Client.open("mem:");
    const lost = await other.lock("a");
    lost.on("lost", () => { throw new Error("of the loss"); });
    const told = new Promise((done) => other.on("lost", done));
    const alive = setInterval(() => {}, 1000);
    await other.break("a", lost.fence, { force: true });
    console.log((await told) === lost);
    clearInterval(alive);
    await other.close();
    console.log(lost.lostReason);`);
  const lines = stdout.split("\n").sort();
  assert.deepEqual(lines, [
    "", "broken", "part of the set", "second closed", "true", "true false closed", "uncaught of the lock",
    "uncaught of the loss", "uncaught of the set", "uncaught of the set", "waits HF_CANCELED",
  ]);
});

test("a signal that is none leaves nothing behind", async () => {
  const at = url();
  const [client, other] = [await Client.open(at), await Client.open(at)];
  const fails = () => { throw new Error("boo"); };
  const nothing = () => {};
  for (const signal of [
    { throwIfAborted: nothing },
    { throwIfAborted: fails, addEventListener: nothing, removeEventListener: nothing },
    { throwIfAborted: nothing, addEventListener: fails, removeEventListener: nothing },
    { throwIfAborted: nothing, addEventListener: nothing },
  ]) {
    await assert.rejects(client.lock("k", { signal }), /boo|AbortSignal/);
    await assert.rejects(client.lock(["k", "l"], { signal }), /boo|AbortSignal/);
    await assert.rejects(client.observe("k", { signal }).next(), /boo|AbortSignal/);
    // What was begun would be granted by now, since this is begun later.
    await (await client.lock("other")).release();
    assert.equal(client.stats().held + client.stats().waiting, 0);
    await (await other.lock("k")).release();
  }
  // It cannot be left, and it is the lock of the one who asked all the same.
  const odd = { throwIfAborted: nothing, addEventListener: nothing, removeEventListener: fails };
  const lock = await client.lock("k", { signal: odd });
  await lock.release();
  assert.equal((await other.inspect("k")).held, false);
  await Promise.all([client.close(), other.close()]);
});

test("any number of requests share a signal", async () => {
  const { stdout, stderr } = await run(`
    import { getEventListeners } from "node:events";
    const { Client } = await import(process.argv[1]);
    const client = await Client.open("mem:");
    const held = await client.lock("k");
    const abort = new AbortController();
    const { signal } = abort;
    const seen = client.observe("k", { signal });
    await seen.next();
    const waits = Array.from({ length: 50 }, () => client.lock("k", { signal }).catch((error) => error));
    const free = await client.lock("free", { signal });
    console.log(getEventListeners(signal, "abort").length <= 1);
    abort.abort("enough");
    console.log((await Promise.all(waits)).every((error) => error === "enough"));
    await seen.next().catch((error) => console.log(error));
    console.log(free.held, client.stats().waiting, getEventListeners(signal, "abort").length);
    const again = new AbortController();
    await (await client.lock("x", { signal: again.signal })).release();
    console.log(getEventListeners(again.signal, "abort").length);
    await client.close();`);
  assert.equal(stderr, "");
  assert.equal(stdout, "true\ntrue\nenough\ntrue 0 0\n0\n");
});

test("a promise tells what is wrong, and nothing is thrown at once", async () => {
  const client = await Client.open(url());
  const lock = await client.lock("k");
  const bad = [
    () => client.lock(5), () => client.lock("k", 5), () => client.tryLock(5), () => client.using(5),
    () => client.elect(5), () => client.leader(5), () => client.attach(5), () => client.attach("k"),
    () => client.extendHandle(5), () => client.extendHandle("k"), () => client.releaseHandle(5),
    () => client.inspect(5), () => client.holders(5), () => client.waiters(5), () => client.list(5),
    () => client.check(5), () => client.check("k", 5), () => client.break(5), () => client.break("k", 5),
    () => client.break("k", 5n, null), () => client.collect({ older: "x" }), () => client.collect(null),
    () => client.observe(5).next(), () => client.observe("k", null).next(), () => client.leaders(5).next(),
    () => lock.extend("x"), () => lock.transfer(5), () => client.attach("k", null),
    () => client.using("k"), () => client.using("k", {}, 5), () => client.elect("k"), () => client.elect("k", {}),
    () => client.lock("k", null), () => client.leaders("k", null).next(), () => client.break("k", null),
    () => client.extendHandle("k", null), () => client.releaseHandle("k", null), () => Client.open("mem:", null),
    () => Client.open(5), () => Client.open("mem:", 5),
  ];
  for (const call of bad) {
    const promise = call(); // not in a function of assert's, which would catch it
    await assert.rejects(promise, (error) => error instanceof TypeError, String(call));
    await assert.rejects(promise, / must be /, String(call));
  }
  assert(lock.held);
  await client.close();
});
