/* epx-train: trains the reference model. SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <epx/record.h>

#include "links.h"
#include "math.h"
#include "need.h"
#include "options.h"
#include "output_file.h"
#include "status.h"
#include "train.h"

typedef struct job {
    const epx_train_config_t *config;
    FILE *metrics;           /* or NULL */
    FILE *talk;              /* where people read: stdout, or stderr with --json */
    double bigram;           /* 0: not computed yet, or not wanted */
    atomic_int verdict_code; /* what a verdict of the watchdog says to leave with; 0: none */
} job_t;

enum { SAVE = 1, SAVE_AND_STOP = 2 };

static atomic_int request; /* the strongest wish that no save has met yet */

static void on_signal(int number)
{
    int wanted = number == SIGTERM ? SAVE_AND_STOP : SAVE, before = request;
    while (before < wanted && !atomic_compare_exchange_weak(&request, &before, wanted))
        continue;
}

static void watch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
}

/* ---- what people read ------------------------------------------------------------------------------------------------ */

static void print_progress(const job_t *job, const epx_metrics_t *m)
{
    if (!isatty(STDERR_FILENO))
        return;
    double left = (double)(job->config->steps - m->step - 1) * m->step_ms * 1e-3;
    fprintf(stderr, "\rstep %lld/%lld  loss %.4f  %.0f ms  %.1f%% dropped  %.0f s left  \033[K",
            (long long)m->step + 1, (long long)job->config->steps, m->loss, m->step_ms,
            100 * m->drop_fraction, left);
    if (m->step + 1 == job->config->steps)
        fputs("\r\033[K", stderr);
}

/* About twenty lines for a run, and one for each evaluation. */
static void print_line(const job_t *job, const epx_metrics_t *m)
{
    int64_t each = job->config->steps / 20 > 0 ? job->config->steps / 20 : 1;
    if (job->config->json || (!m->evaluated && m->step % each != 0))
        return;
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
    printf("step %6lld  loss %.4f  grad norm %.3f  lr %.2e  %.1f ms  %.0f tokens/s  MFU %.2f%%  dropped "
           "%.3f%%\n",
           (long long)m->step, m->loss, m->grad_norm, m->rate, m->step_ms, m->tokens_per_s, 100 * m->mfu,
           100 * m->drop_fraction);
    if (m->evaluated) {
        printf("step %6lld  validation loss %.4f", (long long)m->step, m->validation_loss);
        if (m->bigram_loss > 0)
            printf("  (bigram model: %.4f)", m->bigram_loss);
        putchar('\n');
    }
    fflush(stdout);
}

static void print_start(const job_t *job, epx_trainer_t *trainer, const epx_metrics_t *m)
{
    const epx_train_config_t *c = job->config;
    int64_t ranks = c->ep * c->replicas;
    fprintf(job->talk,
            "epx-train %s: preset %s, %lld rank%s (%lld group%s of %lld), transport %s on fabric %s, "
            "products by %s, peak %.1f GFLOP/s%s, %.1f MB per rank\n",
            epx_version(), c->preset, (long long)ranks, ranks == 1 ? "" : "s", (long long)c->replicas,
            c->replicas == 1 ? "" : "s", (long long)c->ep, m->transport, m->fabric, epx_math_gemm_name(),
            epx_trainer_peak(trainer) * 1e-9, c->peak_flops > 0 ? "" : " measured",
            (double)m->peak_bytes * 1e-6);
}

static void report_step(job_t *job, epx_trainer_t *trainer, const epx_metrics_t *metrics, int first)
{
    if (first)
        print_start(job, trainer, metrics);
    if (job->metrics)
        epx_metrics_print(job->metrics, metrics);
    if (job->config->json) {
        epx_metrics_print(stdout, metrics);
        fflush(stdout);
    }
    print_line(job, metrics);
    print_progress(job, metrics);
}

/* ---- one rank -------------------------------------------------------------------------------------------------------- */

static int evaluate(job_t *job, epx_trainer_t *trainer, int64_t rank, epx_metrics_t *metrics)
{
    const epx_train_config_t *config = job->config;
    int64_t done = metrics->step + 1;
    if (done != config->steps && (config->eval_every == 0 || done % config->eval_every != 0))
        return EPX_TRAIN_OK;
    metrics->evaluated = 1;
    int code = epx_trainer_evaluate(trainer, &metrics->validation_loss);
    if (code == EPX_TRAIN_OK && rank == 0 && config->bigram && job->bigram == 0)
        code = epx_trainer_bigram(trainer, &job->bigram);
    metrics->bigram_loss = rank == 0 ? job->bigram : 0;
    return code;
}

static int save(const job_t *job, epx_trainer_t *trainer, int64_t rank)
{
    uint64_t hash = 0;
    int code = epx_trainer_save(trainer, job->config->checkpoint, &hash);
    if (code == EPX_TRAIN_OK && rank == 0) {
        fprintf(job->talk, "checkpoint %s: after %lld steps, hash %016llx\n", job->config->checkpoint,
                (long long)epx_trainer_steps_done(trainer), (unsigned long long)hash);
        fflush(job->talk);
    }
    return code;
}

/* Says once why a save failed: of the ranks that failed by themselves the first speaks. */
static int warn(epx_trainer_t *trainer, int64_t rank)
{
    int64_t mine = epx_train_followed() ? INT64_MIN : -rank, first = mine;
    char why[1024];
    snprintf(why, sizeof why, "%s", epx_train_error());
    int code = epx_trainer_agree(trainer, &first);
    if (code == EPX_TRAIN_OK && mine == first && mine != INT64_MIN)
        fprintf(stderr, "epx-train: warning: %s; training goes on\n", why);
    return code;
}

/* Saves if it is time or someone asked; *stop_p: 1 if someone asked to stop. A save that fails is counted in
 * *unsaved_p while there is training left to do, which is worth more than the file. */
static int heed(const job_t *job, epx_trainer_t *trainer, int64_t rank, int64_t done, int *stop_p,
                int64_t *unsaved_p)
{
    const epx_train_config_t *config = job->config;
    int64_t wanted = atomic_load(&request);
    int code = epx_trainer_agree(trainer, &wanted);
    if (code != EPX_TRAIN_OK)
        return code;
    int met = (int)wanted;
    if (wanted != 0)
        atomic_compare_exchange_strong(&request, &met, 0);
    int due =
        wanted != 0 || done == config->steps || (config->save_every > 0 && done % config->save_every == 0);
    int saved = EPX_TRAIN_OK;
    if (due && config->checkpoint)
        saved = save(job, trainer, rank);
    *stop_p = wanted == SAVE_AND_STOP;
    if (saved != EPX_TRAIN_OK && (*stop_p || done == config->steps))
        return saved;
    if (saved != EPX_TRAIN_OK) {
        code = warn(trainer, rank);
        ++*unsaved_p;
    }
    if (code == EPX_TRAIN_OK && wanted != 0 && rank == 0)
        fprintf(stderr, "epx-train: asked by a signal after %lld steps: %s, %s\n", (long long)done,
                !config->checkpoint     ? "nothing written because there is no --checkpoint FILE"
                : saved == EPX_TRAIN_OK ? "checkpoint written"
                                        : "checkpoint not written",
                *stop_p ? "stopped" : "going on");
    return code;
}

/* No step after this one could mend the parameters. The same on all ranks. */
static int check_finite(const epx_metrics_t *m)
{
    const double value[] = {m->loss, m->grad_norm, m->evaluated ? m->validation_loss : 0};
    static const char *const names[] = {"loss", "gradient's norm", "validation loss"};
    for (int i = 0; i < 3; i++)
        if (!isfinite(value[i]))
            return epx_train_fail(
                EPX_TRAIN_FAILED,
                "the %s of step %lld is %s, so training stopped: try a smaller --lr, a longer "
                "--warmup or a smaller --clip, from a checkpoint of before",
                names[i], (long long)m->step, isnan(value[i]) ? "not a number" : "infinite");
    return EPX_TRAIN_OK;
}

/* All ranks fail with this code. Who leaves with an error ends the calls of the others: nobody does before
 * rank 0 has come out of its own and reported the step. */
static int leave_together(epx_comm_h comm, int code)
{
    (void)epx_comm_barrier(comm); /* whom a faster one ends here has said all */
    return code;
}

static int train(job_t *job, epx_trainer_t *trainer, epx_comm_h comm, int64_t rank)
{
    const epx_train_config_t *config = job->config;
    int stop = 0, code = EPX_TRAIN_OK;
    int64_t first = epx_trainer_steps_done(trainer), unsaved = 0;
    for (int64_t step = first; code == EPX_TRAIN_OK && step < config->steps && !stop; step++) {
        epx_metrics_t metrics;
        code = epx_trainer_step(trainer, &metrics);
        int finite = code == EPX_TRAIN_OK ? check_finite(&metrics) : EPX_TRAIN_OK;
        if (code == EPX_TRAIN_OK && finite == EPX_TRAIN_OK)
            code = evaluate(job, trainer, rank, &metrics);
        if (code == EPX_TRAIN_OK && finite == EPX_TRAIN_OK)
            finite = check_finite(&metrics); /* what the step itself has made of the parameters */
        if (code == EPX_TRAIN_OK && rank == 0)
            report_step(job, trainer, &metrics, step == first);
        if (code == EPX_TRAIN_OK && finite != EPX_TRAIN_OK)
            code = leave_together(comm, finite);
        if (code == EPX_TRAIN_OK)
            code = heed(job, trainer, rank, step + 1, &stop, &unsaved);
    }
    /* Who leaves with an error ends the calls of the others: all have saved and said so by then. */
    if (code == EPX_TRAIN_OK && unsaved > 0)
        code = epx_trainer_agree(trainer, &unsaved);
    if (code == EPX_TRAIN_OK && unsaved > 0)
        code = epx_train_fail(EPX_TRAIN_FAILED,
                              "%lld checkpoint%s could not be written: see the warning%s, and check folder, "
                              "space and rights",
                              (long long)unsaved, unsaved == 1 ? "" : "s", unsaved == 1 ? "" : "s");
    return code;
}

enum { STOP_CODE = 77, PATIENCE_MS = 600, NAP_MS = 20 };

/* What the watchdog says of a run that has failed. Calls end at once when a process is gone, and it is named
 * within half a second: who is a process waits to hear that. A call that has timed out has waited enough. */
static epx_verdict_t hear(epx_comm_h comm)
{
    epx_verdict_t verdict = EPX_VERDICT_INIT;
    int32_t rank, size = 1;
    (void)epx_comm_launched(&rank, &size);
    int32_t patience_ms = size > 1 && epx_train_lost_peer() ? PATIENCE_MS : 0;
    for (int32_t waited = 0;; waited += NAP_MS) {
        epx_record_verdict(epx_comm_recorder(comm), &verdict);
        int is_said = verdict.kind != EPX_VERDICT_NONE && verdict.kind != EPX_VERDICT_SLOW;
        if (is_said || waited >= patience_ms)
            return verdict;
        nanosleep(&(struct timespec){.tv_nsec = NAP_MS * 1000000}, NULL);
    }
}

static int run_rank(epx_comm_h comm, int64_t rank, void *context)
{
    job_t *job = context;
    epx_trainer_t *trainer = NULL;
    epx_health_follow_h follow = NULL;
    uint64_t hash = 0;
    int code = epx_trainer_create(job->config, comm, &trainer);
    if (code == EPX_TRAIN_OK)
        code = epx_train_links_begin(job->config, comm, rank, &follow);
    if (code == EPX_TRAIN_OK)
        code = epx_trainer_open_group(trainer, &job->config->group);
    if (code == EPX_TRAIN_OK && job->config->restore)
        code = epx_trainer_restore(trainer, job->config->restore, &hash);
    if (code == EPX_TRAIN_OK && job->config->restore && rank == 0)
        fprintf(job->talk, "restored %s: %lld steps done, hash %016llx\n", job->config->restore,
                (long long)epx_trainer_steps_done(trainer), (unsigned long long)hash);
    if (code == EPX_TRAIN_OK)
        code = train(job, trainer, comm, rank);
    epx_verdict_t verdict = EPX_VERDICT_INIT;
    if (code != EPX_TRAIN_OK)
        verdict = hear(comm);
    /* What a check of this rank has found needs no watchdog to be so. */
    if (code != EPX_TRAIN_OK && epx_train_must_stop())
        job->verdict_code = STOP_CODE;
    else if (verdict.exit_code != 0)
        job->verdict_code = verdict.exit_code;
    epx_health_unfollow(&follow);
    epx_trainer_destroy(&trainer);
    return code;
}

/* ---- the program ----------------------------------------------------------------------------------------------------- */

/* What --help and --version have printed: lost lines are a failure, as in every program of epx. */
static int end_of_text(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return EPX_TRAIN_OK;
    fprintf(stderr, "epx-train: cannot write the output: %s\n", strerror(errno));
    return EPX_TRAIN_FAILED;
}

static int print_help(void)
{
    printf("epx-train [OPTION ...]: trains a small mixture-of-experts language model over several ranks\n\n"
           "  --help, --version\n");
    epx_options_help(stdout);
    printf("\nRanks are threads of this process, or one process each under mpirun, srun, torchrun, or "
           "EPX_RANK,\n"
           "EPX_WORLD_SIZE and EPX_ROOT; then rank 0 writes all files and lines.\n"
           "The exchange is set by EPX_TRANSPORT, EPX_CAPACITY_FACTOR and the other EPX_ variables (epx-info "
           "-c).\n"
           "SIGUSR1 writes the checkpoint and goes on, SIGTERM writes it and stops.\n"
           "Exit: 0 done, 1 failed, 2 bad usage; after a hang that the watchdog named: 75 a foreign kernel "
           "was stuck, 76 a host or link was lost, 77 going on would be wrong (also where a check has found "
           "that), 78 not named.\n");
    return end_of_text();
}

static int complain(int code)
{
    int32_t rank = 0, size = 1;
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
    (void)epx_comm_launched(&rank, &size);
    if (size > 1)
        fprintf(stderr, "epx-train: rank %d: %s\n", rank, epx_train_error());
    else
        fprintf(stderr, "epx-train: %s\n", epx_train_error());
    return code;
}

/* That everything can be written, before anything is computed; opens the metrics. */
static int check_outputs(job_t *job)
{
    const epx_train_config_t *config = job->config;
    if ((config->checkpoint && epx_output_check("checkpoint", config->checkpoint) != EPX_TRAIN_OK) ||
        (config->record_routing && epx_output_check("routing", config->record_routing) != EPX_TRAIN_OK))
        return EPX_TRAIN_USAGE;
    if (config->metrics && !(job->metrics = fopen(config->metrics, "w")))
        return epx_train_fail(EPX_TRAIN_USAGE, "cannot write the metrics %s (%s): give another file",
                              config->metrics, strerror(errno));
    return EPX_TRAIN_OK;
}

static int run_job(const epx_train_config_t *config)
{
    job_t job = {.config = config, .talk = config->json ? stderr : stdout};
    int32_t rank = 0, launched = 1;
    if (epx_train_status(epx_comm_launched(&rank, &launched)) != EPX_TRAIN_OK)
        return complain(EPX_TRAIN_USAGE);
    int needed = epx_need_check(config, launched);
    if (needed != EPX_TRAIN_OK)
        return complain(needed);
    if (rank == 0 && check_outputs(&job) != EPX_TRAIN_OK)
        return complain(EPX_TRAIN_USAGE);
    watch_signals();
    int code = epx_ranks_run(config->ep * config->replicas, run_rank, &job);
    if (job.metrics && fclose(job.metrics) != 0 && code == EPX_TRAIN_OK)
        code = epx_train_fail(EPX_TRAIN_FAILED, "cannot write all of the metrics %s: check the space",
                              config->metrics);
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == EPX_TRAIN_OK)
        code = epx_train_fail(EPX_TRAIN_FAILED, "cannot write all of standard output: check the space");
    if (code == EPX_TRAIN_OK)
        return 0;
    complain(code);
    return code == EPX_TRAIN_FAILED && job.verdict_code != 0 ? job.verdict_code : code;
}

int main(int argc, char **argv)
{
    epx_train_config_t config;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0)
            return print_help();
        if (strcmp(argv[i], "--version") == 0) {
            printf("epx-train %s\n", epx_version());
            return end_of_text();
        }
    }
    if (epx_options_parse(argc, argv, &config) != EPX_TRAIN_OK || epx_config_check(&config) != EPX_TRAIN_OK)
        return complain(EPX_TRAIN_USAGE);
    return run_job(&config);
}
