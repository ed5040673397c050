/* SPDX-License-Identifier: MIT
 *
 * redlock_script.c - what one node does, each step whole or not at all.
 *
 *   KEYS  main  the lock: a plain string, its holder's token, with an expiry;
 *               what node-redlock, redsync and others use, too
 *         meta  a hash: f the largest number ever proposed or confirmed here,
 *               c the fence that was last confirmed, k whose it is, n note,
 *               t since, b the fence that was broken, o owner id, for display;
 *               w whose note, time and owner id they are
 *   ARGV  operation, token, then its own
 *
 *   A ttl fenced note owner  take     {1, proposal, own confirmed} {0, ms left}
 *   W fence                  confirm  1, 0 not ours
 *   R ttl less fence mend note owner  1, 0 gone, 2 another's, 3 broken,
 *                                     4 put back, 5 a later grant was here
 *   L                        release  1, 0 not ours
 *   B fence                  break    1, 0 not that grant
 *   I                        look     {token, ms left, c, note, since, now, b, o}
 *
 * All times are the node's own, and everything has an expiry.  The fields f and
 * c never fall while the hash lives, which is a week from its last use.
 */
#include "redlock.h"

#include "../banned.h"

const char redlock_script[] =
    "local M,T,op,token=KEYS[1],KEYS[2],ARGV[1],ARGV[2]\n"
    "local call=redis.call\n"
    "local v=call('GET',M)\n"
    "local clock=call('TIME')\n"
    "local us=clock[1]*1000000+clock[2]\n"
    "local ms=math.floor(us/1000)\n"
    "local function text(n) return string.format('%.0f',n) end\n"
    "local function get(x) return tonumber(call('HGET',T,x)) or 0 end\n"
    "local function put(...)\n"
    "  call('HSET',T,...)\n"
    "  call('PEXPIRE',T,604800000)\n"
    "end\n"
    "-- This node knows the grant.\n"
    "local function know(F)\n"
    "  if get('c')>=F and call('HGET',T,'k')==token then return end\n"
    "  put('f',text(math.max(get('f'),F)),'c',text(math.max(get('c'),F)),"
    "'k',token)\n"
    "end\n"
    "if op=='A' then\n"
    "  local ttl=tonumber(ARGV[3])\n"
    "  if v and v~=token then return {0,call('PTTL',M)} end\n"
    "  if v then\n"
    "    if call('PTTL',M)<ttl then call('PEXPIRE',M,ttl) end\n"
    "    if ARGV[4]=='0' then return {1,'0','0'} end\n"
    "    local m=call('HMGET',T,'f','c','k')\n"
    "    return {1,m[1] or text(us),m[3]==token and m[2] or '0'}\n"
    "  end\n"
    "  call('SET',M,token,'PX',ttl)\n"
    "  if ARGV[4]=='0' then return {1,'0','0'} end\n"
    "  local f=math.max(get('f')+1,us)\n"
    "  put('f',text(f),'n',ARGV[5],'o',ARGV[6],'t',text(ms),'k','',"
    "'w',token)\n"
    "  return {1,text(f),'0'}\n"
    "end\n"
    "if op=='W' then\n"
    "  if v~=token then return 0 end\n"
    "  know(tonumber(ARGV[3]))\n"
    "  return 1\n"
    "end\n"
    "if op=='R' then\n"
    "  local ttl,F=tonumber(ARGV[3]),tonumber(ARGV[5])\n"
    "  if v and v~=token then return 2 end\n"
    "  if F>0 and get('c')>F then return 5 end\n"
    "  if F>0 and get('b')==F then return 3 end\n"
    "  if v then\n"
    "    if F>0 then know(F) end\n"
    "    if ARGV[4]=='1' or call('PTTL',M)<ttl then"
    " call('PEXPIRE',M,ttl) end\n"
    "    return 1\n"
    "  end\n"
    "  if ARGV[6]~='1' then return 0 end\n"
    "  call('SET',M,token,'PX',ttl)\n"
    "  if F>0 then\n"
    "    put('n',ARGV[7],'o',ARGV[8],'t',text(ms),'w',token)\n"
    "    know(F)\n"
    "  end\n"
    "  return 4\n"
    "end\n"
    "if op=='L' then\n"
    "  if v~=token then return 0 end\n"
    "  return call('DEL',M)\n"
    "end\n"
    "if op=='B' then\n"
    "  if not v or call('HGET',T,'c')~=ARGV[3] or"
    " call('HGET',T,'k')~=v then return 0 end\n"
    "  put('b',ARGV[3])\n"
    "  return 1\n"
    "end\n"
    "local m=call('HMGET',T,'c','n','t','b','o','w')\n"
    "if m[6]~=v then m[2],m[3],m[5]=false,false,false end\n"
    "return {v,call('PTTL',M),m[1],m[2],m[3],text(ms),m[4],m[5]}\n";
