/* SPDX-License-Identifier: MIT
 *
 * once.c - --once: the table for a script or a file, without a screen.
 */
#include "top.h"

#include <inttypes.h>
#include <string.h>

static bool once_each(void *arg, const char *key, const struct hf_info *info)
{
    struct hf_change change = HF_CHANGE_INIT;

    snprintf(change.key, sizeof(change.key), "%s", key);
    change.info = *info;
    return table_add(arg, &change);
}

static void once_json(const struct top_table *table)
{
    struct cli_json json;

    putchar('[');
    for (size_t i = 0; i < table->count; i++) {
        fputs(i ? ",\n " : "", stdout);
        cli_json_open(&json, stdout);
        cli_json_info(&json, table->rows[i].key, &table->rows[i].info);
        cli_json_close(&json);
    }
    puts("]");
}

static void once_row(const struct top_row *row)
{
    char key[4 * HF_KEY_MAX + 1], who[4 * HF_NOTE_MAX + 1];
    char age[32] = "-", left[32] = "-", waiters[16] = "-";
    const struct hf_info *info = &row->info;

    if (table_age(row) >= 0)
        cli_ago(table_age(row), age);
    if (table_left(row) >= 0)
        cli_ago(table_left(row), left);
    if (info->waiters >= 0)
        snprintf(waiters, sizeof(waiters), "%d", (int)info->waiters);
    cli_show(row->key, key, sizeof(key));
    cli_show(info->note[0] ? info->note : info->owner, who, sizeof(who));
    printf("%-8s %-8s %-5s %-24s %s\n", age, left, waiters, key, who);
}

int top_once(struct top *top, hf_client *client, bool as_json)
{
    struct hf_error err;

    if (hf_list(client, top->prefix, once_each, &top->table, &err)) {
        top_say(err.text);
        return err.status == HF_DENIED ? CLI_DENIED : CLI_UNAVAILABLE;
    }
    table_arrange(&top->table);
    if (as_json) {
        once_json(&top->table);
    } else {
        puts("AGE      LEASE    WAIT  KEY                      HOLDER");
        for (size_t i = 0; i < top->table.shown; i++)
            once_row(&top->table.rows[i]);
    }
    return cli_done();
}
