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
-- Beside them stand '' the greatest end of all; ! if one of them cannot
-- publish; and < a fence that was forgotten, to which those with smaller ones
-- are lost.  The key and the hash expire with the greatest end: what is there
-- has a member that lives.
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

-- All members by their tokens, read once; who is dead is removed.
local members, cannot_publish
local function all_members()
  if members then return members end
  members = {}
  local all = call('HGETALL', owners)
  for i = 1, #all, 2 do
    if #all[i] > 1 then
      members[all[i]] = living_member(all[i + 1])
      if not members[all[i]] and op ~= 'I' and op ~= 'J' then
        call('HDEL', owners, all[i])
      end
    end
    cannot_publish = cannot_publish or all[i] == '!'
  end
  return members
end

local function set_end(ends)
  group_end = ends
  call('HSET', owners, '', ends)
  call('PEXPIRE', owners, ends - group_time)
  call('PEXPIRE', lock, ends - group_time)
end

-- The end of a member was `old`: is the greatest another now?
local function find_end(old)
  if old < group_end then return end
  local greatest
  for _, r in pairs(all_members()) do
    greatest = math.max(greatest or 0, r[1])
  end
  if greatest and greatest ~= group_end then set_end(greatest) end
end

local function put_member(whose, r, ends)
  local old = r[1]
  r[1] = ends
  if members then members[whose] = r end
  call('HSET', owners, whose, cmsgpack.pack(r))
  if ends > group_end then
    set_end(ends)
  elseif old and ends < old then
    find_end(old)
  end
end

-- The first member.
local function begin_group(how, whose, r, ttl, keeps)
  call('DEL', owners)
  call('PEXPIRE', owners, ttl) -- It is gone: this asks for the right.
  shares, kept, group_time, group_end = how, keeps, now, now + ttl
  r[1], members, cannot_publish = group_end, {[whose] = r}, false
  call('HSET', owners, '', group_end, whose, cmsgpack.pack(r))
  call('PEXPIRE', owners, ttl)
  value = (keeps and 'kept' or how == 0 and 'shared' or 'permits ' .. how)
    .. ':'
  call('SET', lock, value, 'PX', ttl)
end

-- Is there another member than this?
local function has_others(whose, r)
  if r[1] < group_end then return true end
  for other in pairs(all_members()) do
    if other ~= whose then return true end
  end
  return false
end

local function drop_member(whose, r)
  call('HDEL', owners, whose)
  if members then members[whose] = nil end
  find_end(r[1])
end

-- The member of this owner id that others may join.
local function owned(by)
  if by == '' then return end
  for _, r in pairs(all_members()) do
    if r[7] == by and r[5] == '' then return r end
  end
end

if mine then mine = living_member(mine) end
