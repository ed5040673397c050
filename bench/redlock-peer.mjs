// SPDX-License-Identifier: MIT
//
// redlock-peer.mjs DIRECTORY - node-redlock's acquire on the nodes of
// $HF_TEST_URL, for scale beside bench-redlock.  DIRECTORY has the libraries.

import { createRequire } from "node:module";

const require = createRequire(process.argv[2] + "/");
const Redis = require("ioredis");
const Redlock = require("redlock").default;
const nodes = process.env.HF_TEST_URL.replace(/^redlock:\/\//, "")
  .replace(/\?.*$/, "")
  .split(",")
  .map((at) => new Redis(Number(at.split(":")[1]), "127.0.0.1"));
const redlock = new Redlock(nodes, { retryCount: 0 });
const times = [];

await Promise.all(nodes.map((node) => node.ping()));
for (let i = 0; i < 2400; i++) {
  const began = process.hrtime.bigint();
  const lock = await redlock.acquire(["bench-peer"], 30000);
  const us = Number(process.hrtime.bigint() - began) / 1e3;
  if (i >= 400) times.push(us);
  await lock.release();
}
times.sort((a, b) => a - b);
const at = (q) => times[Math.floor(times.length * q)].toFixed(1);
console.log(`  node-redlock acquire: p50 ${at(0.5)} us, p99 ${at(0.99)} us`);
process.exit(0);
