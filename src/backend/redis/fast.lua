-- SPDX-License-Identifier: MIT
--
-- fast.lua - the common cases.

-- They come before functions are made that they do not need: a claim without
-- an owner id, and nobody waits.  All is read
-- before the first write, so that what cannot be read leaves nothing half
-- done.
local value, front, joins, group_end, group_time, lowest, rest, marks
local few = 9 -- group.lua
if op == 'X' then
-- include: fast_share.lua
end
if joins or op == 'A' and call('EXISTS', lock, queue) == 0 then
  local clock, last = call('TIME'), call('HGET', meta, 'g')
  local fence = clock[1] .. sub('00000' .. clock[2], -6)
  local since, ahead = sub(fence, 1, -4), nil
  if last and (last >= fence or sub(last, 17, 17) ~= ' ') then
    last = match(last, '^%d+')
    if last and (#last > #fence or #last == #fence and last >= fence) then
      fence, ahead = string.format('%.0f', last + 1), true
    end
  end
  call('HSET', meta, 'g',
    fence .. ' ' .. since .. ' ' .. token .. ' ' .. ARGV[4])
  if not last or last < sub(fence, 1, day) or #ARGV[3] > long or ahead then
    local set = redis.pcall('PEXPIRE', meta, ARGV[3] + keep)
    if set ~= 1 then
      if not last then call('DEL', meta) end
      return set
    end
  end
  if joins then
-- include: fast_join.lua
    return fence
  end
  call('SET', lock, token, 'PX', ARGV[3])
  return fence
end
value = value or op ~= 'X' and call('GET', lock)
if value == token then
  if op == 'L' then -- One that was broken is in the queue (break.lua).
    front = call('ZRANGE', queue, '0', '1')
    if not front[1] then return call('DEL', lock) end
  elseif op == 'R' then
    local last, fence = call('HMGET', meta, 'g', 'b'), ARGV[4]
    if last[1] and sub(last[1], 1, #fence + 1) == fence .. ' '
      and last[2] ~= fence then
      if call('PTTL', lock) < tonumber(ARGV[3]) then
        call('PEXPIRE', lock, ARGV[3])
      end
      local known = call('PTTL', meta)
      if known < fresh or #ARGV[3] > long and known < ARGV[3] + keep then
        call('PEXPIRE', meta, ARGV[3] + keep)
      end
      return 1
    end
  end
end
