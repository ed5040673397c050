-- SPDX-License-Identifier: MIT
--
-- break.lua - B and F: break a lock.

if (op == 'B' or op == 'F') and not shares then
  if fence ~= ARGV[3] or foreign then return 0 end
  local old, said = call('HKEYS', owners), nil
  if not value then -- As with L.
    said = op == 'F' and broken and set_free()
    if said ~= 3 then return said == 2 and 4 or 0 end
    heirs.again, heirs.done = 4, 0
  else
    write_first()
    call('HSET', meta, 'b', fence)
    call('SET', lock, value, 'KEEPTTL') -- Observers are told of this key.
    -- Where nobody waits, its release looks at the queue only (fast.lua).
    if op == 'F' then
      call('ZREM', queue, '-' .. holder)
    elseif value == holder then
      local left = call('PTTL', lock)
      end_claim(holder, left < 0 and keep or left)
    end
    tell(sub(about, 1, len), '!', holder)
    if op == 'B' then return 1 end
    said = set_free()
    if said == 2 then return 2 end
    if said ~= 3 then
      if old[1] then call('HDEL', owners, unpack(old)) end
      return 1
    end
    heirs.again = 2
  end
end
