-- SPDX-License-Identifier: MIT
--
-- readers.lua - the part of node.lua for a lock that is shared: each of those
-- who share it has a lease, a fence and a note of its own.
--
-- The lock lives as long as the longest of those leases, so whoever asks for it
-- alone, with a plain SET NX, finds it taken for exactly that long.  What is
-- noted of readers counts only while the lock is shared: the first one that
-- shares begins with nobody beside it, whatever was left of a lock that was
-- deleted.

local readers, time = beside('readers'), call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stamp = time[1] .. string.sub('00000' .. time[2], -6)
local last = call('HMGET', meta, 'c', 'k', 'n', 'o', 't', 'b', 's', 'x', 'e',
  'w')

-- The largest exclusive fence: a client that knows no readers writes c alone.
local alone = last[1] or '0'
if last[1] and last[7] == last[1] and tonumber(last[8]) then alone = last[8] end

local function tell(whose)
  redis.pcall('PUBLISH', 'wake:' .. lock, '-' .. whose)
end

-- One who shares; nil if it is none, or its lease is over.
local function parse(text)
  local till, fence, since, broken, shorter, old, len, rest = string.match(
    text or '', '^(%d+) (%d+) (%d+) ([01]) (%d+) (%x*) (%d+) (.*)$')
  if not till or tonumber(till) <= now then return nil end
  return {till = tonumber(till), fence = fence, since = since, broken = broken,
    shorter = tonumber(shorter), old = old,
    owner = string.sub(rest, 1, tonumber(len)),
    note = string.sub(rest, tonumber(len) + 1)}
end

local function find(whose)
  if value ~= SHARED then return nil end
  return parse(call('HGET', readers, whose))
end

-- All who share, by token; and how long the longest does.
local function everyone()
  local list, found, latest = call('HGETALL', readers), {}, 0
  for i = 1, #list, 2 do
    local one = parse(list[i + 1])
    found[list[i]] = one
    if one then
      latest = math.max(latest, one.till)
    elseif op ~= 'I' then
      call('HDEL', readers, list[i])
    end
  end
  return found, latest
end

local function with_fence(fence)
  for whose, one in pairs((everyone())) do
    if one.fence == fence then return whose, one end
  end
  return nil
end

-- The lock lasts as long as the longest lease that is left.  True: none is.
local function settle()
  local _, latest = everyone()
  if latest == 0 then
    call('DEL', lock, readers)
    return true
  end
  call('PEXPIREAT', lock, latest)
  call('PEXPIREAT', readers, latest)
  return false
end

-- Write one down.  A lock that was not shared is from now on; who had it alone
-- is the one that is written down.  The clock may go on between two commands, so
-- what is nearly the longest lease is compared with the others themselves.
local function enter(whose, one)
  if value ~= SHARED then
    call('SET', lock, SHARED, 'PX', math.max(one.till - now, 1))
    call('DEL', readers)
    value = SHARED
  end
  call('HSET', readers, whose, string.format('%.0f %s %s %s %d %s %d %s%s',
    one.till, one.fence, one.since, one.broken, one.shorter, one.old,
    #one.owner, one.owner, one.note))
  local lacks = one.till - now - call('PTTL', lock)
  if lacks > 100 then
    call('PEXPIREAT', lock, one.till)
    call('PEXPIREAT', readers, one.till)
  elseif lacks > -100 or call('PTTL', readers) < 0 then
    settle()
  end
end

-- A fence of one who shares: no exclusive one may be as small from now on.  One
-- that was exclusive before says so, in `was`.
local function confirm(fence, till, was)
  local largest = fence
  if last[1] and tonumber(last[1]) > tonumber(fence) then largest = last[1] end
  call('HSET', meta, 'c', largest, 'k', SHARED, 's', largest, 'x', was or alone)
  keep_meta(till - now, (largest - stamp) / 1000)
end

local function new(ttl, fence, note, owner)
  return {till = now + ttl, fence = fence, since = stamp, broken = '0',
    shorter = 0, old = '', owner = owner, note = note}
end

-- From alone to shared.  A grant whose fence was not confirmed here is by that.
local function downgrade(fence, note, owner)
  local known, one = last[2] == token, nil
  if fence == '0' and known then fence = last[1] end
  write_first()
  one = new(math.max(call('PTTL', lock), 1), fence, known and last[3] or note,
    known and last[4] or owner)
  if known and last[5] then one.since = last[5] end
  if last[10] == token then one.shorter = tonumber(last[9]) end
  enter(token, one)
  if fence ~= '0' then confirm(fence, one.till, fence) end
  tell(token)
  return one
end

-- Why a grant with this fence stands no more; nil if it does.
local function over(fence, one)
  if fence == '0' then return nil end
  if tonumber(alone) > tonumber(fence) then return 5 end
  if last[6] == fence or one and one.broken == '1' then return 3 end
  if one and tonumber(one.fence) > tonumber(fence) then return 5 end
  return nil
end

if op == 'I' then
  local list = {}
  for whose, one in pairs(value == SHARED and everyone() or {}) do
    list[#list + 1] = {whose, one.till - now, one.fence, one.note, one.owner,
      one.since, one.broken}
  end
  local parts = {value and value:sub(1, 200), call('PTTL', lock), last[1],
    last[2], last[3], last[4], last[5], last[6], stamp, alone}
  -- One text costs its reader less than a list; a foreign value may not fit.
  local words = {}
  for i = 1, 10 do words[i] = parts[i] and '+' .. parts[i] or '-' end
  local text = table.concat(words, '\0')
  local _, ends = string.gsub(text, '%z', '')
  if #list == 0 and ends == 9 then return text end
  parts[11] = list
  return parts
end

local mine = find(token)

if op == 'S' then
  local ttl, seen = tonumber(ARGV[3]), {last[1], last[2]}
  if mine then
    mine.till = math.max(mine.till, now + ttl)
    enter(token, mine)
    return {token, seen, time, ttl, mine.fence}
  end
  if value and value ~= SHARED then
    return {value:sub(1, 200), seen, time, call('PTTL', lock), '0'}
  end
  local door = call('ZRANGE', beside('doors'), -1, -1, 'WITHSCORES')[2]
  if door and tonumber(door) > now then
    return {SHARED, {last[1], SHARED}, time, tonumber(door) - now, '0'}
  end
  enter(token, new(ttl, '0', '', ''))
  return {false, seen, time, ttl, '0'}
end

if op == 'W' then
  local fence = ARGV[3]
  if not mine then return 0 end
  if mine.fence == fence then return 1 end
  if tonumber(mine.fence) > tonumber(fence) or
    tonumber(alone) >= tonumber(fence) or
    tonumber(last[1] or 0) >= tonumber(fence) and with_fence(fence) then
    return 0
  end
  mine.fence, mine.note, mine.owner = fence, ARGV[4], ARGV[5]
  enter(token, mine)
  confirm(fence, mine.till)
  return 1
end

if op == 'L' then
  if not mine or
    ARGV[4] and tonumber(mine.fence) > tonumber(ARGV[4]) then
    return 0
  end
  call('HDEL', readers, token)
  if settle() and string.find(ARGV[3], 't') then tell(token) end
  return mine.broken == '1' and 3 or 1
end

if op == 'G' then
  if value and value ~= SHARED and value ~= token then return 2 end
  if value ~= token and not mine then return 0 end
  local why = over(ARGV[3], mine)
  if why then return why end
  if value == token then downgrade(ARGV[3], '', '') end
  return 1
end

if op == 'R' then
  local ttl, less, fence = tonumber(ARGV[3]), ARGV[4] == '1', ARGV[5]
  local shorter, put_back = tonumber(ARGV[9] or 0), false
  if value and value ~= token and not mine and
    (value ~= SHARED or not ARGV[10]) then
    return 2
  end
  local why = over(fence, mine)
  if why then return why end
  if value == token then -- It has not heard of the downgrade.
    mine = downgrade(fence, ARGV[7], ARGV[8])
  elseif not mine then
    -- Whether the grant is shared is not for the bearer of a handle to say.
    if ARGV[6] ~= '1' or ARGV[10] ~= '1' then return 0 end
    for _, other in pairs((everyone())) do -- It was taken up since.
      if other.old == token or fence ~= '0' and other.fence == fence then
        return 2
      end
    end
    mine, put_back = new(ttl, fence, ARGV[7], ARGV[8]), true
  end
  write_first()
  if shorter > mine.shorter then -- redlock.c (8)
    mine.shorter = shorter
  elseif shorter > 0 then
    less = false
  end
  if less or mine.till < now + ttl then mine.till = now + ttl end
  if fence ~= '0' and (mine.fence ~= fence or put_back or
    tonumber(last[1] or 0) < tonumber(fence)) then
    mine.fence, mine.note, mine.owner = fence, ARGV[7], ARGV[8]
    confirm(fence, mine.till)
  end
  enter(token, mine)
  if less then settle() end
  return put_back and 4 or 1
end

if op == 'T' then
  local fence, old = ARGV[4], find(ARGV[3])
  if not ARGV[5] or value ~= SHARED then return {0} end
  local why = over(fence, mine or old)
  if why then return {why} end
  if mine then return {1} end
  if not old then
    for whose, one in pairs((everyone())) do
      if one.old == ARGV[6] or fence ~= '0' and one.fence == fence then
        return {2, whose}
      end
    end
    return {0}
  end
  write_first()
  if fence ~= '0' then old.fence = fence end
  old.old = ARGV[3]
  enter(token, old)
  call('HDEL', readers, ARGV[3])
  return {1}
end

-- Break and free.
local whose, one = with_fence(ARGV[3])
if not whose then
  return op == 'F' and (last[6] == ARGV[3] and 1 or 2) or 0
end
write_first()
call('HSET', meta, 'b', ARGV[3])
if op == 'B' then
  one.broken = '1'
  enter(whose, one)
else
  call('HDEL', readers, whose)
  if settle() then tell(whose) end
end
return 1
