/* SPDX-License-Identifier: MIT
 *
 * list.h - a doubly linked list whose links live inside its members.
 *
 * A head that points to itself is an empty list; a member that points to itself
 * is in no list, so removing twice is harmless.
 */
#ifndef HFI_LIST_H
#define HFI_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct hfi_link {
    struct hfi_link *next, *prev;
};

#define hfi_container(ptr, type, member)                                       \
    ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

static inline void hfi_link_init(struct hfi_link *link)
{
    link->next = link->prev = link;
}

static inline bool hfi_link_alone(const struct hfi_link *link)
{
    return link->next == link;
}

static inline void hfi_link_append(struct hfi_link *head, struct hfi_link *link)
{
    link->prev = head->prev;
    link->next = head;
    head->prev->next = link;
    head->prev = link;
}

static inline void hfi_link_remove(struct hfi_link *link)
{
    link->prev->next = link->next;
    link->next->prev = link->prev;
    hfi_link_init(link);
}

#endif
