/* SPDX-License-Identifier: MIT
 *
 * redis_script.c - the steps that must happen whole or not at all.
 *
 * One script serves all of them, so there is one digest to know and one script
 * to load again after a flush or a fail-over.  It is called with
 *
 *   KEYS  main     the lock: a plain string, the holder's token or owner id,
 *                  with an expiry; what other libraries use, too
 *         meta     a hash: g the last grant, "FENCE SINCE TOKEN LENGTH
 *                  CHANNEL+NOTE" with a ? before the length if it lingers;
 *                  b the fence that was broken; and for each waiter, by its
 *                  token, its place: end, owner, length and channel and note,
 *                  channel, number of the try that last asked for it, when it
 *                  looks again
 *         queue    a sorted set: tokens of waiters by time of arrival
 *         owners   a hash: token -> end, for the claims of one owner id
 *   ARGV  operation, fair (1 or 0), length of the prefix, space, owner id, all
 *         in one; token; then
 *           A  acquire: ttl, "LENGTH CHANNEL+NOTE" and, to stand in line,
 *              patience, number of the try, channel
 *           R  renew: ttl, fence; S  the same, even if that is less
 *           L  leave: release, or give up a place
 *           H  hear of those who want it, while it lingers: channel
 *           B  break: fence
 *           I  inspect
 *         An operation in small letters has an owner id.
 *
 * Every argument costs the server as much as half a command, and every function
 * that is made a third of one: hence few, and late.
 *
 * All times are the server's.  Nothing is stored without an expiry: the
 * companions outlive their last use by a week, a place its waiter's last try by
 * its patience.
 *
 * A release in a fair queue passes the lock to the first waiter that hears of
 * it: for two seconds, in which that one must extend it to its own ttl, or
 * release it.  So nobody can barge in between.  It is told the fence and which
 * try of its own it had made last: the two seconds began after that one, and
 * so it may rely on them without asking again.  A waiter whose process is dead has
 * nobody listening on its channel and costs nothing; one that is frozen costs
 * the two seconds, and the next in line is told to look again after them, unless
 * it will have looked by then anyway.
 *
 * Breaking a lock does not free it: its holder would believe in it until the
 * next renewal.  It is marked, its holder is told, renewals are refused, and
 * the key ends with the release or with the lease, as it would have anyway.
 */
#include "redis.h"

#include <openssl/sha.h>

#include "../banned.h"

/* Longer than ISO C asks a compiler to take; ours take it. */
#pragma GCC diagnostic ignored "-Woverlength-strings"

const char redis_script[] =
    "local M,T,Q,O=KEYS[1],KEYS[2],KEYS[3],KEYS[4]\n"
    "local what,token=ARGV[1],ARGV[2]\n"
    "local call,sub,match,week=redis.call,string.sub,string.match,'604800000'\n"
    "local op=sub(what,1,1)\n"
    "\n"
    "-- What happens most comes first, before functions are made that it does\n"
    "-- not need: a claim without an owner id, and nobody waits.  All is read\n"
    "-- before the first write, so that what cannot be read leaves nothing half\n"
    "-- done.\n"
    "if op=='A' and call('EXISTS',M,Q)==0 then\n"
    "  local t,old=call('TIME'),call('HGET',T,'g')\n"
    "  local f=t[1]..sub('00000'..t[2],-6)\n"
    "  local ms=sub(f,1,-4)\n"
    "  if old and (old>=f or sub(old,17,17)~=' ') then\n"
    "    old=match(old,'^%d+')\n"
    "    if old and (#old>#f or #old==#f and old>=f) then\n"
    "      f=string.format('%.0f',old+1)\n"
    "    end\n"
    "  end\n"
    "  call('SET',M,token,'PX',ARGV[3])\n"
    "  call('HSET',T,'g',f..' '..ms..' '..token..' '..ARGV[4])\n"
    "  if not old or old<sub(f,1,5) then call('PEXPIRE',T,week) end\n"
    "  return f\n"
    "end\n"
    "local v,line=call('GET',M)\n"
    "if v==token then\n"
    "  if op=='L' then\n"
    "    line=call('ZRANGE',Q,'0','1')\n"
    "    if not line[1] then return call('DEL',M) end\n"
    "  elseif op=='R' then\n"
    "    local m,f=call('HMGET',T,'g','b'),ARGV[4]\n"
    "    if m[1] and sub(m[1],1,#f+1)==f..' ' and m[2]~=f then\n"
    "      if call('PTTL',M)<tonumber(ARGV[3]) then call('PEXPIRE',M,ARGV[3]) end\n"
    "      if call('PTTL',T)<518400000 then call('PEXPIRE',T,week) end\n"
    "      return 1\n"
    "    end\n"
    "  end\n"
    "end\n"
    "\n"
    "local fair,skip,owner=match(what,'^.(.)(%d+) (.*)$')\n"
    "local id,window=owner~='' and owner or token,2000\n"
    "local clock=call('TIME')\n"
    "local stamp=clock[1]..sub('00000'..clock[2],-6)\n"
    "local since=sub(stamp,1,-4)\n"
    "local ms=since+0\n"
    "fair,op=fair=='1',string.upper(op)\n"
    "\n"
    "local function tell(channel,sign,tok,more)\n"
    "  if channel=='' then return end\n"
    "  redis.pcall(sub(channel,-1)=='s' and 'SPUBLISH' or 'PUBLISH',\n"
    "    channel,sign..tok..(more or '')..sub(M,skip+1))\n"
    "end\n"
    "\n"
    "-- Somebody has it: stand in line, if that is wanted.\n"
    "local function busy()\n"
    "  local left,nth,g=call('PTTL',M),0,call('HGET',T,'g')\n"
    "  local k,asks=match(g or '','^%d+ %d+ (%S+) (.)')\n"
    "  if left==0 then left=1 end -- It ends with this very millisecond.\n"
    "  -- Other libraries tell nobody when they release: look often.\n"
    "  if v~=k and call('EXISTS',O)==0 and (left<0 or left>100) then\n"
    "    left=100\n"
    "  end\n"
    "  if ARGV[5] then\n"
    "    local new=call('ZADD',Q,'NX',stamp,token)\n"
    "    call('HSET',T,token,cmsgpack.pack({ms+ARGV[5],owner,ARGV[4],ARGV[7],\n"
    "      ARGV[6],ms+(left<0 and ARGV[3] or left)}))\n"
    "    nth=new==1 and call('ZCARD',Q) or call('ZRANK',Q,token)+1\n"
    "    if nth==1 or new==0 then\n"
    "      call('PEXPIRE',Q,week)\n"
    "      call('PEXPIRE',T,week)\n"
    "    end\n"
    "  end\n"
    "  if asks=='?' then -- Who lingers wants to know.\n"
    "    local n,rest=match(g,'%?(%d+) (.*)$')\n"
    "    tell(sub(rest,1,n),'?',token)\n"
    "  end\n"
    "  return {left,nth}\n"
    "end\n"
    "if op=='A' and v and v~=id then return busy() end\n"
    "\n"
    "local function leave(tok)\n"
    "  call('HDEL',T,tok)\n"
    "  return call('ZREM',Q,tok)\n"
    "end\n"
    "\n"
    "-- The fence rises, also when all data was lost.  The companions' week\n"
    "-- begins again once a day: that is often enough.\n"
    "local function grant(last,tok,own,rest,px)\n"
    "  local f,old=stamp,last and match(last,'^%d+')\n"
    "  if old and (#old>#f or #old==#f and old>=f) then\n"
    "    f=string.format('%.0f',old+1)\n"
    "  end\n"
    "  call('SET',M,own~='' and own or tok,'PX',px)\n"
    "  call('HSET',T,'g',f..' '..since..' '..tok..' '..rest)\n"
    "  if not old or old<sub(f,1,5) then\n"
    "    call('PEXPIRE',T,week)\n"
    "    call('PEXPIRE',Q,week)\n"
    "  end\n"
    "  if own~='' then\n"
    "    call('DEL',O)\n"
    "    call('HSET',O,tok,ms+px)\n"
    "    call('PEXPIRE',O,px)\n"
    "  end\n"
    "  return f\n"
    "end\n"
    "\n"
    "-- A place whose waiter lives.\n"
    "local function place(raw)\n"
    "  local p=raw and cmsgpack.unpack(raw)\n"
    "  if p and p[1]>ms then return p end\n"
    "end\n"
    "\n"
    "-- The first waiter that lives, the one after it, and the last grant.\n"
    "local function first()\n"
    "  while true do\n"
    "    local a=line or call('ZRANGE',Q,'0','1')\n"
    "    if not a[1] then return nil end\n"
    "    local raw=call('HMGET',T,a[1],a[2] or '','g')\n"
    "    local p=place(raw[1])\n"
    "    if p then return a[1],p,a[2],place(raw[2]),raw[3] end\n"
    "    leave(a[1])\n"
    "    line=nil\n"
    "  end\n"
    "end\n"
    "\n"
    "-- Does anybody hear here?  To publish would not only ask: a replica\n"
    "-- passes on what is not counted here, and two would hear that they\n"
    "-- have the lock.  Who polls need not be told.\n"
    "local function hears(p)\n"
    "  if p[4]=='' then return true end\n"
    "  local n=redis.pcall('PUBSUB',sub(p[4],-1)=='s' and 'SHARDNUMSUB'\n"
    "    or 'NUMSUB',p[4])\n"
    "  return (n[2] or 0)>0\n"
    "end\n"
    "\n"
    "-- The first waiter that hears, or else the first; and who comes after.\n"
    "local function next_in_line()\n"
    "  local tok,p,after,q,last=first()\n"
    "  if not tok or hears(p) then return tok,p,after,q,last end\n"
    "  local more=call('ZRANGE',Q,1,16)\n"
    "  for i=1,math.min(#more,15) do\n"
    "    local r=place(call('HGET',T,more[i]))\n"
    "    if r and hears(r) then\n"
    "      local s=more[i+1]\n"
    "      return more[i],r,s,s and place(call('HGET',T,s)),last\n"
    "    end\n"
    "  end\n"
    "  return tok,p,after,q,last\n"
    "end\n"
    "\n"
    "-- The lock is free: whose turn is it?  True if that one has it now.\n"
    "local function pass_on()\n"
    "  local f,tok,p,after,q,last='0',next_in_line()\n"
    "  if not tok then return false end\n"
    "  if fair then\n"
    "    leave(tok)\n"
    "    f=grant(last,tok,p[2],p[3],window)\n"
    "  end\n"
    "  tell(p[4],'+',tok,p[5]..' '..f..' ')\n"
    "  if q and q[6]>ms+window then\n"
    "    tell(q[4],'~',after)\n"
    "    q[6]=ms+window\n"
    "    call('HSET',T,after,cmsgpack.pack(q))\n"
    "  end\n"
    "  return fair\n"
    "end\n"
    "\n"
    "-- When the last claim of the owner ends; 0 if none is left.\n"
    "local function last_end()\n"
    "  local last,all=0,call('HGETALL',O)\n"
    "  for i=1,#all,2 do\n"
    "    local e=tonumber(all[i+1])\n"
    "    if e<=ms then call('HDEL',O,all[i])\n"
    "    elseif e>last then last=e end\n"
    "  end\n"
    "  return last\n"
    "end\n"
    "\n"
    "local ours=v==id and (owner=='' or call('HEXISTS',O,token)==1)\n"
    "\n"
    "if op=='L' then\n"
    "  if not ours then return leave(token) end\n"
    "  if owner~='' then\n"
    "    call('HDEL',O,token)\n"
    "    local last=last_end()\n"
    "    if last>0 then call('PEXPIRE',M,last-ms) return 1 end\n"
    "  end\n"
    "  if not pass_on() then call('DEL',M) end\n"
    "  return 1\n"
    "end\n"
    "\n"
    "-- Give a claim that holds its whole ttl again; less only if told so.\n"
    "local function refresh(ttl,less)\n"
    "  if call('PTTL',T)<518400000 then call('PEXPIRE',T,week) end\n"
    "  if owner=='' then\n"
    "    if less or call('PTTL',M)<ttl then call('PEXPIRE',M,ttl) end\n"
    "    return\n"
    "  end\n"
    "  -- What only extends comes first: it works without memory, too.\n"
    "  if not less and call('PTTL',M)<ttl then call('PEXPIRE',M,ttl) end\n"
    "  local old=tonumber(call('HGET',O,token) or 0)\n"
    "  if less or old<ms+ttl then call('HSET',O,token,ms+ttl) end\n"
    "  local left=last_end()-ms\n"
    "  call('PEXPIRE',O,left)\n"
    "  call('PEXPIRE',M,left)\n"
    "end\n"
    "\n"
    "if op=='A' then\n"
    "  local ttl,tok=tonumber(ARGV[3]),not v and first()\n"
    "  if tok and tok~=token and fair then\n"
    "    pass_on()\n"
    "    v=call('GET',M)\n"
    "    if v~=id then return busy() end\n"
    "  end\n"
    "  local last=call('HGET',T,'g')\n"
    "  if tok or owner~='' then leave(token) end\n"
    "  if not v then return grant(last,token,owner,ARGV[4],ttl) end\n"
    "  refresh(ttl)\n"
    "  return last and match(last,'^%d+') or stamp\n"
    "end\n"
    "\n"
    "local m=call('HMGET',T,'g','b')\n"
    "local f,t,k,_,n,rest=match(m[1] or '',\n"
    "  '^(%d+) (%d+) (%S+) ([?]?)(%d+) (.*)$')\n"
    "local broken=f and f==m[2]\n"
    "\n"
    "if op=='R' or op=='S' then\n"
    "  if not ours then return v and 2 or 0 end\n"
    "  if ARGV[4]~='0' and f~=ARGV[4] then return 0 end\n"
    "  if broken and (owner~='' or k==token) then return 3 end\n"
    "  refresh(tonumber(ARGV[3]),op=='S')\n"
    "  return 1\n"
    "end\n"
    "\n"
    "if op=='H' then\n"
    "  if not ours then return 0 end\n"
    "  if f then\n"
    "    call('HSET',T,'g',f..' '..t..' '..k..' ?'..#ARGV[3]..' '..ARGV[3]\n"
    "      ..sub(rest,n+1))\n"
    "  end\n"
    "  return call('ZCARD',Q)\n"
    "end\n"
    "\n"
    "if op=='B' then\n"
    "  if not v or f~=ARGV[3] then return 0 end\n"
    "  call('HSET',T,'b',f)\n"
    "  tell(sub(rest,1,n),'!',k)\n"
    "  return 1\n"
    "end\n"
    "\n"
    "-- Another library has it, and nothing of the last grant is its own.\n"
    "if v and v~=k and call('EXISTS',O)==0 then f,broken=nil,nil end\n"
    "return {v,broken and 0 or call('PTTL',M),f or false,\n"
    "  f and sub(rest,n+1) or false,f and t or false,since,\n"
    "  call('ZCARD',Q),call('HLEN',O)}\n";

void redis_script_digest(const char *script, char ret[41])
{
    unsigned char digest[SHA_DIGEST_LENGTH];
    int i;

    SHA1((const unsigned char *)script, strlen(script), digest);
    for (i = 0; i < SHA_DIGEST_LENGTH; i++)
        snprintf(ret + 2 * i, 3, "%02x", digest[i]);
}

/* ---- names ------------------------------------------------------------- */

/* The slot of a cluster that a text belongs to: CRC-16/XMODEM. */
static unsigned slot_of(const char *text, size_t len)
{
    unsigned crc = 0, x;

    for (; len > 0; len--, text++) {
        x = (crc >> 8 ^ (unsigned char)*text) & 0xff;
        x ^= x >> 4;
        crc = (crc << 8 ^ x << 12 ^ x << 5 ^ x) & 0xffff;
    }
    return crc % 16384;
}

/* What stands in braces in the names of the companions, so that they go where
 * the key goes: its own tag, or the whole of it.  A key with a brace but no tag
 * cannot be put in braces; the first number in its slot can. */
static void redis_tag(const char *key, char *ret, size_t size)
{
    const char *open = strchr(key, '{');
    const char *end = open ? strchr(open, '}') : NULL;
    unsigned slot, n = 0;

    if (end && end > open + 1) {
        snprintf(ret, size, "%.*s", (int)(end - open - 1), open + 1);
    } else if (!strchr(key, '}')) {
        memcpy(ret, key, strlen(key) + 1);
    } else {
        slot = slot_of(key, strlen(key));
        do
            snprintf(ret, size, "%u", n++);
        while (slot_of(ret, strlen(ret)) != slot);
    }
}

unsigned redis_slot(const char *name)
{
    const char *open = strchr(name, '{');
    const char *end = open ? strchr(open, '}') : NULL;

    if (end && end > open + 1)
        return slot_of(open + 1, (size_t)(end - open - 1));
    return slot_of(name, strlen(name));
}

/* "{TAG}:SUFFIX:REST" */
static void redis_companion(char *to, const char *tag, size_t tag_len,
                            const char *suffix, const char *rest,
                            size_t rest_len)
{
    size_t len = strlen(suffix);

    *to++ = '{';
    memcpy(to, tag, tag_len);
    to += tag_len;
    *to++ = '}';
    *to++ = ':';
    memcpy(to, suffix, len);
    to += len;
    *to++ = ':';
    memcpy(to, rest, rest_len + 1);
}

/* Written by hand: it is done for every request, and printf would take longer
 * for it than for all the rest.  REDIS_NAME_MAX is room enough for any key. */
void redis_name(const struct redis_conn *rc, const char *key,
                struct redis_names *ret)
{
    static const char *const suffixes[] = {"", "meta", "queue", "owners"};
    char tag[HF_KEY_MAX + 128 + 1], *main = ret->text[REDIS_MAIN];
    size_t prefix_len = strlen(rc->prefix), key_len = strlen(key);
    size_t tag_len, rest_len;
    int i;

    memcpy(main, rc->prefix, prefix_len);
    memcpy(main + prefix_len, key, key_len + 1);
    redis_tag(main, tag, sizeof(tag));
    tag_len = strlen(tag);
    rest_len = strcmp(tag, main) ? prefix_len + key_len : 0;
    for (i = REDIS_META; i < REDIS_NAMES; i++)
        redis_companion(ret->text[i], tag, tag_len, suffixes[i],
                        rest_len ? main : "", rest_len);
}
