-- SPDX-License-Identifier: MIT
--
-- over.lua - D: a claim is over, and what arrives later for it is refused.

local function end_claim(whose, life)
  write_first()
  call('ZADD', queue, over + now + life, '-' .. whose)
  if call('PTTL', queue) < life then call('PEXPIRE', queue, life) end
end

local is_over = op == 'D'
if is_over then
  end_claim(token, tonumber(ARGV[3]))
  op = 'L'
end
