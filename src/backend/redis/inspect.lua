-- SPDX-License-Identifier: MIT
--
-- inspect.lua - I: what there is; J: the same for each claim that has it.

if (op == 'I' or op == 'J') and not shares then
  local claims = call('HLEN', owners)
  if value and (is_owner_grant(fence) or not fence and claims > 0) then
    value = match(value, '^(.*) %d+$') or value
  end
  if foreign then fence, broken = nil, nil end
  local found = {value and sub(value, 1, 200), call('PTTL', lock),
    fence or false, fence and sub(about, len + 1) or false,
    fence and granted_at or false, since,
    call('ZCOUNT', queue, '-inf', '(7e15'), claims,
    broken and 1 or 0}
  if op == 'I' then return found end
  local all, ends, time = {}, call('HVALS', owners), owners_time(now)
  for i = 1, value and claims or 0 do
    all[i] = {unpack(found)}
    all[i][2] = ends[i] - time
  end
  return value and claims == 0 and {found} or all
end
