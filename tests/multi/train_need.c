/* What a run needs is known before anything is taken. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include "train/trainer.h"
#include "train_runs.h"

/* Pieces begin at multiples of 64 bytes. */
static int64_t padded(int64_t reals) { return (reals * (int64_t)sizeof(epx_real_t) + 63) / 64 * 64; }

static int compare_rank(epx_comm_h comm, int64_t rank, void *context)
{
    const run_t *run = context;
    const epx_train_config_t *c = &run->config;
    epx_trainer_t *trainer = NULL;
    int64_t told = 0, rows = -1, waves = -1;
    int code = epx_trainer_create(c, comm, &trainer);
    if (code == EPX_TRAIN_OK)
        code = epx_trainer_open_group(trainer, &c->group);
    if (code != EPX_TRAIN_OK)
        return code;
    const epx_exchange_t *exchange = trainer->exchange;
    epx_exchange_shape_t shape = {.layers = c->model.layers,
                                  .experts = c->model.experts,
                                  .top_k = c->model.top_k,
                                  .width = epx_config_row_width(&c->model),
                                  .tokens_max = c->batch * c->model.sequence};
    epx_exchange_expect(&shape, &c->group, (int)c->recompute, (int32_t)c->ep, &rows, &waves);
    cr_expect(rows == exchange->rows_max && waves == exchange->waves_max, "%d rows in %d waves, not %d in %d",
              (int)rows, (int)waves, (int)exchange->rows_max, (int)exchange->waves_max);
    int64_t taken = trainer->model->arena.bytes + trainer->model->wave_arena.bytes +
                    padded(2 * trainer->model->params.count);
    code =
        epx_model_bytes(&c->model, c->batch, exchange->local_experts, rows, waves, (int)c->recompute, &told);
    cr_expect_eq(told, taken, "rank %d: told %d, taken %d", (int)rank, (int)told, (int)taken);
    epx_trainer_destroy(&trainer);
    return code;
}

Test(train_need, what_is_told_is_what_is_taken)
{
    static const char *const transports[] = {"ragged", "pooled_wave", "ring"};
    for (int i = 0; i < 6; i++) {
        run_t run = run_small(transports[i % 3], 3, 1, 2); /* 3, 2 and 2 experts */
        run.config.recompute = i / 3;
        run.config.model.gate = i % 2;
        run.config.model.latent = i % 2 ? 9 : 0;
        cr_expect_eq(epx_ranks_run(3, compare_rank, &run), EPX_TRAIN_OK, "%s", epx_train_error());
    }
}
