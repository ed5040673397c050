-- SPDX-License-Identifier: MIT
--
-- renew.lua - R, S and C: keep the lock; and the last grant, for what follows.

local last = op ~= 'A' and op ~= 'L' and call('HMGET', meta, 'g', 'b') or {}
local fence, granted_at, holder, mark, len, about = match(last[1] or '',
  '^(%d+) (%d+) (%S+) ([?!]?)(%d+) (.*)$')
local broken = fence and fence == last[2]
-- Another library has it, and nothing of the last grant is its own.
local foreign = value and value ~= holder and not is_owner_grant(fence)

if (op == 'R' or op == 'S' or op == 'C') and not mine then
  local said, ttl = ARGV[4], tonumber(ARGV[3])
  local less = not fence or #fence == #said and fence < said
  local forgot = #said == 16 and less and (said >= stamp or fence and value)
    and said < string.format('%.0f', stamp + 864e8)
  if ours and said ~= '0'
    and (fence ~= said and last[1] or held and held ~= said) then
    ours = false
  end
  if not ours then
    if last[2] == said then return 3 end
    if forgot then
      write_first()
      call('HSET', meta, 'g', said .. ' ' .. since .. ' ' .. token .. ' 0 ')
      call('PEXPIRE', meta, ttl + keep)
      if shares and not use then
        call('HSET', owners, '<', said, '',
          '11 ' .. group_end .. ' ' .. lowest .. ' ' .. inexact)
      end
    end
    return value and value ~= token and not held and 2 or 0
  end
  if broken and (owner ~= '' or holder == token) then return 3 end
  refresh(ttl, op == 'S')
  if not last[1] and said ~= '0' then -- It was removed, or expired.
    call('HSET', meta, 'g', said .. ' ' .. since .. ' ' .. token .. ' 0 ')
    call('PEXPIRE', meta, ttl + keep)
  end
  return 1
end
