/* SPDX-License-Identifier: Apache-2.0 */
#include "support/pieces.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fabric/registry.h"
#include "support/device.h"
#include "support/world.h"

/* Pieces of one post, at most; address space only until they are there. */
#define ROOM ((size_t)1 << 16)

typedef struct pieces_fabric pieces_fabric_t;

/* The last post of a rank on one channel. */
typedef struct pieces_box {
    uint64_t epoch;
    int32_t sends, receives;
    epx_piece_t *send, *receive;
} pieces_box_t;

/* Shared by all ranks; the last one that closes takes everything away, since peers look into boxes. */
typedef struct pieces_hub {
    atomic_int references;
} pieces_hub_t;

struct pieces_fabric {
    epx_fabric_t base;
    epx_fabric_t *inner;
    const epx_device_ops_t *device;
    pieces_hub_t *hub;
    int32_t channels;
    char *segment;
    size_t segment_bytes;
    pieces_box_t *box; /* [channels] */
    void *memory;      /* of the boxes */
    size_t memory_bytes;
    pieces_fabric_t *peer[]; /* [S] */
};

static struct {
    pthread_once_t once;
    const epx_fabric_ops_t *local;
    int takes, stands_in;
} chosen = {.once = PTHREAD_ONCE_INIT};

static epx_fabric_ops_t pieces_ops;

static pieces_fabric_t *of(epx_fabric_t *fabric) { return (pieces_fabric_t *)fabric; }

static uint64_t value_of(epx_epoch_t epoch) { return (epoch.base != NULL ? *epoch.base : 0) + epoch.add; }

/* ---- what goes wrong -------------------------------------------------------------------------------------- */

static void print_pieces(const char *what, const epx_piece_t *pieces, int32_t count, int32_t peer)
{
    fprintf(stderr, "%s:\n", what);
    for (int32_t i = 0; i < count; i++)
        if (pieces[i].peer == peer)
            fprintf(stderr, "    local %" PRId64 " remote %" PRId64 " bytes %" PRId64 "\n", pieces[i].local,
                    pieces[i].remote, pieces[i].bytes);
}

static void die(const pieces_fabric_t *fabric, int32_t peer, int32_t channel, const char *what)
{
    const pieces_box_t *mine = &fabric->box[channel], *theirs = &fabric->peer[peer]->box[channel];
    fprintf(stderr, "pieces: rank %d of %d, peer %d, channel %d: %s\n", fabric->base.rank, fabric->base.ranks,
            peer, channel, what);
    fprintf(stderr, "epochs: mine %" PRIx64 ", of the peer %" PRIx64 "\n", mine->epoch, theirs->epoch);
    print_pieces("what the peer sends", theirs->send, theirs->sends, fabric->base.rank);
    print_pieces("what this rank expects of it", mine->receive, mine->receives, peer);
    abort();
}

static int is_inside(const pieces_fabric_t *fabric, int64_t offset, int64_t bytes)
{
    return offset >= 0 && bytes > 0 && offset + bytes <= (int64_t)fabric->segment_bytes;
}

/* ---- boxes ------------------------------------------------------------------------------------------------ */

/* Not by malloc: tests count that. */
static void make_boxes(pieces_fabric_t *fabric)
{
    size_t lists = (size_t)fabric->channels * 2;
    fabric->memory_bytes = lists * ROOM * sizeof(epx_piece_t);
    fabric->memory = mmap(NULL, fabric->memory_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    fabric->box = calloc((size_t)fabric->channels, sizeof(*fabric->box));
    if (fabric->memory == MAP_FAILED || fabric->box == NULL) {
        perror("boxes for pieces");
        abort();
    }
    epx_piece_t *piece = fabric->memory;
    for (int32_t c = 0; c < fabric->channels; c++) {
        fabric->box[c].send = piece + 2 * (size_t)c * ROOM;
        fabric->box[c].receive = fabric->box[c].send + ROOM;
    }
}

static void fill_box(const pieces_fabric_t *fabric, const epx_post_t *post)
{
    pieces_box_t *box = &fabric->box[post->channel];
    box->epoch = value_of(post->epoch);
    box->sends = post->send_count;
    box->receives = post->receive_count;
    if ((size_t)box->sends > ROOM || (size_t)box->receives > ROOM)
        die(fabric, fabric->base.rank, post->channel, "more pieces than this fabric has room for");
    if (box->sends > 0)
        memcpy(box->send, post->sends, (size_t)box->sends * sizeof(*box->send));
    if (box->receives > 0)
        memcpy(box->receive, post->receives, (size_t)box->receives * sizeof(*box->receive));
    for (int32_t i = 0; i < box->sends; i++) {
        const epx_piece_t *piece = &box->send[i];
        if (piece->peer == fabric->base.rank || !is_inside(fabric, piece->local, piece->bytes) ||
            !is_inside(fabric, piece->remote, piece->bytes))
            die(fabric, piece->peer, post->channel, "a piece that cannot be sent");
    }
    for (int32_t i = 0; i < box->receives; i++) {
        const epx_piece_t *piece = &box->receive[i];
        if (piece->peer == fabric->base.rank || !is_inside(fabric, piece->local, piece->bytes))
            die(fabric, piece->peer, post->channel, "a piece that cannot be received");
    }
}

/* The next of `count` pieces from *at on that is the peer's, or NULL. */
static const epx_piece_t *next_of(const epx_piece_t *pieces, int32_t count, int32_t peer, int32_t *at)
{
    while (*at < count && pieces[*at].peer != peer)
        (*at)++;
    return *at < count ? &pieces[(*at)++] : NULL;
}

/* What p has sent with the word that has been seen, against what was expected. */
static epx_status_t receive_from(const pieces_fabric_t *fabric, int32_t p, int32_t channel, uint64_t epoch,
                                 epx_stream_t stream)
{
    const pieces_box_t *mine = &fabric->box[channel], *theirs = &fabric->peer[p]->box[channel];
    int32_t sent = 0, expected = 0;
    if (theirs->epoch != epoch || mine->epoch != epoch)
        die(fabric, p, channel, "not the epoch that was waited for");
    for (;;) {
        const epx_piece_t *from = next_of(theirs->send, theirs->sends, fabric->base.rank, &sent);
        const epx_piece_t *to = next_of(mine->receive, mine->receives, p, &expected);
        if (from == NULL && to == NULL)
            return EPX_OK;
        if (from == NULL || to == NULL)
            die(fabric, p, channel, "not as many pieces as were expected");
        if (from->bytes != to->bytes || from->remote != to->local)
            die(fabric, p, channel, "pieces that differ");
        if (!chosen.takes)
            continue;
        epx_status_t status = fabric->device->copy(
            fabric->segment + to->local, fabric->peer[p]->segment + from->local, (size_t)to->bytes, stream);
        if (status != EPX_OK)
            return status;
    }
}

/* ---- the table -------------------------------------------------------------------------------------------- */

static int pieces_probe(const epx_device_ops_t *device, char *reason, size_t reason_bytes)
{
    return chosen.local->probe(device, reason, reason_bytes);
}

static int64_t pieces_memory(const epx_fabric_config_t *config, int32_t ranks, int64_t *device_bytes_p)
{
    return chosen.local->memory(config, ranks, device_bytes_p);
}

static epx_status_t pieces_open(const epx_fabric_config_t *config, epx_fabric_t **fabric_p)
{
    const epx_bootstrap_t *bootstrap = &config->bootstrap;
    size_t ranks = (size_t)bootstrap->size;
    epx_fabric_t *inner = NULL;
    epx_status_t status = chosen.local->open(config, &inner);
    if (status != EPX_OK)
        return status;
    pieces_fabric_t *fabric = calloc(1, sizeof(*fabric) + ranks * sizeof(fabric->peer[0]));
    if (fabric == NULL)
        abort();
    fabric->base = (epx_fabric_t){
        .ops = &pieces_ops, .rank = bootstrap->rank, .ranks = bootstrap->size, .caps = pieces_ops.caps};
    fabric->inner = inner;
    fabric->device = config->device;
    fabric->channels = config->channels;
    make_boxes(fabric);
    if (bootstrap->rank == 0) {
        fabric->hub = calloc(1, sizeof(*fabric->hub));
        if (fabric->hub == NULL)
            abort();
        atomic_store(&fabric->hub->references, bootstrap->size);
    }
    if (bootstrap->allgather(bootstrap->context, &fabric, fabric->peer, sizeof(fabric)) != 0)
        return EPX_ERR_FABRIC;
    if (bootstrap->rank != 0)
        fabric->hub = fabric->peer[0]->hub;
    *fabric_p = &fabric->base;
    return EPX_OK;
}

static void pieces_close(epx_fabric_t **fabric_p)
{
    if (*fabric_p == NULL)
        return;
    pieces_fabric_t *fabric = of(*fabric_p);
    *fabric_p = NULL;
    fabric->inner->ops->close(&fabric->inner);
    if (atomic_fetch_sub(&fabric->hub->references, 1) != 1)
        return;
    free(fabric->hub);
    pieces_fabric_t *first = fabric->peer[0];
    for (int32_t r = first->base.ranks - 1; r >= 0; r--) {
        pieces_fabric_t *gone = first->peer[r];
        munmap(gone->memory, gone->memory_bytes);
        free(gone->box);
        free(gone);
    }
}

static epx_status_t pieces_segment_open(epx_fabric_t *base, void *memory, size_t bytes,
                                        epx_segment_t *segment_p)
{
    pieces_fabric_t *fabric = of(base);
    epx_status_t status = fabric->inner->ops->segment_open(fabric->inner, memory, bytes, segment_p);
    if (status != EPX_OK)
        return status;
    fabric->segment = memory;
    fabric->segment_bytes = bytes;
    segment_p->peer_ptr = NULL;
    return EPX_OK;
}

/* A piece's rows from the post's source to where they stand for, a few rows at a time. */
static epx_status_t read_piece(pieces_fabric_t *fabric, const epx_piece_t *piece, epx_piece_source_t *source)
{
    enum { ROWS = 3 };
    epx_status_t status = EPX_OK;
    if (source == NULL || piece->local + piece->bytes <= source->local ||
        piece->local >= source->local + source->bytes)
        return EPX_OK;
    if (piece->local < source->local || piece->local + piece->bytes > source->local + source->bytes ||
        (piece->local - source->local) % source->unit != 0 || piece->bytes % source->unit != 0)
        die(fabric, piece->peer, 0, "a piece that is in the source, but not all of it");
    for (int64_t done = 0; done < piece->bytes && status == EPX_OK; done += ROWS * source->unit) {
        int64_t rest = piece->bytes - done, most = ROWS * source->unit;
        status = source->read(source, piece->local + done, rest < most ? rest : most,
                              fabric->segment + piece->local + done);
    }
    return status;
}

static epx_status_t pieces_post(epx_fabric_t *base, const epx_post_t *post, epx_stream_t stream)
{
    pieces_fabric_t *fabric = of(base);
    epx_status_t status = EPX_OK;
    fill_box(fabric, post);
    for (int32_t i = 0; i < post->send_count && !chosen.takes && status == EPX_OK; i++) {
        const epx_piece_t *piece = &post->sends[i];
        status = read_piece(fabric, piece, post->source);
        if (status == EPX_OK)
            status = fabric->device->copy(fabric->peer[piece->peer]->segment + piece->remote,
                                          fabric->segment + piece->local, (size_t)piece->bytes, stream);
    }
    epx_post_t words = *post;
    words.sends = words.receives = NULL;
    words.source = NULL;
    words.send_count = words.receive_count = 0;
    return status == EPX_OK ? fabric->inner->ops->post(fabric->inner, &words, stream) : status;
}

static epx_status_t pieces_wait(epx_fabric_t *base, const epx_wait_t *wait, epx_wait_result_t *result_p,
                                epx_stream_t stream)
{
    pieces_fabric_t *fabric = of(base);
    epx_status_t status = fabric->inner->ops->wait(fabric->inner, wait, result_p, stream);
    if (wait->mode != EPX_WAIT_EQUAL) /* credit brings no rows */
        return status;
    for (int32_t p = 0; p < base->ranks && status == EPX_OK; p++)
        if (p != base->rank && (wait->peer == p || wait->peer == EPX_ALL_PEERS))
            status = receive_from(fabric, p, wait->channel, value_of(wait->epoch), stream);
    return status;
}

static epx_status_t pieces_post_failure(epx_fabric_t *base, int32_t channel, epx_epoch_t epoch,
                                        epx_stream_t stream)
{
    return of(base)->inner->ops->post_failure(of(base)->inner, channel, epoch, stream);
}

static epx_status_t pieces_exchange(epx_fabric_t *base, const epx_exchange_t *exchange,
                                    epx_wait_result_t *result_p, epx_stream_t stream)
{
    return of(base)->inner->ops->exchange(of(base)->inner, exchange, result_p, stream);
}

static void pieces_abort(epx_fabric_t *base, int32_t culprit)
{
    of(base)->inner->ops->abort(of(base)->inner, culprit);
}

static int32_t pieces_aborted(epx_fabric_t *base, int32_t *culprit_p)
{
    return of(base)->inner->ops->aborted(of(base)->inner, culprit_p);
}

static epx_status_t pieces_survivors(epx_fabric_t *base, int64_t timeout_ms, uint8_t *alive_p,
                                     epx_bootstrap_t *bootstrap_p)
{
    return of(base)->inner->ops->survivors(of(base)->inner, timeout_ms, alive_p, bootstrap_p);
}

static epx_fabric_ops_t pieces_ops = {
    .name = "local",
    .probe = pieces_probe,
    .memory = pieces_memory,
    .open = pieces_open,
    .close = pieces_close,
    .segment_open = pieces_segment_open,
    .post = pieces_post,
    .wait = pieces_wait,
    .post_failure = pieces_post_failure,
    .exchange = pieces_exchange,
    .abort = pieces_abort,
    .aborted = pieces_aborted,
    .survivors = pieces_survivors,
};

static void choose(void)
{
    static const char *const ways[] = {"put", "take", "paired"};
    const char *wanted = getenv("TEST_FABRIC");
    int way = 0;
    if (wanted == NULL || strcmp(wanted, "local") == 0 ||
        strcmp(wanted, "nccl") == 0) /* device.c has that one */
        return;
    while (way < 3 && strcmp(wanted, ways[way]) != 0)
        way++;
    if (way == 3) {
        fprintf(stderr, "TEST_FABRIC=%s is not one of: local, put, take, paired, nccl\n", wanted);
        exit(2);
    }
    chosen.local = epx_fabric_of_threads();
    chosen.takes = way > 0;
    chosen.stands_in = 1;
    pieces_ops.caps = EPX_FABRIC_BOUNDED_WAIT;
    if (way < 2)
        pieces_ops.caps |= EPX_FABRIC_ONE_SIDED_WORDS;
    if (way == 0)
        pieces_ops.caps |= EPX_FABRIC_READS_SOURCES;
    epx_fabric_stand_in("local", &pieces_ops);
}

void test_fabric_choose(void) { pthread_once(&chosen.once, choose); }

int rows_land_at_start(void) { return !chosen.takes && !over_sends(); }

int words_are_one_sided(void)
{
    return !chosen.stands_in || (pieces_ops.caps & EPX_FABRIC_ONE_SIDED_WORDS) != 0;
}

void only_with_stores(const char *why)
{
    const char *tls = getenv("UCX_TLS");
    int is_far = ranks_are_processes() && tls != NULL && strstr(tls, "sysv") == NULL &&
                 strstr(tls, "posix") == NULL && strstr(tls, "sm") == NULL && strstr(tls, "all") == NULL;
    if (chosen.stands_in || is_far || over_sends())
        cr_skip_test("with loads and stores only: %s", why);
}
