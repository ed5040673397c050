// SPDX-License-Identifier: MIT
//
// redis.mjs DIRECTORY LIBRARY - node-redlock, redis-semaphore or holdfast's own
// package as a candidate (bench/cand/cand.h), with their default delays.
// DIRECTORY has the libraries; $HF_TEST_URL names one server, or those of a
// redlock.
//
// JavaScript has no threads to lock between; `many` runs that many chains of
// promises, which is how such a program does many things at once.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [directory, library] = process.argv.slice(2);
const require = createRequire(directory + "/");
const ours = library === "holdfast";
const Redis = ours ? null : require("ioredis");
const servers = ours ? [] : process.env.HF_TEST_URL.replace(/^redis:\/\/|^redlock:\/\//, "")
  .replace(/\?.*$/, "")
  .split(",")
  .map((at) => new Redis(Number(at.split(":")[1]), "127.0.0.1"));
await Promise.all(servers.map((one) => one.ping()));
for (const one of servers) one.on("error", () => {});

const now = () => Number(process.hrtime.bigint());
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

// Each way: take(key, ttl) gives a lock with release(), or fails.
const ways = {
  redlock() {
    const redlock = new (require("redlock").default)(servers, {
      retryCount: -1,
    });
    redlock.on("error", () => {});
    return {
      take: (key, ttl = 30000) => redlock.acquire([key], ttl),
      // Its way to keep a lock is using(); the signal tells of the loss.
      mind: (key, ttl, lost, held) =>
        redlock.using([key], ttl, async (signal) => {
          held();
          while (!signal.aborted) await sleep(5);
          lost();
        }),
    };
  },
  async holdfast() {
    const { Client } = require(directory);
    const client = await Client.open(process.env.HF_TEST_URL);
    return {
      take: (key, ttl = 30000) => client.lock(key, { ttl }),
      async mind(key, ttl, lost, held) {
        (await client.lock(key, { ttl })).on("lost", lost);
        held();
      },
      keeps: true,
    };
  },
  "redis-semaphore"() {
    const { Mutex } = require("redis-semaphore");
    const make = (key, ttl, more = {}) =>
      new Mutex(servers[0], key, {
        lockTimeout: ttl,
        acquireTimeout: Number.MAX_SAFE_INTEGER,
        ...more,
      });
    return {
      async take(key, ttl = 30000) {
        const mutex = make(key, ttl);
        await mutex.acquire();
        return mutex;
      },
      async mind(key, ttl, lost, held) {
        await make(key, ttl, { onLockLost: lost }).acquire();
        held();
      },
      keeps: true, // it renews while it is held
    };
  },
};
const way = await ways[library]();
const kept = new Map();
let holding = [];

const answers = {
  async pairs(n, key) {
    const times = [];
    let last = now();
    for (let i = 0; i < Number(n); i++) {
      await (await way.take(key)).release();
      const at = now();
      times.push(at - last);
      last = at;
    }
    return times;
  },
  async many(threads, ms) {
    const begin = now();
    const end = begin + Number(ms) * 1e6;
    let sum = 0;
    const chain = async (key) => {
      while (now() < end) {
        await (await way.take(key)).release();
        sum++;
      }
    };
    await Promise.all(
      [...Array(Number(threads)).keys()].map((i) => chain(`many-${library}-${i}`))
    );
    return [sum, now() - begin];
  },
  async contend(at, ms, key) {
    const end = Number(at) + Number(ms) * 1e6;
    const turns = [];
    await sleep(Math.max(0, (Number(at) - now()) / 1e6));
    while (now() < end) {
      const asked = now();
      const lock = await way.take(key);
      turns.push(asked, now(), now());
      await lock.release();
    }
    return turns;
  },
  async take(key) {
    kept.set(key, await way.take(key));
  },
  async give(key) {
    await kept.get(key).release();
    kept.delete(key);
  },
  async hold(n, ttl, ms) {
    if (!way.keeps) throw new Error("no keeper for single locks");
    const begin = now();
    const end = begin + Number(ms) * 1e6;
    let next = 0;
    const chain = async () => {
      while (next < Number(n) && now() < end)
        holding.push(await way.take(`held-${library}-${next++}`, Number(ttl)));
    };
    await Promise.all([...Array(32).keys()].map(chain));
    return [holding.length, now() - begin, 0];
  },
  async drop() {
    const all = holding;
    holding = [];
    await Promise.all(all.map((one) => one.release()));
    return [0];
  },
  watch: (key, ttl) =>
    new Promise((held) => {
      const lost = () => console.log("lost " + now());
      way.mind(key, Number(ttl), lost, () => held([])).catch(lost);
    }),
};
answers.wait = answers.take;
answers.found = async () => [];

const manifest = `${directory}/${ours ? "" : `node_modules/${library}/`}package.json`;
console.log("ready " + JSON.parse(readFileSync(manifest)).version);
for await (const line of createInterface({ input: process.stdin })) {
  const [word, ...rest] = line.trim().split(" ");
  try {
    console.log(["ok", ...((await answers[word](...rest)) ?? [])].join(" "));
  } catch (error) {
    console.log("no " + String(error.message).split("\n")[0]);
  }
}
process.exit(0);
