// SPDX-License-Identifier: MIT
//
// peer.mjs DIRECTORY PORT LIBRARY - redis-semaphore's Mutex or node-redlock,
// told what to do line by line: one answer each.  The libraries are installed
// in DIRECTORY.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [directory, port, library] = process.argv.slice(2);
const require = createRequire(directory + "/");
const server = new (require("ioredis"))(Number(port), "127.0.0.1");

// Both libraries behind one shape: take() gives an object with release(),
// extend() and token, or null if it is busy.
const libraries = {
  "redis-semaphore": () => {
    const { Mutex } = require("redis-semaphore");
    return async (name, ttl, wait) => {
      const mutex = new Mutex(server, name, {
        lockTimeout: ttl,
        acquireTimeout: wait || 1000,
        acquireAttemptsLimit: wait ? Number.POSITIVE_INFINITY : 1,
        retryInterval: 10,
        refreshInterval: 0,
      });
      if (!(await mutex.tryAcquire())) return null;
      return {
        token: mutex.identifier,
        release: async () => ((await mutex.release()), "ok"),
        extend: async () => "ok",
      };
    };
  },
  redlock: () => {
    const redlock = new (require("redlock").default)([server], {
      retryCount: 0,
      retryDelay: 10,
      retryJitter: 5,
    });
    return async (name, ttl, wait) => {
      const settings = { retryCount: wait ? Math.ceil(wait / 10) : 0 };
      let lock = await redlock
        .acquire([name], ttl, settings)
        .catch(() => null);
      if (!lock) return null;
      return {
        token: lock.value,
        release: () =>
          lock.release().then(
            () => "ok",
            () => "lost",
          ),
        extend: async () => ((lock = await lock.extend(ttl)), "ok"),
      };
    };
  },
};
const take = libraries[library]();
let held = null;

const answers = {
  try: async (name, ttl) =>
    (held = await take(name, Number(ttl), 0)) ? "yes" : "busy",
  wait: async (name, ttl) =>
    (held = await take(name, Number(ttl), 20000)) ? "yes" : "busy",
  extend: () => held.extend(),
  token: async () => held.token,
  release: () => held.release(),
  count: async (name, counter, times) => {
    for (let i = 0; i < Number(times); i++) {
      const lock = await take(name, 10000, 20000);
      await server.set(counter, Number((await server.get(counter)) || 0) + 1);
      await lock.release();
    }
    return "ok";
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [word, ...rest] = line.split(" ");
  try {
    console.log(await answers[word](...rest));
  } catch (error) {
    console.log("error: " + error.message);
  }
}
server.disconnect();
