/* SPDX-License-Identifier: MIT
 *
 * fuzz.c - whatever a server sends, nothing here crashes, leaks or hangs.
 *
 * The bytes are given to a connection with a call and a stream under way, and
 * to each decoder of messages and values.  Built with libFuzzer; fuzz.sh runs
 * it, shortly in `make check` and at length in `make soak`.
 */
#include "backend/etcd/etcd.h"
#include "base/alloc.h"
#include "net/grpc_wire.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void heard(void *arg, const void *message, size_t len)
{
    Pb__WatchResponse *said = pb__watch_response__unpack(NULL, len, message);

    (void)arg;
    if (said)
        pb__watch_response__free_unpacked(said, NULL);
}

/* A greeting, then the answer to one call and messages of one stream. */
static void feed_link(const uint8_t *bytes, size_t len)
{
    static const struct hfi_endpoint end = {.host = "127.0.0.1", .port = 1};
    static const uint8_t settings[9] = {0, 0, 0, 4};
    uint8_t message[HFI_GRPC_PREFIX + 3] = {0};
    struct hfi_h2_call call = {
        .path = ETCD_TXN, .body = message, .len = sizeof(message)};
    struct hfi_h2_call stream = {
        .path = ETCD_WATCH, .body = message, .heard = heard};
    struct hfi_h2 h2;
    struct h2_link *link;
    size_t at, step;

    hfi_h2_init(&h2, &end, 1);
    link = h2_link_new(&h2, 0);
    if (!link)
        abort();
    hfi_link_init(&call.base.in_calls);
    hfi_link_init(&stream.base.in_calls);
    h2_link_feed(link, settings, sizeof(settings));
    if (h2_link_submit(link, &call, NULL, NULL) ||
        h2_link_submit(link, &stream, "token", NULL))
        abort();
    h2_link_collect(link);
    for (at = 0; at < len; at += step) {
        step = len - at < 61 ? len - at : 61;
        if (!h2_link_feed(link, bytes + at, step) || !h2_link_collect(link))
            break;
    }
    hfi_shared_break(&link->base, "over", 0);
    if (!call.base.done || !stream.base.done)
        abort();
    free(call.answer);
    free(stream.answer);
    h2_link_free(link);
    hfi_h2_fini(&h2);
}

static void decode(const uint8_t *bytes, size_t len)
{
    static const ProtobufCMessageDescriptor *const types[] = {
        &pb__range_response__descriptor,
        &pb__txn_response__descriptor,
        &pb__combined_response__descriptor,
        &pb__lease_grant_response__descriptor,
        &pb__lease_keep_alive_response__descriptor,
        &pb__lease_time_to_live_response__descriptor,
        &pb__watch_response__descriptor,
        &pb__authenticate_response__descriptor,
    };
    struct etcd_words words;
    size_t i;

    for (i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        etcd_free(protobuf_c_message_unpack(types[i], NULL, len, bytes));
    etcd_read_value((ProtobufCBinaryData){len, (uint8_t *)(uintptr_t)bytes},
                    &words);
}

/* Claims whose names and values are parts of it: who holds, and which slot is
 * next. */
static void judge(const uint8_t *bytes, size_t len)
{
    Pb__KeyValue kvs[3], *all[3];
    struct etcd_place *places;
    struct etcd_slots slots;
    size_t i, part = len / 6;

    for (i = 0; i < 3; i++) {
        pb__key_value__init(&kvs[i]);
        kvs[i].key = (ProtobufCBinaryData){part, (uint8_t *)(uintptr_t)bytes +
                                                     2 * i * part};
        kvs[i].value = (ProtobufCBinaryData){part, (uint8_t *)(uintptr_t)bytes +
                                                       (2 * i + 1) * part};
        kvs[i].create_revision = (int64_t)i + 1;
        all[i] = &kvs[i];
    }
    places = etcd_order(all, 3, len % 4, "o");
    if (places && etcd_slots(places, 3, UINT64_MAX, 3, &slots) &&
        (slots.slot < 0 || slots.slot >= 3))
        abort();
    hfi_free(places);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    feed_link(bytes, len);
    decode(bytes, len);
    judge(bytes, len);
    return 0;
}
