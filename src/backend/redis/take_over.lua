-- SPDX-License-Identifier: MIT
--
-- take_over.lua - T: another token takes over.

if op == 'T' and not shares then
  if use then return 0 end
  if fence ~= ARGV[4] then return 0 end
  local old, life = ARGV[3], tonumber(ARGV[5])
  if ours then
    if life then end_claim(old, life) end
    return 1
  end
  if broken then return 3 end
  -- It arrives late, and its claim is over: the handle stays good.
  if call('ZSCORE', queue, '-' .. token) then return 0 end
  write_first()
  if owner == '' then
    if value ~= old then return 0 end
    call('SET', lock, token, 'PX', math.max(call('PTTL', lock), 1))
  else
    local ends = held == fence and call('HGET', owners, old)
    if not ends then return 0 end
    call('HSET', owners, token, ends)
    call('HDEL', owners, old)
  end
  if life then end_claim(old, life) end
  if holder == old then
    call('HSET', meta, 'g', fence .. ' ' .. granted_at .. ' ' .. token
      .. sub(last[1], #fence + #granted_at + #holder + 3))
  end
  return 1
end
