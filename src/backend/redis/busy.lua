-- SPDX-License-Identifier: MIT
--
-- busy.lua - the answer to a try that may not have the lock.

-- Somebody has it: stand in line, if that is wanted.  If several have it, the
-- caller says when it may be free.
local function busy(free_in)
  local left, position = free_in or call('PTTL', lock), 0
  local last = not free_in and call('HGET', meta, 'g')
  local fence, holder, mark = match(last or '', '^(%d+) %d+ (%S+) (.)')
  if left == 0 then left = 1 end -- It ends with this very millisecond.
  -- Other libraries tell nobody when they release, nor do those who cannot
  -- publish: look often.
  if not free_in and (left < 0 or left > 100)
    and (mark == '!' or value ~= holder and not is_owner_grant(fence)) then
    left = 100
  end
  if ARGV[5] and not ours then
    local looks_at = now + (left < 0 and ARGV[3] or left)
    local new = call('ZADD', queue, 'NX', stamp, token)
    if new == 1 then
      if call('ZSCORE', queue, '-' .. token) then
        call('ZREM', queue, token)
        return 0
      end
    elseif tonumber(call('ZSCORE', queue, token)) >= aside then
      call('ZINCRBY', queue, -aside, token)
    end
    if ARGV[8] then looks_at = now + ARGV[8] end -- It polls.
    call('HSET', meta, token, cmsgpack.pack({now + ARGV[5], owner, ARGV[4],
      ARGV[7], ARGV[6], looks_at, use}))
    position = call('ZRANK', queue, token) + 1
    if position == 1 or new == 0 then -- Others may need it for longer.
      local life = ARGV[5] + keep
      if call('PTTL', queue) < life then call('PEXPIRE', queue, life) end
      if call('PTTL', meta) < life then call('PEXPIRE', meta, life) end
    end
  end
  if mark == '?' or mark == '!' then -- Who lingers wants to know.
    local len, rest = match(last, '[?!](%d+) (.*)$')
    tell(sub(rest, 1, len), '?', token)
  end
  return {left, position}
end

-- Was the claim's grant, or that of its owner id, broken?
local function is_broken()
  local last = call('HMGET', meta, 'g', 'b')
  local fence, holder = match(last[1] or '', '^(%d+) %d+ (%S+)')
  return fence and fence == last[2] and (held or holder == token), fence
end

-- May a try have what is there?  It may if that is its own, or its owner
-- id's, and was neither broken nor outlived by a greater fence.  What looks
-- like its owner id's and has no claims is another library's.
local function fits()
  if not ours and (not held or call('EXISTS', owners) == 0) then
    return false
  end
  local broken, fence = is_broken()
  return not broken and (not held or not fence or fence == held)
end
if op == 'A' and value and not use and not shares and not fits() then
  return busy()
end
