-- SPDX-License-Identifier: MIT
--
-- node.lua - what one node does, each step whole or not at all.
--
--   KEYS  lock  the lock: a plain string, its holder's token, with an expiry;
--               what node-redlock, redsync and others use, too.  While it is
--               shared it is "holdfast:shared", for as long as the longest
--               lease of those who share it
--         meta  a hash: c the largest fence that was confirmed here, k whose it
--               is, n its note, o its owner id, t since when, b the fence that
--               was broken; e how many shorter leases the renewals told of
--               that came here, w for which token; s is equal to c if c was
--               confirmed for one who shares, and then x is the largest
--               exclusive fence
--   beside them, named like meta, and only where somebody shares:
--         readers  a hash: by token, who shares the lock.  It counts while the
--               lock is shared, and each of them until the end of its lease
--         queue  a sorted set: the tokens of those who wait, by their arrival,
--               of which a release tells the first; an advice (redlock.c).  At
--               4e15 + end there is "~TOKEN" of each: it lapses then, unless its
--               waiter asks again
--         doors  a sorted set: the tokens of the writers that wait for readers,
--               and until when no others are let in for that
--   and, with the token of its holder at its end, only if that was broken:
--         broken  a hash: b its fence, for as long as the lock.  No listing
--               takes that for a lock
--   ARGV  operation, token, then its own
--
--   A ttl door               take     {value, {c, k}, TIME, PTTL}; the value
--                                     that was there.  No reader is let in for
--                                     `door` ms
--   S ttl                    share    the same, and the fence that was
--                                     confirmed for the token; the lock counts
--                                     as shared behind a closed door
--   W fence note owner ttl   confirm  1, 0 not ours or not the largest
--   R ttl less fence mend note owner shorter shared
--                            renew    1, 0 gone, 2 another's, 3 broken,
--                                     4 put back, 5 a later grant was here
--                                     `shared` is 1 if the grant is, and 2 if
--                                     the bearer of a handle says so
--   G fence                  downgrade  1, or why not, as with R
--   L how limit              release  1, 2 and the first in line has it here
--                                     for 50 ms, 0 not ours, or confirmed for a
--                                     larger fence than the limit, if any;
--                                     3 and 4 as 1 and 2, but it was broken.
--                                     `how` has a t to tell those who wait, a q
--                                     to leave the line and a d to open our
--                                     door, whether the lock is ours or not
--   B fence                  break    1, 0 not that grant
--   F fence                  free     1, 0 another grant is here, 2 none is
--   T old fence shared first take up  {1}, or why not: {2, whose}, {0}, {3},
--                                     {5}, as with R; `first` is the token of
--                                     the handle
--   I                        inspect  {value, PTTL, c, k, n, o, t, b, now, the
--                                     largest exclusive fence, {{token, ms
--                                     left, fence, note, owner, since, broken},
--                                     ...}}
--   N place ms               line up  its place, which is new if that is '',
--                                     and lasts for so long
--   V                        line     {{token, ms that it waits}, ...}, in order
--   Q longest run seen       agree    {longest, seen, now}; quarantine.c
--   Z ms dry                 collect  1 and the hash is removed, if the key has
--                                     been free for so long, or would be if
--                                     `dry` is 1; 0 it is kept
--
-- What is asked most often needs no script: A is the same as SET NX GET PX,
-- HMGET, TIME and PTTL, one after the other, where SET knows NX with GET (since
-- Redis 7) and the key is not ours already.  The script is for the rest.
--
-- All times are the node's own, in microseconds, and everything has an expiry.
-- The field c never falls while the hash lives, which is until `keep` after the
-- end of the last lease, or a seventh less.  A release is told on the channel "wake:LOCK", if the node
-- lets us: "-TOKEN", or "-TOKEN HEIR" if somebody is in line.
--
-- C puts the values of keep= before it (script.c):
-- given: keep, fresh

local lock, meta, op, token = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local call, SHARED = redis.call, 'holdfast:shared'

if op == 'Q' then
  local seen, time = call('HMGET', meta, 'q', 'r', 's'), call('TIME')
  if not seen[1] or tonumber(seen[1]) < tonumber(ARGV[3]) then
    seen[1] = ARGV[3]
  end
  if ARGV[4] == '' then -- It cannot tell this run from others.
    seen[2], seen[3] = seen[2] or '', seen[3] or ''
  elseif seen[2] ~= ARGV[4] or ARGV[5] ~= '' then
    seen[2], seen[3] = ARGV[4], ARGV[5]
  end
  redis.pcall('HSET', meta, 'q', seen[1], 'r', seen[2], 's', seen[3])
  redis.pcall('PEXPIRE', meta, '31622400000')
  return {seen[1], seen[3],
    time[1] .. string.sub('00' .. math.floor(time[2] / 1000), -3)}
end

local value = call('GET', lock)

-- A write that needs no memory: a full server refuses none that needs some
-- after that.  What keeps, hands over or breaks a lock that is there begins with
-- it.
local function write_first()
  call('PEXPIRE', meta, math.max(call('PTTL', meta),
    keep + math.max(call('PTTL', lock), 0)))
end

-- "{TAG}:meta:REST": there is no brace in the tag.
local function beside(name)
  return (string.gsub(meta, '}:meta:', '}:' .. name .. ':', 1))
end

-- A key that is there as long as the holder's grant, if that may have been
-- broken: a release removes both with one command, and looks only then.
local function broken_mark(whose) return beside('broken') .. ':' .. whose end

-- For a day after a grant its fence stays, whatever is asked for: by then only a
-- clock that goes back by more than that gives a smaller one.  A renewal does
-- not write down when it was, but begins the time of the hash again when a
-- seventh of it is over.
if op == 'Z' then
  local known, time = call('HMGET', meta, 'c', 't'), call('TIME')
  if value or not known[1] or call('EXISTS', beside('queue'), beside('doors'),
    beside('readers')) > 0 then
    return 0
  end
  local since = math.max(known[1], known[2] or 0)
  local idle = (time[1] * 1e6 + time[2] - since) / 1000
  if math.min(idle, fresh - call('PTTL', meta)) < tonumber(ARGV[3])
    or idle < 864e5 then
    return 0
  end
  if ARGV[4] == '0' then call('DEL', meta) end
  return 1
end

if op == 'N' or op == 'V' then
  local queue, time, all, dead = beside('queue'), call('TIME'), {}, {}
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  if op == 'V' then
    local lapsed = call('ZRANGEBYSCORE', queue, '4e15', 4e15 + now)
    for i = 1, #lapsed do dead[string.sub(lapsed[i], 2)] = true end
    local found = call('ZRANGEBYSCORE', queue, '-inf', '(4e15', 'WITHSCORES',
      'LIMIT', 0, 4096)
    for i = 1, #found, 2 do
      if not dead[found[i]] and found[i] ~= value then
        all[#all + 1] = {found[i], math.floor(now - found[i + 1] / 1000)}
      end
    end
    return all
  end
  local place = ARGV[3]
  if place == '' then
    place = time[1] .. string.sub('00000' .. time[2], -6)
  end
  dead = call('ZRANGEBYSCORE', queue, '4e15', 4e15 + now, 'LIMIT', 0, 64)
  for i = 1, #dead do
    call('ZREM', queue, dead[i], string.sub(dead[i], 2))
  end
  call('ZADD', queue, 'NX', place, token)
  call('ZADD', queue, 4e15 + now + ARGV[4], '~' .. token)
  if call('PTTL', queue) < tonumber(ARGV[4]) then
    call('PEXPIRE', queue, ARGV[4])
  end
  return place
end

if op == 'L' and value ~= token then
  if string.find(ARGV[3], 'q') then
    call('ZREM', beside('queue'), token, '~' .. token)
  end
  if string.find(ARGV[3], 'd') and call('ZREM', beside('doors'), token) == 1 then
    redis.pcall('PUBLISH', 'wake:' .. lock, '-' .. token)
  end
end

if op == 'L' and value == token then
  if ARGV[4] then
    local last = call('HMGET', meta, 'c', 'k')
    if last[2] == value and tonumber(last[1]) > tonumber(ARGV[4]) then
      return 0
    end
  end
  local heir, queue = false, ARGV[3] ~= '' and beside('queue')
  local broken = call('DEL', lock, broken_mark(token)) > 1
  if broken then
    local last = call('HMGET', meta, 'c', 'k', 'b')
    broken = last[1] and last[1] == last[3] and last[2] == token
  end
  if string.find(ARGV[3], 'q') then
    call('ZREM', queue, token, '~' .. token)
  end
  if string.find(ARGV[3], 'd') then call('ZREM', beside('doors'), token) end
  if string.find(ARGV[3], 't') then
    local first = call('ZRANGE', queue, 0, 0)[1]
    local time = first and call('TIME')
    while first and not heir and string.sub(first, 1, 1) ~= '~' do
      local ends = call('ZSCORE', queue, '~' .. first)
      call('ZREM', queue, first, '~' .. first)
      if not ends or tonumber(ends) > 4e15 + time[1] * 1000 then
        heir = first
        call('SET', lock, heir, 'PX', '50')
      else
        first = call('ZRANGE', queue, 0, 0)[1]
      end
    end
    redis.pcall('PUBLISH', 'wake:' .. lock,
      '-' .. token .. (heir and ' ' .. heir or ''))
  end
  return (heir and 2 or 1) + (broken and 2 or 0)
end

-- The hash outlives the lease by `keep`, and its fence: that is not forgotten
-- before the clock here is past it.  redlock.c (11)
local function keep_meta(ttl, ahead)
  local more = ttl + math.max(ahead, 0)
  if call('PTTL', meta) < fresh + more then
    call('PEXPIRE', meta, math.floor(keep + more))
  end
end

-- What concerns those who share, or who becomes one of them: in a block, so that
-- the others do not pay for its functions.
if op == 'I' or op == 'S' or op == 'G' or value == SHARED and op ~= 'A' or
  op == 'R' and (ARGV[10] == '1' or ARGV[10] and value ~= token) or
  op == 'T' and ARGV[5] then
-- include: readers.lua
end

if op == 'L' then return 0 end

if op == 'T' then
  local last, fence = false, ARGV[4]
  if fence ~= '0' then
    last = call('HMGET', meta, 'c', 'k', 'b')
    if last[1] and tonumber(last[1]) > tonumber(fence) then return {5} end
    if last[3] == fence then return {3} end
  end
  if value == token then return {1} end
  if value ~= ARGV[3] then
    return {value and 2 or 0, value and value:sub(1, 200)}
  end
  write_first()
  call('SET', lock, token, 'PX', math.max(call('PTTL', lock), 1))
  if last and last[1] == fence then call('HSET', meta, 'k', token) end
  return {1}
end

-- Confirm and renew: both end with writing down the grant, if it is not there.
local fence, last = ARGV[5], false
if op == 'W' then
  if value ~= token then return 0 end
  fence = ARGV[3]
  last = call('HMGET', meta, 'c', 'k')
  if last[1] == fence then return last[2] == token and 1 or 0 end
  if last[1] and tonumber(last[1]) > tonumber(fence) then return 0 end
elseif op == 'R' then
  local ttl, less, shorter = ARGV[3], ARGV[4] == '1', tonumber(ARGV[9] or 0)
  if value and value ~= token then return 2 end
  if fence ~= '0' then
    last = call('HMGET', meta, 'c', 'k', 'b')
    if last[1] and tonumber(last[1]) > tonumber(fence) then return 5 end
    if last[3] == fence then return 3 end
  end
  if not value and ARGV[6] ~= '1' then return 0 end
  if shorter > 0 then -- redlock.c (8)
    local known = call('HMGET', meta, 'e', 'w')
    if known[2] ~= token or tonumber(known[1]) < shorter then
      write_first()
      call('HSET', meta, 'e', shorter, 'w', token)
      keep_meta(tonumber(ttl), 0)
    else
      less = false
    end
  end
  if not value then
    write_first()
    call('SET', lock, token, 'PX', ttl)
  elseif less or call('PTTL', lock) < tonumber(ttl) then
    call('PEXPIRE', lock, ttl)
  end
  if not last or (last[1] == fence and last[2] == token) then
    if last then keep_meta(tonumber(ttl), 0) end
    return value and 1 or 4
  end
end

local time = call('TIME')
local now = time[1] .. string.sub('00000' .. time[2], -6)

if last then
  local confirms = op == 'W'
  call('HSET', meta, 'c', fence, 'k', token, 't', now,
    'n', ARGV[confirms and 4 or 7], 'o', ARGV[confirms and 5 or 8])
  keep_meta(tonumber(ARGV[confirms and 6 or 3] or 0), (fence - now) / 1000)
  return (confirms or value) and 1 or 4
end

if op == 'A' then
  if not value then
    call('SET', lock, token, 'PX', ARGV[3])
  elseif value == token and call('PTTL', lock) < tonumber(ARGV[3]) then
    call('PEXPIRE', lock, ARGV[3])
  end
  if ARGV[4] then
    local doors = beside('doors')
    local ms = time[1] * 1000 + math.floor(time[2] / 1000)
    call('ZREMRANGEBYSCORE', doors, '-inf', ms)
    call('ZADD', doors, ms + ARGV[4], token)
    if call('PTTL', doors) < tonumber(ARGV[4]) then
      call('PEXPIRE', doors, ARGV[4])
    end
  end
  return {value and value:sub(1, 200), call('HMGET', meta, 'c', 'k'), time,
    call('PTTL', lock)}
end

if op == 'B' then
  last = call('HMGET', meta, 'c', 'k')
  if not value or last[1] ~= ARGV[3] or last[2] ~= value then return 0 end
  write_first()
  call('HSET', meta, 'b', ARGV[3])
  call('HSET', broken_mark(value), 'b', ARGV[3])
  call('PEXPIRE', broken_mark(value), math.max(call('PTTL', lock), 1))
  return 1
end

if op == 'F' then
  last = call('HMGET', meta, 'c', 'k', 'b')
  if last[1] ~= ARGV[3] or value and last[2] ~= value then
    return value and 0 or 2
  end
  if not value then return last[3] == last[1] and 1 or 2 end
  write_first()
  call('HSET', meta, 'b', ARGV[3])
  call('DEL', lock, broken_mark(value))
  redis.pcall('PUBLISH', 'wake:' .. lock, '-' .. value)
  return 1
end
