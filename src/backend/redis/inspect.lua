-- SPDX-License-Identifier: MIT
--
-- inspect.lua - I: what there is; J: the same for each claim that has it; Q: who
-- waits, 128 at a time.

if op == 'Q' then
  local all, found = {}, call('ZRANGEBYSCORE', queue,
    '-inf', '(7e15', 'WITHSCORES', 'LIMIT', ARGV[3], 128)
  for i = 1, #found, 2 do
    local arrived = found[i + 1] - (found[i + 1] - aside < 0 and 0 or aside)
    local packed = call('HGET', meta, found[i])
    local entry = packed and cmsgpack.unpack(packed) or {0, '', ''}
    local len, rest = match(entry[3], '^[?!]?(%d+) (.*)$')
    all[#all + 1] = {found[i], entry[2], rest and sub(rest, len + 1) or '',
      entry[7] or -1, math.floor(now - arrived / 1000), entry[1] - now}
  end
  return all
end

-- How many wait.  The entry of a waiter that died stays in the queue until an
-- operation removes it, on a free key perhaps for ever: so entries are checked,
-- at most the 1024 oldest and 1024 of those put aside.  A check of more would
-- keep other clients of the server waiting.
local waiting
if op == 'I' or op == 'J' then
  waiting = call('ZCOUNT', queue, '-inf', '(7e15')
  local function without_dead(from, to, most)
    for start = 0, waiting > 0 and most - 1 or -1, 128 do
      local some = call('ZRANGEBYSCORE', queue, from, to, 'LIMIT', start, 128)
      local packed = some[1] and call('HMGET', meta, unpack(some)) or {}
      for i = 1, #some do
        if not living(packed[i]) then waiting = waiting - 1 end
      end
      if #some < 128 then return end
    end
  end
  without_dead('-inf', '(4e15', 1024)
  without_dead(aside, '(7e15', 1024)
end

if (op == 'I' or op == 'J') and not shares then
  local ends, time, lefts = call('HVALS', owners), owners_time(now), {}
  for i = 1, #ends do -- One that has lapsed stays until somebody else writes.
    local left = (tonumber(ends[i]) or 0) - time -- no number: not one of ours
    if left > 0 then lefts[#lefts + 1] = left end
  end
  if value and (is_owner_grant(fence) or not fence and #ends > 0) then
    value = match(value, '^(.*) %d+$') or value
  end
  if foreign then fence, broken = nil, nil end
  local found = {value and sub(value, 1, 200), call('PTTL', lock),
    fence or false, fence and sub(about, len + 1) or false,
    fence and granted_at or false, since,
    waiting, #lefts,
    broken and 1 or 0}
  if op == 'I' then return found end
  local all = {}
  for i = 1, value and #lefts or 0 do
    all[i] = {unpack(found)}
    all[i][2] = lefts[i]
  end
  return value and #lefts == 0 and {found} or all
end
