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
local left_over -- alter.lua
if op == 'L' and not ours and not shares then
  local placed, said = leave(token), not value and set_free()
  if said ~= 3 then return said == 2 and 4 or placed end
  heirs.again, heirs.done = 4, placed
elseif op == 'L' and ours then
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
      if sub(rest[i], 1, 1) ~= '~' then return 1 end
    end
    left_over = rest[1]
  else
    local said = set_free(owner ~= '' and token)
    if said ~= 3 then return said end
    heirs.again = 2
  end
end
