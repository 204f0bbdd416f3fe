/* Recorded routing: who chose which experts, step by step. Written by --record-routing, read by --routing and
 * by the tools. Needs hash.c and fail.c beside it and nothing else of the training loop.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Binary form, version 1, in the machine's byte order: a header of 64 bytes (struct header in
 * routing_file.c), then `steps` records, each either counts  int64 [layers, ranks, experts]         or ids
 * int32 [layers, ranks, tokens, top_k]   -1: no assignment
 *
 * Text form, one step of one layer: the first line is
 *     epx-routing-text 1 ranks=S experts=E top_k=K
 * then one line per token, "rank id id ...", K ids of -1 .. E-1. Empty lines and lines that start with '#'
 * are ignored. */
#ifndef EPX_TRAIN_ROUTING_FILE_H
#define EPX_TRAIN_ROUTING_FILE_H

#include <stddef.h>
#include <stdint.h>

typedef enum epx_routing_kind { EPX_ROUTING_COUNTS = 1, EPX_ROUTING_IDS = 2 } epx_routing_kind_t;

typedef struct epx_routing_shape {
    epx_routing_kind_t kind;
    int32_t ranks; /* all ranks of the run */
    int32_t group; /* ranks of one expert-parallel group; divides ranks */
    int32_t experts, top_k, layers;
    int32_t tokens; /* per rank; 0 for counts */
} epx_routing_shape_t;

typedef struct epx_routing_file {
    epx_routing_shape_t shape; /* tokens: the most that a rank has */
    int32_t steps;
    const int64_t *counts; /* [steps, layers, ranks, experts], or NULL */
    const int32_t *ids;    /* [steps, layers, ranks, tokens, top_k], or NULL; -1 past a rank's own tokens */
    const int64_t *rank_tokens; /* [ranks] tokens of each rank, NULL for counts */
    void *memory[2];            /* what the pointers point into */
} epx_routing_file_t;

/* Reads a file of either form. EPX_TRAIN_USAGE with a sentence for a foreign, damaged or truncated file. */
int epx_routing_read(const char *path, epx_routing_file_t *file_p);
void epx_routing_free(epx_routing_file_t *file);

/* Bytes of one record. */
size_t epx_routing_record_bytes(const epx_routing_shape_t *shape);

typedef struct epx_routing_writer epx_routing_writer_t;

/* Writes beside `path` and renames at close, so that a file of that name is always whole. */
int epx_routing_writer_open(const char *path, const epx_routing_shape_t *shape,
                            epx_routing_writer_t **writer_p);

/* Adds one step. record: [epx_routing_record_bytes], read before it returns. */
int epx_routing_writer_add(epx_routing_writer_t *writer, const void *record);

/* Completes the file, or leaves what was there where no step was added; clears the handle. */
int epx_routing_writer_close(epx_routing_writer_t **writer_p);

#endif
