-- SPDX-License-Identifier: MIT
--
-- group.lua - a lock of several: shared, with permits, or kept after its
-- release.
--
-- The key says how it is used, "shared:", "permits N:" or "kept:", so that
-- whoever knows nothing of groups finds it taken.  Its members stand among
-- the owners, each by its token and packed:
--
--   1  when it ends         4  slot, or -1
--   2  fence                5  '', or b if it was broken, and k if it is kept
--   3  since when           6  "LENGTH CHANNEL+NOTE"      7  owner id, or ''
--
-- Beside them stand
--   ''  "DX END LOWEST SINCE": D is 1 if the one with the greatest end has left,
--       so that END may be too late, and X if one of the following is there, or
--       a member was broken or is kept; the greatest end of all; an end that
--       none is before: as long as that is to come all are alive, and nobody
--       needs to look at each; and since when D is 1, or 1, or 0
--   =   the slots: how many were ever used, and those of them that are free, in
--       four bytes each
--   !   one of them cannot publish
--   <   a fence that was forgotten, to which those with smaller ones are lost
-- The key and the hash expire with END: what is there has a member that lives, or
-- D.
--
-- So joining and leaving cost the same however many there are.  All members are
-- read when one may have died, which is once after each death and now and then
-- without; when a greatest end is needed that is in doubt: to say to one
-- who wants it alone when it may be free, and once a second by a renewal; and
-- for an owner id.  Clients of this library find out by asking that nobody is
-- left; another library may wait for as long as the one that left
-- might have stayed, if all the others are dead, too.
--
-- All of this comes after what plain locks need, which is so not made dearer.

-- Again, since a function is made faster the later what it needs was declared.
local call, sub, match, tell = call, sub, match, tell
local lock, meta, queue, owners, token = lock, meta, queue, owners, token
local op, now, window, living, leave = op, now, window, living, leave

-- A member, if it lives.
local function living_member(packed)
  local is_packed, r = pcall(cmsgpack.unpack, packed or '')
  if is_packed and type(r) == 'table' and type(r[1]) == 'number'
    and r[1] > group_time and type(r[7]) == 'string' then
    return r
  end
end

-- Of the slots: what is free again is used first.
local function pack_slot(slot) return struct.pack('>I4', slot) end
local function slots_of(high, is_taken)
  local free = {pack_slot(high)}
  for slot = high - 1, 0, -1 do
    if not is_taken[slot] then free[#free + 1] = pack_slot(slot) end
  end
  return table.concat(free)
end

local function write_marks()
  local extra = slots or cannot_publish or forgotten or marked
  call('HSET', owners, '', (inexact > 0 and '1' or '0') .. (extra and '1 ' or '0 ')
    .. group_end .. ' ' .. lowest .. ' ' .. inexact)
end

-- All members by their tokens, read once; who is dead is removed.
local members
local function all_members()
  if members then return members end
  members, lowest = {}, group_end
  local all, dead, high, is_taken = call('HGETALL', owners), {}, 0, {}
  for i = 1, #all, 2 do
    if #all[i] >= 32 then
      local r = living_member(all[i + 1])
      members[all[i]] = r
      if r then
        lowest, is_taken[r[4]] = math.min(lowest, r[1]), true
        high = math.max(high, r[4] + 1)
      else
        dead[#dead + 1] = all[i]
      end
    end
  end
  if op == 'I' or op == 'J' then return members end
  if op == 'A' then call('SETRANGE', lock, 0, '') else write_first() end
  for i = 1, #dead do call('HDEL', owners, dead[i]) end
  if shares > 0 and (dead[1] or not slots) then
    slots = slots_of(high, is_taken)
    call('HSET', owners, '=', slots)
  end
  write_marks()
  return members
end

local function set_end(ends)
  group_end = ends
  write_marks()
  call('PEXPIRE', owners, ends - group_time)
  call('PEXPIRE', lock, ends - group_time)
end

-- Make END what it should be.  If nobody lives the lock is free.
local function exact_end()
  local greatest = 0
  for _, r in pairs(all_members()) do greatest = math.max(greatest, r[1]) end
  if op == 'I' or op == 'J' then return end
  inexact = 0
  if greatest == 0 then
    call('DEL', lock, owners)
    value, shares, members, group_end = nil, nil, nil, group_time
  else
    set_end(greatest)
  end
end

local function put_member(whose, r, ends)
  local old = r[1]
  r[1] = ends
  if members then members[whose] = r end
  call('HSET', owners, whose, cmsgpack.pack(r))
  if ends < lowest or r[5] ~= '' and not marked then
    lowest, marked = math.min(lowest, ends), marked or r[5] ~= ''
    if ends <= group_end then write_marks() end
  end
  if ends > group_end then
    set_end(ends)
  elseif old and ends < old and old >= group_end then
    exact_end()
  end
end

-- The first member.
local function begin_group(how, whose, r, ttl, keeps)
  call('DEL', owners)
  call('PEXPIRE', owners, ttl) -- It is gone: this asks for the right.
  shares, kept, group_time, group_end = how, keeps, now, now + ttl
  r[1], members, cannot_publish = group_end, {[whose] = r}, nil
  lowest, inexact, forgotten = group_end, 0, nil
  marked = keeps or r[5] ~= ''
  slots = how > 0 and pack_slot(r[4] + 1) or nil
  call('HSET', owners, whose, cmsgpack.pack(r))
  if slots then call('HSET', owners, '=', slots) end
  write_marks()
  call('PEXPIRE', owners, ttl)
  value = (keeps and 'kept' or how == 0 and 'shared' or 'permits ' .. how)
    .. ':'
  call('SET', lock, value, 'PX', ttl)
end

-- Is there another member than this?  If all live, counting them tells.
local function has_others(whose)
  if group_time < lowest then
    return call('HLEN', owners) > 2 + (slots and 1 or 0)
      + (cannot_publish and 1 or 0) + (forgotten and 1 or 0)
  end
  for other in pairs(all_members()) do
    if other ~= whose then return true end
  end
  return false
end

-- Another with its owner id may have its slot, too.
local function has_equal(r)
  for _, other in pairs(r[7] ~= '' and all_members() or {}) do
    if other[4] == r[4] then return true end
  end
  return false
end

local function drop_member(whose, r)
  call('HDEL', owners, whose)
  if members then members[whose] = nil end
  if slots and not has_equal(r) then
    slots = slots .. pack_slot(r[4])
    call('HSET', owners, '=', slots)
  end
  if inexact == 0 and r[1] < group_end then return end
  if call('HLEN', owners) <= few then
    exact_end()
  elseif inexact == 0 then
    inexact = group_time
    write_marks()
  end
end

-- The member of this owner id that others may join.
local function owned(by)
  if by == '' then return end
  for _, r in pairs(all_members()) do
    if r[7] == by and r[5] == '' then return r end
  end
end

if mine then mine = living_member(mine) end
