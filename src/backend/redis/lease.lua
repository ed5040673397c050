-- SPDX-License-Identifier: MIT
--
-- lease.lua - a lease begins again.

-- Give a claim that holds its whole ttl again; less only if told so.
local function refresh(ttl, less)
  local known = call('PTTL', meta)
  if known < fresh or ttl >= keep / 10 and known < ttl + keep then
    call('PEXPIRE', meta, ttl + keep)
  end
  if owner == '' then
    local left = less and 0 or call('PTTL', lock)
    if left < ttl then
      call('PEXPIRE', lock, ttl)
    elseif op == 'C' then
      call('PEXPIRE', lock, left)
    end
    return
  end
  write_first()
  if not less and call('PTTL', lock) < ttl then call('PEXPIRE', lock, ttl) end
  local time = owners_time(now)
  local old = tonumber(call('HGET', owners, token) or 0)
  if less or old < time + ttl then call('HSET', owners, token, time + ttl) end
  local left = longest_claim(time)
  call('PEXPIRE', owners, left)
  call('PEXPIRE', lock, left)
end
