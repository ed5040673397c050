// SPDX-License-Identifier: MIT
//
// run.mjs - run the scripts of test/bindings/spec with the Node.js binding.
// spec/README.md defines the language.

import { spawn, execFileSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { basename } from "node:path";
import { fileURLToPath } from "node:url";

const { Client, HoldfastError } = await import(process.env.HOLDFAST_NODE + "/index.mjs");
const PATIENCE = 30000;
const members = process.env.HF_TEST_MEMBERS;
let url, prefix, names, want;

const status = (error) => error.code.slice(3).toLowerCase();
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const yes = (value) => (value ? "yes" : "no");
const full = (key) => prefix + (key === "*" ? "" : key);
const get = (name) => names.get(name) ?? { lock: null };

// The status of a promise; `then` gets its value.
async function outcome(promise, then = () => {}) {
  try {
    then(await promise);
    return "ok";
  } catch (error) {
    if (error.name === "AbortError") return "canceled";
    if (error instanceof TypeError) return "invalid " + error.message;
    if (!(error instanceof HoldfastError)) throw error;
    return status(error) + " " + error.message;
  }
}

// The promise, or `late` after the patience.
async function within(promise, late) {
  let timer;
  const end = new Promise((done) => (timer = setTimeout(done, PATIENCE, late)));
  return Promise.race([promise, end]).finally(() => clearTimeout(timer));
}

async function patient(test) {
  for (const end = Date.now() + PATIENCE; Date.now() < end; await sleep(5))
    if (await test()) return true;
  return false;
}

// Options of the spec in the words of the binding.
function options(words) {
  const as = { max_hold: "maxHold", min_hold: "minHold" };
  const ret = { wait: 0 };
  for (const word of words) {
    const [, name, value = true] = word.match(/^([a-z_]+)(?:=(.*))?$/);
    ret[as[name] ?? name] = /^-?\d+$/.test(value) ? Number(value) : value;
  }
  if (ret.wait === -1) ret.wait = Infinity;
  return ret;
}

function keep(name, lock) {
  const entry = { lock, gone: false, risk: false };
  lock.on("lost", () => (entry.gone = true));
  lock.on("atRisk", () => (entry.risk = true));
  names.set(name, entry);
}

const keepAll = (list) => (set) => list.split(",").forEach((name, i) => keep(name, set.locks[i]));

function begin(name, client, keys, words, then) {
  const abort = new AbortController();
  const request = { abort, done: false };
  const promise = get(client).lock(keys, { ...options(words), signal: abort.signal });
  request.end = outcome(promise, then).finally(() => (request.done = true));
  names.set("request " + name, request);
  return "ok";
}

function words(info, wanted) {
  const as = {
    held: () => (info.held ? "held" : "free"),
    mode: () => (info.shared ? "shared" : "exclusive"),
    note: () => info.note,
    kept: () => yes(info.kept),
    broken: () => yes(info.broken),
  };
  return wanted.map((word) => (as[word] ? as[word]() : String(info[word] ?? -1))).join(" ");
}

async function result(promise, make) {
  let value;
  const how = await outcome(promise, (got) => (value = make(got)));
  return how === "ok" ? value : how;
}

function signal(name, sig) {
  if (name === "server") process.kill(Number(readFileSync(`${members}/1/pid`, "utf8")), sig);
  else get(name).child.kill(sig);
  return "ok";
}

function order(fences) {
  const every = (test) => fences.every((one, i) => i === 0 || test(one, fences[i - 1]));
  if (!fences[0]) return "unfenced";
  return every((a, b) => a > b) ? "rise" : every((a, b) => a === b) ? "same" : "no";
}

const locks = (list) => list.split(",").map((name) => get(name).lock);

const verbs = {
  open: (name, at) =>
    outcome(Client.open(at ? at.slice(4) : url), (client) => names.set(name, client)),
  close: (name) => outcome(get(name).close()),
  lock: (client, name, key, ...more) =>
    outcome(get(client).lock(full(key), options(more)), (lock) => keep(name, lock)),
  all: (client, list, keys, ...more) =>
    outcome(get(client).lock(keys.split(",").map(full), options(more)), keepAll(list)),
  start: (client, name, key, ...more) =>
    begin(name, client, full(key), more, (lock) => keep(name, lock)),
  startall: (client, list, keys, ...more) =>
    begin(list.split(",")[0], client, keys.split(",").map(full), more, keepAll(list)),
  cancel: (name) => (get("request " + name).abort.abort(), "ok"),
  pending: async (name) => (await sleep(0), yes(!get("request " + name).done)),
  wait: (name) => within(get("request " + name).end, "pending"),
  release: (name) => outcome(get(name).lock.release()),
  extend: (name, ttl) => outcome(get(name).lock.extend(ttl ? Number(ttl.slice(4)) : 0)),
  downgrade: (name) => outcome(get(name).lock.downgrade()),
  held: (name) => yes(get(name).lock?.held),
  lost: async (name) => {
    if (!(await patient(() => get(name).gone))) return "silence";
    return get(name).lock.held ? "held" : get(name).lock.lostReason;
  },
  risk: async (name) => ((await patient(() => get(name).risk)) ? "ok" : "silence"),
  fences: (list) => order(locks(list).map((lock) => lock.fence)),
  slots: (list) => {
    const slots = new Set(locks(list).map((lock) => lock.slot));
    return yes([...locks(list).keys()].every((slot) => slots.has(slot)));
  },
  inspect: (client, key, ...wanted) =>
    result(get(client).inspect(full(key)), (info) => words(info, wanted)),
  holders: (client, key) => result(get(client).holders(full(key)), (all) => String(all.length)),
  list: (client, key) =>
    result(get(client).list(full(key)), (all) =>
      all.map((one) => one.key.slice(prefix.length)).sort().join(",") || "none"),
  waiters: async (client, key, n) => {
    let last;
    const there = async () => {
      last = (await get(client).inspect(full(key))).waiters;
      return last === null || last === Number(n);
    };
    return (await patient(there)) ? "ok" : String(last);
  },
  check: (client, name) => {
    const { key, fence } = get(name).lock;
    return result(get(client).check(key, fence), (stands) => (stands ? "ok" : "lost"));
  },
  break: (client, name, force) => {
    const { key, fence } = get(name).lock;
    return outcome(get(client).break(key, fence, { force: force === "force" }));
  },
  detach: (name, handle) =>
    outcome(get(name).lock.detach(), (one) => names.set(handle, JSON.stringify(one))),
  attach: (client, name, key, handle, ...more) => {
    const { wait, ...rest } = options(more);
    const one = JSON.parse(get(handle));
    return outcome(get(client).attach(full(key), one, rest), (lock) => keep(name, lock));
  },
  extendhandle: (client, key, handle, ...more) => {
    const { wait, ...rest } = options(more);
    return outcome(get(client).extendHandle(full(key), JSON.parse(get(handle)), rest));
  },
  releasehandle: (client, key, handle) =>
    outcome(get(client).releaseHandle(full(key), JSON.parse(get(handle)))),
  collect: (client, older, dry) =>
    result(get(client).collect({ older: Number(older), dryRun: dry === "dry" }), (done) =>
      done.lookedAt ? "some" : "none"),
  stats: (client, ...wanted) => {
    const stats = get(client).stats();
    const sums = {
      waits: stats.wait.count,
      holds: stats.hold.count,
      lost: Object.values(stats.lost).reduce((sum, n) => sum + n, 0),
    };
    return wanted.map((word) => sums[word] ?? stats[word]).join(" ");
  },
  metrics: (client) => {
    const text = get(client).statsText();
    const sample = `result="granted"} ${get(client).stats().granted}\n`;
    return yes(text.includes(sample) && text.endsWith("\n# EOF\n"));
  },
  observe: (client, name, key, prefix) => {
    names.set(name, get(client).observe(full(key), { prefix: prefix === "prefix" }));
    return "ok";
  },
  change: async (name, ...wanted) => {
    for (;;) {
      const { value } = await within(get(name).next(), {});
      if (!value) return "silence";
      const got = words(value, wanted);
      if (expected(got, want)) return got;
    }
  },
  unobserve: async (name) => (await get(name).return(), "ok"),
  transfer: (name, heir) => outcome(get(name).lock.transfer(heir)),
  process: (name) => {
    const child = spawn(process.execPath, [fileURLToPath(import.meta.url), "--child", prefix, url], {
      stdio: ["pipe", "pipe", "inherit"],
    });
    const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
    names.set(name, { child, answer: async () => (await lines.next()).value ?? "gone" });
    return "ok";
  },
  freeze: (name) => signal(name, "SIGSTOP"),
  thaw: (name) => signal(name, "SIGCONT"),
  kill: (name) => signal(name, "SIGKILL"),
  restart: () => (execFileSync(`${members}/1/run`, { stdio: "ignore" }), "ok"),
};

async function run(line) {
  const [verb, ...args] = line.trim().split(/\s+/);
  const mark = verb.at(-1);
  if (!":&.".includes(mark)) return verbs[verb](...args);
  const { child, answer } = get(verb.slice(0, -1));
  if (mark !== ".") child.stdin.write(args.join(" ") + "\n");
  return mark === "&" ? "ok" : answer();
}

const expected = (got, want) =>
  want.split("|").some((one) => got === one || String(got).startsWith(one + " "));

async function lacks(traits) {
  const client = await Client.open(url);
  const has = new Set((await client.describe()).traits);
  await client.close();
  if (members) has.add("server");
  return traits.some((one) => !has.has(one === "min_hold" ? "minHold" : one));
}

async function cleanUp() {
  if (members && existsSync(`${members}/1/pid`)) signal("server", "SIGCONT");
  for (const one of names.values()) one.child?.kill("SIGKILL");
  for (const one of names.values()) if (one instanceof Client) await one.close();
}

async function script(file) {
  const lines = readFileSync(file, "utf8").split("\n");
  for (const [i, text] of lines.entries()) {
    if (!text || text.startsWith("#")) continue;
    const [line, ...rest] = text.split(/\s+=> /);
    want = rest[0] ?? "ok";
    if (line.startsWith("needs ")) {
      if (await lacks(line.split(" ").slice(1))) return " # SKIP the service has it not";
      continue;
    }
    const got = await run(line);
    if (!expected(got, want)) return `# line ${i + 1}: ${line}\n# expected ${want}, got ${got}`;
  }
  return "";
}

if (process.argv[2] === "--child") {
  [, , , prefix, url] = process.argv;
  names = new Map();
  for await (const line of createInterface({ input: process.stdin })) console.log(await run(line));
  await cleanUp();
} else {
  const [, , at, ...files] = process.argv;
  url = at;
  console.log(`1..${files.length}`);
  for (const [i, file] of files.entries()) {
    prefix = `spec-${process.pid}-${i}-`;
    names = new Map();
    const how = await script(file).catch((error) => "# " + error.stack.replaceAll("\n", "\n# "));
    await cleanUp();
    const failed = how.startsWith("#");
    if (failed) process.exitCode = 1;
    console.log(`${failed ? how + "\nnot " : ""}ok ${i + 1} - ${basename(file)}${failed ? "" : how}`);
  }
}
