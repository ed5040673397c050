-- SPDX-License-Identifier: MIT
--
-- share.lua - A by one who shares; A, L, G, R, S and C of a lock that a group
-- has.

-- Let in whoever has room now: 2 if that is to be repeated.  Without order tell
-- those who could go in, and are not behind one who could not.
local function let_in()
  if call('EXISTS', queue) == 0 then return 0 end
  if fair then return (admit()) end
  local waiting = call('ZRANGEBYSCORE', queue, '-inf', '(4e15', 'LIMIT', 0, 128)
  if not waiting[1] then return 0 end
  local packed, entries = call('HMGET', meta, unpack(waiting)), {}
  for i = 1, #waiting do entries[i] = living(packed[i]) end
  local count, most = listeners(entries, #waiting), 128
  if shares and shares > 0 and room(shares) then
    most = shares - struct.unpack('>I4', slots) + #slots / 4 - 1
  end
  for i = 1, #waiting do
    local entry = entries[i]
    if entry and ready(entry, count) then
      if most <= 0 or not entry[7] or not room(entry[7]) then
        if shares then tell_when(waiting[i], entry) end
        return 0
      end
      tell(entry[4], '+', waiting[i], entry[5] .. ' 0 ')
      most = most - 1
    end
  end
  return 0
end

-- The lock is free, and those who want it as a group are next (hand_over.lua).
local function let_in_first(me)
  value, shares, members = nil, nil, nil
  return admit(me, heirs.to, heirs.entry, heirs.last, heirs.after,
    heirs.next_entry)
end

-- A plain lock has ended.
if heirs then
  local said, n = let_in_first(op == 'A' and token)
  if op == 'A' then return -1 end -- See how it is used now.
  if said == 2 then
    call('PEXPIRE', owners, window)
    call('PEXPIRE', lock, window)
    return heirs.again
  end
  if n == 0 then call('DEL', lock, owners) end
  return heirs.done or silent and 5 or 1
end

-- The claims of an owner id that are left are kept ones (alter.lua).
if left_over then
  begin_group(0, sub(left_over, 2), {nil, held, since, -1, 'k', '0 ', owner},
    call('PTTL', lock), true)
  return done
end

-- The last of its members are to leave: as with set_free().
local function end_group()
  local said, n = pass_on(), nil
  if said == 3 then
    said, n = let_in_first()
    said = said == 2 and 2 or n > 0 and 1 or 0
  elseif said == 1 then -- The key is another's now, and maybe this.
    if call('HEXISTS', owners, '') == 1 then call('DEL', owners) end
  end
  if said == 2 then
    call('PEXPIRE', owners, window)
    call('PEXPIRE', lock, window)
    return 2
  end
  if said == 0 then call('DEL', lock, owners) end
  return silent and 5 or 1
end

if op == 'L' or op == 'G' then
  if op == 'G' and (not mine or mine[2] ~= ARGV[3]) then return 0 end
  if not mine or match(mine[5], 'k') then
    local placed = leave(token)
    return let_in() == 2 and 4 or placed
  end
  local said
  if has_others(token) then
    drop_member(token, mine)
    said = let_in() == 2 and 2 or silent and 5 or 1
  else
    said = end_group()
  end
  if match(mine[5], 'b') then return said == 2 and 7 or 6 end
  return said
end

-- Its whole ttl again; less only if told so.
local function renew_member(whose, r, ttl, less)
  write_first()
  if call('PTTL', meta) < fresh or ttl >= keep / 10 then
    call('PEXPIRE', meta, ttl + keep)
  end
  local ends = group_time + ttl
  if less or r[1] < ends then
    put_member(whose, r, ends)
  elseif op == 'C' then
    put_member(whose, r, r[1])
  end
  if inexact == 1 then -- From now on.
    inexact = group_time
    write_marks()
  elseif inexact > 0 and inexact + 1000 < group_time then
    exact_end()
  end
end

if op == 'R' or op == 'S' or op == 'C' then
  local said, ttl = ARGV[4], tonumber(ARGV[3])
  if not mine or mine[2] ~= said then return 2 end
  if match(mine[5], 'b') then return 3 end
  if mine[5] ~= ''
    or forgotten and #forgotten == #said and forgotten > said then
    return 0
  end
  renew_member(token, mine, ttl, op == 'S')
  if not last[1] then -- It was removed, or expired.
    call('HSET', meta, 'g', said .. ' ' .. since .. ' ' .. token .. ' 0 ')
    call('PEXPIRE', meta, ttl + keep)
  end
  return 1
end

-- What a try says that may not have it since somebody else has a plain lock.
local function refuse()
  if use > 0 then return {0, 'use'} end
  if held and call('EXISTS', owners) == 1 then
    local last = call('HMGET', meta, 'g', 'b')
    if match(last[1] or '', '^%d+') ~= last[2] then return {0, 'mode'} end
  end
  return busy()
end

-- Without order one who waits for the lock alone keeps out those who come later
-- to share it.
local function kept_out(me)
  local waiting = call('ZRANGEBYSCORE', queue, '-inf', '(4e15', 'LIMIT', 0, 128)
  local packed = waiting[1] and call('HMGET', meta, unpack(waiting))
  for i = 1, #waiting do
    if waiting[i] == me then return end
    local entry = living(packed[i])
    if entry and not entry[7] then return entry end
  end
end

-- Who is in front of it, in order or without; or -1 if the try is to be
-- repeated.
local function in_front()
  if not fair then return use == 0 and kept_out(token) or nil end
  if call('EXISTS', queue) == 0 then return end
  local said, _, entry
  if shares then
    said, _, entry = admit(token)
    return said == 2 and -1 or entry
  end
  said = pass_on(token)
  if said == 3 then let_in_first(token) end
  if said ~= 0 then return -1 end -- See what has become of it.
end

-- A by one who wants a group, and there is one like it, or the lock is free.
local function try_to_join(ttl)
  local joins = use > 0 and shares and owned(owner)
  local first, has_room, slot = nil, room(use)
  if not joins then
    if not has_room then return busy(free_in(use)) end
    call('SETRANGE', lock, 0, '') -- Writes nothing; a full server refuses it.
    first = in_front()
    if first == -1 then return -1 end
    if first then
      local left = math.max(first[1] - now, 1)
      return busy(shares and math.min(left, free_in(use)) or left)
    end
    has_room, slot = room(use)
    if not has_room then return busy(free_in(use)) end
  end
  local last, fence = call('HGET', meta, 'g'), nil
  leave(token)
  fence, slot = enter(last, token, owner, ARGV[4], ttl, use, slot)
  if not joins then let_in() end
  return fence .. (joins and '+' or '') .. (slot < 0 and '' or '/' .. slot)
end

if op == 'A' then
  local ttl = tonumber(ARGV[3])
  if call('ZSCORE', queue, '-' .. token) then return 0 end
  if mine then
    ours = true
    if mine[5] ~= '' then return busy(free_in(use)) end
    leave(token)
    renew_member(token, mine, ttl)
    return mine[2] .. '=' .. (mine[4] < 0 and '' or '/' .. mine[4])
  end
  if value and not shares then return refuse() end
  if shares and shares ~= (use or 0) then
    if inexact > 0 then exact_end() end
    return shares and {shares, 'use'} or -1
  end
  if use then return try_to_join(ttl) end
  if owned(owner) then return {0, 'mode'} end
  local left = free_in()
  return value and busy(left) or -1
end
