-- SPDX-License-Identifier: MIT
--
-- release.lua - L and G: a claim ends, or gives a grant back.

if op == 'G' and not shares then
  local last = call('HGET', meta, 'g') or ''
  if not ours or match(last, '^%d+') ~= ARGV[3] then return 0 end
  op = 'L'
end

-- If nobody has it, it may have ended between two of the calls that pass it
-- on, and those who wait must not be forgotten: go on, and say so by 4.
-- A grant that was broken ends like every other, and was not ours: 6, or 7 where
-- that is to be repeated.
local left_over -- alter.lua
local done, again = 1, 2
if op == 'L' and not ours and not shares then
  local placed, said = leave(token), not value and set_free()
  if said ~= 3 then return said == 2 and 4 or placed end
  heirs.again, heirs.done = 4, placed
elseif op == 'L' and ours then
  if is_broken() then
    done, again = 6, 7
    if not is_over then call('ZREM', queue, '-' .. token) end -- break.lua
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
    local rest = call('HKEYS', owners)
    for i = 1, #rest do
      if sub(rest[i], 1, 1) ~= '~' then return done end
    end
    left_over = rest[1]
  else
    local said = set_free(owner ~= '' and token)
    if said ~= 3 then
      return said == 2 and again or done == 6 and 6 or said
    end
    heirs.again, heirs.done = again, done == 6 and 6 or nil
  end
end
