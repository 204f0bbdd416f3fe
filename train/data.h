/* Training text: a file of bytes, or a token shard in the format of llm.c, cut into a training and a
 * validation part.
 *
 * What sequence number n holds is a pure function of (file, sequence length, seed, n), so that any number of
 * ranks reads the same text in the same order, and a restored run goes on where the first one stopped.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TRAIN_DATA_H
#define EPX_TRAIN_DATA_H

#include <stddef.h>
#include <stdint.h>

typedef struct epx_data {
    const unsigned char *map; /* the file, mapped; read-only */
    size_t map_bytes;
    size_t first_byte;    /* of token 0 */
    int token_bytes;      /* 1: a text; 2: a shard of uint16 */
    int64_t tokens;       /* in the file */
    int64_t train_tokens; /* the first ones are for training, the others for validation */
    int64_t vocabulary;   /* 256 for bytes, else the largest token + 1 */
    uint64_t hash;        /* of the whole file */
} epx_data_t;

/* Opens `path`: a shard if it starts with the magic number 20240520, else a text. `validation` in (0, 1) is
 * the share set apart at the end. Fails if the file cannot be read, is cut short, or holds less than two
 * sequences of `sequence` tokens in either part. */
int epx_data_open(const char *path, int64_t sequence, double validation, epx_data_t *data_p);

void epx_data_close(epx_data_t *data);

/* The path of the text that ships with epx: beside the working directory, the program, or where it was
 * installed. Writes at most `size` bytes to `path`; EPX_TRAIN_USAGE if it is nowhere. */
int epx_data_default_path(char *path, size_t size);

/* Writes training sequence number n: inputs [sequence] and the tokens that follow them, targets [sequence].
 * Each pass over the text takes all its sequences once, in an order and from an offset drawn from the seed.
 */
void epx_data_train(const epx_data_t *data, int64_t sequence, uint64_t seed, int64_t n, int32_t *inputs,
                    int32_t *targets);

/* Validation sequences that do not overlap. */
int64_t epx_data_validation_count(const epx_data_t *data, int64_t sequence);

/* Writes validation sequence n, 0 <= n < epx_data_validation_count. */
void epx_data_validation(const epx_data_t *data, int64_t sequence, int64_t n, int32_t *inputs,
                         int32_t *targets);

/* The token at a place of the file, 0 <= at < data->tokens. */
int32_t epx_data_token(const epx_data_t *data, int64_t at);

#endif
