-- SPDX-License-Identifier: MIT
--
-- collect.lua - Z: remove what a key that is free left behind.

-- What is kept is the last fence, which the next must exceed also if the clock
-- goes back.  So it stays for a day after a grant, whatever is asked for: by then
-- only a clock that goes back by more than that gives a smaller one, and that is
-- not noticed anyway.  A renewal does not write down when it was, but begins the
-- companions' time again when a seventh of that is over.
if op == 'Z' then
  if value or call('EXISTS', queue, owners) > 0 or not fence then return 0 end
  local idle = math.min(now - granted_at, fresh - call('PTTL', meta))
  if #fence ~= #stamp or fence >= stamp or idle < tonumber(ARGV[3])
    or now - granted_at < 864e5 then
    return 0
  end
  if ARGV[4] == '0' then call('DEL', meta) end
  return 1
end
