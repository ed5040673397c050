-- SPDX-License-Identifier: MIT
--
-- fast_join.lua - one who shares goes in, as put_member() and begin_group() of
-- group.lua have it.

local ends = (group_time or since) + ARGV[3]
local packed = cmsgpack.pack({ends, fence, since, -1, '', ARGV[4], ''})
if not value then
  call('PEXPIRE', owners, ARGV[3]) -- It is gone: this asks for the right.
  call('HSET', owners, '', '00 ' .. ends .. ' ' .. ends .. ' 0', token, packed)
  call('PEXPIRE', owners, ARGV[3])
  call('SET', lock, 'shared:', 'PX', ARGV[3])
elseif ends > group_end then
  call('HSET', owners, '', marks .. ends .. ' ' .. lowest .. rest,
    token, packed)
  call('PEXPIRE', owners, ARGV[3])
  call('PEXPIRE', lock, ARGV[3])
elseif ends < lowest then
  call('HSET', owners, '', marks .. group_end .. ' ' .. ends .. rest,
    token, packed)
else
  call('HSET', owners, token, packed)
end
