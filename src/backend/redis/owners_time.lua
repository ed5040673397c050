-- SPDX-License-Identifier: MIT
--
-- owners_time.lua - what time it is for the ends that stand in `owners`.
--
-- When a slot moves to another node, a key keeps what is left of its own time,
-- and what is stored in it stays as it was, by the clock of the node before.
-- The hash of owners ends with the last of its claims, always: so its own
-- expiry tells how far that clock has come, and no other clock is asked.  Who
-- changes the greatest end sets the expiry, too.

local function owners_time(clock)
  local last, ends = 0, call('HVALS', owners)
  for i = 1, #ends do last = math.max(last, tonumber(ends[i]) or 0) end
  local left = call('PTTL', owners)
  return left < 0 and clock or last - left
end
