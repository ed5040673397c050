-- SPDX-License-Identifier: MIT
--
-- inspect.lua - I: what there is.

local claims = call('HLEN', owners)
if value and (is_owner_grant(fence) or not fence and claims > 0) then
  value = match(value, '^(.*) %d+$') or value
end
if foreign then fence, broken = nil, nil end
return {value and sub(value, 1, 200), call('PTTL', lock), fence or false,
  fence and sub(about, len + 1) or false, fence and granted_at or false, since,
  call('ZCOUNT', queue, '-inf', '(7e15'), claims,
  broken and 1 or 0}
