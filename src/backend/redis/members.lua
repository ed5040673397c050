-- SPDX-License-Identifier: MIT
--
-- members.lua - T, U, B, F, I and J of a lock that a group has.

-- T: its slot and 16, 15 if it has none.
local function take_over_member()
  local old, life = ARGV[3], tonumber(ARGV[5])
  local member = living_member(call('HGET', owners, old))
  if use ~= shares then return 0 end
  if not mine then
    if not member or member[2] ~= ARGV[4] then return 0 end
    if match(member[5], 'b') then return 3 end
    if member[5] ~= '' or call('ZSCORE', queue, '-' .. token) then return 0 end
    write_first()
    call('HSET', owners, token, cmsgpack.pack(member))
    call('HDEL', owners, old)
    if holder == old then
      call('HSET', meta, 'g', fence .. ' ' .. granted_at .. ' ' .. token
        .. sub(last[1], #fence + #granted_at + #holder + 3))
    end
    mine = member
  elseif mine[2] ~= ARGV[4] then
    return 0
  end
  if life then end_claim(old, life) end
  return 16 + mine[4]
end

-- U: as in raise.lua.
local function raise_member()
  if not mine or mine[5] ~= '' or mine[2] ~= ARGV[3] then return 0 end
  if mine[7] ~= '' then
    local equals = 0
    for _, r in pairs(all_members()) do
      if r[2] == mine[2] then equals = equals + 1 end
    end
    if equals > 1 then return mine[2] end
  end
  write_first()
  mine[2] = string.format('%.0f', ARGV[4] + 1)
  put_member(token, mine, mine[1])
  if not fence or #fence < #mine[2] or #fence == #mine[2] and fence < mine[2]
  then
    call('HSET', meta, 'g', mine[2] .. ' ' .. mine[3] .. ' ' .. token .. ' '
      .. mine[6])
  end
  return mine[2]
end

-- B and F: all members with this fence, which several claims of one owner id
-- may have.
local function break_members()
  local found, others = {}, false
  for whose, r in pairs(all_members()) do
    if r[2] == ARGV[3] then found[#found + 1] = whose else others = true end
  end
  if found[1] then write_first() end
  for i = 1, #found do
    local r = members[found[i]]
    if not match(r[5], 'b') then
      r[5] = r[5] .. 'b'
      put_member(found[i], r, r[1])
      local len, rest = match(r[6], '^[?!]?(%d+) (.*)$')
      if len then tell(sub(rest, 1, len), '!', found[i]) end
    end
  end
  if op == 'B' then return found[1] and 1 or 0 end
  if not others then return end_group() end
  for i = 1, #found do drop_member(found[i], members[found[i]]) end
  local said = let_in()
  if not found[1] then return said == 2 and 4 or 0 end
  return said == 2 and 2 or 1
end

-- What I and J say of a member.
local function describe(r, whose, holders)
  local len, rest = match(r[6], '^[?!]?(%d+) (.*)$')
  return {r[7] ~= '' and r[7] or whose, r[1] - group_time, r[2],
    rest and sub(rest, len + 1) or '', r[3] .. '', since,
    waiting, holders,
    match(r[5], 'b') and 1 or 0, shares, r[4], match(r[5], 'k') and 1 or 0,
    kept and 0 or 1}
end

local function describe_members()
  local all, holders, first = {}, 0, nil
  for _ in pairs(all_members()) do holders = holders + 1 end
  for whose, r in pairs(members) do
    all[#all + 1] = describe(r, whose, holders)
    if not first or r[2] < first[3] then first = all[#all] end
  end
  if op == 'J' then return all end
  return first or {false, -2, fence or false, false, false, since,
    waiting, 0, 0}
end

if shares then
  if op == 'T' then return take_over_member() end
  if op == 'U' then return raise_member() end
  if op == 'B' or op == 'F' then return break_members() end
  if op == 'J' or op == 'I' then return describe_members() end
end
