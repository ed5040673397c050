// SPDX-License-Identifier: MIT
//
// redis-peer.mjs DIRECTORY LIBRARY PORT SECONDS - take and release a lock of
// node-redlock or redis-semaphore as often as it goes, with their default
// delays, and print when each grant was, in ns.

import { createRequire } from "node:module";

const [directory, library, port, seconds] = process.argv.slice(2);
const require = createRequire(directory + "/");
const server = new (require("ioredis"))(Number(port), "127.0.0.1");
await server.ping();
const end = Date.now() + Number(seconds) * 1000;

const takers = {
  redlock: () => {
    const redlock = new (require("redlock").default)([server], {
      retryCount: 5,
    });
    return () => redlock.acquire(["peer"], 30000).catch(() => null);
  },
  "redis-semaphore": () => {
    const { Mutex } = require("redis-semaphore");
    return async () => {
      const mutex = new Mutex(server, "peer", {
        lockTimeout: 30000,
        acquireTimeout: 1000,
      });
      return (await mutex.tryAcquire()) ? mutex : null;
    };
  },
};

const take = takers[library]();
const grants = [];
while (Date.now() < end) {
  const lock = await take();
  if (lock) {
    grants.push(process.hrtime.bigint());
    await lock.release();
  }
}
console.log(grants.join("\n"));
server.disconnect();
