/* The parts of the simulated fabric. SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_INTERNAL_H
#define TESTS_SIM_INTERNAL_H

#include "fabric/gather.h"
#include "sim/fibres.h"
#include "sim/mutant.h"

typedef enum message_kind { DATA, WORD, RESET, FAILURE, BLOCK } message_kind_t;

typedef struct message {
    struct message *next;
    message_kind_t kind;
    int from, to;
    int64_t ready_ns;
    uint64_t number; /* in order of sending */
    /* DATA: at offset of the segment; BLOCK: of step `value`, channel; failed: it has none */
    size_t offset, bytes;
    int channel, failed;
    uint64_t value; /* of a word */
    uint8_t data[];
} message_t;

typedef struct hub hub_t;

typedef struct sim_fabric {
    epx_fabric_t base;
    epx_fabric_config_t config;
    epx_allocator_t allocator;
    hub_t *hub;
    uint64_t *word, *failure; /* [channels, S] */
    uint64_t *counted;        /* [channels] arrivals of words, for the counter */
    uint64_t *last_waited;    /* [channels] */
    uint64_t *step;           /* [exchange channels] */
    uint64_t arrivals;        /* of anything */
    message_t *blocks;        /* that have arrived and not been taken */
    void *segment;
    size_t segment_bytes;
    int registered;             /* segment_open was called */
    void **table;               /* [S] windows; mine: the segment */
    uint8_t **window, **shadow; /* [S] */
    int joined, closed;
    uint64_t gathers; /* of the survivors' bootstrap */
    int32_t *alive;   /* [S] */
    epx_circle_t survivors;
    struct sim_fabric *next; /* of all that are open */
} sim_fabric_t;

struct hub {
    int ranks, references;
    sim_fabric_t **member;
    message_t *first, **last; /* on their way */
    uint64_t sent;
    uint64_t abort; /* as in local */
    int joined, closed;
    uint64_t(*gathered); /* [S] gathers that each survivor has put in */
    uint8_t *gather[2];  /* [S, GATHER_BYTES] by parity */
};

enum { SIM_GATHER_BYTES = 4096 };

/* The promise that is broken now, and all fabrics that are open. */
extern sim_mutant_t sim_mutant;
extern sim_fabric_t *sim_fabrics;
extern const epx_fabric_ops_t sim_fabric_ops;

/* Zeroed, room for one more; never NULL. */
void *sim_take(size_t count, size_t bytes);

/* ---- wire.c: messages on their way ---- */

extern const sim_wire_t sim_messages;
/* A message with room for `bytes`, which the caller fills before it gives up its turn. */
message_t *sim_send(sim_fabric_t *from, int to, message_kind_t kind, size_t bytes);

/* ---- windows.c: what kernels store at peers ---- */

/* Bytes for the peer's segment, cut into pieces, so that a row may arrive in parts. */
void sim_send_range(sim_fabric_t *fabric, int to, size_t offset, const uint8_t *from, size_t bytes);
/* What has been stored since the last look goes on its way. */
void sim_flush(sim_fabric_t *fabric);
/* The host's device with kernels that store into windows. */
const epx_device_ops_t *sim_device(void);

#endif
