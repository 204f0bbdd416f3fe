/*
 * Fabric `nccl`: ranks are GPUs in one NVLink domain, which load from and store to each other's memory. How
 * it carries rows where they do not is in far.h. SPDX-License-Identifier: Apache-2.0
 *
 * Memory that peers reach is NCCL's (ncclMemAlloc), registered once as a symmetric window of a communicator
 * that belongs to this fabric alone. From each window the peers' addresses are read once, into a table on the
 * device; from then on kernels see plain pointers and NCCL is not called again until the fabric closes.
 *
 * - N1  Set-up is collective and in step: before anything is registered all ranks have told each other, over
 * the bootstrap, that they are able to and with which sizes; after it, how it went. A rank that fails is seen
 * by all.
 *
 * - N2  A block or segment is filled with zeros before it is registered, so no peer has written yet.
 *
 * - N3  What is registered never overlaps what is registered already in this process, whatever group did it.
 *
 * - N4  Words, waits and exchanges are kernels in the caller's stream (kernels_words.h, W1 to W4): the host
 * neither waits nor learns there. It learns from `halt`, in memory that both see.
 *
 * - N5  Peers' mappings keep the memory itself alive, so what is released here may still be stored to by a
 * peer that has not noticed the end.
 */
#ifndef EPX_FABRIC_NCCL_NCCL_H
#define EPX_FABRIC_NCCL_NCCL_H

#include <epx/fabric.h>

#include "fabric/nccl/api.h"

extern const epx_fabric_ops_t epx_fabric_nccl;

/* What one registration holds; a list of all in this process is behind N3. */
typedef struct nccl_part {
    void *memory;
    size_t bytes;
    nccl_window_t window;
    void **table; /* [ranks] device: the peers' addresses */
    int32_t registered;
    char name[96];
    struct nccl_part *next, **link;
} nccl_part_t;

/* Offsets in every rank's block of words, all of it device memory. */
typedef struct nccl_block_layout {
    int64_t words, failures, aborts, steps, boxes, box_bytes, lines, bytes;
} nccl_block_layout_t;

/* Device memory of this rank alone. */
typedef struct nccl_local_layout {
    int64_t tables, step, done, stage, bytes;
} nccl_local_layout_t;

typedef struct nccl_fabric {
    epx_fabric_t base;
    epx_fabric_config_t config;
    epx_allocator_t allocator; /* a copy: the fabric may outlive its group */
    const nccl_api_t *api;
    nccl_comm_t comm;
    nccl_block_layout_t block_layout;
    nccl_local_layout_t local_layout;
    int64_t bytes; /* of this struct with what stands behind it */
    int64_t local_bytes;
    char *local; /* device */
    epx_stream_t control;
    int32_t gpu; /* the device's index; any thread may ask for the abort */
    epx_word_halt_t *halt;
    epx_words_t words;
    struct nccl_far *far; /* where rows travel by sends and receives (far.h); NULL: by windows */
    nccl_part_t block;
    int32_t segments;
    nccl_part_t segment[]; /* [segments_max] */
} nccl_fabric_t;

/* ---- open.c ---- */

int epx_nccl_probe(const epx_device_ops_t *device, char *reason, size_t reason_bytes);
int64_t epx_nccl_memory(const epx_fabric_config_t *config, int32_t ranks, int64_t *device_bytes_p);
epx_status_t epx_nccl_open(const epx_fabric_config_t *config, epx_fabric_t **fabric_p);
void epx_nccl_close(epx_fabric_t **fabric_p);
void *epx_nccl_segment_allocate(epx_fabric_t *base, size_t bytes);
epx_status_t epx_nccl_segment_open(epx_fabric_t *base, void *memory, size_t bytes, epx_segment_t *segment_p);
epx_status_t epx_nccl_survivors(epx_fabric_t *base, int64_t timeout_ms, uint8_t *alive_p,
                                epx_bootstrap_t *bootstrap_p);

/* ---- window.c ---- */

/* Collective. Zeros the part, agrees on its size, registers it, fills its table. Its memory and table are
 * set; the memory may be NULL where there was none. */
epx_status_t epx_nccl_register(nccl_fabric_t *fabric, nccl_part_t *part);
/* The same without a window: the memory is this rank's alone, and is sent from and received into. */
epx_status_t epx_nccl_enter(nccl_fabric_t *fabric, nccl_part_t *part);
/* Not collective. */
void epx_nccl_unregister(nccl_fabric_t *fabric, nccl_part_t *part);
/* The sentence for an error of NCCL. */
epx_status_t epx_nccl_failed(const nccl_fabric_t *fabric, const char *what, nccl_result_t result);
/* Around what is collective in NCCL, which says of nobody that it waits. */
void epx_nccl_meets(const nccl_fabric_t *fabric);
void epx_nccl_has_met(const nccl_fabric_t *fabric, nccl_result_t result);
/* Collective: EPX_OK if `status` is that on every rank; else this rank's own, or EPX_ERR_PEER naming the
 * lowest. */
epx_status_t epx_nccl_agree(const nccl_fabric_t *fabric, epx_status_t status, const char *what);

/* ---- words.c ---- */

epx_status_t epx_nccl_post(epx_fabric_t *, const epx_post_t *, epx_stream_t);
epx_status_t epx_nccl_wait(epx_fabric_t *, const epx_wait_t *, epx_wait_result_t *, epx_stream_t);
epx_status_t epx_nccl_post_failure(epx_fabric_t *, int32_t, epx_epoch_t, epx_stream_t);
epx_status_t epx_nccl_exchange(epx_fabric_t *, const epx_exchange_t *, epx_wait_result_t *, epx_stream_t);
void epx_nccl_abort(epx_fabric_t *, int32_t culprit);
int32_t epx_nccl_aborted(epx_fabric_t *, int32_t *culprit_p);
epx_status_t epx_nccl_late(epx_fabric_t *, epx_wait_result_t *, uint64_t *tag_p);

#endif
