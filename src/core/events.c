/* SPDX-License-Identifier: MIT
 *
 * events.c - what hf_next_event() tells, and the descriptor that announces it.
 *
 * A notice lives inside the lock, request or observer that it is about, so telling of
 * a loss needs no memory and the queue cannot grow beyond what exists.  A lock
 * that is released takes its notices with it.
 *
 * A quiet notice is of what the thread that raises it was lent for (worker.c):
 * that thread takes the notices that wait next, so nobody else is woken.
 *
 * INVARIANT  The descriptor is readable only while a notice waits; and while one
 *            waits, unless none but quiet ones were raised since it was not.
 */
#include "core.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "base/banned.h"

/* Make the descriptor agree with the queue. */
static void notice_signal(struct hf_client *c, bool waiting)
{
    uint64_t count = 1;
    ssize_t done;

    if (c->events_fd < 0 || c->signaled == waiting)
        return;
    c->signaled = waiting;
    if (waiting)
        done = write(c->events_fd, &count, sizeof(count));
    else
        done = read(c->events_fd, &count, sizeof(count));
    (void)done; /* An eventfd of ours takes a 1, and has one to give. */
}

void hfi_notify(struct hf_client *c, struct hfi_notice *notice,
                enum hf_event_type type)
{
    notice->pending |= 1u << type;
    if (!hfi_link_alone(&notice->link))
        return;
    hfi_link_append(&c->notices, &notice->link);
    if (!notice->quiet)
        notice_signal(c, true);
}

void hfi_notice_drop(struct hf_client *c, struct hfi_notice *notice)
{
    notice->pending = 0;
    if (hfi_link_alone(&notice->link))
        return;
    hfi_link_remove(&notice->link);
    if (hfi_link_alone(&c->notices))
        notice_signal(c, false);
}

/* The end of a request: it is gone after this, only its name goes on. */
static void notice_take_request(struct hf_request *rq, struct hf_event *ret)
{
    ret->request = rq;
    ret->user = rq->user;
    if (rq->state == HFI_GRANTED) {
        ret->type = HF_GRANTED;
        ret->lock = rq->lock;
        if (rq->several) {
            hfi_several_give(rq->several);
            ret->lock = rq->several->ret[0];
        }
    } else {
        ret->type = HF_FAILED;
        ret->error = rq->err;
    }
    hfi_request_free(rq);
}

static void notice_take_lock(struct hf_client *c, struct hf_lock *lk,
                             struct hf_event *ret)
{
    bool risk = lk->notice.pending & 1u << HF_AT_RISK;

    ret->type = risk ? HF_AT_RISK : HF_GONE;
    ret->lock = lk;
    ret->user = lk->user;
    ret->reason = (hf_loss)atomic_load(&lk->grant->loss);
    if (risk && lk->notice.pending & 1u << HF_GONE)
        lk->notice.pending = 1u << HF_GONE;
    else
        hfi_notice_drop(c, &lk->notice);
}

/* Told again as long as the caller leaves something of it: observer.c.  One whose
 * client was closed is told of nothing. */
static void notice_take_observer(struct hf_client *c, struct hf_observer *ob,
                                 struct hf_event *ret)
{
    ret->type = HF_CHANGED;
    ret->observer = ob;
    ret->user = ob->user;
    if (ob->observed->why.status)
        ret->error = ob->observed->why;
    ob->heard = false;
    hfi_notice_drop(c, &ob->notice);
}

/* Notices of locks come only after the event that handed the lock out, which
 * was queued before: the queue is in order. */
bool hfi_notice_take(struct hf_client *c, struct hf_event *ret)
{
    struct hfi_several *several = NULL;
    struct hfi_notice *notice;
    struct hf_lock *failed = NULL;

    pthread_mutex_lock(&c->mu);
    if (hfi_link_alone(&c->notices)) {
        pthread_mutex_unlock(&c->mu);
        return false;
    }
    *ret = (struct hf_event)HF_EVENT_INIT;
    notice = hfi_container(c->notices.next, struct hfi_notice, link);
    if (notice->pending & 1u << HF_ANSWERED) {
        hfi_job_take(hfi_container(notice, struct hf_request, notice), ret);
    } else if (notice->pending & (1u << HF_GRANTED | 1u << HF_FAILED)) {
        struct hf_request *rq =
            hfi_container(notice, struct hf_request, notice);

        several = rq->several;
        if (rq->state == HFI_FAILED && !several)
            failed = rq->lock;
        notice_take_request(rq, ret);
    } else if (notice->pending & 1u << HF_CHANGED) {
        notice_take_observer(
            c, hfi_container(notice, struct hf_observer, notice), ret);
    } else {
        notice_take_lock(c, hfi_container(notice, struct hf_lock, notice), ret);
    }
    pthread_mutex_unlock(&c->mu);
    hfi_lock_free(failed);
    if (several)
        hfi_several_free(several);
    return true;
}

int hfi_notice_fd(struct hf_client *c)
{
    int fd;

    pthread_mutex_lock(&c->mu);
    if (c->events_fd < 0) {
        c->events_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (!hfi_link_alone(&c->notices))
            notice_signal(c, true);
    }
    fd = c->events_fd;
    pthread_mutex_unlock(&c->mu);
    return fd;
}
