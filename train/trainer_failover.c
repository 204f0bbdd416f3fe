/* A step that survives a stall: the group goes on with another transport, the step is done again.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Nothing of a step changes parameters before all its exchanges are done, and its inputs are kept until then.
 * So all ranks meet behind the exchanges, on a comm that is for this alone: a rank whose exchange has failed
 * ends that comm, which ends the meeting for those who are there already. Then everybody recovers its group
 * with the transport that EPX_ON_HANG names, makes a new comm to meet on, clears the gradients and begins the
 * step again.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <epx/info.h>
#include <epx/record.h>

#include "trainer.h"

/* How often a job may lose a transport, and how long a rank whose call was ended waits to hear why. */
enum { FAILOVERS_MAX = 8, PATIENCE_MS = 6000, NAP_MS = 20 };

static void find_wish(void *context, const epx_setting_t *setting)
{
    int *wanted = context;
    if (strcmp(setting->variable, "EPX_ON_HANG") == 0 && strncmp(setting->value, "failover:", 9) == 0)
        *wanted = 1;
}

int epx_trainer_failover_begin(epx_trainer_t *trainer)
{
    int wanted = 0;
    epx_config_list(NULL, find_wish, &wanted);
    if (!wanted)
        return EPX_TRAIN_OK;
    return epx_train_status(
        epx_comm_split(trainer->ranks.world, 0, (int32_t)trainer->ranks.rank, &trainer->step_comm));
}

/* The watchdog's verdict, when it has one. */
static epx_verdict_t hear(const epx_trainer_t *trainer)
{
    epx_verdict_t verdict = EPX_VERDICT_INIT;
    epx_recorder_h recorder = epx_comm_recorder(trainer->ranks.world);
    for (int waited = 0; waited < PATIENCE_MS; waited += NAP_MS) {
        epx_record_verdict(recorder, &verdict);
        if (verdict.kind != EPX_VERDICT_NONE && verdict.kind != EPX_VERDICT_SLOW)
            break;
        nanosleep(&(struct timespec){.tv_nsec = NAP_MS * 1000000}, NULL);
    }
    return verdict;
}

static int recover(epx_trainer_t *trainer, const char *what, const epx_verdict_t *verdict)
{
    epx_model_t *model = trainer->model;
    epx_model_attach(model, NULL, 0);
    int code = trainer->exchange->ops->recover(trainer->exchange, verdict->failover);
    if (code == EPX_TRAIN_OK)
        code = epx_model_attach(model, trainer->exchange, (int)trainer->config->recompute);
    epx_comm_destroy(&trainer->step_comm);
    if (code == EPX_TRAIN_OK)
        code = epx_train_status(
            epx_comm_split(trainer->ranks.world, 0, (int32_t)trainer->ranks.rank, &trainer->step_comm));
    memset(model->gradient, 0, (size_t)model->params.count * sizeof *model->gradient);
    if (code == EPX_TRAIN_OK && trainer->ranks.rank == 0)
        fprintf(stderr,
                "epx-train: step %lld: %s of rank %d, %s wave %d; the group goes on with transport %s and "
                "the %s is done again\n",
                (long long)trainer->progress.step, epx_verdict_name(verdict->kind), verdict->rank,
                verdict->op, verdict->wave, trainer->exchange->transport, what);
    return code;
}

int epx_trainer_failover_done(epx_trainer_t *trainer, const char *what, int code, int *again_p)
{
    *again_p = 0;
    if (!trainer->step_comm)
        return code;
    if (code == EPX_TRAIN_OK)
        code = epx_train_status(epx_comm_barrier(trainer->step_comm));
    else
        epx_comm_abort(trainer->step_comm);
    if (code == EPX_TRAIN_OK || trainer->failovers >= FAILOVERS_MAX)
        return code;
    epx_verdict_t verdict = hear(trainer);
    if (verdict.failover[0] == '\0')
        return code;
    trainer->failovers++;
    code = recover(trainer, what, &verdict);
    *again_p = code == EPX_TRAIN_OK;
    return code;
}
