// SPDX-License-Identifier: MIT
//
// Distributed locks over the service you already run.  All times are
// milliseconds.

import { EventEmitter } from "node:events";

/** The version of the library. */
export const version: string;

/** What is wrong: the status of the C library. */
export type Code =
  | "HF_BUSY" // somebody else holds it, and `wait` is 0
  | "HF_TIMEOUT" // somebody else held it for as long as `wait`
  | "HF_CANCELED" // the client was closed
  | "HF_LOST" // the lock is not (or no longer) yours
  | "HF_UNCERTAIN" // sent, no answer: being taken back in the background
  | "HF_UNAVAILABLE" // the service could not be reached
  | "HF_DENIED" // the service refused: credentials, rights
  | "HF_INVALID" // a wrong argument, URL or option
  | "HF_UNSUPPORTED" // this service cannot do that
  | "HF_PROTOCOL" // an answer that makes no sense
  | "HF_NOMEM"
  | "HF_SYSTEM"; // a system call failed; see `errno`

export class HoldfastError extends Error {
  readonly code: Code;
  readonly errno?: number;
}

/** Why a lock was lost. */
export type Loss =
  | "expired" | "stolen" | "deleted" | "broken" | "session" | "quorum"
  | "restart" | "max-hold" | "closed";

/** What a service can do. */
export type Trait =
  | "fenced" | "leased" | "queued" | "notify" | "shared" | "reentrant"
  | "detach" | "break" | "processes" | "machines" | "death" | "twice"
  | "noted" | "permits" | "minHold";

export interface ClientOptions {
  /** Limit of one request to the service; 5000. */
  timeout?: number;
  /** Note of locks that bring none; host:pid. */
  note?: string;
  /** open() does not wait for the service: the client connects in the background,
   * again and again for so long.  Infinity: no limit; 0: open() connects or fails. */
  connect?: number;
  /** Told of reconnects, failed renewals, what is taken back, and so on. */
  log?: (level: LogLevel, text: string) => void;
  /** And all that are more urgent; "warning". */
  logLevel?: LogLevel;
}

export type LogLevel = "error" | "warning" | "info" | "debug";

export interface AttachOptions {
  /** The lease; 30000.  It is renewed as long as the lock is held. */
  ttl?: number;
  /** Acquisitions with the same id are reentrant. */
  owner?: string;
  /** For people who look at the lock. */
  note?: string;
  /** With other shared holders, never with an exclusive one. */
  shared?: boolean;
  /** At most so many holders at once, each with a slot of its own. */
  permits?: number;
  /** Not renewed by itself: extend() is up to you. */
  manual?: boolean;
  /** A place of its own in the service's queue. */
  fair?: boolean;
  /** Ask every `retry` ms even where the service notifies. */
  poll?: boolean;
  /** Between polls, jittered; 50. */
  retry?: number;
  /** Give up after so many tries. */
  tries?: number;
  /** Keep the lease this long after the release. */
  linger?: number;
  /** Lose it after so long. */
  maxHold?: number;
  /** Released earlier, it stays taken until so long after the grant. */
  minHold?: number;
  /** Hand-overs inside this client in a row; 16, -1: no limit. */
  localTurns?: number;
}

export interface LockOptions extends AttachOptions {
  /** How long to wait for others; Infinity.  0: try once. */
  wait?: number;
  /** Aborting it ends the waiting and leaves nothing behind; a lock that was granted
   * just then is released in the background. */
  signal?: AbortSignal;
}


interface Listening<Events extends Record<string, unknown[]>> extends EventEmitter {
  on<E extends keyof Events & string>(event: E, listener: (...args: Events[E]) => void): this;
  once<E extends keyof Events & string>(event: E, listener: (...args: Events[E]) => void): this;
  off<E extends keyof Events & string>(event: E, listener: (...args: Events[E]) => void): this;
}

/** What another process needs to go on with a lock.  It survives JSON. */
export interface Handle {
  token: string;
  ref: string;
  fence: string;
}

/** A lock that was granted. */
export interface Lock extends Listening<{ lost: [reason: Loss]; atRisk: [] }> {
  readonly key: string;
  /** Greater than that of every earlier grant of the key; 0n: none. */
  readonly fence: bigint;
  /** Which of the permits it is, from 0; null without permits. */
  readonly slot: number | null;
  /** The id of the acquisition in the service. */
  readonly token: string;
  /** Arithmetic on the clock.  Once false, always false. */
  readonly held: boolean;
  /** How long it can be relied on without another renewal. */
  readonly remaining: number;
  readonly lostReason: Loss | null;
  /** Aborted when the lock is lost: hand it to fetch() and the like. */
  readonly signal: AbortSignal;

  /** Give it back.  Rejects with HF_LOST if it had been lost before. */
  release(): Promise<void>;
  /** Renew now, with a new lease of `ttl` (0 keeps the old one). */
  extend(ttl?: number): Promise<void>;
  /** The waiter with this token, owner id or note is next. */
  transfer(heir: string): Promise<void>;
  /** Exclusive to shared, without a gap. */
  downgrade(): Promise<void>;
  /** End it here, and leave it in the service for attach(). */
  detach(): Promise<Handle>;
  /** release(), unless that was done. */
  [Symbol.asyncDispose](): Promise<void>;
}
export const Lock: abstract new () => Lock;

/** The locks of several keys. */
export interface LockSet
  extends Listening<{ lost: [reason: Loss, lock: Lock]; atRisk: [lock: Lock] }>,
    Iterable<Lock> {
  readonly locks: readonly Lock[];
  /** Are all of them held? */
  readonly held: boolean;
  /** Aborted when one of them is lost. */
  readonly signal: AbortSignal;
  get(key: string): Lock | undefined;
  release(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}
export const LockSet: abstract new () => LockSet;

/** What the service says about a key.  It may be outdated when it arrives. */
export interface Info {
  key: string;
  held: boolean;
  shared: boolean;
  /** Of the newest grant, also when the key is free; 0n: unknown. */
  fence: bigint;
  /** Of the lease; null: unknown, or it never lapses. */
  left: number | null;
  /** How long it has been held. */
  since: number | null;
  holders: number;
  waiters: number | null;
  owner: string;
  note: string;
  /** How long others wait if the holder dies, where that is more than `left`. */
  takeover: number | null;
  broken: boolean;
  kept: boolean;
  permits: number | null;
  slot: number | null;
}

/** One who waits for a lock. */
export interface Waiter {
  /** 1: the next. */
  place: number;
  permits: number | null;
  shared: boolean;
  /** How long it has waited. */
  since: number | null;
  /** Until its place is given up, unless it asks again. */
  left: number | null;
  owner: string;
  note: string;
}

export interface Service {
  scheme: string;
  /** Where, without any password. */
  endpoint: string;
  /** What is doubtful about this set-up; "" if nothing. */
  warning: string;
  /** The lease of a lock that asks for none. */
  ttl: number;
  traits: Trait[];
}

/** Times that something took. */
export interface Histogram {
  count: number;
  /** Milliseconds. */
  sum: number;
  /** buckets[i] counts those below 2^i microseconds that are in no earlier one; the
   * last has the rest. */
  buckets: number[];
}

/** What a client has counted since it was opened; `held` and `waiting` are now. */
export interface Stats {
  /** These are acquisitions that have ended, by their status. */
  granted: number;
  busy: number;
  timeout: number;
  canceled: number;
  unavailable: number;
  uncertain: number;
  failed: number;
  /** How long acquisitions have waited. */
  wait: Histogram;
  /** From grant to release. */
  hold: Histogram;
  renewed: number;
  renewalsFailed: number;
  /** Confirmed when the lease was over. */
  renewalsLate: number;
  /** What was left of the lease when a renewal was confirmed. */
  margin: Histogram;
  /** By reason; those that are not 0. */
  lost: Partial<Record<Loss, number>>;
  atRisk: number;
  /** Claims, in the background. */
  takenBack: number;
  reconnects: number;
  /** On Redis, Redlock and etcd; 0 elsewhere. */
  requests: number;
  bytesSent: number;
  bytesReceived: number;
  held: number;
  waiting: number;
}

export interface Client
  extends Listening<{ lost: [lock: Lock, reason: Loss]; atRisk: [lock: Lock] }> {
  /** Take a lock, or all of several.  Waits for others as long as `wait` says. */
  lock(key: string, options?: LockOptions): Promise<Lock>;
  lock(keys: readonly string[], options?: LockOptions): Promise<LockSet>;
  /** Try once; null if somebody else holds it. */
  tryLock(key: string, options?: Omit<LockOptions, "wait">): Promise<Lock | null>;
  tryLock(keys: readonly string[], options?: Omit<LockOptions, "wait">): Promise<LockSet | null>;
  /** Do `work` under the lock, and release it.  Rejects with HF_LOST if the lock
   * was lost meanwhile. */
  using<T>(key: string, work: (lock: Lock, signal: AbortSignal) => T | Promise<T>): Promise<T>;
  using<T>(
    key: string, options: LockOptions, work: (lock: Lock, signal: AbortSignal) => T | Promise<T>
  ): Promise<T>;
  using<T>(
    keys: readonly string[], work: (locks: LockSet, signal: AbortSignal) => T | Promise<T>
  ): Promise<T>;
  using<T>(
    keys: readonly string[], options: LockOptions,
    work: (locks: LockSet, signal: AbortSignal) => T | Promise<T>
  ): Promise<T>;

  /** Lead whenever elected: `lead` runs while this client holds the key.  When
   * leadership is lost, its signal is aborted, and after its end the next
   * campaign begins.  When it ends by itself, so does the election. */
  elect<T>(key: string, lead: (lock: Lock, signal: AbortSignal) => T | Promise<T>): Promise<T>;
  elect<T>(
    key: string, options: LockOptions, lead: (lock: Lock, signal: AbortSignal) => T | Promise<T>
  ): Promise<T>;
  /** Who leads: the holder of the key; its `note` is what it said. */
  leader(key: string): Promise<Info | null>;
  /** The present leader, then each new one; null: nobody. */
  leaders(key: string, options?: { signal?: AbortSignal }): AsyncGenerator<Info | null, void>;

  /** Take up a lock that was detached. */
  attach(key: string, handle: Handle, options?: AttachOptions): Promise<Lock>;
  /** Renew a detached lock without taking it up. */
  extendHandle(key: string, handle: Handle, options?: AttachOptions): Promise<void>;
  /** Release a detached lock without taking it up. */
  releaseHandle(key: string, handle: Handle, options?: AttachOptions): Promise<void>;

  inspect(key: string): Promise<Info>;
  holders(key: string): Promise<Info[]>;
  /** Those who wait, in their order, where the service knows them. */
  waiters(key: string): Promise<Waiter[]>;
  /** The locks that are held and whose keys begin with `prefix`. */
  list(prefix?: string): Promise<Info[]>;
  /** Take the lock away from its holder; with `force` others need not wait until
   * the holder has noticed. */
  break(key: string, fence: bigint, options?: { force?: boolean }): Promise<void>;
  /** Does the grant with this fence stand? */
  check(key: string, fence: bigint): Promise<boolean>;
  describe(): Promise<Service>;
  /** Remove what keys that have been free for `older` (7 days) left behind. */
  collect(options?: { older?: number; dryRun?: boolean }): Promise<{
    lookedAt: number; removed: number; kept: number;
  }>;

  /** What the client has counted.  It asks no service. */
  stats(): Stats;
  /** The same as OpenMetrics text, for an endpoint that Prometheus reads. */
  statsText(): string;

  /** The present state of a key, then every change; with `prefix` of all keys that
   * begin with it.  Changes may be merged; the last one is always told. */
  observe(key: string, options?: { prefix?: boolean; signal?: AbortSignal }): AsyncGenerator<Info, void>;

  readonly closed: boolean;
  /** Release everything, and reject what waits. */
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}
export const Client: {
  /** Open the service that `url` names: holdfast-url(7).  Without it: "file:". */
  open(url?: string | null, options?: ClientOptions): Promise<Client>;
  prototype: Client;
};

export interface ServiceKind {
  name: string;
  schemes: string;
  module: string;
  /** Why it cannot be used; "" if it can.  Then the rest is known, too. */
  missing: string;
  options?: string;
  /** Its manual page, in section 7. */
  page?: string;
  /** The versions that the tests run against. */
  tested?: string;
  traits?: Trait[];
  varies?: Trait[];
}

/** The kinds of services that the library knows. */
export function services(): ServiceKind[];
