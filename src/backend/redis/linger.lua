-- SPDX-License-Identifier: MIT
--
-- linger.lua - H: where a holder that lingers can be asked for the lock.

if op == 'H' then
  if not ours then return 0 end
  if fence then
    write_first()
    call('HSET', meta, 'g', fence .. ' ' .. granted_at .. ' ' .. holder
      .. (mark == '!' and ' !' or ' ?') .. #ARGV[3] .. ' ' .. ARGV[3]
      .. sub(about, len + 1))
  end
  return call('ZCOUNT', queue, '-inf', '(7e15')
end
