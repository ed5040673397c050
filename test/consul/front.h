/* SPDX-License-Identifier: MIT
 *
 * front.h - something that stands before an agent, as a load balancer does, and
 * answers in its place when it is told to.
 */
#ifndef FRONT_H
#define FRONT_H

/* Start one before the first server; its URL. */
const char *front_url(void);

/* From now on: 0 passes everything through; a status is the answer to every
 * request, and to those under way, which do not reach the agent; the negative
 * of a status is the answer once the agent has done what was asked. */
void front_answer(int status);

/* The next `n` requests with this text in them are done but not answered (LOSE),
 * are neither (DROP), do not reach the agent before front_let_go() (HOLD), are
 * answered here (404), are done, and the answer ends after its first line (CUT),
 * or are held and then answered (PAUSE). */
enum front_how {
    FRONT_LOSE,
    FRONT_DROP,
    FRONT_HOLD,
    FRONT_404,
    FRONT_CUT,
    FRONT_PAUSE
};
void front_catch(const char *text, int n, enum front_how how);

/* From now on each request takes so long to reach the agent. */
void front_delay(int ms);

/* How many requests are held. */
int front_held(void);

/* What is held reaches the agent, which has answered when this returns. */
void front_let_go(void);

/* How many requests were answered here. */
int front_count(void);

/* Close the door; connections end with their clients. */
void front_end(void);

#endif
