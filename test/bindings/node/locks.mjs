// SPDX-License-Identifier: MIT
//
// locks.mjs - what is special to Node.js: signals, events, iterators, the end of
// the process, worker threads, and what is left behind.  The scripts of spec/
// test what all bindings have in common.

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { readdirSync, readFileSync } from "node:fs";
import { after, test } from "node:test";
import { promisify } from "node:util";
import { Worker } from "node:worker_threads";

const holdfast = process.env.HOLDFAST_NODE + "/index.mjs";
const { Client, HoldfastError, services, version } = await import(holdfast);
const { createRequire } = await import("node:module");

// To wait for a loss does not keep the process alive.
const alive = setInterval(() => {}, 1000);
after(() => clearInterval(alive));

let names = 0;
const url = () => `mem:node-${names++}`;
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

async function until(test, what) {
  for (const end = Date.now() + 30000; !(await test()); await sleep(2))
    assert(Date.now() < end, "never: " + what);
}

const fails = (promise, code) =>
  assert.rejects(promise, (error) => {
    assert(error instanceof HoldfastError, error.stack);
    assert.equal(error.code, code);
    return true;
  });

test("both kinds of modules see the same package", () => {
  const old = createRequire(import.meta.url)(process.env.HOLDFAST_NODE);
  assert.equal(old.Client, Client);
  assert.match(version, /^\d+\.\d+\.\d+$/);
  assert(services().some((one) => one.name === "mem" && one.traits.includes("fenced")));
  for (const one of services().filter((one) => !one.missing)) {
    assert.match(one.page, /^holdfast-/);
    assert.equal(typeof one.tested, "string");
  }
});

test("an aborted signal ends the waiting with its reason", async () => {
  const at = url();
  const [a, b] = [await Client.open(at), await Client.open(at)];
  const held = await a.lock("k");
  await assert.rejects(b.lock("k", { signal: AbortSignal.timeout(20) }), { name: "TimeoutError" });
  const abort = new AbortController();
  const waiting = b.lock("k", { signal: abort.signal });
  await until(async () => (await a.inspect("k")).waiters === 1, "a waiter");
  const reason = new Error("enough");
  abort.abort(reason);
  await assert.rejects(waiting, reason);
  await assert.rejects(b.lock("free", { signal: AbortSignal.abort(reason) }), reason);
  assert.equal((await a.inspect("k")).waiters, 0);
  await held.release();
  await (await b.lock("k")).release();
  await Promise.all([a.close(), b.close()]);
});

test("an abort after the grant changes nothing", async () => {
  const client = await Client.open(url());
  const abort = new AbortController();
  const lock = await client.lock("k", { signal: abort.signal });
  abort.abort();
  assert(lock.held);
  await lock.release();
  await client.close();
});

test("a loss is an event, aborts the signal and fails the release", async () => {
  const client = await Client.open(url());
  const lock = await client.lock("k", { ttl: 50, manual: true });
  const told = once(client, "lost");
  const [reason] = await once(lock, "lost");
  assert.equal(reason, "expired");
  assert.equal((await told)[0], lock);
  assert.equal(lock.held, false);
  assert.equal(lock.lostReason, "expired");
  assert(lock.signal.aborted);
  assert.equal(lock.signal.reason.code, "HF_LOST");
  await fails(lock.release(), "HF_LOST");
  await client.close();
});

// Keep every event from being delivered until the lock is lost.
function block(ms) {
  for (const end = Date.now() + ms; Date.now() < end; );
}

test("a loss that comes with the grant is told to who listens then", async () => {
  const client = await Client.open(url());
  const all = [];
  client.on("lost", (lock) => all.push(lock.key));
  const one = client.lock("k", { maxHold: 20 });
  block(300);
  const lock = await one;
  assert.deepEqual(await once(lock, "lost"), ["max-hold"]);
  assert(lock.signal.aborted);
  const several = client.lock(["a", "b"], { maxHold: 20 });
  block(300);
  const set = await several;
  const { signal } = set;
  await once(set, "lost");
  assert(signal.aborted);
  await until(() => all.length === 3, "the losses of the client");
  assert.deepEqual(all.sort(), ["a", "b", "k"]);
  await fails(lock.release(), "HF_LOST");
  await client.close();
});

test("a lock that is lost while it is attached is told of once", async () => {
  const client = await Client.open(url());
  const all = [];
  client.on("lost", (lock) => all.push(lock.key));
  for (let i = 0; i < 20; i++) {
    const handle = await (await client.lock("k" + i)).detach();
    const attached = client.attach("k" + i, handle, { maxHold: 1 + (i % 4) });
    if (i % 2) block(20);
    const lock = await attached;
    const { signal } = lock;
    assert.deepEqual(await once(lock, "lost"), ["max-hold"]);
    assert(signal.aborted);
    await fails(lock.release(), "HF_LOST");
  }
  assert.equal(all.length, 20);
  await client.close();
});

test("using releases, returns the value, and tells of a loss", async () => {
  const client = await Client.open(url());
  assert.equal(await client.using("k", async (lock) => lock.held), true);
  assert.equal(await client.using(["a", "b"], (set) => [...set].length), 2);
  await assert.rejects(client.using("k", async () => { throw new Error("mine"); }), /mine/);
  await fails(client.using("k", { maxHold: 20 }, (lock) => once(lock, "lost")), "HF_LOST");
  assert.equal((await client.inspect("k")).held, false);
  await client.close();
});

test("asyncDispose releases once", async () => {
  const client = await Client.open(url());
  const lock = await client.lock("k");
  await lock[Symbol.asyncDispose]();
  assert.equal((await client.inspect("k")).held, false);
  await lock[Symbol.asyncDispose]();
  const set = await client.lock(["a", "b"]);
  await set.get("a").release();
  await set[Symbol.asyncDispose]();
  assert.deepEqual(await client.list(), []);
  await client[Symbol.asyncDispose]();
  await fails(client.inspect("k"), "HF_INVALID");
});

test("what is wrong has a code and the caller's stack", async () => {
  await fails(Client.open("none-such:"), "HF_INVALID");
  await fails(Client.open(""), "HF_INVALID");
  const client = await Client.open(url());
  await assert.rejects(client.lock(7), TypeError);
  await assert.rejects(client.lock("k", { ttl: "soon" }), TypeError);
  await assert.rejects(client.lock("k\0"), TypeError);
  await fails(client.lock([]), "HF_INVALID");
  await fails(client.lock("k".repeat(2000)), "HF_INVALID");
  await fails(client.lock("k", { note: "n".repeat(300) }), "HF_INVALID");
  const lock = await client.lock("k");
  assert.equal(await client.tryLock("k"), null);
  await fails(client.lock("k", { wait: 10 }), "HF_TIMEOUT");
  async function caller() {
    await client.lock("k", { wait: 0 });
  }
  await assert.rejects(caller, (error) => error.stack.includes("caller"));
  await lock.release();
  await fails(lock.release(), "HF_INVALID");
  await fails(lock.extend(), "HF_INVALID");
  await client.close();
});

test("a release waits for the calls before it", async () => {
  const client = await Client.open(url());
  const lock = await client.lock("k");
  const ends = [lock.extend(5000), lock.extend(6000), lock.downgrade(), lock.release()];
  assert.deepEqual((await Promise.allSettled(ends)).map((end) => end.status), Array(4).fill("fulfilled"));
  await client.close();
});

test("close ends what waits and what is held", async () => {
  const at = url();
  const [a, b] = [await Client.open(at), await Client.open(at)];
  const lock = await a.lock("k");
  const waiting = b.lock("k");
  await until(async () => (await a.inspect("k")).waiters === 1, "a waiter");
  await Promise.all([fails(waiting, "HF_CANCELED"), b.close()]);
  const lost = once(lock, "lost");
  const other = await a.lock("other");
  const releasing = other.release();
  await Promise.all([a.close(), a.close()]);
  await releasing;
  assert.deepEqual(await lost, ["closed"]);
  await fails(lock.release(), "HF_LOST");
});

test("ten thousand locks wait at once, in turn", { timeout: 120000 }, async () => {
  const n = 10000;
  const client = await Client.open(url());
  const first = await client.lock("k");
  const threads = () => readdirSync("/proc/self/task").length;
  const before = threads();
  let inside = 0;
  const all = Array.from({ length: n }, async (_, i) => {
    const lock = await client.lock("k");
    assert.equal(++inside, 1);
    inside--;
    await lock.release();
    return i;
  });
  assert(threads() < before + 20, "a thread for each");
  await first.release();
  assert.deepEqual(await Promise.all(all), Array.from({ length: n }, (_, i) => i));
  await client.close();
});

test("the event loop goes on while the service is waited for", async () => {
  const client = await Client.open(url());
  const lock = await client.lock("k");
  const waiting = client.lock("k");
  let ticks = 0;
  while (ticks < 100) {
    await new Promise(setImmediate);
    ticks++;
  }
  await lock.release();
  await (await waiting).release();
  await client.close();
});

test("observers iterate, end with their signal, and with the client", async () => {
  const client = await Client.open(url());
  const abort = new AbortController();
  const seen = [];
  const watching = (async () => {
    for await (const info of client.observe("k", { signal: abort.signal })) seen.push(info.held);
  })();
  await until(() => seen.length === 1, "the present state");
  const lock = await client.lock("k");
  await until(() => seen.at(-1) === true, "held");
  await lock.release();
  await until(() => seen.at(-1) === false, "free");
  abort.abort();
  await assert.rejects(watching, { name: "AbortError" });
  for await (const info of client.observe("k")) {
    assert.equal(info.held, false);
    break;
  }
  const rest = (async () => {
    for await (const _ of client.observe("none"));
  })();
  await sleep(10);
  await client.close();
  await rest;
});

const missing = services().find((one) => one.name === "redis")?.missing ?? "no redis:";

test("a client that connects in the background says so", { skip: missing || false }, async () => {
  const lines = [];
  const log = (level, text) => lines.push(level + " " + text);
  await fails(Client.open("redis://127.0.0.1:1"), "HF_UNAVAILABLE");
  const client = await Client.open("redis://127.0.0.1:1", { connect: 1, log, logLevel: "debug" });
  await fails(client.lock("k"), "HF_UNAVAILABLE");
  await client.close();
  await until(() => lines.length > 0, "a line");
  assert.match(lines[0], /^(error|warning|info|debug) ./);
  await assert.rejects(Client.open("mem:", { logLevel: "loud" }), TypeError);
});

test("a holder names its heir, and free keys are collected", async () => {
  const at = url();
  const [a, b, c] = await Promise.all([1, 2, 3].map(() => Client.open(at)));
  const lock = await a.lock("k");
  const order = [];
  const wait = async (client, note, n) => {
    const got = client.lock("k", { note }).then((one) => (order.push(note), one.release()));
    await until(async () => (await a.inspect("k")).waiters === n, "waiters");
    return { got };
  };
  const first = await wait(b, "first", 1);
  const heir = await wait(c, "heir", 2);
  await fails(lock.transfer("nobody"), "HF_INVALID");
  await lock.transfer("heir");
  await lock.release();
  await Promise.all([first.got, heir.got]);
  assert.deepEqual(order, ["heir", "first"]);
  const found = await a.collect({ older: 0, dryRun: true }).catch((error) => error.code);
  assert(found === "HF_UNSUPPORTED" || found.removed >= 0);
  await Promise.all([a.close(), b.close(), c.close()]);
});

test("a leader that resigns is followed", async () => {
  const at = url();
  const [a, b] = [await Client.open(at), await Client.open(at)];
  let resign;
  const first = a.elect("boss", { note: "a" }, () => new Promise((done) => (resign = done)));
  await until(() => resign, "the first");
  assert.equal((await b.leader("boss")).note, "a");
  const second = b.elect("boss", { note: "b" }, async () => (await a.leader("boss")).note);
  resign("done");
  assert.equal(await first, "done");
  assert.equal(await second, "b");
  assert.equal(await a.leader("boss"), null);
  await Promise.all([a.close(), b.close()]);
});

test("a leader that loses campaigns again", async () => {
  const client = await Client.open(url());
  let times = 0;
  await client.elect("boss", { ttl: 1000 }, async (lock, signal) => {
    if (++times === 2) return;
    await client.break("boss", lock.fence, { force: true });
    if (!signal.aborted) await once(signal, "abort");
    throw signal.reason;
  });
  assert.equal(times, 2);
  await client.close();
});

// node itself frees nothing at process.exit(), so a sanitizer need not look.
const run = (code, ...args) =>
  promisify(execFile)(process.execPath, ["--input-type=module", "-e", code, holdfast, ...args], {
    timeout: 60000,
    env: { ...process.env, ASAN_OPTIONS: "detect_leaks=0" },
  });

test("a listener that throws does not stop the events", async () => {
  const { stdout } = await run(`
    const { Client } = await import(process.argv[1]);
    process.on("uncaughtException", (error) => console.log(error.message));
    const client = await Client.open("mem:");
    const first = await client.lock("a");
    const second = await client.lock("b");
    first.on("lost", () => { throw new Error("of the listener"); });
    const told = new Promise((done) => second.on("lost", () => done(console.log("second"))));
    const alive = setInterval(() => {}, 1000);
    for (const lock of [first, second]) await client.break(lock.key, lock.fence, { force: true });
    await told;
    clearInterval(alive);`);
  assert.equal(stdout, "of the listener\nsecond\n");
});

test("the process ends while a lock is held, and releases it", async () => {
  const dir = process.env.HF_TEST_DIR;
  const code = `
    const { Client } = await import(process.argv[1]);
    const client = await Client.open("file:" + process.argv[2]);
    const lock = await client.lock("k");
    if (process.argv[3]) process.exit(0);`;
  await run(code, dir);
  await run(code, dir, "exit");
  const client = await Client.open("file:" + dir);
  const lock = await client.tryLock("k");
  assert(lock);
  await lock.release();
  await client.close();
});

test("the process does not end while a lock is waited for", async () => {
  const { stdout } = await run(`
    const { Client } = await import(process.argv[1]);
    const client = await Client.open("mem:");
    const lock = await client.lock("k", { maxHold: 100 });
    await client.lock("k");
    console.log("got it");`);
  assert.equal(stdout, "got it\n");
});

test("a worker thread has its own clients, which end with it", async () => {
  const at = url();
  const client = await Client.open(at);
  const code = `
    const { parentPort, workerData } = require("node:worker_threads");
    import(workerData.holdfast).then(async ({ Client }) => {
      const client = await Client.open(workerData.at);
      await client.lock("k");
      client.lock("k").catch(() => {});
      client.inspect("k");
      parentPort.postMessage("held");
      if (workerData.ends) process.exit(0);
    });`;
  for (const ends of [false, true]) {
    const worker = new Worker(code, { eval: true, workerData: { holdfast, at, ends } });
    const exit = once(worker, "exit");
    assert.equal((await once(worker, "message"))[0], "held");
    if (!ends) assert.equal(await client.tryLock("k"), null);
    if (!ends) await worker.terminate();
    await exit;
    await (await client.lock("k")).release();
  }
  await client.close();
});

test("nothing is left behind", async () => {
  const count = () => [readdirSync("/proc/self/fd").length, readdirSync("/proc/self/task").length];
  const at = url();
  const once = async () => {
    const client = await Client.open(at);
    const lock = await client.lock("k");
    await client.lock("kept");
    client.lock("k", { wait: 5 }).catch(() => {});
    await client.lock(["a", "b"]);
    for await (const _ of client.observe("k")) break;
    await lock.release();
    await client.close();
  };
  for (let i = 0; i < 5; i++) await once();
  const before = count();
  for (let i = 0; i < 50; i++) await once();
  await until(() => count().every((n, i) => n <= before[i]), "as many as before");
});

test("the example of the README runs", async () => {
  const text = readFileSync(process.env.HOLDFAST_NODE_SOURCE + "/README.md", "utf8");
  const code = text.match(/```js\n([^]*?)```/)[1].replace(`"holdfast"`, JSON.stringify(holdfast));
  const { stdout } = await run(code.replace(/redis:[^"]*/, "mem:readme"));
  assert.match(stdout, /fence \d+/);
});

test("the example service stops when its lock is lost", async () => {
  const child = spawn(process.execPath, [process.env.HOLDFAST_NODE_SOURCE + "/examples/service.mjs", "file:" + process.env.HF_TEST_DIR], {
    env: { ...process.env, HOLDFAST_NODE: holdfast },
    stdio: ["ignore", "pipe", "inherit"],
  });
  let out = "";
  child.stdout.on("data", (data) => (out += data));
  const client = await Client.open("file:" + process.env.HF_TEST_DIR);
  await until(() => /leads/.test(out), "a leader");
  const [leader] = await client.holders("service");
  await client.break("service", leader.fence);
  await until(() => /lost/.test(out) && out.match(/leads/g).length === 2, "the next term");
  child.kill("SIGTERM");
  assert.deepEqual(await once(child, "exit"), [0, null]);
  await client.close();
});
