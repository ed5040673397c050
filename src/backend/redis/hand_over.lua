-- SPDX-License-Identifier: MIT
--
-- hand_over.lua - passing a free lock on.

-- Those who share, or have permits, are next: the first of them, and what is to
-- be said once they have it, or if that is to be repeated (share.lua).
local heirs

-- The lock is free: whose turn is it?  1 if that one has it now, 0 if
-- nobody's but `me`, 2 if that is not known yet, 3 if that of `heirs`.
local function pass_on(me)
  local fence, to, entry, after, next_entry, last = '0', next_in_line(me)
  if not to or to == me then return to == false and 2 or 0 end
  if entry[7] and fair then
    heirs = {to = to, entry = entry, last = last, after = after,
      next_entry = next_entry}
    return 3
  end
  if fair then
    if entry[4] == '' then write_first() else leave(to) end
    fence = grant(last, to, entry[2], entry[3], window)
  end
  if not tell(entry[4], '+', to, entry[5] .. ' ' .. fence .. ' ') then
    if fair then call('DEL', lock, owners) end
    return 0
  end
  if next_entry and next_entry[4] ~= '' and next_entry[6] > now + window then
    tell(next_entry[4], '~', after)
    next_entry[6] = now + window
    call('HSET', meta, after, cmsgpack.pack(next_entry))
  end
  return fair and 1 or 0
end

-- The holder is gone: 1 once the next has it, or it is free; 2 if this is
-- to be repeated; 3 if that is up to share.lua.  Who does not repeat it keeps
-- nobody waiting for long; who does, from far away, has as long again each
-- time.
local function set_free(gone)
  local said = pass_on()
  if said == 2 then
    call('PEXPIRE', owners, window)
    call('PEXPIRE', lock, window)
    return 2
  end
  if said == 3 then return 3 end
  if said == 0 then call('DEL', lock) end
  if gone then call('HDEL', owners, gone) end
  return silent and 5 or 1
end
