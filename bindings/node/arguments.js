// SPDX-License-Identifier: MIT
//
// arguments.js - what a user passes, checked, in the words of the addon; and the
// error that says what is wrong.
//
// The addon trusts what comes from here: every text is UTF-8 without NUL, every
// number fits into the type that it gets in C.
"use strict";

const FLAGS = { manual: 1, fair: 2, shared: 4, poll: 8 };
const LEVELS = ["error", "warning", "info", "debug"];

// Where hfn_get_opts() of the addon looks for them, behind the flags and `wait`.
const TIMES = ["ttl", "retry", "linger", "maxHold", "minHold"];
const COUNTS = ["permits", "tries", "localTurns"];

// ---- errors ----------------------------------------------------------------

class HoldfastError extends Error {
  constructor(status, text, errno) {
    super(text || status);
    this.code = "HF_" + status.toUpperCase();
    if (errno) this.errno = errno;
  }
  get name() {
    return "HoldfastError";
  }
}

// What a program throws, or aborts a signal with, is any value.
const isLost = (error) => error?.code === "HF_LOST";

// ---- arguments ---------------------------------------------------------------

// A NUL would end a text early, and a lone surrogate has no UTF-8: another key than
// was asked for would be locked.
function text(value, what) {
  if (typeof value !== "string") throw new TypeError(`${what} must be a string`);
  if (value.includes("\0")) throw new TypeError(`${what} must not contain a NUL`);
  if (/\p{Surrogate}/u.test(value)) throw new TypeError(`${what} is not well-formed Unicode`);
  return value;
}

// Whole milliseconds, never fewer than were asked for.
function number(value, what) {
  if (typeof value !== "number" || Number.isNaN(value))
    throw new TypeError(`${what} must be a number`);
  if (Math.abs(value) > Number.MAX_SAFE_INTEGER)
    throw new RangeError(`${what} is out of range: ${value}`);
  return Math.ceil(value);
}

function count(value, what) {
  if (!Number.isInteger(value)) throw new TypeError(`${what} must be an integer`);
  if (value !== (value | 0)) throw new RangeError(`${what} is out of range: ${value}`);
  return value;
}

// A time that may be without limit.
const limit = (value, what) => (value === Infinity ? -1 : number(value, what));

function fenceOf(value) {
  if (typeof value !== "bigint") throw new TypeError("fence must be a bigint");
  if (value !== BigInt.asUintN(64, value)) throw new RangeError("fence is out of range");
  return value;
}

// A number in place of the options would be a lock without those that were meant.
function object(value, what = "options") {
  if (typeof value !== "object" || value === null || Array.isArray(value))
    throw new TypeError(`${what} must be an object`);
  return value;
}

function callable(value, what) {
  if (typeof value !== "function") throw new TypeError(`${what} must be a function`);
  return value;
}

// Not what only counts as true, as the text "no" does.
function flag(value, what) {
  if (value !== undefined && typeof value !== "boolean")
    throw new TypeError(`${what} must be true or false`);
  return value === true;
}

// What the addon wants to know of the options of a lock: numbers, owner and note.  It
// finds a number by its place much faster than a property by its name.  A `wait` that
// is given here is not asked of the user.
function lockOptions(options, wait) {
  object(options);
  const numbers = new Float64Array(2 + TIMES.length + COUNTS.length);
  let at = 2;
  const asked = wait ?? options.wait;
  numbers[1] = asked === undefined ? -1 : limit(asked, "wait");
  for (const name of TIMES) {
    const value = options[name];
    if (value !== undefined) numbers[at] = number(value, name);
    at++;
  }
  for (const name of COUNTS) {
    const value = options[name];
    if (value !== undefined) numbers[at] = count(value, name);
    at++;
  }
  for (const name in FLAGS) if (flag(options[name], name)) numbers[0] |= FLAGS[name];
  const { owner, note } = options;
  if (owner !== undefined) text(owner, "owner");
  if (note !== undefined) text(note, "note");
  return [numbers, owner, note];
}

function clientOptions(options) {
  const { timeout = 0, connect = 0, note, log, logLevel = "warning" } = object(options);
  const level = LEVELS.indexOf(logLevel) + 1;
  if (level === 0) throw new TypeError(`logLevel must be one of ${LEVELS.join(", ")}`);
  if (log !== undefined) callable(log, "log");
  if (note !== undefined) text(note, "note");
  return {
    timeout: number(timeout, "timeout"),
    connect: limit(connect, "connect"),
    logLevel: level,
    note,
    log,
  };
}

function handleOf(handle) {
  const { token, ref = "", fence } = object(handle, "handle");
  if (typeof fence !== "bigint" && !/^\d+$/.test(text(fence, "fence")))
    throw new TypeError("fence must be a bigint, or a string of its digits");
  const ret = { token: text(token, "token"), ref: text(ref, "ref"), fence: fenceOf(BigInt(fence)) };
  if (Buffer.byteLength(ret.token) > 39 || Buffer.byteLength(ret.ref) > 63)
    throw new HoldfastError("invalid", "not a handle of a detached lock");
  return ret;
}

module.exports = {
  HoldfastError, callable, clientOptions, fenceOf, flag, handleOf, isLost, lockOptions, number,
  object, text,
};
