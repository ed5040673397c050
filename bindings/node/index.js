// SPDX-License-Identifier: MIT
//
// index.js - distributed locks, the way of Node.js.
//
//     const { Client } = require("holdfast");
//
//     const client = await Client.open("redis://127.0.0.1");
//     await client.using("nightly", async (lock) => { ... });
//
// The addon (src/) has plain functions; everything that JavaScript likes is made
// here: promises, signals, events, iterators.  index.d.ts documents the
// interface.
//
// A lock has a number in the addon, that of its request plus its index there.
// #claims maps those numbers to what waits for them: a pending request, then its
// locks.  A client that is open and a lock that is held are never collected;
// close() and release() end them.
//
// A function that returns a promise throws nothing: it is `async`, and so are the
// checks of its arguments.
//
// What a user passes may run code of the user: getters, signals, listeners.  All of
// it is read before something begins in the addon, and only once; what is called
// later runs when there is nothing left that it could keep from being done.
"use strict";

const { EventEmitter } = require("node:events");
const native = load();
const MADE = Symbol("made here"); // nobody else can construct what the addon trusts
const {
  HoldfastError, callable, clientOptions, fenceOf, flag, handleOf, isLost, lockOptions, number,
  object, text,
} = require("./arguments.js");
native.errorClass(HoldfastError);

// events.h of the library
const GRANTED = 1;
const FAILED = 2;
const AT_RISK = 3;
const GONE = 4;
const CHANGED = 5;
const ANSWERED = 6;

Symbol.asyncDispose ??= Symbol.for("Symbol.asyncDispose");

function load() {
  for (const name of ["./holdfast.node", "./build/holdfast.node"]) {
    try {
      return require(name);
    } catch (error) {
      if (error.code !== "MODULE_NOT_FOUND") throw error;
    }
  }
  throw new Error("holdfast: the addon is not built; run `make` in " + __dirname);
}

// An error from the addon was made where nobody called; give it the stack of the
// function that the user awaits.
async function settle(promise) {
  try {
    return await promise;
  } catch (error) {
    if (error instanceof HoldfastError) Error.captureStackTrace(error, settle);
    throw error;
  }
}

// Tell listeners.  One that throws is an uncaught exception, and stops nothing here.
function tell(emitter, ...event) {
  try {
    emitter.emit(...event);
  } catch (error) {
    native.uncaught(error);
  }
}

// ---- signals -----------------------------------------------------------------

const watched = new WeakMap(); // signal: what to call when it is aborted

function signalOf(options) {
  const { signal } = object(options);
  const methods = ["throwIfAborted", "addEventListener", "removeEventListener"];
  if (signal === undefined || signal === null) return undefined;
  if (methods.some((name) => typeof signal[name] !== "function"))
    throw new TypeError("signal must be an AbortSignal");
  return signal;
}

// Call `abort` when the signal is aborted.  Any number of requests are one listener.
function watch(signal, abort) {
  let all = watched.get(signal);
  if (!all) {
    all = new Set();
    all.listener = () => {
      watched.delete(signal);
      for (const one of all) one();
    };
    signal.addEventListener("abort", all.listener, { once: true });
    watched.set(signal, all);
  }
  all.add(abort);
}

function unwatch(signal, abort) {
  const all = watched.get(signal);
  if (!all?.delete(abort) || all.size) return;
  watched.delete(signal);
  try {
    signal.removeEventListener("abort", all.listener);
  } catch {
    // It was no AbortSignal, and nobody listens any more.
  }
}

function reasonOf(signal) {
  try {
    return signal.reason;
  } catch (error) {
    return error;
  }
}

// ---- locks -------------------------------------------------------------------

class Lock extends EventEmitter {
  #client;
  #native; // the client's
  #claim; // in the addon; undefined once the lock is released
  #index;
  #reason = null;
  #told = false; // of the loss
  #known = false; // to who asked for it
  #ops = null; // what has to end before the handle does
  #signal = null;

  constructor(made, client, handle, claim, index, key) {
    if (made !== MADE) throw new TypeError("a lock comes from a client: client.lock()");
    super();
    this.#client = client;
    this.#native = handle;
    this.#claim = claim;
    this.#index = index;
    const [token, fence, slot] = native.token(handle, claim, index);
    this.key = key;
    this.token = token;
    this.fence = fence;
    this.slot = slot < 0 ? null : slot;
  }

  get held() {
    return this.#claim !== undefined && native.held(this.#native, this.#claim, this.#index);
  }

  get remaining() {
    if (this.#claim === undefined) return 0;
    return native.remaining(this.#native, this.#claim, this.#index);
  }

  get lostReason() {
    if (this.#reason === null && this.#claim !== undefined) {
      const reason = native.reason(this.#native, this.#claim, this.#index);
      if (reason !== "none") this.#reason = reason;
    }
    return this.#reason;
  }

  get signal() {
    if (!this.#signal) {
      this.#signal = new AbortController();
      if (this.lostReason !== null) this.#abort();
    }
    return this.#signal.signal;
  }

  async extend(ttl = 0) {
    const ms = number(ttl, "ttl");
    return this.#run(native.extend, ms);
  }

  async transfer(heir) {
    text(heir, "heir");
    return this.#run(native.transfer, heir);
  }

  downgrade() {
    return this.#run(native.downgrade);
  }

  release() {
    return this.#end((_, claim, index) => this.#client._release(claim, index));
  }

  async detach() {
    const { token, ref, fence } = await this.#end(native.detach);
    return { token, ref, fence: String(fence) };
  }

  [Symbol.asyncDispose]() {
    return this.#claim === undefined && this.#reason === null
      ? Promise.resolve()
      : this.release();
  }

  // Its promise is settled: who awaits it goes on before the next event is delivered.
  _settled() {
    this.#known = true;
    return this;
  }

  get _known() {
    return this.#known;
  }

  // The addon tells: AT_RISK, or GONE with its reason.  Also called by close().
  // Is this new?
  _tell(type, reason) {
    if (type === AT_RISK) return tell(this, "atRisk"), true;
    if (this.#told) return false;
    this.#told = true;
    this._lose(reason);
    tell(this, "lost", this.#reason);
    return true;
  }

  _lose(reason) {
    this.#reason ??= reason;
    this.#abort();
  }

  // The client has ended, and at the exit of the process it is too late for events.
  _closed(exits) {
    this.#claim = undefined;
    if (exits) this.#reason ??= "closed";
    else this._tell(GONE, "closed");
  }

  #abort() {
    this.#signal?.abort(
      new HoldfastError("lost", `lock '${this.key}' was lost: ${this.#reason}`)
    );
  }

  // A call with the handle.  The handle does not end before it.
  async #run(call, argument) {
    if (this.#claim === undefined) throw this.#over();
    const done = call(this.#native, this.#claim, this.#index, argument);
    const all = (this.#ops = Promise.allSettled([this.#ops, done]));
    try {
      return await settle(done);
    } finally {
      if (this.#ops === all) this.#ops = null;
    }
  }

  // A call that ends the handle.
  async #end(call) {
    const claim = this.#claim;
    if (claim === undefined) throw this.#over();
    this.lostReason; // the addon cannot tell later
    this.#claim = undefined;
    this.#client._forget(claim + this.#index);
    if (this.#ops) {
      await this.#ops;
      if (this.#client._ended) throw this.#over((this.#reason ??= "closed"));
    }
    return settle(call(this.#native, claim, this.#index));
  }

  #over() {
    return this.#reason === null
      ? new HoldfastError("invalid", `lock '${this.key}' was released before`)
      : new HoldfastError("lost", `lock '${this.key}' was lost: ${this.#reason}`);
  }
}

// The locks of several keys.  Loss of one of them is loss of all.
class LockSet extends EventEmitter {
  #signal = null;

  constructor(locks) {
    super();
    this.locks = locks;
    for (const lock of locks) {
      lock.on("atRisk", () => tell(this, "atRisk", lock));
      lock.on("lost", (reason) => {
        this.#signal?.abort(lock.signal.reason);
        tell(this, "lost", reason, lock);
      });
    }
  }

  get held() {
    return this.locks.every((lock) => lock.held);
  }

  get signal() {
    if (!this.#signal) {
      this.#signal = new AbortController();
      const lost = this.locks.find((lock) => lock.lostReason !== null);
      if (lost) this.#signal.abort(lost.signal.reason);
    }
    return this.#signal.signal;
  }

  get(key) {
    return this.locks.find((lock) => lock.key === key);
  }

  [Symbol.iterator]() {
    return this.locks[Symbol.iterator]();
  }

  // Release all of them, then tell of the first that could not be.
  async release() {
    const ends = await Promise.allSettled(this.locks.map((lock) => lock.release()));
    const bad = ends.find((end) => end.status === "rejected");
    if (bad) throw bad.reason;
  }

  async [Symbol.asyncDispose]() {
    const ends = this.locks.map((lock) => lock[Symbol.asyncDispose]());
    const bad = (await Promise.allSettled(ends)).find((end) => end.status === "rejected");
    if (bad) throw bad.reason;
  }
}

// ---- client ------------------------------------------------------------------

const open = new Set(); // clients

// What is held is released, also by process.exit().
process.on("exit", () => {
  for (const client of open) client._exit();
});

class Client extends EventEmitter {
  #native;
  #claims = new Map(); // number of a lock: pending request, or lock
  #next = 1;
  #releases = new Set(); // promises
  #closing = null;
  #ended = false; // in the addon

  constructor(made) {
    if (made !== MADE) throw new TypeError("a client comes from Client.open()");
    super();
  }

  static async open(url, options = {}) {
    if (url !== undefined && url !== null) text(url, "url");
    const client = new Client(MADE);
    const given = clientOptions(options);
    client.#native = await settle(
      native.open(url, given, (...event) => client.#deliver(...event))
    );
    open.add(client);
    return client;
  }

  // ---- locks

  async lock(keys, options = {}) {
    return this.#lock(keys, options);
  }

  async tryLock(keys, options = {}) {
    try {
      return await this.#lock(keys, options, 0);
    } catch (error) {
      if (error?.code === "HF_BUSY") return null;
      throw error;
    }
  }

  async #lock(keys, options, wait) {
    const several = Array.isArray(keys);
    const names = several ? Array.from(keys) : [keys]; // the caller may change his
    for (const key of names) text(key, "key");
    const locks = await settle(this.#acquire(names, options, wait));
    for (const lock of locks) lock._settled();
    return several ? new LockSet(locks) : locks[0];
  }

  async using(keys, options, work) {
    if (typeof options === "function") [options, work] = [{}, options];
    callable(work, "work");
    const lock = await this.lock(keys, options);
    let value;
    try {
      value = await work(lock, lock.signal);
    } catch (error) {
      await lock.release().catch(() => {});
      throw error;
    }
    await lock.release();
    return value;
  }

  async attach(key, handle, options = {}) {
    const id = this.#next++;
    const [name, from, given] = [text(key, "key"), handleOf(handle), lockOptions(options)];
    await settle(native.attach(this.#open(), name, from, given, id));
    if (this.#ended) throw new HoldfastError("canceled", "the client was closed");
    const lock = this.#locked(id, 0, name)._settled();
    // Its loss may have been delivered when there was no lock to tell it of.
    if (lock.lostReason !== null) this.#tellLater(id, lock, GONE, lock.lostReason);
    return lock;
  }

  async extendHandle(key, handle, options = {}) {
    return this.#call(native.handleExtend, text(key, "key"), handleOf(handle), lockOptions(options));
  }

  async releaseHandle(key, handle, options = {}) {
    return this.#call(native.handleRelease, text(key, "key"), handleOf(handle), lockOptions(options));
  }

  // ---- looking and mending

  describe() {
    return this.#call(native.describe);
  }

  async inspect(key) {
    return settle(this.#ask(native.inspect, text(key, "key")));
  }

  async holders(key) {
    return this.#call(native.holders, text(key, "key"));
  }

  async waiters(key) {
    return this.#call(native.waiters, text(key, "key"));
  }

  async list(prefix = "") {
    return settle(this.#ask(native.list, text(prefix, "prefix")));
  }

  async break(key, fence, options = {}) {
    const { force } = object(options);
    return this.#call(native.break, text(key, "key"), fenceOf(fence), flag(force, "force"));
  }

  async check(key, fence) {
    try {
      await settle(this.#ask(native.check, text(key, "key"), fenceOf(fence)));
      return true;
    } catch (error) {
      if (isLost(error)) return false;
      throw error;
    }
  }

  async collect(options = {}) {
    const { older = 7 * 24 * 3600 * 1000, dryRun } = object(options);
    return this.#call(native.collect, number(older, "older"), flag(dryRun, "dryRun"));
  }

  stats() {
    return native.stats(this.#open());
  }

  statsText() {
    return native.statsText(this.#open());
  }

  // The library keeps what was not taken yet, and merges it.  The process is kept
  // alive only while somebody waits for a change.
  async *observe(key, options = {}) {
    const prefix = flag(object(options).prefix, "prefix");
    const signal = signalOf(options);
    signal?.throwIfAborted();
    const id = this.#next++;
    let ended = false;
    let wake = () => {};
    const abort = () => wake();
    if (signal) watch(signal, abort);
    try {
      native.observe(this.#open(), id, text(key, "key"), prefix);
      this.#claims.set(id, { changed: abort, fail: () => wake((ended = true)) });
      while (!ended) {
        signal?.throwIfAborted();
        const info = native.change(this.#native, id);
        if (info) {
          yield info;
          continue;
        }
        native.busy(this.#native, 1);
        await new Promise((resolve) => (wake = resolve));
        native.busy(this.#native, -1);
      }
    } finally {
      if (signal) unwatch(signal, abort);
      if (this.#claims.delete(id)) native.unobserve(this.#native, id);
    }
  }

  // ---- election

  async elect(key, options, lead) {
    if (typeof options === "function") [options, lead] = [{}, options];
    callable(lead, "lead");
    for (;;) {
      const lock = await this.lock(key, options);
      const end = {};
      try {
        end.value = await lead(lock, lock.signal);
      } catch (error) {
        end.error = error;
      }
      const lost = lock.lostReason !== null;
      const released = await lock.release().catch((error) => error);
      if ("error" in end) {
        // The end of a term is no failure of lead().
        const { error } = end;
        if (lost && (isLost(error) || error?.name === "AbortError")) continue;
        throw error;
      }
      if (!released) return end.value;
      if (!isLost(released)) throw released;
    }
  }

  async *leaders(key, options = {}) {
    for await (const info of this.observe(key, { signal: signalOf(options) }))
      yield info.held ? info : null;
  }

  async leader(key) {
    const info = await this.inspect(key);
    return info.held ? info : null;
  }

  // ---- the end

  get _ended() {
    return this.#ended;
  }

  get closed() {
    return this.#closing !== null;
  }

  close() {
    return (this.#closing ??= this.#close());
  }

  [Symbol.asyncDispose]() {
    return this.close();
  }

  async #close() {
    while (this.#releases.size) await Promise.allSettled(this.#releases);
    if (this.#ended) return;
    const done = native.close(this.#native, false);
    this.#end(false);
    await done;
    open.delete(this);
  }

  _exit() {
    if (this.#ended) return;
    this.#closing ??= Promise.resolve();
    native.close(this.#native, true);
    this.#end(true);
  }

  // Nothing is delivered from now on.
  #end(exits) {
    const claims = new Set(this.#claims.values());
    this.#ended = true;
    this.#claims.clear();
    for (const claim of claims)
      if (claim instanceof Lock) claim._closed(exits);
      else claim.fail(new HoldfastError("canceled", "the client was closed"));
  }

  // ---- with the addon

  #open() {
    if (this.#closing) throw new HoldfastError("invalid", "the client was closed");
    return this.#native;
  }

  async #call(fn, ...args) {
    return settle(fn(this.#open(), ...args));
  }

  // A request that the library answers with an event.
  #ask(fn, ...args) {
    return new Promise((resolve, reject) => {
      const id = this.#next++;
      fn(this.#open(), id, ...args);
      this.#claims.set(id, {
        answered: (error, value) => (error ? reject(error) : resolve(value)),
        fail: reject,
      });
    });
  }

  // close() waits for what is being released.
  _release(claim, index) {
    const promise = new Promise((resolve, reject) => {
      const id = this.#next++;
      const end = () => this.#releases.delete(promise);
      if (!native.release(this.#native, claim, index, id)) return resolve(queueMicrotask(end));
      this.#claims.set(id, {
        answered: (error) => (end(), error ? reject(error) : resolve()),
        fail: reject,
      });
    });
    this.#releases.add(promise);
    return promise;
  }

  // Locks of the keys, in their order.
  #acquire(keys, options, wait) {
    return new Promise((resolve, reject) => {
      const given = lockOptions(options, wait);
      const signal = signalOf(options);
      signal?.throwIfAborted();
      const id = this.#next;
      this.#next += keys.length || 1;
      let aborted = false;
      const abort = () => {
        aborted = true;
        native.cancel(this.#native, id);
      };
      if (signal) watch(signal, abort);
      try {
        native.acquire(this.#open(), id, keys, given);
      } catch (error) {
        if (signal) unwatch(signal, abort);
        throw error;
      }
      this.#claims.set(id, {
        granted: () => {
          const locks = keys.map((key, i) => this.#locked(id, i, key));
          if (signal) unwatch(signal, abort);
          if (!aborted) return resolve(locks);
          const ends = locks.map((lock) => lock.release());
          Promise.allSettled(ends).then(() => reject(reasonOf(signal)));
        },
        fail: (error) => {
          if (signal) unwatch(signal, abort);
          reject(aborted && error.code === "HF_CANCELED" ? reasonOf(signal) : error);
        },
      });
      if (aborted) abort();
    });
  }

  #locked(claim, index, key) {
    const lock = new Lock(MADE, this, this.#native, claim, index, key);
    this.#claims.set(claim + index, lock);
    return lock;
  }

  _forget(id) {
    this.#claims.delete(id);
  }

  // An event of the library.
  #deliver(type, id, what, value) {
    const claim = this.#claims.get(id);
    if (!claim) return;
    if (type === GRANTED) return claim.granted();
    if (type === CHANGED) return claim.changed();
    if (type === FAILED) {
      this.#claims.delete(id);
      return claim.fail(what);
    }
    if (type === ANSWERED) {
      this.#claims.delete(id);
      return claim.answered(what, value);
    }
    if (type === GONE) claim._lose(what);
    if (claim._known) this.#tell(claim, type, what);
    else this.#tellLater(id, claim, type, what);
  }

  // An event of a lock, to those who listen.
  #tell(lock, type, reason) {
    if (lock._tell(type, reason)) tell(this, type === GONE ? "lost" : "atRisk", lock, reason);
  }

  // Nobody could listen yet: events are delivered many at a time, and who awaits the
  // lock goes on after the last of them.
  #tellLater(id, lock, type, reason) {
    setImmediate(() => {
      if (this.#claims.get(id) === lock) this.#tell(lock, type, reason);
    });
  }
}

module.exports = {
  Client,
  Lock,
  LockSet,
  HoldfastError,
  services: native.services,
  version: native.version,
};
