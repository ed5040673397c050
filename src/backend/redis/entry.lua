-- SPDX-License-Identifier: MIT
--
-- entry.lua - the entries of waiters, each packed in a field of meta:
--
--   1  when it ends, unless its waiter asks again
--   2  owner id, or ''
--   3  what a grant says of its holder: "LENGTH CHANNEL+NOTE"
--   4  channel on which the waiter listens; '' if it polls
--   5  number of the try that last asked for it
--   6  when the waiter looks again
--   7  how it wants the lock: 0 shared, else its permits; none for itself alone

local function leave(waiter)
  call('HDEL', meta, waiter)
  return call('ZREM', queue, waiter)
end

-- The entry, if its waiter lives.
local function living(packed)
  local entry = packed and cmsgpack.unpack(packed)
  if entry and entry[1] > now then return entry end
end
