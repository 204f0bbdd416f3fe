/* push and gather, bytes by bytes. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "gpu/check.h"
#include "kernels/cuda/table.h"
#include "kernels/host/table.h"

enum { PEERS = 3 };

/* A number of bytes: small ones, aligned ones, and any. */
static int64_t some_bytes(dice_t *dice)
{
    static const int64_t usual[] = {4, 8, 12, 16, 64, 80, 128, 200, 2048, 14336};
    int64_t kind = dice_range(dice, 0, 2);
    return kind == 0   ? usual[dice_range(dice, 0, 9)]
           : kind == 1 ? 16 * dice_range(dice, 1, 300)
                       : dice_range(dice, 1, 3000);
}

typedef struct push_case {
    twin_t source, index, runs, peers, target[PEERS];
    twin_t first, count, list, from, places; /* where a part goes that is placed */
    twin_t turns;                            /* of each that are made together */
    twin_t order, tokens;                    /* by what entries are copies of */
    epx_k_push_t args;
    int64_t sources, places_at;
} push_case_t;

static epx_k_push_t push_args(const push_case_t *c, int device)
{
    epx_k_push_t args = c->args;
    args.dst = side_of(&c->peers, device);
    args.index = side_or_null(&c->index, device);
    args.runs = side_of(&c->runs, device);
    for (int32_t p = 0; p < args.parts; p++)
        if (args.part[p].kind != EPX_PART_ORIGIN)
            args.part[p].src = (char *)side_of(&c->source, device) + (int64_t)(intptr_t)args.part[p].src;
    args.turns = side_or_null(&c->turns, device);
    args.order = side_or_null(&c->order, device);
    args.order_tokens = side_or_null(&c->tokens, device);
    if (c->places.bytes > 0) {
        const int64_t *from = side_of(&c->from, device);
        args.own = (epx_k_places_t){.dst = (char *)side_of(&c->places, device) + c->places_at,
                                    .stride = c->args.own.stride,
                                    .first = side_of(&c->first, device),
                                    .count = side_of(&c->count, device),
                                    .list = side_of(&c->list, device),
                                    .start = from,
                                    .base = from + 1};
    }
    return args;
}

static int32_t *ints(const twin_t *twin) { return (int32_t *)(void *)twin->host; }

/* Lets one part of rows that stay here go to places: any number of each entry, all of them different. */
static void make_places(push_case_t *c, dice_t *dice, int64_t rows)
{
    int32_t p = (int32_t)dice_range(dice, 0, c->args.parts - 1);
    epx_part_t *part = &c->args.part[p];
    if (part->kind != EPX_PART_COPY || dice_range(dice, 0, 4) == 0)
        return;
    int64_t many = part->bytes <= 2048 && dice_range(dice, 0, 4) == 0 ? 70 : 8,
            shift = dice_range(dice, -5, 5), places = 0;
    part->placed = 1;
    c->args.rank = (int32_t)dice_range(dice, 0, PEERS - 1);
    c->args.own.stride = part->src_stride;
    c->places_at = dice_range(dice, 0, 3) == 0 ? 4 : 0;
    c->first = twin_make((size_t)rows * 4), c->count = twin_make((size_t)rows * 4);
    for (int64_t i = 0; i < rows; i++) {
        ints(&c->first)[i] = (int32_t)(places - shift);
        places += ints(&c->count)[i] = (int32_t)dice_range(dice, 0, many);
    }
    c->list = twin_make((size_t)places * 4 + 4);
    for (int64_t i = 0; i < places; i++) {
        int64_t j = dice_range(dice, 0, i);
        ints(&c->list)[i] = ints(&c->list)[j];
        ints(&c->list)[j] = (int32_t)i;
    }
    c->from = twin_make(2 * sizeof(int64_t));
    ((int64_t *)(void *)c->from.host)[0] = 100 + shift;
    ((int64_t *)(void *)c->from.host)[1] = 100;
    c->places = twin_make((size_t)(places * c->args.own.stride) + 16);
    twin_send(&c->first), twin_send(&c->count), twin_send(&c->list), twin_send(&c->from),
        twin_send(&c->places);
}

/* Parts, whose rows lie behind each other at the target; returns the bytes of a peer's target. */
static int64_t make_parts(push_case_t *c, dice_t *dice, int64_t rows)
{
    int64_t end = 0;
    c->args.parts = (int32_t)dice_range(dice, 1, 4);
    for (int32_t p = 0; p < c->args.parts; p++) {
        epx_part_t *part = &c->args.part[p];
        int64_t slack = dice_range(dice, 0, 3) == 0 ? dice_range(dice, 0, 40) : 0;
        int64_t kind = dice_range(dice, 0, 5);
        part->kind = kind == 0 ? EPX_PART_ORIGIN : kind == 1 ? EPX_PART_CHECKSUM : EPX_PART_COPY;
        part->bytes = some_bytes(dice);
        part->src_stride = part->bytes + slack;
        part->divide = c->index.bytes > 0 ? (int32_t)dice_range(dice, 1, 4) : 1;
        part->src = (void *)(intptr_t)(dice_range(dice, 0, 3) == 0 ? dice_range(dice, 0, 20) : 0);
        int64_t wide = part->kind == EPX_PART_COPY ? part->bytes : part->kind == EPX_PART_ORIGIN ? 12 : 4;
        part->dst_stride = wide + (part->kind == EPX_PART_COPY ? slack : 0);
        part->dst_offset = (end + 15) / 16 * 16 + (part->kind == EPX_PART_COPY && slack % 2 ? 1 : 0);
        end = part->dst_offset + rows * part->dst_stride;
    }
    return end;
}

static void make_runs(push_case_t *c, dice_t *dice, int64_t rows)
{
    int64_t first = 0, row[PEERS] = {0};
    int32_t runs = c->args.run_count;
    epx_run_t *run = (epx_run_t *)(void *)c->runs.host;
    for (int32_t i = 0; i < runs; i++) {
        int64_t left = rows - first,
                n = dice_range(dice, 0, 2) == 0 ? 0 : dice_range(dice, 0, 2 * rows / runs + 1);
        n = n < left ? n : left;
        int32_t peer = (int32_t)dice_range(dice, 0, PEERS - 1);
        run[i] = (epx_run_t){.first = first, .row = row[peer], .peer = peer, .rows = (int32_t)n};
        first += n;
        row[peer] += n;
    }
}

enum { TOGETHER_MAX = 9 };

/* Cuts a push into some that are made together, each with a part of the runs, and some with none. */
static void cut_push(epx_k_push_t *one, int32_t count, int32_t seed)
{
    int32_t begun = 0, runs = one[0].run_count;
    for (int32_t i = 0; i < count; i++) {
        int32_t end = i + 1 == count ? runs : (int32_t)((int64_t)runs * (i + (seed + i) % 2) / count);
        one[i] = one[0];
        one[i].runs = one[0].runs + (i > 0 ? begun : 0);
        one[i].run_count = end - begun;
        one[i].more = i + 1 < count ? &one[i + 1] : NULL;
        if (one[0].turns != NULL)
            one[i].turns = one[0].turns + i * EPX_TURNS;
        begun = end;
    }
}

/* Words that a push leaves as they were, and few multiprocessors. */
static void make_turns(push_case_t *c, dice_t *dice)
{
    c->args.units = dice_range(dice, 0, 1) ? (int32_t)dice_range(dice, 1, 24) : 0;
    if (dice_range(dice, 0, 2) == 0)
        return;
    c->turns = twin_make(TOGETHER_MAX * EPX_TURNS * sizeof(uint64_t));
    memset(c->turns.host, 0, c->turns.bytes);
    twin_send(&c->turns);
    if (c->places.bytes == 0)
        c->args.rank = (int32_t)dice_range(dice, 0, PEERS - 1);
}

static void push(void)
{
    for (dice_t dice; gpu_round(&dice, 120);) {
        push_case_t c = {.args = {.rank = 5, .columns = (int32_t)dice_range(&dice, 1, 9)}};
        int64_t rows = gpu_small() ? dice_range(&dice, 1, 60) : dice_range(&dice, 1, 900), source_bytes = 0;
        c.args.run_count = (int32_t)(dice_range(&dice, 0, 7) == 0 ? dice_range(&dice, 1000, 3000)
                                                                  : dice_range(&dice, 1, 40));
        c.sources = dice_range(&dice, 1, 2 * rows);
        if (dice_range(&dice, 0, 3) > 0)
            c.index = twin_make((size_t)rows * 4);
        else
            c.sources = rows;
        int64_t target_bytes = make_parts(&c, &dice, rows);
        for (int32_t p = 0; p < c.args.parts; p++)
            if (c.args.part[p].src_stride * c.sources + 32 > source_bytes)
                source_bytes = c.args.part[p].src_stride * c.sources + 32;
        c.source = twin_make((size_t)source_bytes);
        c.runs = twin_make((size_t)c.args.run_count * sizeof(epx_run_t));
        c.peers = twin_make(PEERS * sizeof(void *));
        make_runs(&c, &dice, rows);
        make_places(&c, &dice, rows);
        make_turns(&c, &dice);
        for (int64_t i = 0; i < source_bytes; i++)
            c.source.host[i] = (unsigned char)(i * 7 + i / 251);
        for (int64_t i = 0; i < rows && c.index.bytes > 0; i++)
            ((int32_t *)(void *)c.index.host)[i] =
                dice_range(&dice, 0, 9) == 0 ? -1 : (int32_t)dice_range(&dice, 0, c.sources - 1);
        void *device_peers[PEERS];
        for (int i = 0; i < PEERS; i++) {
            c.target[i] = twin_make((size_t)target_bytes);
            ((void **)(void *)c.peers.host)[i] = c.target[i].device;
            device_peers[i] = c.target[i].host;
            twin_send(&c.target[i]);
        }
        twin_send(&c.source), twin_send(&c.index), twin_send(&c.runs), twin_send(&c.peers);
        memcpy(c.peers.host, device_peers, sizeof(device_peers)); /* the host's side has the host's targets */
        epx_k_push_t host = push_args(&c, 0), device[TOGETHER_MAX] = {push_args(&c, 1)};
        cut_push(device, (int32_t)dice_range(&dice, 1, TOGETHER_MAX), (int32_t)dice_range(&dice, 0, 9));
        CHECK(epx_host_push(&host, NULL) == EPX_OK, "host");
        for (int32_t again = 0; again <= (c.turns.bytes > 0); again++)
            CHECK(epx_cuda_push(device, NULL) == EPX_OK, "%s", epx_last_error());
        if (c.turns.bytes > 0)
            twin_same(&c.turns, "turns");
        for (int i = 0; i < PEERS; i++)
            twin_same(&c.target[i], "target");
        if (c.places.bytes > 0)
            twin_same(&c.places, "places");
    }
}

/* Entries that are each a copy (token, column), of some tokens in any order; returns how many. */
static int64_t make_order(push_case_t *c, dice_t *dice)
{
    int64_t tokens = dice_range(dice, 1, gpu_small() ? 12 : 200), columns = c->args.columns, entries = 0;
    int64_t all = tokens * columns, most = all + 40; /* stale ones behind what counts */
    c->args.order_base = dice_range(dice, 0, 1) * 1000;
    c->sources = tokens, c->tokens = twin_make(sizeof(int64_t)), c->order = twin_make((size_t)most * 4);
    *(int64_t *)(void *)c->tokens.host = tokens;
    int32_t *copy = malloc((size_t)all * sizeof(*copy)), *order = ints(&c->order);
    for (int64_t a = 0; a < all; a++)
        if (dice_range(dice, 0, 9) > 0)
            copy[entries++] = (int32_t)a;
    for (int64_t i = entries - 1; i > 0; i--) {
        int64_t j = dice_range(dice, 0, i);
        int32_t swap = copy[i];
        copy[i] = copy[j], copy[j] = swap;
    }
    c->index = twin_make((size_t)entries * 4 + 4);
    for (int64_t a = 0; a < most; a++)
        order[a] = a >= all ? (int32_t)(c->args.order_base + dice_range(dice, 0, entries))
                            : (int32_t)dice_range(dice, 0, 1) * 2000000 - 1;
    for (int64_t i = 0; i < entries; i++)
        ints(&c->index)[i] = copy[i], order[copy[i]] = (int32_t)(c->args.order_base + i);
    free(copy);
    twin_send(&c->tokens), twin_send(&c->order), twin_send(&c->index);
    return entries;
}

/* Rows that many entries want, with an order. Entries that no run has stay where they are. */
static void push_fan(void)
{
    for (dice_t dice; gpu_round(&dice, 60);) {
        push_case_t c = {.args = {.rank = 5, .columns = (int32_t)dice_range(&dice, 1, 33)}};
        c.args.run_count = (int32_t)(dice_range(&dice, 0, 7) == 0 ? dice_range(&dice, 1000, 1100)
                                                                  : dice_range(&dice, 1, 40));
        int64_t entries = make_order(&c, &dice), bytes = make_parts(&c, &dice, entries), source_bytes = 0;
        for (int32_t p = 0; p < c.args.parts; p++) {
            epx_part_t *part = &c.args.part[p];
            if (dice_range(&dice, 0, 9) > 0)
                part->divide = c.args.columns;
            int64_t rows = part->divide == c.args.columns ? c.sources : c.sources * c.args.columns;
            if (part->src_stride * rows + 32 > source_bytes)
                source_bytes = part->src_stride * rows + 32;
        }
        c.source = twin_make((size_t)source_bytes);
        for (int64_t i = 0; i < source_bytes; i++)
            c.source.host[i] = (unsigned char)(i * 7 + i / 251);
        c.runs = twin_make((size_t)c.args.run_count * sizeof(epx_run_t));
        c.peers = twin_make(PEERS * sizeof(void *));
        make_runs(&c, &dice, entries);
        c.args.units = dice_range(&dice, 0, 1) ? (int32_t)dice_range(&dice, 1, 24) : 0;
        void *device_peers[PEERS];
        for (int i = 0; i < PEERS; i++) {
            c.target[i] = twin_make((size_t)bytes);
            ((void **)(void *)c.peers.host)[i] = c.target[i].device;
            device_peers[i] = c.target[i].host;
            twin_send(&c.target[i]);
        }
        twin_send(&c.source), twin_send(&c.runs), twin_send(&c.peers);
        memcpy(c.peers.host, device_peers, sizeof(device_peers));
        epx_k_push_t host = push_args(&c, 0), device = push_args(&c, 1);
        CHECK(epx_host_push(&host, NULL) == EPX_OK, "host");
        CHECK(epx_cuda_push(&device, NULL) == EPX_OK, "%s", epx_last_error());
        for (int i = 0; i < PEERS; i++)
            twin_same(&c.target[i], "target");
    }
}

static void gather(void)
{
    for (dice_t dice; gpu_round(&dice, 100);) {
        int32_t experts = (int32_t)(dice_range(&dice, 0, 9) == 0 ? dice_range(&dice, 2000, 5000)
                                                                 : dice_range(&dice, 1, 70));
        int64_t bytes = some_bytes(&dice), rows = 0, sources = dice_range(&dice, 1, 400);
        int64_t slack = dice_range(&dice, 0, 2) == 0 ? dice_range(&dice, 0, 40) : 0,
                offset = dice_range(&dice, 0, 3) == 0;
        int64_t most = (gpu_small() ? 100 : 3000) / experts + 1;
        int with_index = dice_range(&dice, 0, 3) != 0;
        twin_t start = twin_make((size_t)experts * 8), count = twin_make((size_t)experts * 8);
        for (int32_t e = 0; e < experts; e++) {
            ((int64_t *)(void *)start.host)[e] = rows += dice_range(&dice, 0, 2);
            rows += ((int64_t *)(void *)count.host)[e] =
                dice_range(&dice, 0, 3) == 0 ? 0 : dice_range(&dice, 0, most);
        }
        sources = with_index ? sources : rows + 1;
        twin_t index = twin_make(with_index ? (size_t)rows * 4 + 4 : 0);
        for (int64_t g = 0; g < rows && with_index; g++)
            ((int32_t *)(void *)index.host)[g] = (int32_t)dice_range(&dice, 0, sources - 1);
        twin_t source = twin_make((size_t)(sources * (bytes + slack)) + 16),
               target = twin_make((size_t)(rows * (bytes + slack)) + 16);
        for (size_t i = 0; i < source.bytes; i++)
            source.host[i] = (unsigned char)(i * 7 + i / 251);
        /* Some sources are named by a list of this rank's own. */
        int64_t own_count = with_index && dice_range(&dice, 0, 1) ? dice_range(&dice, 1, sources) : 0,
                own_first = dice_range(&dice, 0, sources - own_count), divide = dice_range(&dice, 1, 3);
        twin_t own = twin_make(own_count > 0 ? (size_t)own_count * 4 : 0);
        for (int64_t i = 0; i < own_count; i++)
            ((int32_t *)(void *)own.host)[i] = (int32_t)dice_range(&dice, 0, sources * divide - 1);
        twin_send(&own);
        twin_send(&start), twin_send(&count), twin_send(&index), twin_send(&source), twin_send(&target);
        for (int device = 0; device <= 1; device++) {
            epx_k_gather_t args = {.rows = {side_of(&start, device), side_of(&count, device), experts},
                                   .index = side_or_null(&index, device),
                                   .src = (char *)side_of(&source, device) + offset,
                                   .dst = (char *)side_of(&target, device) + offset,
                                   .src_stride = bytes + slack,
                                   .dst_stride = bytes + slack,
                                   .bytes = bytes,
                                   .own = side_or_null(&own, device),
                                   .own_src = (char *)side_of(&source, device) + offset,
                                   .own_first = (int32_t)own_first,
                                   .own_count = (int32_t)own_count,
                                   .own_divide = (int32_t)divide};
            CHECK((device ? epx_cuda_gather : epx_host_gather)(&args, NULL) == EPX_OK, "%s",
                  epx_last_error());
        }
        twin_same(&target, "target");
    }
}

static void scatter(void)
{
    for (dice_t dice; gpu_round(&dice, 80);) {
        int32_t senders = (int32_t)(dice_range(&dice, 0, 9) == 0 ? dice_range(&dice, 1000, 3000)
                                                                 : dice_range(&dice, 1, 20));
        int64_t bytes = some_bytes(&dice), rows = 0, places = 0,
                most = (gpu_small() ? 50 : 600) / senders + 1;
        int64_t slack = dice_range(&dice, 0, 2) == 0 ? dice_range(&dice, 0, 40) : 0,
                offset = dice_range(&dice, 0, 3) == 0;
        int64_t many = dice_range(&dice, 0, 4) == 0 ? 70 : 8;
        twin_t start = twin_make((size_t)senders * 8), count = twin_make((size_t)senders * 8);
        for (int32_t e = 0; e < senders; e++) {
            ((int64_t *)(void *)start.host)[e] = rows += dice_range(&dice, 0, 2);
            rows += ((int64_t *)(void *)count.host)[e] =
                dice_range(&dice, 0, 3) == 0 ? 0 : dice_range(&dice, 0, most);
        }
        twin_t first = twin_make((size_t)rows * 4 + 4), entries = twin_make((size_t)rows * 4 + 4);
        for (int64_t g = 0; g < rows; g++) {
            ((int32_t *)(void *)first.host)[g] = (int32_t)places;
            places += ((int32_t *)(void *)entries.host)[g] = (int32_t)dice_range(&dice, 0, many);
        }
        twin_t list = twin_make((size_t)places * 4 + 4);
        int32_t *place = (int32_t *)(void *)list.host;
        for (int64_t i = 0; i < places; i++) {
            int64_t j = dice_range(&dice, 0, i);
            place[i] = place[j];
            place[j] = (int32_t)i;
        }
        twin_t source = twin_make((size_t)(rows * (bytes + slack)) + 16);
        twin_t target = twin_make((size_t)(places * (bytes + slack)) + 16);
        for (size_t i = 0; i < source.bytes; i++)
            source.host[i] = (unsigned char)(i * 7 + i / 251);
        twin_send(&start), twin_send(&count), twin_send(&first), twin_send(&entries), twin_send(&list);
        twin_send(&source), twin_send(&target);
        int32_t without = dice_range(&dice, 0, 1) ? (int32_t)dice_range(&dice, 0, senders) : 0;
        int32_t units = dice_range(&dice, 0, 1) ? (int32_t)dice_range(&dice, 1, 3) : 0;
        twin_t turns = twin_make(EPX_TURNS * sizeof(uint64_t)); /* what they are before and after */
        memset(turns.host, 0, turns.bytes);
        twin_send(&turns);
        uint64_t *drawn = dice_range(&dice, 0, 3) > 0 ? side_of(&turns, 1) : NULL;
        for (int device = 0; device <= 1; device++) {
            epx_k_scatter_t args = {.rows = {side_of(&start, device), side_of(&count, device), senders},
                                    .first = side_of(&first, device),
                                    .count = side_of(&entries, device),
                                    .list = side_of(&list, device),
                                    .src = (char *)side_of(&source, device) + offset,
                                    .dst = (char *)side_of(&target, device) + offset,
                                    .src_stride = bytes + slack,
                                    .dst_stride = bytes + slack,
                                    .bytes = bytes,
                                    .without = without,
                                    .units = units,
                                    .turns = device ? drawn : NULL};
            /* A second time: counters are as they were. */
            for (int again = 0; again <= device; again++)
                CHECK((device ? epx_cuda_scatter : epx_host_scatter)(&args, NULL) == EPX_OK, "%s",
                      epx_last_error());
        }
        twin_same(&target, "target");
        twin_same(&turns, "turns");
    }
}

const gpu_test_t gpu_move_tests[] = {
    {"push", push}, {"push_fan", push_fan}, {"gather", gather}, {"scatter", scatter}, {NULL, NULL}};
