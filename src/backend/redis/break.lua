-- SPDX-License-Identifier: MIT
--
-- break.lua - B and F: break a lock.

if op == 'B' or op == 'F' then
  if fence ~= ARGV[3] or foreign then return 0 end
  if not value then -- As with L.
    return op == 'F' and broken and set_free() == 2 and 4 or 0
  end
  write_first()
  call('HSET', meta, 'b', fence)
  tell(sub(about, 1, len), '!', holder)
  if op == 'B' then return 1 end
  local old, said = call('HKEYS', owners), set_free()
  if said == 2 then return 2 end
  if old[1] then call('HDEL', owners, unpack(old)) end
  return 1
end
