-- SPDX-License-Identifier: MIT
--
-- several.lua - take several locks, all or none, if nobody has or wants any.
--
--   KEYS  all locks, then all queues, then all metas, in the same order
--   ARGV  ttl, "LENGTH CHANNEL+NOTE", and a token for each lock
--
-- The fence that all of them have, as text, or a list of fences if not all are
-- the same; 0 if one of them is taken; -1 if somebody may wait for one that is
-- free: let each be asked for, as fenced.lua has it.  That file says what is kept
-- where, and fast.lua does the same for one lock.
--
-- Each lock costs three commands, which are most of what a call takes.  All else
-- is done once for all of them, where it can be.
--
-- given: keep, day, fresh, long

local call, byte, keys, args = redis.call, string.byte, KEYS, ARGV
local n, ttl = #keys / 3, args[1]
if call('EXISTS', unpack(keys, 1, 2 * n)) > 0 then
  return call('EXISTS', unpack(keys, 1, n)) > 0 and 0 or -1
end

-- All is read before the first write, and all that can be refused is done
-- before the first lock is set.
local clock, metas, lasts, fences = call('TIME'), 2 * n, {}, nil
local stamp = clock[1] .. string.sub('00000' .. clock[2], -6)
for i = 1, n do
  local last = call('HGET', keys[metas + i], 'g')
  lasts[i] = last
  if last and (byte(last, 17) ~= 32 or last >= stamp) then
    last = string.match(last, '^%d+')
    if last and (#last > #stamp or #last == #stamp and last >= stamp) then
      fences = fences or {}
      fences[i] = string.format('%.0f', last + 1)
    end
  end
end
local since = ' ' .. string.sub(stamp, 1, -4) .. ' '
local head, tail = stamp .. since, ' ' .. args[2]
local today, each = string.sub(stamp, 1, day), #ttl > long
for i = 1, n do
  local last, meta = lasts[i], keys[metas + i]
  local fence = fences and fences[i]
  call('HSET', meta, 'g',
    (fence and fence .. since or head) .. args[i + 2] .. tail)
  if each or not last or last < today or fence then
    local set = redis.pcall('PEXPIRE', meta, ttl + keep)
    if set ~= 1 then
      if not last then call('DEL', meta) end
      return set
    end
  end
end
for i = 1, n do
  local set = redis.pcall('SET', keys[i], args[i + 2], 'PX', ttl)
  if set.err then -- This user may write some of them only.
    if i > 1 then call('DEL', unpack(keys, 1, i - 1)) end
    return set
  end
end
if not fences then return stamp end
for i = 1, n do fences[i] = fences[i] or stamp end
return fences
