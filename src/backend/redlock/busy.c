/* SPDX-License-Identifier: MIT
 *
 * busy.c - others have it: when to ask again, and what is done meanwhile.
 *
 * WAITING  Who is told of releases asks again when it is told.  But nobody is
 *   told when a lease lapses, when other libraries release, or by nodes that we
 *   cannot hear; so a busy answer says when to ask again.  And when several who
 *   were woken together have taken a part each, so that nobody has a majority,
 *   all give back and ask again after times that differ: by the token, since a
 *   token is random, and longer each time in a row.
 *
 * DOOR  Readers that come and go could keep a writer out for ever.  So one that
 *   has met readers and waits keeps new ones out; redlock.c (9).
 */
#include "take.h"

#include "base/banned.h"

/* How often to look where nobody tells us; and where we do not hear the node at
 * which others may stand in line, so that it alone tells of releases. */
#define LOOK_MS 100
#define DEAF_MS 2000

/* The other nodes are told of a release so soon after the first. */
#define RELEASED_MS 2

/* After a split, at most: this and the time that the try took, doubled for each
 * more in a row.  A wait shorter than a try meets the same others. */
#define SPLIT_MS      2
#define SPLIT_DOUBLED 4
#define SPLIT_MS_MAX  2000

/* A node with a claim that another node told to be released is about to be told
 * the same: it is asked again soon, and more rarely the longer that lasts, since
 * whoever released may have died before it had told them all. */
static void take_expect_release(struct redlock_take *take)
{
    int64_t ms;
    int i;

    for (i = 0; i < take->rl->n; i++) {
        ms = take->holder[i] ? redlock_released_for(take->rl, take->claim->key,
                                                    take->holder[i])
                             : -1;
        if (ms >= 0 && (!take->left[i] || take->left[i] > RELEASED_MS + ms))
            take->left[i] = RELEASED_MS + ms;
    }
}

/* When enough of those who said no will be free again; 0 unknown. */
static int64_t take_left(const struct redlock_take *take)
{
    int yes = __builtin_popcount(take->votes.yes);
    int64_t best = 0;
    int i, j, sooner;

    for (i = 0; i < take->rl->n; i++) {
        if (!take->left[i])
            continue;
        for (j = sooner = 0; j < take->rl->n; j++)
            sooner += take->left[j] && take->left[j] <= take->left[i];
        if (yes + sooner >= take->rl->majority &&
            (!best || take->left[i] < best))
            best = take->left[i];
    }
    return best;
}

/* Nobody has a majority, not even with all who were not heard. */
static bool take_is_split(const struct redlock_take *take)
{
    int n = take->rl->n, i, j, same;
    int silent = n - __builtin_popcount(take->votes.yes | take->votes.no);

    for (i = 0; i < n; i++) {
        if (!take->holder[i])
            continue;
        for (j = same = 0; j < n; j++)
            same +=
                take->holder[j] && !strcmp(take->holder[i], take->holder[j]);
        if (same + silent >= take->rl->majority)
            return false;
    }
    return true;
}

int64_t redlock_take_split_ms(const struct redlock_take *take, unsigned splits)
{
    int64_t range = (SPLIT_MS + hfi_now() - take->began)
                    << (splits < SPLIT_DOUBLED ? splits : SPLIT_DOUBLED);
    char digits[5] = "";

    if (range > SPLIT_MS_MAX)
        range = SPLIT_MS_MAX;
    memcpy(digits, take->claim->token + splits % 7 * 4, 4);
    return 1 + strtol(digits, NULL, 16) % range;
}

static void take_ask_within(struct hfi_answer *busy, int64_t ms)
{
    if (!busy->left_ms || busy->left_ms > ms)
        busy->left_ms = ms;
}

/* Keep new readers out from the next try on, if readers have it and we shall
 * wait.  Nobody is told that a try of theirs was taken back, so ask again before
 * long.  redlock.c (9) */
static void take_close_door(const struct redlock_take *take,
                            struct redlock_grant *own, struct hfi_answer *busy)
{
    int64_t ms = REDLOCK_DOOR_ASK_MS;
    int i;

    for (i = 0; i < take->rl->n && !own->door; i++)
        if (!take->claim->shared && take->claim->queue && take->holder[i] &&
            !strcmp(take->holder[i], REDLOCK_SHARED)) {
            own->door = true;
            ms = 1;
        }
    if (own->door)
        take_ask_within(busy, ms);
}

hf_status redlock_take_busy(struct redlock_take *take,
                            struct hfi_receipt *receipt,
                            struct hfi_answer *busy, struct hf_error *err)
{
    const struct hfi_claim *claim = take->claim;
    struct redlock_conn *rl = take->rl;
    struct redlock_grant *own = receipt->own;
    unsigned char splits = own->splits;
    bool split = take_is_split(take);
    char names[sizeof(err->text)];

    take_expect_release(take);
    busy->left_ms = take_left(take);
    if (!rl->fenced || take->strange == take->votes.no ||
        (own->watched && !redlock_subscriber_hears(rl, claim->key)))
        take_ask_within(busy, LOOK_MS);
    else if (own->watched && !(redlock_subscribers(rl, claim->key) & 1))
        take_ask_within(busy, DEAF_MS);
    if (split) {
        busy->left_ms = redlock_take_split_ms(take, splits);
        if (!own->gate)
            own->gate = 1;
    }
    take_close_door(take, own, busy);
    splits = !split ? 0 : splits < 100 ? splits + 1 : splits;
    own->splits = splits;
    return hfi_fail(err, HF_BUSY, "%.160s %s",
                    redlock_names(rl, take->votes.no, names, sizeof(names)),
                    split ? "have other holders, none of which has a majority"
                          : "have another holder");
}
