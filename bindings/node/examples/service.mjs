// SPDX-License-Identifier: MIT
//
// service.mjs [URL] - a service of which one instance works at a time.
//
// Start it twice, on any machines.  One of them leads and works; when it is
// stopped, killed, or cut off from the service of the locks, the other one goes
// on.  The loss of the lock aborts the work before the other one begins, and each
// write carries the fence, so that a late one can be refused.

const { Client } = await import(process.env.HOLDFAST_NODE ?? "holdfast");
import { setTimeout as sleep } from "node:timers/promises";

const stop = new AbortController();
for (const name of ["SIGINT", "SIGTERM"]) process.once(name, () => stop.abort());

// One step of the work: short, and it ends when it must.
async function step(lock, signal) {
  await sleep(50, null, { signal });
}

async function lead(lock, lost) {
  console.log(`leads with fence ${lock.fence}`);
  lock.on("atRisk", () => console.log("renewals fail: begin nothing long"));
  lock.on("lost", (reason) => console.log(`lost: ${reason}`));
  while (!stop.signal.aborted) await step(lock, lost);
}

const client = await Client.open(process.argv[2] ?? process.env.HOLDFAST_URL);
try {
  await client.elect("service", { ttl: 10_000, signal: stop.signal }, lead);
} catch (error) {
  if (!stop.signal.aborted) throw error;
}
await client.close(); // the next one begins at once
