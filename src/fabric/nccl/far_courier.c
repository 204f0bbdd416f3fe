/* Fabric `nccl` by sends and receives: the courier (R1 to R6). SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fail.h"
#include "fabric/nccl/far.h"

enum {
    LINGER_MS = 2000,       /* a rank that closes stays at most so long for what it has posted */
    BUSY_ROUNDS = 64,       /* rounds without anything to tell before couriers rest */
    REST_NS = 10000,        /* then so long, once more after each, */
    REST_MOST_NS = 1000000, /* up to this */
    LOOKS = 200,            /* at the end of a group, before looking ever more rarely */
    LOOK_NS = 5000,
    ASK_EVERY = 256 /* looks between two questions how the communicator is */
};

typedef struct round {
    nccl_fabric_t *fabric;
    nccl_far_t *far;
    int64_t linger_ns; /* when the rank that closes goes in any case; 0: it does not close */
    int leaves;        /* 1: this round says so */
    int busy;          /* 1: some column says that its rank is */
} round_t;

void epx_nccl_far_ended(nccl_far_t *far, int32_t by, int32_t culprit)
{
    uint64_t none = 0, word = (uint64_t)(uint32_t)(by + 1) << 32 | (uint32_t)(culprit + 1);
    atomic_compare_exchange_strong(&far->ended, &none, word);
    epx_bell_ring(&far->bell);
}

static uint64_t *column_to(const nccl_far_t *far, int32_t p) { return far->out + p * far->column.size; }

static uint64_t *column_from(const nccl_far_t *far, int32_t p) { return far->in + p * far->column.size; }

static int is_reached(const nccl_far_t *far, int64_t channel, uint64_t ticket)
{
    return __atomic_load_n(&far->reached[channel], __ATOMIC_ACQUIRE) >= ticket;
}

static int takes_part(const round_t *round, int32_t p)
{
    return p != round->fabric->base.rank && !round->far->is_gone[p];
}

/* ---- NCCL ---------------------------------------------------------------------------------------------------- */

static int says(const round_t *round, const char *what, nccl_result_t result)
{
    if (result == 0)
        return 1;
    (void)epx_nccl_failed(round->fabric, what, result);
    epx_log(EPX_LOG_ERROR, "nccl", "%s", epx_last_error());
    return 0;
}

static int is_time_to_go(round_t *round)
{
    nccl_far_t *far = round->far;
    pthread_mutex_lock(&far->mutex);
    int closing = far->is_closing;
    pthread_mutex_unlock(&far->mutex);
    if (closing && round->linger_ns == 0)
        round->linger_ns = epx_clock_ns() + (int64_t)LINGER_MS * 1000000;
    return closing && epx_clock_ns() >= round->linger_ns;
}

/* Until the device has done what the courier gave it; 0: it will not. */
static int await_device(round_t *round)
{
    nccl_far_t *far = round->far;
    const nccl_api_t *api = round->fabric->api;
    int64_t done = round->fabric->config.channels;
    epx_k_stamp_t stamp = {.word = &far->reached[done], .value = {.add = ++far->groups}};
    if (round->fabric->config.device->kernels->stamp(&stamp, round->fabric->control) != EPX_OK)
        return 0;
    for (int64_t looks = 1; !is_reached(far, done, far->groups); looks++) {
        nccl_result_t state = 0;
        if (looks % ASK_EVERY == 0) {
            nccl_result_t result = api->get_async_error(round->fabric->comm, &state);
            if (!says(round, "ncclCommGetAsyncError", result) ||
                (state != NCCL_IN_PROGRESS && !says(round, "a round of the courier", state)) ||
                is_time_to_go(round))
                return 0;
        }
        if (looks < LOOKS)
            epx_spin_pause();
        else
            epx_nap_ns(LOOK_NS);
    }
    return 1;
}

/* ---- the columns --------------------------------------------------------------------------------------------- */

static int has_piece_with(const far_list_t *list, int32_t p)
{
    for (int32_t i = 0; i < list->sends + list->receives; i++)
        if (list->piece[i].peer == p)
            return 1;
    return 0;
}

/* With the mutex. What a newer post of a channel finds there is through, or was given up. */
static void take_lists(const round_t *round)
{
    nccl_far_t *far = round->far;
    for (int32_t c = 0; c < round->fabric->config.channels; c++) {
        if (far->posted[c].epoch == 0)
            continue;
        far_list_t old = far->live[c];
        far->live[c] = far->posted[c];
        old.epoch = 0;
        far->posted[c] = old;
    }
}

/* What is offered to p on a channel: an epoch, or 0. */
static uint64_t offer(const round_t *round, int32_t c, int32_t p)
{
    const nccl_far_t *far = round->far;
    const far_list_t *list = &far->live[c];
    int64_t at = (int64_t)c * round->fabric->base.ranks + p;
    if (list->epoch == 0 || far->done[at] == list->epoch || !is_reached(far, c, list->ticket))
        return 0;
    return has_piece_with(list, p) ? list->epoch : 0;
}

/* With the mutex. Words that may go out by now replace older ones; returns how many may not yet. */
static int fill_words(const round_t *round, int32_t p, uint64_t *column)
{
    const nccl_far_t *far = round->far;
    int left = 0;
    for (int32_t c = 0; c < round->fabric->config.channels; c++) {
        int64_t at = (int64_t)c * round->fabric->base.ranks + p;
        const far_word_t *word = &far->word[at];
        if (word->epoch == column[far->column.words + c])
            continue;
        if (is_reached(far, c, word->ticket) && (!word->behind || far->done[at] == word->epoch))
            column[far->column.words + c] = word->epoch;
        else
            left++;
    }
    return left;
}

/* With the mutex. */
static int fill_column(const round_t *round, int32_t p)
{
    const nccl_far_t *far = round->far;
    const epx_fabric_config_t *config = &round->fabric->config;
    uint64_t *column = column_to(far, p), ended = atomic_load(&far->ended);
    int left = fill_words(round, p, column);
    if ((int32_t)(ended >> 32) - 1 == round->fabric->base.rank)
        column[far->column.abort] = EPX_ABORT_BIT | (ended & 0xffffffffu);
    for (int32_t c = 0; c < config->channels; c++) {
        column[far->column.offers + c] = offer(round, c, p);
        left += column[far->column.offers + c] != 0;
    }
    memcpy(column + far->column.failures, far->failure,
           (size_t)config->failure_channels * sizeof(*far->failure));
    memcpy(column + far->column.steps, far->step, 2 * (size_t)config->exchange_channels * sizeof(*far->step));
    memcpy(column + far->column.boxes, far->own_box,
           2 * (size_t)config->exchange_channels * (size_t)far->column.box_bytes);
    return left;
}

/* Everything that this rank has to say; R6: who closes goes when all of it has been said. */
static void fill_columns(round_t *round)
{
    nccl_far_t *far = round->far;
    int32_t ranks = round->fabric->base.ranks;
    int left = 0, late = is_time_to_go(round);
    pthread_mutex_lock(&far->mutex);
    take_lists(round);
    for (int32_t p = 0; p < ranks; p++)
        left += takes_part(round, p) ? fill_column(round, p) : 0;
    int busy = left > 0 || far->changes != far->told || atomic_load(&far->waiting) > 0;
    round->leaves = far->is_closing && (left == 0 || late || atomic_load(&far->ended) != 0);
    far->told = far->changes;
    pthread_mutex_unlock(&far->mutex);
    for (int32_t p = 0; p < ranks; p++)
        column_to(far, p)[far->column.flags] =
            (round->leaves ? (uint64_t)FAR_LEAVES : 0) | (busy ? (uint64_t)FAR_BUSY : 0);
    round->busy = busy;
}

/* The first group of a round. */
static int exchange_columns(round_t *round)
{
    nccl_fabric_t *fabric = round->fabric;
    nccl_far_t *far = round->far;
    const epx_device_ops_t *device = fabric->config.device;
    const nccl_api_t *api = fabric->api;
    size_t bytes = (size_t)far->column.size * sizeof(uint64_t), all = bytes * (size_t)fabric->base.ranks;
    char *out = fabric->local, *in = fabric->local + all;
    nccl_result_t result = 0;
    if (device->copy(out, far->out, all, fabric->control) != EPX_OK ||
        !says(round, "ncclGroupStart", api->group_start()))
        return 0;
    for (int32_t p = 0; p < fabric->base.ranks && result == 0; p++) {
        if (!takes_part(round, p))
            continue;
        result = api->send(out + (size_t)p * bytes, bytes, NCCL_INT8, p, fabric->comm, fabric->control);
        if (result == 0)
            result = api->receive(in + (size_t)p * bytes, bytes, NCCL_INT8, p, fabric->comm, fabric->control);
    }
    nccl_result_t ended = api->group_end();
    return says(round, "a column", result) && says(round, "ncclGroupEnd", ended) &&
           device->copy(far->in, in, all, fabric->control) == EPX_OK && await_device(round);
}

/* ---- what has come ------------------------------------------------------------------------------------------- */

/* Release: who sees the word sees what was stored before it. */
static void set_seen(nccl_far_t *far, int32_t p, int64_t word, uint64_t value)
{
    atomic_store_explicit(epx_nccl_far_seen(far, p, word), value, memory_order_release);
}

/* R1 */
static int take_words(nccl_far_t *far, int32_t p, const uint64_t *column)
{
    uint64_t *had = far->had + p * far->column.offers;
    int news = 0;
    for (int64_t w = far->column.words; w < far->column.offers; w++) {
        if (had[w] == column[w])
            continue;
        had[w] = column[w];
        set_seen(far, p, w, column[w]);
        news++;
    }
    return news;
}

/* Boxes of the steps that are new, at most two, before the word that tells of them. */
static void take_boxes(const round_t *round, int32_t p, const uint64_t *column)
{
    const nccl_fabric_t *fabric = round->fabric;
    nccl_far_t *far = round->far;
    uint8_t *theirs = (uint8_t *)(void *)(size_t)(column + far->column.boxes),
            *mine = far->boxes + (int64_t)p * fabric->config.exchange_channels * 2 * far->column.box_bytes;
    for (int32_t x = 0; x < fabric->config.exchange_channels; x++) {
        uint64_t had = far->had[p * far->column.offers + far->column.steps + x] >> 1,
                 has = column[far->column.steps + x] >> 1;
        for (uint64_t step = has > had + 2 ? has - 1 : had + 1; step <= has; step++)
            memcpy(epx_nccl_far_box(fabric, mine, x, step), epx_nccl_far_box(fabric, theirs, x, step),
                   (size_t)far->column.box_bytes);
    }
}

static int take_column(round_t *round, int32_t p)
{
    nccl_far_t *far = round->far;
    const uint64_t *column = column_from(far, p);
    take_boxes(round, p, column);
    int news = take_words(far, p, column);
    if (column[far->column.abort] != 0)
        epx_nccl_far_ended(far, p, (int32_t)(uint32_t)column[far->column.abort] - 1);
    round->busy |= (column[far->column.flags] & FAR_BUSY) != 0;
    return news;
}

/* ---- pieces -------------------------------------------------------------------------------------------------- */

/* R3 */
static int is_agreed(const round_t *round, int32_t c, int32_t p)
{
    const nccl_far_t *far = round->far;
    uint64_t mine = column_to(far, p)[far->column.offers + c];
    return mine != 0 && takes_part(round, p) && column_from(far, p)[far->column.offers + c] == mine;
}

static nccl_result_t carry(const round_t *round, int32_t c, int32_t p)
{
    const nccl_fabric_t *fabric = round->fabric;
    const far_list_t *list = &round->far->live[c];
    nccl_result_t result = 0;
    for (int32_t i = 0; i < list->sends + list->receives && result == 0; i++) {
        const epx_piece_t *piece = &list->piece[i];
        char *at = list->base + piece->local;
        if (piece->peer != p)
            continue;
        result =
            i < list->sends
                ? fabric->api->send(at, (size_t)piece->bytes, NCCL_INT8, p, fabric->comm, fabric->control)
                : fabric->api->receive(at, (size_t)piece->bytes, NCCL_INT8, p, fabric->comm, fabric->control);
    }
    return result;
}

/* What came from p has landed: its word with it (R4). */
static int land(const round_t *round, int32_t c, int32_t p)
{
    nccl_far_t *far = round->far;
    const far_list_t *list = &far->live[c];
    far->done[(int64_t)c * round->fabric->base.ranks + p] = list->epoch;
    for (int32_t i = list->sends; i < list->sends + list->receives; i++)
        if (list->piece[i].peer == p) {
            set_seen(far, p, far->column.words + c, list->epoch);
            return 1;
        }
    return 0;
}

/* The second group of a round, where there is anything for it. */
static int exchange_pieces(round_t *round, int *news)
{
    const nccl_api_t *api = round->fabric->api;
    int32_t channels = round->fabric->config.channels, ranks = round->fabric->base.ranks;
    int agreed = 0;
    nccl_result_t result = 0;
    for (int32_t c = 0; c < channels; c++)
        for (int32_t p = 0; p < ranks; p++)
            agreed += is_agreed(round, c, p);
    if (agreed == 0)
        return 1;
    if (!says(round, "ncclGroupStart", api->group_start()))
        return 0;
    for (int32_t c = 0; c < channels; c++)
        for (int32_t p = 0; p < ranks && result == 0; p++)
            if (is_agreed(round, c, p))
                result = carry(round, c, p);
    nccl_result_t ended = api->group_end();
    if (!says(round, "a piece", result) || !says(round, "ncclGroupEnd", ended) || !await_device(round))
        return 0;
    for (int32_t c = 0; c < channels; c++)
        for (int32_t p = 0; p < ranks; p++)
            if (is_agreed(round, c, p))
                *news += land(round, c, p);
    return 1;
}

/* ---- the thread ---------------------------------------------------------------------------------------------- */

/* R5; its own rank's calls wake it, and it then waits for the others in the round. */
static void rest(round_t *round, uint32_t stir)
{
    nccl_far_t *far = round->far;
    far->idle = round->busy ? 0 : far->idle + 1;
    int64_t ns = (far->idle - BUSY_ROUNDS) * REST_NS;
    if (ns > 0)
        epx_bell_sleep(&far->stir, stir, epx_clock_ns() + (ns < REST_MOST_NS ? ns : REST_MOST_NS));
}

static int has_peers(const round_t *round)
{
    for (int32_t p = 0; p < round->fabric->base.ranks; p++)
        if (takes_part(round, p))
            return 1;
    return 0;
}

/* 0: something is broken. */
static int make_round(round_t *round)
{
    nccl_far_t *far = round->far;
    int news = 0;
    fill_columns(round);
    if (!exchange_columns(round))
        return 0;
    for (int32_t p = 0; p < round->fabric->base.ranks; p++)
        if (takes_part(round, p))
            news += take_column(round, p);
    if (news > 0)
        epx_bell_ring(&far->bell);
    news = 0;
    if (!exchange_pieces(round, &news))
        return 0;
    if (news > 0)
        epx_bell_ring(&far->bell);
    for (int32_t p = 0; p < round->fabric->base.ranks; p++)
        if (takes_part(round, p) && (column_from(far, p)[far->column.flags] & FAR_LEAVES) != 0)
            far->is_gone[p] = 1;
    return 1;
}

static void *run_courier(void *arg)
{
    nccl_fabric_t *fabric = arg;
    nccl_far_t *far = fabric->far;
    round_t round = {.fabric = fabric, .far = far};
    fabric->config.device->select(fabric->gpu);
    while (!round.leaves && has_peers(&round)) {
        uint32_t stir = epx_bell_count(&far->stir);
        if (!make_round(&round)) {
            /* What NCCL still has on the device ends. */
            fabric->api->comm_abort(fabric->comm);
            fabric->comm = NULL;
            atomic_store_explicit(&far->has_failed, 1, memory_order_release);
            epx_bell_ring(&far->bell);
            break;
        }
        if (!round.leaves)
            rest(&round, stir);
    }
    return NULL;
}

epx_status_t epx_nccl_far_start(nccl_fabric_t *fabric)
{
    nccl_far_t *far = fabric->far;
    far->has_courier =
        fabric->base.ranks > 1 && pthread_create(&far->courier, NULL, run_courier, fabric) == 0;
    if (fabric->base.ranks > 1 && !far->has_courier)
        return epx_fail(EPX_ERR_FABRIC, "%s: rank %d cannot start a thread", fabric->config.name,
                        fabric->base.rank);
    return EPX_OK;
}
