-- SPDX-License-Identifier: MIT
--
-- admit.lua - who may join a group, and when.

-- May another go in, who wants it like this?  The second result is its slot.
local function room(how)
  if value and (not shares or kept or shares ~= how) then return false end
  if value and (group_time >= lowest or how > 0 and not slots) then
    all_members() -- Remove the dead.
  end
  if how == 0 or not value then return true, how == 0 and -1 or 0 end
  if #slots > 4 then return true, (struct.unpack('>I4', sub(slots, -4))) end
  local high = struct.unpack('>I4', slots)
  return high < how, high
end

local function take_slot(slot)
  if #slots > 4 then
    slots = sub(slots, 1, -5)
  else
    slots = pack_slot(slot + 1)
  end
  call('HSET', owners, '=', slots)
end

-- Make it a member: the fence and the slot.
local function enter(last, to, its_owner, about, ttl, how, slot)
  local equal = how > 0 and value and owned(its_owner)
  local fence = equal and equal[2]
    or grant(last, to, its_owner, about, ttl, true)
  local r = {nil, fence, equal and equal[3] or since,
    equal and equal[4] or slot, '', about, its_owner}
  if value then
    put_member(to, r, group_time + ttl)
    if how > 0 and not equal then take_slot(slot) end
  else
    begin_group(how, to, r, ttl)
  end
  if sub(about, 1, 1) == '!' then
    call('HSET', owners, '!', '1')
    cannot_publish = '1'
    write_marks()
  end
  if how > 0 and its_owner ~= '' and not equal then wake_kin(its_owner, to) end
  return fence, r[4]
end

-- When may one go in who wants it like this?
local function free_in(how)
  if inexact > 0 and not (how and how > 0) then exact_end() end
  local ends = how and how > 0 and lowest or group_end
  local left = math.max(ends - group_time, 1)
  return cannot_publish and math.min(left, 100) or left
end

-- The first in line cannot go in, and may have looked forward to a later end.
local function tell_when(to, entry)
  local left = free_in(entry[7])
  if entry[4] ~= '' and entry[6] > now + left + 1 then
    tell(entry[4], '@', to, left .. ' ')
    entry[6] = now + left
    call('HSET', meta, to, cmsgpack.pack(entry))
  end
end

-- It has been let in: tell it so.  False if that is not allowed.
local function welcome(to, entry, fence, slot)
  if tell(entry[4], '+', to, entry[5] .. ' ' .. fence
    .. (slot < 0 and '' or '/' .. slot) .. ' ') then
    return true
  end
  local r = all_members()[to]
  if has_others(to) then
    drop_member(to, r)
  else
    call('DEL', lock, owners)
    value, shares, members = nil, nil, nil
  end
  return false
end

-- Let those in whose turn it is, in order: 0 if `me` is next, or nobody; 1 if
-- somebody is who cannot go in yet, and its entry; 2 if this is to be repeated.
-- Then how many went in.  The first in line, and who comes after, may be known.
local function admit(me, to, entry, last, after, next_entry)
  for n = 0, 63 do
    if not to then
      front = nil
      to, entry, after, next_entry, last = next_in_line(me)
    end
    if to == false then return 2, n end
    if not to or to == me then return 0, n end
    local has_room, slot = false, nil
    if entry[7] then has_room, slot = room(entry[7]) end
    if not has_room then
      tell_when(to, entry)
      return 1, n, entry
    end
    leave(to)
    local fence
    fence, slot = enter(last, to, entry[2], entry[3], window, entry[7], slot)
    if not welcome(to, entry, fence, slot) then return 0, n end
    if not after and call('EXISTS', queue) == 0 then return 0, n + 1 end
    if after and not me and not (next_entry[7] and room(next_entry[7])) then
      tell_when(after, next_entry)
      return 1, n + 1, next_entry
    end
    to = nil
  end
  return 2, 64
end
