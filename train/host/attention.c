/* Rotary embedding and causal attention with grouped queries. SPDX-License-Identifier: Apache-2.0
 *
 * Scores are made for BLOCK query rows at a time and only for the keys that these rows can see, and are made
 * again in the backward pass from the kept logarithms of the row sums, so that no [sequence, sequence] matrix
 * is ever stored. */
#include <math.h>
#include <tgmath.h>

#include "../math.h"

#define BLOCK 64

static int64_t row_width(const epx_attention_t *shape)
{
    return (shape->heads + 2 * shape->kv_heads) * shape->head_width;
}

int64_t epx_math_rotary_count(const epx_attention_t *shape) { return shape->sequence * shape->head_width; }

void epx_math_rotary_table(const epx_attention_t *shape, epx_real_t *table)
{
    int64_t half = shape->head_width / 2;
    for (int64_t position = 0; position < shape->sequence; position++)
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)position * pow(10000.0, -(double)i / (double)half);
            *table++ = (epx_real_t)cos(angle);
            *table++ = (epx_real_t)sin(angle);
        }
}

void epx_math_rotary(const epx_attention_t *shape, const epx_real_t *table, int direction, epx_real_t *qkv)
{
    int64_t half = shape->head_width / 2, width = row_width(shape);
    for (int64_t t = 0; t < shape->sequences * shape->sequence; t++) {
        const epx_real_t *turn = table + t % shape->sequence * shape->head_width;
        epx_real_t *head = qkv + t * width;
        for (int64_t h = 0; h < shape->heads + shape->kv_heads; h++, head += shape->head_width)
            for (int64_t i = 0; i < half; i++) {
                epx_real_t cosine = turn[2 * i], sine = turn[2 * i + 1] * (epx_real_t)direction;
                epx_real_t first = head[i], second = head[i + half];
                head[i] = first * cosine - second * sine;
                head[i + half] = first * sine + second * cosine;
            }
    }
}

int64_t epx_math_attention_scratch(const epx_attention_t *shape) { return 2 * BLOCK * shape->sequence; }

/* Some query rows of one head of one sequence, and the keys that they can see. */
typedef struct block {
    int64_t first_row, rows, first_key, keys;
    const epx_real_t *query, *key, *value; /* at first_row and first_key */
    int64_t query_place, key_place, value_place, out_place, logsum_place;
} block_t;

static int64_t first_visible(const epx_attention_t *shape, int64_t row)
{
    return shape->window > 0 && row >= shape->window ? row - shape->window + 1 : 0;
}

static block_t block_at(const epx_attention_t *shape, int64_t s, int64_t h, int64_t row,
                        const epx_real_t *qkv)
{
    block_t block = {.first_row = row, .first_key = first_visible(shape, row)};
    int64_t width = row_width(shape), token = s * shape->sequence;
    int64_t kv_head = h / (shape->heads / shape->kv_heads);
    block.rows = shape->sequence - row < BLOCK ? shape->sequence - row : BLOCK;
    block.keys = row + block.rows - block.first_key;
    block.query_place = (token + row) * width + h * shape->head_width;
    block.key_place = (token + block.first_key) * width + (shape->heads + kv_head) * shape->head_width;
    block.value_place = block.key_place + shape->kv_heads * shape->head_width;
    block.out_place = ((token + row) * shape->heads + h) * shape->head_width;
    block.logsum_place = (s * shape->heads + h) * shape->sequence + row;
    block.query = qkv + block.query_place;
    block.key = qkv + block.key_place;
    block.value = qkv + block.value_place;
    return block;
}

/* The keys that row r of the block can see, as places of its score row. */
static void visible(const epx_attention_t *shape, const block_t *block, int64_t r, int64_t *from, int64_t *to)
{
    *from = first_visible(shape, block->first_row + r) - block->first_key;
    *to = block->first_row + r - block->first_key + 1;
}

/* score[0..keys) of what is not visible becomes 0. */
static void hide(epx_real_t *score, int64_t keys, int64_t from, int64_t to)
{
    for (int64_t i = 0; i < from; i++)
        score[i] = 0;
    for (int64_t i = to; i < keys; i++)
        score[i] = 0;
}

static void softmax_rows(const epx_attention_t *shape, const block_t *block, epx_real_t *score,
                         epx_real_t *logsum)
{
    epx_real_t scale = 1 / sqrt((epx_real_t)shape->head_width);
    for (int64_t r = 0; r < block->rows; r++, score += block->keys) {
        int64_t from, to;
        visible(shape, block, r, &from, &to);
        epx_real_t most = score[from], sum = 0;
        for (int64_t i = from; i < to; i++)
            most = score[i] > most ? score[i] : most;
        for (int64_t i = from; i < to; i++)
            sum += score[i] = exp((score[i] - most) * scale);
        logsum[r] = most * scale + log(sum);
        for (int64_t i = from; i < to; i++)
            score[i] /= sum;
        hide(score, block->keys, from, to);
    }
}

void epx_math_attention(const epx_attention_t *shape, const epx_real_t *qkv, epx_real_t *out,
                        epx_real_t *logsum, epx_real_t *scratch)
{
    int64_t width = row_width(shape), head_width = shape->head_width;
    for (int64_t s = 0; s < shape->sequences; s++)
        for (int64_t h = 0; h < shape->heads; h++)
            for (int64_t row = 0; row < shape->sequence; row += BLOCK) {
                block_t block = block_at(shape, s, h, row, qkv);
                epx_math_gemm(EPX_NT, block.rows, block.keys, head_width, block.query, width, block.key,
                              width, 0, scratch, block.keys);
                softmax_rows(shape, &block, scratch, logsum + block.logsum_place);
                epx_math_gemm(EPX_NN, block.rows, head_width, block.keys, scratch, block.keys, block.value,
                              width, 0, out + block.out_place, shape->heads * head_width);
            }
}

/* From raw scores to probabilities, by the kept logarithms. */
static void probabilities(const epx_attention_t *shape, const block_t *block, epx_real_t *score,
                          const epx_real_t *logsum)
{
    epx_real_t scale = 1 / sqrt((epx_real_t)shape->head_width);
    for (int64_t r = 0; r < block->rows; r++, score += block->keys) {
        int64_t from, to;
        visible(shape, block, r, &from, &to);
        for (int64_t i = from; i < to; i++)
            score[i] = exp(score[i] * scale - logsum[r]);
        hide(score, block->keys, from, to);
    }
}

/* dscore becomes the gradient of the raw scores: p * (dp - dot(dout, out)) * scale. */
static void score_gradients(const epx_attention_t *shape, const block_t *block, const epx_real_t *score,
                            const epx_real_t *out, const epx_real_t *dout, epx_real_t *dscore)
{
    epx_real_t scale = 1 / sqrt((epx_real_t)shape->head_width);
    int64_t out_width = shape->heads * shape->head_width;
    for (int64_t r = 0; r < block->rows; r++, score += block->keys, dscore += block->keys) {
        epx_real_t dot = 0;
        for (int64_t i = 0; i < shape->head_width; i++)
            dot += out[r * out_width + i] * dout[r * out_width + i];
        for (int64_t i = 0; i < block->keys; i++)
            dscore[i] = score[i] * (dscore[i] - dot) * scale;
    }
}

void epx_math_attention_backward(const epx_attention_t *shape, const epx_real_t *qkv, const epx_real_t *out,
                                 const epx_real_t *logsum, const epx_real_t *dout, epx_real_t *dqkv,
                                 epx_real_t *scratch)
{
    int64_t width = row_width(shape), head_width = shape->head_width, out_width = shape->heads * head_width;
    epx_real_t *score = scratch, *dscore = scratch + BLOCK * shape->sequence;
    for (int64_t i = 0; i < shape->sequences * shape->sequence * width; i++)
        dqkv[i] = 0;
    for (int64_t s = 0; s < shape->sequences; s++)
        for (int64_t h = 0; h < shape->heads; h++)
            for (int64_t row = 0; row < shape->sequence; row += BLOCK) {
                block_t block = block_at(shape, s, h, row, qkv);
                int64_t rows = block.rows, keys = block.keys;
                const epx_real_t *block_dout = dout + block.out_place;
                epx_math_gemm(EPX_NT, rows, keys, head_width, block.query, width, block.key, width, 0, score,
                              keys);
                probabilities(shape, &block, score, logsum + block.logsum_place);
                epx_math_gemm(EPX_TN, keys, head_width, rows, score, keys, block_dout, out_width, 1,
                              dqkv + block.value_place, width);
                epx_math_gemm(EPX_NT, rows, keys, head_width, block_dout, out_width, block.value, width, 0,
                              dscore, keys);
                score_gradients(shape, &block, score, out + block.out_place, block_dout, dscore);
                epx_math_gemm(EPX_NN, rows, head_width, keys, dscore, keys, block.key, width, 0,
                              dqkv + block.query_place, width);
                epx_math_gemm(EPX_TN, keys, head_width, rows, dscore, keys, block.query, width, 1,
                              dqkv + block.key_place, width);
            }
}
