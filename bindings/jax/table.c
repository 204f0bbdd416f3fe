/* Groups by number, ranks by device, plans at work by lane. SPDX-License-Identifier: Apache-2.0 */
#include "bindings/jax/table.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bindings/jax/epx_jax.h"

typedef struct entry {
    int32_t ranks;
    epx_jax_rank_t *rank; /* [ranks]; NULL: the number is free */
} entry_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static entry_t *entries;
static int64_t entry_count;
static char error_text[640];

const char *epx_jax_table_error(void) { return error_text; }

static void close_ranks(entry_t *entry)
{
    for (int32_t r = 0; r < entry->ranks; r++) {
        for (int32_t l = 0; l < entry->rank[r].lanes; l++)
            epx_plan_destroy(&entry->rank[r].lane[l].plan);
        free(entry->rank[r].lane);
    }
    free(entry->rank);
    *entry = (entry_t){0};
}

/* Everything that handlers need to know of a rank, so that a call asks the library nothing. */
static int open_rank(epx_jax_rank_t *rank, int32_t ordinal, epx_group_h group)
{
    epx_group_info_t info = EPX_GROUP_INFO_INIT;
    if (epx_group_info(group, &info) != EPX_OK)
        return snprintf(error_text, sizeof(error_text), "%s", epx_last_error()), 0;
    *rank = (epx_jax_rank_t){.ordinal = ordinal,
                             .on_host = strcmp(info.device, "host") == 0,
                             .local_experts = info.local_experts,
                             .columns = info.top_k,
                             .width = info.width,
                             .waves = info.waves,
                             .plan_bytes = (int64_t)epx_plan_bytes(group),
                             .rows = info.batch_rows_max,
                             .group = group,
                             .lanes = info.lanes};
    rank->lane = calloc((size_t)info.lanes, sizeof(*rank->lane));
    if (rank->lane == NULL)
        return snprintf(error_text, sizeof(error_text), "no memory for %d lanes", info.lanes), 0;
    for (int32_t l = 0; l < info.lanes; l++)
        if (epx_plan_create(group, l, NULL, &rank->lane[l].plan) != EPX_OK)
            return snprintf(error_text, sizeof(error_text), "%s", epx_last_error()), 0;
    return 1;
}

static int open_ranks(entry_t *entry, int32_t n, const int32_t *ordinals, const epx_group_h *groups)
{
    entry->rank = calloc((size_t)n, sizeof(*entry->rank));
    if (entry->rank == NULL)
        return snprintf(error_text, sizeof(error_text), "no memory for %d ranks", n), 0;
    for (int32_t r = 0; r < n; r++) {
        entry->ranks = r + 1;
        if (!open_rank(&entry->rank[r], ordinals[r], groups[r]))
            return 0;
    }
    return 1;
}

/* Under the lock: a free number, or a new one; -1 without memory. */
static int64_t take_number(void)
{
    for (int64_t i = 0; i < entry_count; i++)
        if (entries[i].rank == NULL)
            return i;
    entry_t *more = realloc(entries, (size_t)(entry_count + 1) * sizeof(*entries));
    if (more == NULL)
        return -1;
    entries = more;
    entries[entry_count] = (entry_t){0};
    return entry_count++;
}

int64_t epx_jax_table_add(int32_t n, const int32_t *ordinals, const epx_group_h *groups)
{
    entry_t entry = {0};
    if (n < 1 || ordinals == NULL || groups == NULL)
        return snprintf(error_text, sizeof(error_text), "a number needs at least one rank"), -1;
    if (!open_ranks(&entry, n, ordinals, groups)) {
        close_ranks(&entry);
        return -1;
    }
    pthread_mutex_lock(&lock);
    int64_t number = take_number();
    if (number >= 0)
        entries[number] = entry;
    pthread_mutex_unlock(&lock);
    if (number < 0) {
        close_ranks(&entry);
        snprintf(error_text, sizeof(error_text), "no memory for another group");
    }
    return number;
}

void epx_jax_table_remove(int64_t number)
{
    entry_t entry = {0};
    pthread_mutex_lock(&lock);
    if (number >= 0 && number < entry_count) {
        entry = entries[number];
        entries[number] = (entry_t){0};
    }
    pthread_mutex_unlock(&lock);
    if (entry.rank != NULL)
        close_ranks(&entry);
}

epx_jax_rank_t *epx_jax_table_find(int64_t number, int32_t ordinal)
{
    epx_jax_rank_t *found = NULL;
    pthread_mutex_lock(&lock);
    if (number >= 0 && number < entry_count && entries[number].rank != NULL)
        for (int32_t r = 0; r < entries[number].ranks && found == NULL; r++)
            if (entries[number].rank[r].ordinal == ordinal)
                found = &entries[number].rank[r];
    pthread_mutex_unlock(&lock);
    return found;
}
