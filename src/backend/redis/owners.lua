-- SPDX-License-Identifier: MIT
--
-- owners.lua - the claims of one owner id.

-- When the last claim of the owner ends; 0 if none is left.
local function last_end(except)
  local last, claims = 0, call('HGETALL', owners)
  for i = 1, #claims, 2 do
    local ends = tonumber(claims[i + 1])
    if claims[i] ~= except then
      if ends <= now then
        call('HDEL', owners, claims[i])
      else
        last = math.max(last, ends)
      end
    end
  end
  return last
end
