// SPDX-License-Identifier: MIT
//
// types.ts - index.d.ts as a program uses it; compiled with --strict, never run.

import { Client, HoldfastError, Info, Lock, LockSet, Loss, services, version } from "holdfast";

export async function uses(): Promise<string> {
  const client: Client = await Client.open("mem:", { timeout: 1000, note: "n" });
  client.on("lost", (lock: Lock, reason: Loss) => console.log(lock.key, reason));
  const lock: Lock = await client.lock("k", {
    ttl: 1000, wait: Infinity, shared: true, permits: 2, signal: AbortSignal.timeout(5),
  });
  const set: LockSet = await client.lock(["a", "b"] as const, { minHold: 5 });
  const maybe: Lock | null = await client.tryLock("k");
  lock.on("lost", (reason) => reason === "expired");
  set.once("lost", (reason, one) => one.fence + 1n);
  const n: number = await client.using("k", async (one, signal) => (signal.aborted ? 0 : one.remaining));
  const all: string[] = await client.using(["a"], { fair: true }, (locks) => [...locks].map((one) => one.key));
  const led: string = await client.elect("k", { note: "me" }, (one) => one.token);
  for await (const leader of client.leaders("k")) if (leader) return leader.note;
  for await (const info of client.observe("k", { prefix: true })) console.log(info.left ?? 0);
  const info: Info = await client.inspect("k");
  await client.break("k", info.fence, { force: true });
  const handle = await lock.detach();
  await (await client.attach("k", JSON.parse(JSON.stringify(handle)))).transfer("heir");
  try {
    await lock.extend(n);
  } catch (error) {
    if (error instanceof HoldfastError && error.code === "HF_LOST") return error.message;
  }
  // @ts-expect-error: a fence is a bigint
  await client.check("k", 7);
  // @ts-expect-error: there is no such option
  await client.lock("k", { tll: 5 });
  // @ts-expect-error: a client comes from Client.open()
  new Client("mem:");
  await set.release();
  await lock[Symbol.asyncDispose]();
  return version + services()[0].name + all + led + maybe?.slot;
}
