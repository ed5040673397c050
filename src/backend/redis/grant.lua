-- SPDX-License-Identifier: MIT
--
-- grant.lua - giving the lock to a claim.

-- Of those who wait, the first with the same owner id may join: wake them.
local function wake_kin(own, but)
  local waiting = call('ZRANGEBYSCORE', queue, '-inf', '(4e15', 'LIMIT', 0, 128)
  local packed = waiting[1] and call('HMGET', meta, unpack(waiting))
  for i = 1, #waiting do
    local entry = waiting[i] ~= but and living(packed[i])
    if entry and entry[2] == own then
      tell(entry[4], '+', waiting[i], entry[5] .. ' 0 ')
    end
  end
end

-- The fence rises, also when all data was lost.  The companions' time
-- begins again now and then: that is often enough; but with each grant while the
-- last fence is ahead of the clock, which does not tell how old it is.  For a
-- `member` of a group the key is left alone.
local function grant(last, to, its_owner, about, ttl, member)
  local fence, old = stamp, last and match(last, '^%d+')
  if old and (#old > #fence or #old == #fence and old >= fence) then
    fence = string.format('%.0f', old + 1)
  end
  local keep_longer = not old or fence ~= stamp or old < sub(fence, 1, day)
    or ttl >= keep / 10
  local is_new = keep_longer and call('PEXPIRE', meta, ttl + keep) == 0
  call('HSET', meta, 'g', fence .. ' ' .. since .. ' ' .. to .. ' ' .. about)
  if is_new then call('PEXPIRE', meta, ttl + keep) end
  if member then return fence end
  if its_owner == '' then
    call('SET', lock, to, 'PX', ttl)
  else
    call('DEL', owners)
    call('PEXPIRE', owners, ttl) -- It is gone: this asks for the right.
    call('SET', lock, its_owner .. ' ' .. fence, 'PX', ttl)
    call('HSET', owners, to, now + ttl)
    call('PEXPIRE', owners, ttl)
    wake_kin(its_owner, to)
  end
  return fence
end
