-- SPDX-License-Identifier: MIT
--
-- owners.lua - the claims of one owner id.

-- include: owners_time.lua

-- How long the last claim of the owner has left, but for this one; 0 if there
-- is none.
local function longest_claim(time, except)
  local longest, claims = 0, call('HGETALL', owners)
  for i = 1, #claims, 2 do
    local left = claims[i + 1] - time
    if claims[i] ~= except then
      if left <= 0 then
        call('HDEL', owners, claims[i])
      else
        longest = math.max(longest, left)
      end
    end
  end
  return longest
end
