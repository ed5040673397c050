-- SPDX-License-Identifier: MIT
--
-- move.lua - steps with one key, while the slot of a lock moves (migrate.c).
--
--   F  KEYS meta; ARGV the grant that was read, token, what is said of it, for
--      how long it is kept: the new fence, or 0
--   O  KEYS owners; ARGV token, ttl: 1, or 0 if it is not there
--   P  KEYS owners; ARGV token, ttl, fence: the same for a member (group.lua)

local owners, call = KEYS[1], redis.call
local clock = call('TIME')
local fence = clock[1] .. string.sub('00000' .. clock[2], -6)
local since = string.sub(fence, 1, -4)

-- include: owners_time.lua

if ARGV[1] == 'O' then
  local old, ttl = call('HGET', owners, ARGV[2]), tonumber(ARGV[3])
  if not old then return 0 end
  local ends = owners_time(since + 0) + ttl
  if call('PTTL', owners) < ttl then call('PEXPIRE', owners, ttl) end
  if tonumber(old) < ends then call('HSET', owners, ARGV[2], ends) end
  return 1
end

if ARGV[1] == 'P' then
  local packed = call('HMGET', owners, '', ARGV[2])
  local member = packed[2] and cmsgpack.unpack(packed[2])
  local left, ttl = call('PTTL', owners), tonumber(ARGV[3])
  local marks, ends, rest = string.match(packed[1] or '', '^(%d+ )(%d+)( .*)$')
  local time = ends and left > 0 and ends - left
  if not member or not time or member[1] <= time or member[2] ~= ARGV[4]
    or member[5] ~= '' then
    return 0
  end
  if member[1] < time + ttl then
    member[1] = time + ttl
    call('HSET', owners, ARGV[2], cmsgpack.pack(member))
  end
  if left < ttl then
    call('HSET', owners, '', marks .. time + ttl .. rest)
    call('PEXPIRE', owners, ttl)
  end
  return 1
end

local meta = KEYS[1]
local last = call('HGET', meta, 'g') or ''
if last ~= ARGV[2] then return 0 end
local old = string.match(last, '^%d+')
if old and (#old > #fence or #old == #fence and old >= fence) then
  fence = string.format('%.0f', old + 1)
end
call('HSET', meta, 'g',
  fence .. ' ' .. since .. ' ' .. ARGV[3] .. ' ' .. ARGV[4])
call('HDEL', meta, ARGV[3])
call('PEXPIRE', meta, ARGV[5])
return fence
