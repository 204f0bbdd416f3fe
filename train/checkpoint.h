/* Checkpoints: one file, whole or absent, that restores over any number of ranks. SPDX-License-Identifier:
 * Apache-2.0
 *
 * Layout, version 1, in the machine's byte order: a header (struct header in checkpoint.c), the model's shape
 * as lines "name=value", a table of sections, the sections. A section holds one matrix three times,
 * parameter, mean and square of AdamW, or the router's biases; each expert of each layer is a section of its
 * own. Header, shape and table have one checksum, each section has one in the table; the file's hash is the
 * first of these, which covers everything. */
#ifndef EPX_TRAIN_CHECKPOINT_H
#define EPX_TRAIN_CHECKPOINT_H

#include <epx/comm.h>

#include "model.h"
#include "optimizer.h"

/* What is saved and restored beside model and optimizer. All random numbers are functions of the seed and
 * these. */
typedef struct epx_progress {
    int64_t step;     /* done */
    int64_t position; /* tokens of training text used by all ranks */
    uint64_t seed;
    uint64_t data_hash;
} epx_progress_t;

/* Who takes part. Collective over world. */
typedef struct epx_ranks {
    epx_comm_h world;
    int64_t rank, size;     /* of world */
    int64_t group, replica; /* rank within its expert-parallel group, number of the group */
} epx_ranks_t;

/* Writes path.partial and renames it: another file of that name stays as it is until then.
 * On an error all ranks have one, and the model can go on. */
int epx_checkpoint_save(const char *path, const epx_ranks_t *ranks, const epx_model_t *model,
                        const epx_optimizer_t *optimizer, const epx_progress_t *progress, uint64_t *hash_p);

/* Reads this rank's part. progress has the run's seed and text on entry, which must agree, as must the
 * model's shape. On an error the model's values are undefined, on all ranks. */
int epx_checkpoint_restore(const char *path, const epx_ranks_t *ranks, epx_model_t *model,
                           epx_optimizer_t *optimizer, epx_progress_t *progress, uint64_t *hash_p);

#endif
