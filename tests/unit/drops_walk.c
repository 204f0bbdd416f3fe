/* The walk over every assignment. SPDX-License-Identifier: Apache-2.0 */
#include "unit/drops_walk.h"

#include <criterion/criterion.h>
#include <math.h>

/* ---- shape -------------------------------------------------------------------------------------------------------- */

/* Contiguous blocks, the first E mod S ranks one more: walked through, not computed. */
static int owner_of(int expert, int ranks, int experts, int *local_p, int *owned_p)
{
    int first = 0;
    for (int r = 0; r < ranks; r++) {
        int owned = experts / ranks + (r < experts % ranks);
        if (expert < first + owned) {
            *local_p = expert - first;
            *owned_p = owned;
            return r;
        }
        first += owned;
    }
    cr_assert_fail("expert %d has no owner", expert);
    return -1;
}

static int owned_by(int rank, int ranks, int experts) { return experts / ranks + (rank < experts % ranks); }

static double rows_of(double product, double factor, double divisor)
{
    return ceil(product * factor / divisor);
}

static int dropless(const world_t *w) { return w->how->capacity_factor < 0; }

/* ---- pooled_wave -------------------------------------------------------------------------------------------------- */

static void list_assignments(world_t *w)
{
    const small_t *small = w->small;
    for (int r = 0; r < small->ranks; r++) {
        for (int t = 0; t < small->tokens[r]; t++) {
            for (int k = 0; k < small->top_k; k++) {
                one_t *one = &w->one[w->count++];
                int owned;
                *one = (one_t){.rank = r, .token = t, .k = k, .place = t * small->columns + k, .wave = -1};
                one->expert = small->ids[r][one->place];
                one->kind = EPX_FATE_SKIPPED;
                if (one->expert < 0)
                    continue;
                one->kind = EPX_FATE_SENDER;
                one->owner = owner_of(one->expert, small->ranks, small->experts, &one->local, &owned);
                w->valid[r]++;
                w->valid_all++;
            }
        }
    }
}

/* Slots that a sender may fill per destination and wave. */
static double sender_room(const world_t *w, int rank, int owner)
{
    const small_t *small = w->small;
    double owned = owned_by(owner, small->ranks, small->experts), all = small->tokens_max * small->top_k;
    double divisor = small->experts * w->how->waves;
    if (dropless(w))
        return ceil(all / w->how->waves);
    return fmin(fmax(1, rows_of(all * owned, w->how->sender_factor, divisor)),
                rows_of(w->valid[rank] * owned, w->how->sender_factor, divisor));
}

/* Takes the next ordinal of (rank, owner) if its slot exists. */
static int take_slot(const world_t *w, one_t *one, int *used)
{
    int wave = *used % w->how->waves, slot = *used / w->how->waves;
    if (slot >= sender_room(w, one->rank, one->owner))
        return 0;
    ++*used;
    one->wave = wave;
    one->slot = slot;
    one->kind = EPX_FATE_KEPT;
    return 1;
}

static void first_gate(world_t *w)
{
    const small_t *small = w->small;
    int used[RANKS][RANKS] = {{0}}, owned;
    for (int i = 0; i < w->count; i++)
        if (w->one[i].expert >= 0)
            take_slot(w, &w->one[i], &used[w->one[i].rank][w->one[i].owner]);
    for (int x = small->top_k; w->how->overflow == EPX_OVERFLOW_SPILL && x < small->columns; x++) {
        int rank = -1, token = -1; /* whose lowest refused assignment has proposed in this round */
        for (int i = 0; i < w->count; i++) {
            one_t *one = &w->one[i];
            if (one->kind != EPX_FATE_SENDER || (one->rank == rank && one->token == token))
                continue;
            rank = one->rank;
            token = one->token;
            int choice = small->ids[rank][token * small->columns + x];
            if (choice < 0)
                continue;
            one_t other = *one;
            other.expert = choice;
            other.owner = owner_of(choice, small->ranks, small->experts, &other.local, &owned);
            if (take_slot(w, &other, &used[rank][other.owner]))
                *one = other;
        }
    }
}

static one_t *find_slot(world_t *w, int owner, int wave, int slot, int rank)
{
    for (int i = 0; i < w->count; i++) {
        one_t *one = &w->one[i];
        if (one->kind == EPX_FATE_KEPT && one->owner == owner && one->wave == wave && one->slot == slot &&
            one->rank == rank)
            return one;
    }
    return NULL;
}

static void second_gate(world_t *w)
{
    const small_t *small = w->small;
    double divisor = small->experts * w->how->waves, all = small->ranks * small->tokens_max * small->top_k;
    double room = fmin(fmax(1, rows_of(all, w->how->capacity_factor, divisor)),
                       rows_of(w->valid_all, w->how->capacity_factor, divisor));
    for (int d = 0; d < small->ranks; d++) {
        for (int wave = 0; wave < w->how->waves; wave++) {
            int taken[EXPERTS] = {0};
            for (int slot = 0; slot < small->tokens_max * small->top_k; slot++) {
                for (int s = 0; s < small->ranks; s++) {
                    one_t *one = find_slot(w, d, wave, slot, s);
                    if (one != NULL && !dropless(w) && taken[one->expert]++ >= room)
                        one->kind = EPX_FATE_RECEIVER;
                }
            }
        }
    }
}

/* Waves take, for each destination, experts and senders ascending, what slab and expert have room for. */
static void extra_waves(world_t *w)
{
    const small_t *small = w->small;
    double all = small->tokens_max * small->top_k, divisor = small->experts * w->how->waves;
    for (int d = 0; d < small->ranks; d++) {
        double owned = owned_by(d, small->ranks, small->experts);
        double slab = dropless(w) ? ceil(all / w->how->waves)
                                  : fmax(1, rows_of(all * owned, w->how->sender_factor, divisor));
        double rows = dropless(w) ? small->ranks * slab
                                  : fmax(1, rows_of(small->ranks * all, w->how->capacity_factor, divisor));
        for (int wave = 0, left = 1; left > 0; wave++) {
            int sent[RANKS] = {0};
            left = 0;
            for (int e = 0; e < small->experts; e++) {
                int taken = 0;
                for (int s = 0; s < small->ranks; s++) {
                    for (int i = 0; i < w->count; i++) {
                        one_t *one = &w->one[i];
                        if (one->rank != s || one->expert != e || one->owner != d ||
                            one->kind != EPX_FATE_SENDER)
                            continue;
                        if (sent[s] < slab && taken < rows) {
                            one->kind = EPX_FATE_KEPT;
                            one->wave = wave;
                            sent[s]++;
                            taken++;
                        } else {
                            left++;
                        }
                    }
                }
            }
        }
    }
}

/* ---- ragged, ring ------------------------------------------------------------------------------------------------- */

/* First part c of n things in `parts` blocks, the first n mod parts one more. */
static int chunk_of(int local, int owned, int chunks)
{
    for (int c = 0, end = 0; c < chunks; c++) {
        end += owned / chunks + (c < owned % chunks);
        if (local < end)
            return c;
    }
    cr_assert_fail("no chunk");
    return -1;
}

static int asked(const world_t *w, int expert, int rank)
{
    int sum = 0;
    for (int i = 0; i < w->count; i++)
        sum += w->one[i].expert == expert && (rank < 0 || w->one[i].rank == rank);
    return sum;
}

/* Keeps the first `rows` assignments of a sender to an expert. */
static void keep_first(world_t *w, int expert, int rank, int rows, int wave)
{
    for (int i = 0; i < w->count && rows > 0; i++) {
        one_t *one = &w->one[i];
        if (one->expert != expert || one->rank != rank)
            continue;
        int hop = (one->owner - rank + w->small->ranks) % w->small->ranks;
        one->kind = EPX_FATE_KEPT;
        one->wave = w->how->transport == EPX_DROPS_RING ? hop : wave;
        rows--;
    }
}

/* Seats one after the other to the sender whose share is furthest behind: the same as largest remainders. */
static void keep_fair(world_t *w, int expert, int quota, int wave)
{
    int all = asked(w, expert, -1), given[RANKS], left = quota;
    int64_t rest[RANKS];
    for (int s = 0; s < w->small->ranks; s++) {
        int64_t product = (int64_t)asked(w, expert, s) * quota;
        given[s] = all > 0 ? (int)(product / all) : 0;
        rest[s] = all > 0 ? product % all : 0;
        left -= given[s];
    }
    for (; left > 0; left--) {
        int best = 0;
        for (int s = 1; s < w->small->ranks; s++)
            best = rest[s] > rest[best] ? s : best;
        given[best]++;
        rest[best] = -1;
    }
    for (int s = 0; s < w->small->ranks; s++)
        keep_first(w, expert, s, given[s], wave);
}

static void keep_ascending(world_t *w, int expert, int quota, int wave)
{
    for (int s = 0; s < w->small->ranks; s++) {
        int rows = asked(w, expert, s) < quota ? asked(w, expert, s) : quota;
        keep_first(w, expert, s, rows, wave);
        quota -= rows;
    }
}

static int smaller(int a, int b) { return a < b ? a : b; }

/* One chunk: experts [list]. */
static void accept_chunk(world_t *w, const int *list, int count, int wave)
{
    const small_t *small = w->small;
    double all = (double)small->ranks * small->tokens_max * small->top_k, cf = w->how->capacity_factor;
    int share = dropless(w) ? w->valid_all : (int)rows_of(w->valid_all, cf, small->experts);
    int cap = w->valid_all, slack = 0;
    if (!dropless(w))
        cap = (int)fmin(fmax(count, rows_of((double)w->valid_all * count, cf, small->experts)),
                        count * fmax(1, rows_of(all, cf, small->experts)));
    if (w->how->accept == EPX_ACCEPT_PREFIX) {
        for (int i = 0; i < count; i++) {
            int rows = smaller(cap, asked(w, list[i], -1));
            keep_ascending(w, list[i], rows, wave);
            cap -= rows;
        }
        return;
    }
    for (int i = 0; i < count; i++) /* what experts below the share leave to the others */
        slack += share - smaller(asked(w, list[i], -1), share);
    for (int i = 0; i < count; i++) {
        int wanted = asked(w, list[i], -1), rows = smaller(wanted, share);
        int more = smaller(wanted - rows, slack);
        slack -= more;
        if (w->how->accept == EPX_ACCEPT_FAIR)
            keep_fair(w, list[i], rows + more, wave);
        else
            keep_ascending(w, list[i], rows + more, wave);
    }
}

static void accept_all(world_t *w)
{
    const small_t *small = w->small;
    int chunks = w->how->transport == EPX_DROPS_RING ? 1 : w->how->waves;
    for (int d = 0; d < small->ranks; d++) {
        for (int c = 0; c < chunks; c++) {
            int list[EXPERTS], count = 0, local, owned;
            for (int e = 0; e < small->experts; e++)
                if (owner_of(e, small->ranks, small->experts, &local, &owned) == d &&
                    chunk_of(local, owned, chunks) == c)
                    list[count++] = e;
            if (count > 0)
                accept_chunk(w, list, count, c);
        }
    }
}

void walk(world_t *w)
{
    list_assignments(w);
    if (w->how->transport != EPX_DROPS_POOLED_WAVE) {
        accept_all(w);
    } else if (w->how->overflow == EPX_OVERFLOW_EXTRA_WAVE) {
        extra_waves(w);
    } else {
        first_gate(w);
        second_gate(w);
    }
}
