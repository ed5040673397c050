-- SPDX-License-Identifier: MIT
--
-- queue.lua - who is next.

-- How many hear on the channels of these places?  To publish would not only
-- ask: a replica passes on what is not counted here, and two would hear
-- that they have the lock.
local function listeners(places, n)
  local ask, count = {NUMSUB = {}, SHARDNUMSUB = {}}, {}
  for i = 1, n do
    local channel = places[i] and places[i][4] or ''
    local list = ask[sub(channel, -1) == 's' and 'SHARDNUMSUB' or 'NUMSUB']
    if channel ~= '' then list[#list + 1] = channel end
  end
  for command, channels in pairs(ask) do
    if channels[1] then
      local reply = redis.pcall('PUBSUB', command, unpack(channels))
      if reply.err then silent = true end
      for i = 1, #reply, 2 do count[reply[i]] = reply[i + 1] end
    end
  end
  return count
end

-- Can it be passed the lock?  Who polls need not be told, but must ask while
-- the lock is kept for it, and may be late by as much as half a second.
local function ready(entry, count)
  local late = entry[6] + 500
  if entry[4] == '' then return late >= now and late <= now + window end
  return (count[entry[4]] or 0) > 0
end

local function remove(waiters)
  if waiters[1] then
    call('HDEL', meta, unpack(waiters))
    call('ZREM', queue, unpack(waiters))
  end
end

-- Of those put aside, remove the dead; and what has been over for long.
local function tidy()
  local gone, waiting = {},
    call('ZRANGEBYSCORE', queue, aside, '(7e15', 'LIMIT', 0, 64)
  local packed = waiting[1] and call('HMGET', meta, unpack(waiting))
  for i = 1, #waiting do
    if living(packed[i]) then break end
    gone[i] = waiting[i]
  end
  remove(gone)
  call('ZREMRANGEBYSCORE', queue, over, over + now)
end

-- The first that can be passed the lock, or is `me`, and who comes after;
-- and the last grant.  Nothing if there is none, false if there may be one
-- behind those that were looked at.
local function first_of_many(me)
  tidy() -- It writes: see write_first().
  local waiting = call('ZRANGEBYSCORE', queue, '-inf', '(4e15', 'LIMIT', 0, 128)
  local packed = call('HMGET', meta, 'g', unpack(waiting))
  local entries, gone, polling, first = {}, {}, 16, nil
  for i = 1, #waiting do entries[i] = living(packed[i + 1]) end
  local count = listeners(entries, #waiting)
  for i = 1, #waiting do
    if first then
      if entries[i] and ready(entries[i], count) then
        remove(gone)
        return waiting[first], entries[first], waiting[i], entries[i], packed[1]
      end
    elseif waiting[i] == me or entries[i] and ready(entries[i], count) then
      first = i
    elseif polling > 0 and entries[i] and entries[i][4] == ''
      and entries[i][6] + 500 >= now then
      polling = polling - 1 -- It polls, and its time may come before it does.
    elseif entries[i] then
      call('ZINCRBY', queue, aside, waiting[i])
    else
      gone[#gone + 1] = waiting[i]
    end
  end
  remove(gone)
  if first then return waiting[first], entries[first], nil, nil, packed[1] end
  if #waiting == 128 then return false end
end

-- The same; as a rule it is the very first, and the second comes after.
local function next_in_line(me)
  if front and sub(front[1], 1, 1) == '-' then front = nil end
  local waiting = front
    or call('ZRANGEBYSCORE', queue, '-inf', '(4e15', 'LIMIT', 0, 2)
  if not waiting[1] then return tidy() end
  local packed = call('HMGET', meta, waiting[1], waiting[2] or '', 'g')
  local entry, next_entry = living(packed[1]), living(packed[2])
  if waiting[1] == me then return me end
  local count = listeners({entry, next_entry}, 2)
  if entry and ready(entry, count)
    and (not waiting[2] or next_entry and ready(next_entry, count)) then
    return waiting[1], entry, waiting[2], next_entry, packed[3]
  end
  return first_of_many(me)
end
