/* SPDX-License-Identifier: MIT
 *
 * guess.c - "did you mean": the known word that is nearest to a mistyped one.
 *
 * Near means that few letters differ, that two neighbours are swapped, or that
 * the known word begins with what was typed.
 */
#include "cli.h"

#include <string.h>

#define GUESS_MAX 24 /* longer words are not compared */

static int guess_min(int a, int b)
{
    return a < b ? a : b;
}

/* How many letters must be changed, added, left out or swapped. */
static int guess_distance(const char *a, const char *b)
{
    int rows[3][GUESS_MAX + 1];
    int la = (int)strlen(a), lb = (int)strlen(b);

    if (la > GUESS_MAX || lb > GUESS_MAX)
        return GUESS_MAX;
    for (int j = 0; j <= lb; j++)
        rows[0][j] = j;
    for (int i = 1; i <= la; i++) {
        int *row = rows[i % 3], *before = rows[(i + 2) % 3];

        row[0] = i;
        for (int j = 1; j <= lb; j++) {
            row[j] = guess_min(before[j] + 1, row[j - 1] + 1);
            row[j] = guess_min(row[j], before[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = guess_min(row[j], rows[(i + 1) % 3][j - 2] + 1);
        }
    }
    return rows[la % 3][lb];
}

void guess_try(struct guess *guess, const char *name)
{
    size_t len = strlen(guess->word);
    int far = guess_distance(guess->word, name);

    if (len >= 2 && !strncmp(guess->word, name, len))
        far = 1;
    if (far > 1 + (int)len / 4 || (guess->best && far >= guess->far))
        return;
    guess->best = name;
    guess->far = far;
}

const char *guess_text(const struct guess *guess, const char *mark,
                       char ret[GUESS_TEXT])
{
    if (guess->best)
        snprintf(ret, GUESS_TEXT, "; did you mean '%s%s'?", mark, guess->best);
    else
        ret[0] = '\0';
    return ret;
}
