-- SPDX-License-Identifier: MIT
--
-- alter.lua - W: the holder shares the lock from now on; K: it is released, and
-- stays taken for a while.

-- Of an owner id's claims one that is kept stands among the owners as ~TOKEN:
-- nobody renews it, and the others go on.
local function keep_claim(ms)
  local time = owners_time(now)
  write_first()
  call('HDEL', owners, token)
  call('HSET', owners, '~' .. token, time + ms)
  local left = longest_claim(time)
  call('PEXPIRE', owners, left)
  call('PEXPIRE', lock, left)
  return 1
end

if op == 'W' or op == 'K' then
  local said, ms = ARGV[3], tonumber(ARGV[4])
  if mine then
    if mine[2] ~= said or match(mine[5], 'b') then return 0 end
    if op == 'W' then return kept and 0 or 1 end
    if mine[5] == '' then
      write_first()
      mine[5] = 'k'
      put_member(token, mine, group_time + ms)
      let_in() -- Who is next may have looked forward to a later end.
    end
    return 1
  end
  if op == 'K' and held and call('HEXISTS', owners, '~' .. token) == 1 then
    return 1
  end
  if not ours or broken or fence and fence ~= said or held and held ~= said then
    return 0
  end
  if owner ~= '' and longest_claim(owners_time(now), token) > 0 then
    return op == 'K' and keep_claim(ms) or 6
  end
  write_first()
  local member = {nil, said, granted_at or since, -1, op == 'K' and 'k' or '',
    fence and sub(last[1], #fence + #granted_at + #holder + 4) or '0 ', owner}
  ms = ms or math.max(call('PTTL', lock), 1)
  begin_group(0, token, member, ms, op == 'K')
  let_in()
  return 1
end
