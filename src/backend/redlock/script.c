/* SPDX-License-Identifier: MIT
 *
 * script.c - what one node does, each step whole or not at all.
 *
 *   KEYS  main  the lock: a plain string, its holder's token, with an expiry;
 *               what node-redlock, redsync and others use, too
 *         meta  a hash: c the largest fence that was confirmed here, k whose it
 *               is, n its note, o its owner id, t since when, b the fence that
 *               was broken
 *   ARGV  operation, token, then its own
 *
 *   A ttl                    take     {v, {c, k}, TIME, PTTL}; v was there
 *   W fence note owner       confirm  1, 0 not ours or not the largest
 *   R ttl less fence mend note owner  1, 0 gone, 2 another's, 3 broken,
 *                                     4 put back, 5 a later grant was here
 *   L tell limit             release  1, 0 not ours, or confirmed for a larger
 *                                     fence than the limit, if there is one
 *   B fence                  break    1, 0 not that grant
 *   F fence                  free     1, 0 another grant is here, 2 none is
 *   T old fence              take up  {1}, or why not: {2, whose}, {0}, {3},
 *                                     {5}, as with R
 *   I                        look     {v, PTTL, c, k, n, o, t, b, now}
 *   Q longest run seen       agree    {longest, seen, now}; quarantine.c
 *
 * What is asked most often needs no script: A is the same as SET NX GET PX,
 * HMGET, TIME and PTTL, one after the other, where SET knows NX with GET (since
 * Redis 7) and the key is not ours already.  The script is for the rest.
 *
 * All times are the node's own, in microseconds, and everything has an expiry.
 * The field c never falls while the hash lives, which is six days or more from
 * the last grant.  A release is told on the channel "wake:MAIN", if the node
 * lets us.
 */
#include "redlock.h"

#include "base/banned.h"

const char redlock_script[] =
    "local M,T,op,token=KEYS[1],KEYS[2],ARGV[1],ARGV[2]\n"
    "local call=redis.call\n"
    "if op=='Q' then\n"
    "  local q,t=call('HMGET',T,'q','r','s'),call('TIME')\n"
    "  if not q[1] or tonumber(q[1])<tonumber(ARGV[3]) then\n"
    "    q[1]=ARGV[3]\n"
    "  end\n"
    "  if q[2]~=ARGV[4] or ARGV[5]~='' then q[3]=ARGV[5] end\n"
    "  redis.pcall('HSET',T,'q',q[1],'r',ARGV[4],'s',q[3])\n"
    "  redis.pcall('PEXPIRE',T,'31622400000')\n"
    "  return {q[1],q[3],t[1]..string.sub('00'..math.floor(t[2]/1000),-3)}\n"
    "end\n"
    "local v=call('GET',M)\n"
    "if op=='L' then\n"
    "  if v~=token then return 0 end\n"
    "  if ARGV[4] then\n"
    "    local m=call('HMGET',T,'c','k')\n"
    "    if m[2]==v and tonumber(m[1])>tonumber(ARGV[4]) then return 0 end\n"
    "  end\n"
    "  call('DEL',M)\n"
    "  if ARGV[3]=='1' then redis.pcall('PUBLISH','wake:'..M,'-'..token) end\n"
    "  return 1\n"
    "end\n"
    "if op=='T' then\n"
    "  local m,f=false,ARGV[4]\n"
    "  if f~='0' then\n"
    "    m=call('HMGET',T,'c','k','b')\n"
    "    if m[1] and tonumber(m[1])>tonumber(f) then return {5} end\n"
    "    if m[3]==f then return {3} end\n"
    "  end\n"
    "  if v==token then return {1} end\n"
    "  if v~=ARGV[3] then return {v and 2 or 0,v and v:sub(1,200)} end\n"
    "  call('SET',M,token,'PX',math.max(call('PTTL',M),1))\n"
    "  if m and m[1]==f then call('HSET',T,'k',token) end\n"
    "  return {1}\n"
    "end\n"
    "local F,m=ARGV[5],false\n"
    "if op=='W' then\n"
    "  if v~=token then return 0 end\n"
    "  F=ARGV[3]\n"
    "  m=call('HMGET',T,'c','k')\n"
    "  if m[1]==F then return m[2]==token and 1 or 0 end\n"
    "  if m[1] and tonumber(m[1])>tonumber(F) then return 0 end\n"
    "elseif op=='R' then\n"
    "  local ttl=ARGV[3]\n"
    "  if v and v~=token then return 2 end\n"
    "  if F~='0' then\n"
    "    m=call('HMGET',T,'c','k','b')\n"
    "    if m[1] and tonumber(m[1])>tonumber(F) then return 5 end\n"
    "    if m[3]==F then return 3 end\n"
    "  end\n"
    "  if not v and ARGV[6]~='1' then return 0 end\n"
    "  if not v then\n"
    "    call('SET',M,token,'PX',ttl)\n"
    "  elseif ARGV[4]=='1' or call('PTTL',M)<tonumber(ttl) then\n"
    "    call('PEXPIRE',M,ttl)\n"
    "  end\n"
    "  if not m or (m[1]==F and m[2]==token) then return v and 1 or 4 end\n"
    "end\n"
    "local t=call('TIME')\n"
    "local now=t[1]..string.sub('00000'..t[2],-6)\n"
    "if m then\n"
    "  local w=op=='W'\n"
    "  call('HSET',T,'c',F,'k',token,'t',now,"
    "'n',ARGV[w and 4 or 7],'o',ARGV[w and 5 or 8])\n"
    "  if not m[1] or call('PTTL',T)<518400000 then\n"
    "    call('PEXPIRE',T,'604800000')\n"
    "  end\n"
    "  return (w or v) and 1 or 4\n"
    "end\n"
    "if op=='A' then\n"
    "  if not v then\n"
    "    call('SET',M,token,'PX',ARGV[3])\n"
    "  elseif v==token and call('PTTL',M)<tonumber(ARGV[3]) then\n"
    "    call('PEXPIRE',M,ARGV[3])\n"
    "  end\n"
    "  return {v and v:sub(1,200),call('HMGET',T,'c','k'),t,call('PTTL',M)}\n"
    "end\n"
    "if op=='B' then\n"
    "  m=call('HMGET',T,'c','k')\n"
    "  if not v or m[1]~=ARGV[3] or m[2]~=v then return 0 end\n"
    "  call('HSET',T,'b',ARGV[3])\n"
    "  return 1\n"
    "end\n"
    "if op=='F' then\n"
    "  m=call('HMGET',T,'c','k','b')\n"
    "  if m[1]~=ARGV[3] or v and m[2]~=v then return v and 0 or 2 end\n"
    "  if not v then return m[3]==m[1] and 1 or 2 end\n"
    "  call('HSET',T,'b',ARGV[3])\n"
    "  call('DEL',M)\n"
    "  redis.pcall('PUBLISH','wake:'..M,'-'..v)\n"
    "  return 1\n"
    "end\n"
    "m=call('HMGET',T,'c','k','n','o','t','b')\n"
    "return {v and v:sub(1,200),call('PTTL',M),m[1],m[2],m[3],m[4],m[5],m[6],now}\n";
