-- SPDX-License-Identifier: MIT
--
-- promote.lua - P: a waiter becomes the first in line.

-- The token of the first living waiter of this token, owner id or note.
local function find_heir(name)
  for from = 0, 4095, 128 do
    local waiting = call('ZRANGEBYSCORE', queue, '-inf', '(7e15', 'LIMIT', from,
      128)
    local packed = waiting[1] and call('HMGET', meta, unpack(waiting))
    for i = 1, #waiting do
      local entry = living(packed[i])
      if entry then
        local len, rest = match(entry[3], '^[?!]?(%d+) (.*)$')
        if waiting[i] == name or entry[2] == name
          or rest and sub(rest, len + 1) == name then
          return waiting[i]
        end
      end
    end
    if #waiting < 128 then return end
  end
end

if op == 'P' then
  local member = mine and mine[2] == ARGV[3] and mine[5] == ''
  if not member and (shares or not ours or broken or fence ~= ARGV[3]) then
    return 0
  end
  local heir = find_heir(ARGV[4])
  if not heir then return 2 end
  local first = call('ZRANGE', queue, 0, 0, 'WITHSCORES')
  write_first()
  if first[1] ~= heir then
    call('ZADD', queue, string.format('%.0f', first[2] - 1), heir)
  end
  if shares then let_in() end -- Nobody may be before it any more who could not.
  return 1
end
