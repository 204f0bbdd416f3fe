/* SPDX-License-Identifier: Apache-2.0 */
#include "bigram.h"

#include <math.h>
#include <stdlib.h>

#include "fail.h"

typedef struct counts {
    int64_t vocabulary, total;
    uint32_t *pair;     /* [vocabulary, vocabulary] */
    uint32_t *single;   /* [vocabulary] */
    uint32_t *distinct; /* [vocabulary]: different tokens seen after this one */
    uint32_t *before;   /* [vocabulary]: how often something was seen after this one */
} counts_t;

static void free_counts(counts_t *counts)
{
    free(counts->before);
    free(counts->distinct);
    free(counts->single);
    free(counts->pair);
}

static int count(const epx_data_t *data, counts_t *counts)
{
    size_t vocabulary = (size_t)data->vocabulary;
    counts->vocabulary = data->vocabulary;
    counts->total = data->train_tokens;
    counts->pair = calloc(vocabulary * vocabulary, sizeof *counts->pair);
    counts->single = calloc(vocabulary, sizeof *counts->single);
    counts->distinct = calloc(vocabulary, sizeof *counts->distinct);
    counts->before = calloc(vocabulary, sizeof *counts->before);
    if (!counts->pair || !counts->single || !counts->distinct || !counts->before)
        return epx_train_fail(EPX_TRAIN_FAILED,
                              "no memory for the counts of a bigram model over %lld tokens: "
                              "leave it out with --no-bigram",
                              (long long)data->vocabulary);
    for (int64_t i = 0; i < data->train_tokens; i++) {
        int64_t token = epx_data_token(data, i);
        counts->single[token]++;
        if (i == 0)
            continue;
        int64_t last = epx_data_token(data, i - 1);
        uint32_t *pair = &counts->pair[last * data->vocabulary + token];
        counts->distinct[last] += *pair == 0;
        counts->before[last]++;
        (*pair)++;
    }
    return EPX_TRAIN_OK;
}

static double probability(const counts_t *counts, int64_t last, int64_t token)
{
    double alone = (counts->single[token] + 1.0) / (double)(counts->total + counts->vocabulary);
    double unseen = counts->distinct[last] ? counts->distinct[last] : 1.0;
    return (counts->pair[last * counts->vocabulary + token] + unseen * alone) /
           (counts->before[last] + unseen);
}

int epx_bigram_loss(const epx_data_t *data, int64_t sequence, int64_t sequences, double *loss_p)
{
    counts_t counts = {0};
    int code = count(data, &counts);
    if (code == EPX_TRAIN_OK) {
        int64_t available = epx_data_validation_count(data, sequence);
        double sum = 0;
        for (int64_t s = 0; s < sequences; s++) {
            int64_t start = data->train_tokens + (s * available / sequences) * sequence;
            for (int64_t i = 0; i < sequence; i++)
                sum -= log(probability(&counts, epx_data_token(data, start + i),
                                       epx_data_token(data, start + i + 1)));
        }
        *loss_p = sum / (double)(sequences * sequence);
    }
    free_counts(&counts);
    return code;
}
