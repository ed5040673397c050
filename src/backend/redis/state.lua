-- SPDX-License-Identifier: MIT
--
-- state.lua - what all other operations need to know, and telling others.

local fair, prefix_len, owner = match(what, '^.(.)(%d+) (.*)$')
local use -- nil, or as one of several: 0 shared, else its permits
if op == 'X' then
  op, fair, prefix_len, use, owner = match(what, '^.(.)(.)(%d+) (%d+) (.*)$')
  use = tonumber(use)
end
local window = 2000
local aside, over, silent = 4e15, 7e15, false
local clock = call('TIME')
local stamp = clock[1] .. sub('00000' .. clock[2], -6)
local since = sub(stamp, 1, -4)
local now = since + 0
fair, op = fair == '1', string.upper(op)

-- A write, if only of nothing: a full server refuses none that needs memory
-- after one that needs none.  What keeps, ends or hands over a lock that is
-- there begins with it.
local function write_first() call('HDEL', meta, '') end

-- False if that is not allowed.
local function tell(channel, sign, to, more)
  if channel == '' then return true end
  local heard = redis.pcall(sub(channel, -1) == 's' and 'SPUBLISH' or 'PUBLISH',
    channel, sign .. to .. (more or '') .. sub(lock, prefix_len + 1))
  if type(heard) ~= 'number' then silent = true end
  return type(heard) == 'number'
end

-- Does this claim have what is there?  And the fence of its owner id's
-- grant, if it is that.  Its token tells, also where the bearer of a handle does
-- not know the owner id; but a value that does not bear the fence of the last
-- grant was put there by somebody else, whatever claims are left over.
local ours, held
local function has_claim(whose)
  return call('HEXISTS', owners, whose) == 1
end
local function compare()
  ours, held = value == token, nil
  if ours then owner = '' end
  if ours or not value then return end
  local by, number = match(value, '^(.+) (%d+)$')
  local last = by and op ~= 'A' and call('HGET', meta, 'g')
  if not by or last and match(last, '^%d+') ~= number then return end
  if by ~= owner and (not last
    or not has_claim(token) and not (op == 'T' and has_claim(ARGV[3]))) then
    return
  end
  owner, held = by, number
  ours = has_claim(token)
end
compare()

-- Is it the grant with this fence, to an owner id?  Such a grant has claims
-- among the owners: without them the value was put there by somebody else.
local function is_owner_grant(fence)
  return fence and sub(value, -#fence - 1) == ' ' .. fence
    and call('EXISTS', owners) == 1
end

-- Is it the lock of several, or one that is kept (group.lua)?  How it is used,
-- 0 if it is shared, or its permits; when the last of its members ends, and
-- what time it is for them: as in owners_time.lua, their own expiry tells; the
-- claim's own member, packed; and what else group.lua keeps of them.  Without members the value was put there by
-- somebody else.
local shares, kept, mine, inexact, slots, cannot_publish, forgotten, marked
if value and sub(value, -1) == ':' then
  local word, permits = match(value, '^(%a+) ?(%d*):$')
  local known = (word == 'shared' or word == 'permits' or word == 'kept')
    and redis.pcall('HMGET', owners, '', token, '=', '!', '<')
  group_end, lowest, inexact = match(known and known[1] or '',
    '^%d%d (%d+) (%d+) (%d+)$')
  if group_end then
    local left = call('PTTL', owners)
    shares, kept = tonumber(permits) or 0, word == 'kept'
    group_end, lowest, inexact = group_end + 0, lowest + 0, inexact + 0
    group_time = left < 0 and now or group_end - left
    mine, slots, cannot_publish = known[2], known[3], known[4]
    forgotten, marked = known[5], sub(known[1], 2, 2) == '1'
  end
end
