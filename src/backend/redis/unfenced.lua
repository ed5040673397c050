-- SPDX-License-Identifier: MIT
--
-- unfenced.lua - a lock that is a key and nothing else (unfenced.c).
--
--   KEYS  the lock
--   ARGV  operation, token, ttl, 1 if the ttl may shrink; to take over, the
--         new token
--           A  acquire  L  release  R  renew
--           W  renew, and write in any case
--           T  take over
--
-- 1 done; 0 the key is not there; 2 it is another's.

local value = redis.call('GET', KEYS[1])
local ttl = tonumber(ARGV[3])
if not value and ARGV[1] == 'A' then
  redis.call('SETNX', KEYS[1], ARGV[2])
  return redis.call('PEXPIRE', KEYS[1], ttl)
end
if value and value == ARGV[5] then return 1 end
if value ~= ARGV[2] then return value and 2 or 0 end
if ARGV[1] == 'L' then return redis.call('DEL', KEYS[1]) end

local left = redis.call('PTTL', KEYS[1])
if ARGV[1] == 'T' then
  -- A full server refuses SET, but not after a write that needs no memory.
  redis.call('PEXPIRE', KEYS[1], math.max(left, 1))
  redis.call('SET', KEYS[1], ARGV[5], 'PX', math.max(left, 1))
  return 1
end
if ARGV[4] == '1' or left < ttl then
  left = ttl
elseif ARGV[1] ~= 'W' then
  return 1
end
redis.call('PEXPIRE', KEYS[1], left)
return 1
