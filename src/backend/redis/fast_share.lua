-- SPDX-License-Identifier: MIT
--
-- fast_share.lua - the common cases of a shared lock: nobody waits, and no owner
-- id is there.

-- As in group.lua and share.lua, and no more than they would do: one joins, or
-- leaves many others behind, or was the last.
local step = sub(what, -3) == ' 0 ' and sub(what, 2, 2)
value = call('GET', lock)
if step == 'A' and sub(ARGV[4], 1, 1) == '!' then step = nil end
if step == 'A' and not value then
  joins = call('EXISTS', queue, owners) == 0
elseif value == 'shared:' and step and call('EXISTS', queue) == 0 then
  local known, is_member = redis.pcall('HMGET', owners, '', token), nil
  known, is_member = known[1], known[2]
  marks = known and sub(known, 1, 3)
  if step == 'A' and marks and not is_member then
    group_end, lowest, rest = match(known, '^(%d+) (%d+)( %d+)$', 4)
    if rest then
      group_end, lowest = group_end + 0, lowest + 0
      group_time = group_end - call('PTTL', owners)
      joins = group_time < lowest
    end
  elseif step == 'L' and (marks == '00 ' or marks == '10 ') then
    local n = call('HLEN', owners)
    if n > few then
      n = call('HDEL', owners, token)
      if marks == '00 ' and n == 1 then
        -- With a value of so many bytes the server finds a field by its hash
        -- from now on, and does not read through all of them.
        call('HSET', owners, '',
          '10 ' .. sub(known, 4, -2) .. string.rep('0', 64) .. '1')
      end
      if n == 1 then return 1 end
    elseif is_member then
      if n == 2 then return call('DEL', lock, owners) - 1 end
      if marks == '00 ' then
        local r = cmsgpack.unpack(is_member)
        if r[1] < tonumber(match(known, '^%d+', 4)) then
          return call('HDEL', owners, token)
        end
      end
    end
  end
end
