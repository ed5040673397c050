-- SPDX-License-Identifier: MIT
--
-- release.lua - L, D and G: a claim ends, or gives a grant back.

local function end_claim(whose, life)
  write_first()
  call('ZADD', queue, over + now + life, '-' .. whose)
  if call('PTTL', queue) < life then call('PEXPIRE', queue, life) end
end

if op == 'D' then
  end_claim(token, tonumber(ARGV[3]))
  op = 'L'
end
if op == 'G' then
  local last = call('HGET', meta, 'g') or ''
  if not ours or match(last, '^%d+') ~= ARGV[3] then return 0 end
  op = 'L'
end

-- If nobody has it, it may have ended between two of the calls that pass it
-- on, and those who wait must not be forgotten: go on, and say so by 4.
if op == 'L' then
  if not ours then
    local placed = leave(token)
    return not value and set_free() == 2 and 4 or placed
  end
  if call('ZREM', queue, token) == 1 then -- It polls, and was passed the lock.
    call('HDEL', meta, token)
    front = nil
  end
  local left = owner ~= '' and longest_claim(owners_time(now), token) or 0
  if left > 0 then
    call('HDEL', owners, token)
    call('PEXPIRE', owners, left)
    call('PEXPIRE', lock, left)
    return 1
  end
  return set_free(owner ~= '' and token)
end
