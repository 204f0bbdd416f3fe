/* The layout of a checkpoint, shared by writer and reader. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TRAIN_CHECKPOINT_FILE_H
#define EPX_TRAIN_CHECKPOINT_FILE_H

#include "checkpoint.h"

#define EPX_CHECKPOINT_VERSION 1
#define EPX_CHECKPOINT_ORDER 0x01020304u

typedef struct epx_checkpoint_header {
    char magic[8];
    uint32_t version, byte_order;
    uint64_t file_bytes;
    uint64_t shape_bytes; /* of the text after the header, a multiple of 8 */
    uint64_t sections;
    int64_t step, position;
    uint64_t seed, data_hash;
    uint64_t checksum; /* of header (this field 0), shape and table */
} epx_checkpoint_header_t;

typedef struct epx_checkpoint_section {
    char name[64];
    uint64_t offset, bytes, checksum;
} epx_checkpoint_section_t;

/* What stands before the sections, in one piece of memory: header, shape, table. */
typedef struct epx_checkpoint_front {
    char *memory; /* owned */
    size_t bytes;
    epx_checkpoint_header_t *header;
    char *shape;
    epx_checkpoint_section_t *section; /* [header->sections] */
} epx_checkpoint_front_t;

/* Where a section's values live. The sections' order is that of the tensors, experts ascending, router biases
 * last. */
typedef struct epx_checkpoint_place {
    int64_t count;  /* reals of one array */
    int arrays;     /* 3, or 1 for the biases */
    int64_t offset; /* in parameter, mean and square; -1: on another rank */
    int expert;     /* 1: one expert's matrix */
} epx_checkpoint_place_t;

extern const char epx_checkpoint_magic[8];

/* Builds the front of a checkpoint of this model, checksums 0. Free memory with free. */
int epx_checkpoint_front(const epx_model_t *model, const epx_progress_t *progress,
                         epx_checkpoint_front_t *front_p);

/* Section number i; returns 0 past the last one. */
int epx_checkpoint_place(const epx_model_t *model, int64_t i, epx_checkpoint_place_t *place_p);

/* Checksum of a front with its own field taken as 0. */
uint64_t epx_checkpoint_front_checksum(const epx_checkpoint_front_t *front);

#endif
