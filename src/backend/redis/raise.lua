-- SPDX-License-Identifier: MIT
--
-- raise.lua - U: raise the fence of a grant.

if op == 'U' and not shares then
  if not ours or broken or fence ~= ARGV[3] then return 0 end
  if held and call('HLEN', owners) > 1 then
    return fence -- Others rely on it.
  end
  write_first()
  fence = string.format('%.0f', ARGV[4] + 1)
  call('HSET', meta, 'g', fence .. sub(last[1], #ARGV[3] + 1))
  if held then
    call('SET', lock, owner .. ' ' .. fence, 'PX',
      math.max(call('PTTL', lock), 1))
  end
  return fence
end
