/* The dense mathematics of the model, each piece with its gradient. train/host/ has it in plain C.
 *
 * All matrices are row-major. Gradients with respect to weights are added to what is there, so that they may
 * come in pieces; gradients with respect to activations are written, unless "adds" is said. Nothing here
 * allocates. Results are the same for the same input on every run. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TRAIN_MATH_H
#define EPX_TRAIN_MATH_H

#include <stdint.h>

#include "real.h"

/* Which operand is stored transposed. */
typedef enum epx_layout { EPX_NN, EPX_NT, EPX_TN } epx_layout_t;

/* C [m, n] = A B + beta C, where A is [m, k] (EPX_TN: stored [k, m]) and B is [k, n] (EPX_NT: stored [n, k]).
 * lda, ldb, ldc: elements from one stored row to the next. beta = 0 never reads C. */
void epx_math_gemm(epx_layout_t layout, int64_t m, int64_t n, int64_t k, const epx_real_t *a, int64_t lda,
                   const epx_real_t *b, int64_t ldb, epx_real_t beta, epx_real_t *c, int64_t ldc);

/* Which product this build has, "openblas" or "plain C", and a call to make once per process before the first
 * one. */
const char *epx_math_gemm_name(void);
void epx_math_gemm_setup(void);

/* out [rows, width] = x / rms(x) * weight [width]; scale [rows] keeps 1 / rms for the gradient. */
void epx_math_rmsnorm(int64_t rows, int64_t width, const epx_real_t *x, const epx_real_t *weight,
                      epx_real_t *out, epx_real_t *scale);

/* Adds to dx [rows, width] (the residual stream's gradient is there already) and to dweight [width]. */
void epx_math_rmsnorm_backward(int64_t rows, int64_t width, const epx_real_t *x, const epx_real_t *weight,
                               const epx_real_t *scale, const epx_real_t *dout, epx_real_t *dx,
                               epx_real_t *dweight);

/* What attention needs to know. qkv is [sequences * sequence, (heads + 2 kv_heads) * head_width]. */
typedef struct epx_attention {
    int64_t sequences, sequence; /* sequences of so many tokens each */
    int64_t heads, kv_heads;     /* heads is a multiple of kv_heads */
    int64_t head_width;          /* even */
    int64_t window;              /* a token sees itself and window - 1 tokens before; 0: all before */
} epx_attention_t;

/* The cosines and sines of rotary embedding (base 10000), and how many reals they take. */
int64_t epx_math_rotary_count(const epx_attention_t *shape);
void epx_math_rotary_table(const epx_attention_t *shape, epx_real_t *table);

/* Turns the query and key heads of qkv by position, halves paired; direction -1 undoes it, which is also its
 * gradient. */
void epx_math_rotary(const epx_attention_t *shape, const epx_real_t *table, int direction, epx_real_t *qkv);

/* Reals of scratch memory that attention needs. */
int64_t epx_math_attention_scratch(const epx_attention_t *shape);

/* out [tokens, heads * head_width] = causal softmax(q k' / sqrt(head_width)) v;
 * logsum [sequences, heads, sequence] keeps the logarithm of each row's sum for the gradient. */
void epx_math_attention(const epx_attention_t *shape, const epx_real_t *qkv, epx_real_t *out,
                        epx_real_t *logsum, epx_real_t *scratch);

/* dqkv is written, shape of qkv. */
void epx_math_attention_backward(const epx_attention_t *shape, const epx_real_t *qkv, const epx_real_t *out,
                                 const epx_real_t *logsum, const epx_real_t *dout, epx_real_t *dqkv,
                                 epx_real_t *scratch);

/* gated [tokens, heads, head_width] = out * gate, gate [tokens, heads] = sigmoid(gate), in place. */
void epx_math_gate(int64_t tokens, int64_t heads, int64_t head_width, const epx_real_t *out, epx_real_t *gate,
                   epx_real_t *gated);

/* From dgated: dout, and dlogit [tokens, heads] before the sigmoid. dout may be dgated. */
void epx_math_gate_backward(int64_t tokens, int64_t heads, int64_t head_width, const epx_real_t *out,
                            const epx_real_t *gate, const epx_real_t *dgated, epx_real_t *dout,
                            epx_real_t *dlogit);

/* out [rows, width] = silu(in[:, :width]) * in[:, width:], in [rows, 2 * width]. */
void epx_math_swiglu(int64_t rows, int64_t width, const epx_real_t *in, epx_real_t *out);

/* din [rows, 2 * width] is written; it may be `in`. */
void epx_math_swiglu_backward(int64_t rows, int64_t width, const epx_real_t *in, const epx_real_t *dout,
                              epx_real_t *din);

/* out [tokens, width] = table[ids]. */
void epx_math_embed(int64_t tokens, int64_t width, const int32_t *ids, const epx_real_t *table,
                    epx_real_t *out);
void epx_math_embed_backward(int64_t tokens, int64_t width, const int32_t *ids, const epx_real_t *dout,
                             epx_real_t *dtable);

/* Sum over tokens of -log softmax(logits)[target]. If `scale` is not 0, logits [tokens, vocabulary] become
 * their own gradient times scale. */
double epx_math_cross_entropy(int64_t tokens, int64_t vocabulary, const int32_t *targets, epx_real_t scale,
                              epx_real_t *logits);

/* The router's choice. logits [tokens, experts]; bias [experts] is added for choosing only; the first `top_k`
 * by (logit + bias), ties to the lower expert, go to ids [tokens, top_k] in falling order. With `forced` the
 * ids are given instead, -1 allowed. */
void epx_math_router_choose(int64_t tokens, int64_t experts, int64_t top_k, const epx_real_t *logits,
                            const epx_real_t *bias, int32_t *ids);

/* weights [tokens, top_k] = softmax over the chosen experts' logits, without bias; 0 for an id of -1. */
void epx_math_router_weigh(int64_t tokens, int64_t experts, int64_t top_k, const epx_real_t *logits,
                           const int32_t *ids, epx_real_t *weights);

/* Adds to dlogits [tokens, experts]. */
void epx_math_router_weigh_backward(int64_t tokens, int64_t experts, int64_t top_k, const int32_t *ids,
                                    const epx_real_t *weights, const epx_real_t *dweights,
                                    epx_real_t *dlogits);

/* The two losses on router logits. Adds their gradients to dlogits, if not NULL, and returns their sum over
 * tokens: z * logsumexp(logits)^2 + sum over e of load[e] * softmax(logits)[e] load [experts] is aux *
 * experts * (share of all assignments that chose e), or NULL. */
double epx_math_router_losses(int64_t tokens, int64_t experts, const epx_real_t *logits, double z,
                              const epx_real_t *load, epx_real_t scale, epx_real_t *dlogits);

/* to += from, `count` reals. */
void epx_math_add(int64_t count, const epx_real_t *from, epx_real_t *to);

/* Sum of squares, in double. */
double epx_math_square_sum(int64_t count, const epx_real_t *values);

/* One AdamW step on `count` reals: gradient is first multiplied by `scale`; rate1 and rate2 are the step's
 * 1 / (1 - beta^t) corrections. */
typedef struct epx_adamw {
    epx_real_t rate, beta1, beta2, epsilon, decay, scale, correction1, correction2;
} epx_adamw_t;

void epx_math_adamw(const epx_adamw_t *step, int64_t count, const epx_real_t *gradient, epx_real_t *parameter,
                    epx_real_t *mean, epx_real_t *square);

#endif
