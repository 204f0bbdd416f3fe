/* The preset tiny, over four ranks, must soon know more of the text that ships than which letter follows
 * which. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include "train/train.h"

enum { STEPS = 120 }; /* of 600; ten seconds on two cores */

typedef struct outcome {
    epx_train_config_t config;
    double validation, bigram;
} outcome_t;

static int run_rank(epx_comm_h comm, int64_t rank, void *context)
{
    outcome_t *outcome = context;
    epx_trainer_t *trainer = NULL;
    epx_metrics_t metrics;
    double validation = 0, bigram = 0;
    int code = epx_trainer_create(&outcome->config, comm, &trainer);
    if (code == EPX_TRAIN_OK)
        code = epx_trainer_open_group(trainer, &outcome->config.group);
    for (int step = 0; code == EPX_TRAIN_OK && step < STEPS; step++)
        code = epx_trainer_step(trainer, &metrics);
    if (code == EPX_TRAIN_OK)
        code = epx_trainer_evaluate(trainer, &validation);
    if (code == EPX_TRAIN_OK)
        code = epx_trainer_bigram(trainer, &bigram);
    if (rank == 0) {
        outcome->validation = validation;
        outcome->bigram = bigram;
    }
    epx_trainer_destroy(&trainer);
    return code;
}

Test(learning, tiny_beats_the_bigram_model)
{
    outcome_t outcome;
    cr_assert_eq(epx_config_preset("tiny", &outcome.config), 0);
    outcome.config.ep = 4;
    outcome.config.peak_flops = 1e11;
    outcome.config.group.transport = "ragged";
    cr_assert_eq(epx_ranks_run(4, run_rank, &outcome), EPX_TRAIN_OK, "%s", epx_train_error());
    cr_expect(outcome.validation < outcome.bigram, "validation loss %.4f, bigram model %.4f",
              outcome.validation, outcome.bigram);
    /* The bigram model itself is no straw man: English bytes take about 2.2 to 2.5 nats. */
    cr_expect(outcome.bigram > 2.0 && outcome.bigram < 2.5, "bigram model %.4f", outcome.bigram);
}
