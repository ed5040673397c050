// SPDX-License-Identifier: MIT
//
// interop.mjs DIRECTORY HOLDFAST - node-redlock and holdfast exclude each other
// on the same nodes and keys, in both directions.  DIRECTORY has the libraries,
// HOLDFAST is the command, $HF_TEST_URL names the nodes.  TAP on stdout.

import { spawn, spawnSync } from "node:child_process";
import { createRequire } from "node:module";

const [directory, holdfast] = process.argv.slice(2);
const require = createRequire(directory + "/");
const Redis = require("ioredis");
const Redlock = require("redlock").default;

const url = process.env.HF_TEST_URL + "&prefix=";
const nodes = url
  .replace(/^redlock:\/\//, "")
  .replace(/\?.*$/, "")
  .split(",")
  .map((at) => new Redis(Number(at.split(":")[1]), "127.0.0.1"));
const redlock = new Redlock(nodes, { retryCount: 0 });
const run = ["run", "-q", "-u", url];
const patient = ["-w", "20s", "--retry", "10ms"];

const once = () => spawnSync(holdfast, [...run, "-n", "k", "true"]).status;
const tokens = () => Promise.all(nodes.map((node) => node.get("k")));
const count = async (value) =>
  (await tokens()).filter((token) => token === value).length;
const refused = (ttl) =>
  redlock.acquire(["k"], ttl).then(
    (lock) => lock.release().then(() => false),
    () => true,
  );

// A holdfast that holds until its input ends.
function hold() {
  const child = spawn(holdfast, [...run, ...patient, "k", "sh", "-c",
    'echo "$HOLDFAST_OWNER"; read line || :'], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  return new Promise((resolve, reject) => {
    child.on("exit", (code) => reject(new Error(`holdfast: exit ${code}`)));
    child.stdout.once("data", (data) =>
      resolve({
        token: String(data).trim(),
        end: () =>
          new Promise((done) => {
            child.removeAllListeners("exit");
            child.on("exit", done);
            child.stdin.end();
          }),
      }),
    );
  });
}

const points = {
  "what node-redlock holds is busy for holdfast": async () => {
    const lock = await redlock.acquire(["k"], 60000);
    const status = once();
    const kept = await count(lock.value);
    await lock.extend(60000);
    await lock.release();
    if (status !== 75) return "it was not busy";
    // It returns at a majority; the rest may have been asked by both at once.
    if (kept <= nodes.length / 2) return `only ${kept} nodes kept the token`;
    return once() === 0 ? "" : "it was not free afterwards";
  },
  "what holdfast holds is busy for node-redlock": async () => {
    const held = await hold();
    const kept = await count(held.token);
    if (kept <= nodes.length / 2) return `only ${kept} nodes have the token`;
    if (!(await refused(60000))) return "it was not busy";
    if ((await count(held.token)) < kept) return "it was touched";
    if ((await held.end()) !== 0) return "holdfast did not end well";
    return (await refused(60000)) ? "it was not free afterwards" : "";
  },
  "a minority of node-redlock's does not keep holdfast out": async () => {
    await nodes[0].set("k", "foreign", "PX", 60000);
    await nodes[3].set("k", "foreign", "PX", 60000);
    const status = once();
    const left = await count("foreign");
    await Promise.all([nodes[0].del("k"), nodes[3].del("k")]);
    return status === 0 && left === 2 ? "" : `status ${status}, left ${left}`;
  },
  "they take turns, and nothing is left": async () => {
    for (let i = 0; i < 20; i++) {
      const held = await hold();
      if (!(await refused(60000))) return "two at once";
      await held.end();
      const lock = await redlock.acquire(["k"], 60000);
      if (i % 5 === 0 && once() !== 75) return "two at once";
      await lock.release();
    }
    for (let i = 0; i < 100 && (await count(null)) !== nodes.length; i++)
      await new Promise((soon) => setTimeout(soon, 100));
    return (await count(null)) === nodes.length ? "" : "something is left";
  },
};

await Promise.all(nodes.map((node) => node.ping()));
console.log(`1..${Object.keys(points).length}`);
let number = 0;
for (const [name, point] of Object.entries(points)) {
  const why = await point().catch((error) => String(error));
  if (why) console.log(`# ${why}`);
  console.log(`${why ? "not ok" : "ok"} ${++number} - ${name}`);
}
process.exit(0);
