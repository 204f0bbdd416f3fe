/* Norm, gate, SwiGLU, embedding and loss. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>
#include <tgmath.h>

#include "../math.h"

#define NORM_EPSILON 1e-6

void epx_math_rmsnorm(int64_t rows, int64_t width, const epx_real_t *x, const epx_real_t *weight,
                      epx_real_t *out, epx_real_t *scale)
{
    for (int64_t r = 0; r < rows; r++, x += width, out += width) {
        epx_real_t sum = 0;
        for (int64_t i = 0; i < width; i++)
            sum += x[i] * x[i];
        scale[r] = 1 / sqrt(sum / (epx_real_t)width + (epx_real_t)NORM_EPSILON);
        for (int64_t i = 0; i < width; i++)
            out[i] = x[i] * scale[r] * weight[i];
    }
}

void epx_math_rmsnorm_backward(int64_t rows, int64_t width, const epx_real_t *x, const epx_real_t *weight,
                               const epx_real_t *scale, const epx_real_t *dout, epx_real_t *dx,
                               epx_real_t *dweight)
{
    for (int64_t r = 0; r < rows; r++, x += width, dout += width, dx += width) {
        epx_real_t dot = 0, by = scale[r];
        for (int64_t i = 0; i < width; i++)
            dot += dout[i] * weight[i] * x[i];
        dot *= by * by * by / (epx_real_t)width;
        for (int64_t i = 0; i < width; i++) {
            dx[i] += dout[i] * weight[i] * by - x[i] * dot;
            dweight[i] += dout[i] * x[i] * by;
        }
    }
}

void epx_math_gate(int64_t tokens, int64_t heads, int64_t head_width, const epx_real_t *out, epx_real_t *gate,
                   epx_real_t *gated)
{
    for (int64_t i = 0; i < tokens * heads; i++, out += head_width, gated += head_width) {
        gate[i] = 1 / (1 + exp(-gate[i]));
        for (int64_t j = 0; j < head_width; j++)
            gated[j] = out[j] * gate[i];
    }
}

void epx_math_gate_backward(int64_t tokens, int64_t heads, int64_t head_width, const epx_real_t *out,
                            const epx_real_t *gate, const epx_real_t *dgated, epx_real_t *dout,
                            epx_real_t *dlogit)
{
    for (int64_t i = 0; i < tokens * heads;
         i++, out += head_width, dgated += head_width, dout += head_width) {
        epx_real_t dot = 0;
        for (int64_t j = 0; j < head_width; j++) {
            dot += out[j] * dgated[j];
            dout[j] = dgated[j] * gate[i];
        }
        dlogit[i] = dot * gate[i] * (1 - gate[i]);
    }
}

void epx_math_swiglu(int64_t rows, int64_t width, const epx_real_t *in, epx_real_t *out)
{
    for (int64_t r = 0; r < rows; r++, in += 2 * width, out += width)
        for (int64_t i = 0; i < width; i++)
            out[i] = in[i] / (1 + exp(-in[i])) * in[width + i];
}

void epx_math_swiglu_backward(int64_t rows, int64_t width, const epx_real_t *in, const epx_real_t *dout,
                              epx_real_t *din)
{
    for (int64_t r = 0; r < rows; r++, in += 2 * width, din += 2 * width, dout += width)
        for (int64_t i = 0; i < width; i++) {
            epx_real_t gate = in[i], up = in[width + i], sigmoid = 1 / (1 + exp(-gate));
            din[i] = dout[i] * up * sigmoid * (1 + gate * (1 - sigmoid));
            din[width + i] = dout[i] * gate * sigmoid;
        }
}

void epx_math_embed(int64_t tokens, int64_t width, const int32_t *ids, const epx_real_t *table,
                    epx_real_t *out)
{
    for (int64_t t = 0; t < tokens; t++)
        memcpy(out + t * width, table + ids[t] * width, (size_t)width * sizeof *out);
}

void epx_math_embed_backward(int64_t tokens, int64_t width, const int32_t *ids, const epx_real_t *dout,
                             epx_real_t *dtable)
{
    for (int64_t t = 0; t < tokens; t++)
        epx_math_add(width, dout + t * width, dtable + ids[t] * width);
}

double epx_math_cross_entropy(int64_t tokens, int64_t vocabulary, const int32_t *targets, epx_real_t scale,
                              epx_real_t *logits)
{
    double loss = 0;
    for (int64_t t = 0; t < tokens; t++, logits += vocabulary) {
        epx_real_t most = logits[0], sum = 0, wanted = logits[targets[t]];
        for (int64_t i = 1; i < vocabulary; i++)
            most = logits[i] > most ? logits[i] : most;
        for (int64_t i = 0; i < vocabulary; i++)
            sum += logits[i] = exp(logits[i] - most);
        loss += (double)(log(sum) + most - wanted);
        for (int64_t i = 0; i < vocabulary; i++)
            logits[i] *= scale / sum;
        logits[targets[t]] -= scale;
    }
    return loss;
}

void epx_math_add(int64_t count, const epx_real_t *from, epx_real_t *to)
{
    for (int64_t i = 0; i < count; i++)
        to[i] += from[i];
}

double epx_math_square_sum(int64_t count, const epx_real_t *values)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)values[i] * (double)values[i];
    return sum;
}
