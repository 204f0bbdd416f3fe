/* The yardstick that a model must beat: how well the last token alone predicts the next one.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TRAIN_BIGRAM_H
#define EPX_TRAIN_BIGRAM_H

#include "data.h"

/* Mean loss in nats per token, over `sequences` validation sequences at equal distances, of an interpolated
 * bigram model counted on the training part: p(b|a) = (n(a,b) + u * p(b)) / (n(a) + u),  p(b) = (n(b) + 1) /
 * (N + vocabulary), where u, the number of distinct tokens seen after a, is what Witten and Bell (1991) give
 * to the unseen. Fails only for want of memory (vocabulary^2 counts). */
int epx_bigram_loss(const epx_data_t *data, int64_t sequence, int64_t sequences, double *loss_p);

#endif
