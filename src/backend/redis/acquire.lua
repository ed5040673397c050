-- SPDX-License-Identifier: MIT
--
-- acquire.lua - A: the lock is free, or what is there is the claim's own.

if op == 'A' and not shares and (not use or ours and fits()) then
  local ttl = tonumber(ARGV[3])
  if (not value or owner ~= '') and call('ZSCORE', queue, '-' .. token) then
    return 0
  end
  if not value and fair then
    local said = pass_on(token)
    if said == 2 then return -1 end
    if said == 1 then
      value = call('GET', lock)
      compare()
      if not fits() then return busy() end
    end
  end
  if not heirs then
    local last = call('HGET', meta, 'g')
    leave(token)
    if not value then return grant(last, token, owner, ARGV[4], ttl) end
    refresh(ttl)
    local fence, holder = match(last or '', '^(%d+) %d+ (%S+)')
    local alone = not held or holder == token and call('HLEN', owners) == 1
    return (held or fence or stamp) .. (alone and '=' or '+')
  end
end
