-- SPDX-License-Identifier: MIT
--
-- several.lua - take several locks, all or none, if nobody has or wants any.
--
--   KEYS  all locks, then all metas, then all queues, in the same order
--   ARGV  ttl, "LENGTH CHANNEL+NOTE", and a token for each lock
--
-- A list of fences, as text; 0 if one of them is taken; -1 if somebody may wait
-- for one that is free: let each be asked for, as fenced.lua has it.  That file
-- says what is kept where, and fast.lua does the same for one lock.
--
-- given: keep, day, fresh, long

local call, sub, match = redis.call, string.sub, string.match
local n, ttl, about = #KEYS / 3, ARGV[1], ARGV[2]
if call('EXISTS', unpack(KEYS, 1, n)) > 0 then return 0 end
if call('EXISTS', unpack(KEYS, 2 * n + 1)) > 0 then return -1 end

-- All is read before the first write, and all that can be refused is done
-- before the first lock is set.
local clock, fences, lasts = call('TIME'), {}, {}
local stamp = clock[1] .. sub('00000' .. clock[2], -6)
local since = sub(stamp, 1, -4)
for i = 1, n do
  local last = call('HGET', KEYS[n + i], 'g')
  fences[i] = stamp
  if last and (last >= stamp or sub(last, 17, 17) ~= ' ') then
    last = match(last, '^%d+')
    if last and (#last > #stamp or #last == #stamp and last >= stamp) then
      fences[i] = string.format('%.0f', last + 1)
    end
  end
  lasts[i] = last
end
for i = 1, n do
  local last, meta = lasts[i], KEYS[n + i]
  call('HSET', meta, 'g',
    fences[i] .. ' ' .. since .. ' ' .. ARGV[i + 2] .. ' ' .. about)
  if not last or last < sub(fences[i], 1, day) or #ttl > long then
    local set = redis.pcall('PEXPIRE', meta, ttl + keep)
    if set ~= 1 then
      if not last then call('DEL', meta) end
      return set
    end
  end
end
for i = 1, n do
  local set = redis.pcall('SET', KEYS[i], ARGV[i + 2], 'PX', ttl)
  if set.err then -- This user may write some of them only.
    if i > 1 then call('DEL', unpack(KEYS, 1, i - 1)) end
    return set
  end
end
return fences
