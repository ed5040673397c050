-- SPDX-License-Identifier: MIT
--
-- permit_pass.lua - one who leaves hands its permit to the first in line, as
-- admit.lua would let that one in.  Both have no owner id, and so has nobody
-- else to be looked at: the next in line wants a permit, too, and waits on.
if leaves and fair and is_full and others > 0 then
  local to, entry, after, next_entry, last = next_in_line()
  if to and entry[7] == use and entry[2] == ''
    and sub(entry[3], 1, 1) ~= '!'
    and (not after or next_entry[7] == use) then
    leave(to)
    call('HDEL', owners, token)
    local fence = grant(last, to, '', entry[3], window, true)
    local ends = group_time + window
    lowest, group_end = math.min(ends, lowest), math.max(ends, group_end)
    call('HSET', owners, to,
      cmsgpack.pack({ends, fence, since, left_slot, '', entry[3], ''}),
      '', permit_marks())
    if group_end == ends then
      call('PEXPIRE', owners, window)
      call('PEXPIRE', lock, window)
    end
    if not tell(entry[4], '+', to,
      entry[5] .. ' ' .. fence .. '/' .. left_slot .. ' ') then
      call('HDEL', owners, to)
      call('HSET', owners, '=', slots .. struct.pack('>I4', left_slot))
      return 5
    end
    local left = math.max(lowest - group_time, 1)
    if after and next_entry[4] ~= '' and next_entry[6] > now + left + 1 then
      tell(next_entry[4], '@', after, left .. ' ')
      next_entry[6] = now + left
      call('HSET', meta, after, cmsgpack.pack(next_entry))
    end
    return silent and 5 or 1
  end
end
