-- SPDX-License-Identifier: MIT
--
-- permit.lua - the common cases of permits.

-- As in group.lua, admit.lua and share.lua, and no more than they would do: no
-- owner id is there, nothing is marked, and all members live.  They come before
-- the functions are made that they do not need.  One who leaves lets END be too
-- late, however few they are: those who want a permit go by the lowest.
local quick = use and use > 0 and owner == '' and (not value or shares == use
  and slots and not cannot_publish and not forgotten and group_time < lowest)
local high = quick and value and struct.unpack('>I4', slots)
local is_full = high and high >= use and #slots == 4

-- What write_marks() of group.lua writes.
local permit_marks = quick and function()
  return (inexact > 0 and '11 ' or '01 ') .. group_end .. ' ' .. lowest .. ' '
    .. inexact
end

if quick and op == 'A' and not mine and sub(ARGV[4], 1, 1) ~= '!' then
  if is_full then return busy(math.max(lowest - group_time, 1)) end
  if call('EXISTS', queue) == 0
    and (value or call('EXISTS', owners) == 0) then
    local last, slot, rest = call('HGET', meta, 'g'), high or 0, nil
    if value and #slots > 4 then
      slot, rest = struct.unpack('>I4', sub(slots, -4)), sub(slots, 1, -5)
    end
    call('SETRANGE', lock, 0, '') -- Writes nothing; a full server refuses it.
    local fence = grant(last, token, '', ARGV[4], tonumber(ARGV[3]), true)
    local ends = (group_time or now) + ARGV[3]
    local is_last = not value or ends > group_end
    if not value then
      call('PEXPIRE', owners, ARGV[3]) -- It is gone: this asks for the right.
      group_end, lowest, inexact = ends, ends, 0
    end
    group_end, lowest = math.max(ends, group_end), math.min(ends, lowest)
    call('HSET', owners, token,
      cmsgpack.pack({ends, fence, since, slot, '', ARGV[4], ''}),
      '=', rest or struct.pack('>I4', slot + 1),
      '', permit_marks())
    if is_last then call('PEXPIRE', owners, ARGV[3]) end
    if not value then
      call('SET', lock, 'permits ' .. use .. ':', 'PX', ARGV[3])
    elseif is_last then
      call('PEXPIRE', lock, ARGV[3])
    end
    return fence .. '/' .. slot
  end
end

-- The slot of one who may leave, and leaves others behind; or was the last.
local leaves, left_slot
local others = quick and op == 'L' and mine and call('HLEN', owners) - 3
if others then
  local is_packed, r = pcall(cmsgpack.unpack, mine)
  leaves = is_packed and type(r) == 'table' and r[5] == '' and r[7] == ''
  left_slot = leaves and r[4]
  if leaves and inexact == 0 and r[1] >= group_end then inexact = group_time end
end
if leaves and call('EXISTS', queue) == 0 then
  if others == 0 then return call('DEL', lock, owners) - 1 end
  call('HDEL', owners, token)
  call('HSET', owners, '=', slots .. struct.pack('>I4', left_slot),
    '', permit_marks())
  return 1
end
