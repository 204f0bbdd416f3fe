/* Checkpoints and copies in memory: what comes back, over how many ranks, and what is refused.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train_runs.h"

static run_t six_steps(int64_t ep, int64_t replicas, int64_t batch)
{
    run_t run = run_small("ragged", ep, replicas, batch);
    run.config.group.capacity_factor = EPX_DROPLESS;
    run.config.balance = EPX_BALANCE_BIAS;
    return run;
}

/* Three steps that end in a checkpoint. */
static run_t saved(int64_t ep, int64_t replicas, int64_t batch, const char *path)
{
    run_t run = six_steps(ep, replicas, batch);
    run.steps = 3;
    run.config.checkpoint = path;
    run_well(&run);
    cr_assert_neq(run.hash, 0);
    return run;
}

static run_t restored(int64_t ep, int64_t replicas, int64_t batch, const char *path)
{
    run_t run = six_steps(ep, replicas, batch);
    run.steps = 3;
    run.config.restore = path;
    return run;
}

Test(train_checkpoint, restored_run_goes_on_bit_by_bit)
{
    const char *path = run_path("checkpoint");
    run_t whole = six_steps(2, 2, 3), first = saved(2, 2, 3, path), second = restored(2, 2, 3, path);
    run_well(&whole);
    run_well(&second);
    cr_expect_eq(second.hash, first.hash);
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(second.step[i].step, 3 + i);
        cr_expect_eq(second.step[i].loss, whole.step[3 + i].loss);
        cr_expect_eq(second.step[i].grad_norm, whole.step[3 + i].grad_norm);
    }
    cr_expect_eq(second.validation, whole.validation);
}

Test(train_checkpoint, restores_over_another_number_of_ranks)
{
    static const int64_t shapes[][3] = {{1, 1, 12}, {3, 1, 4}, {2, 2, 3}, {1, 4, 3}};
    const char *path = run_path("checkpoint");
    run_t whole = six_steps(4, 1, 3);
    saved(4, 1, 3, path);
    run_well(&whole);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        run_t second = restored(shapes[s][0], shapes[s][1], shapes[s][2], path);
        run_well(&second);
        for (int i = 0; i < 3; i++)
            cr_expect(fabs(second.step[i].loss / whole.step[3 + i].loss - 1) < 1e-5,
                      "%d ranks: %.9g and %.9g", (int)(shapes[s][0] * shapes[s][1]), second.step[i].loss,
                      whole.step[3 + i].loss);
    }
}

/* The file does not depend on who wrote it. */
Test(train_checkpoint, equal_models_have_equal_hashes)
{
    run_t a = six_steps(2, 1, 2), b = six_steps(2, 1, 2);
    a.config.checkpoint = run_path("a");
    b.config.checkpoint = run_path("b");
    run_well(&a);
    run_well(&b);
    cr_expect_eq(a.hash, b.hash);
    run_t moved = restored(3, 1, 2, a.config.checkpoint);
    moved.steps = 0;
    moved.config.checkpoint = run_path("c");
    run_well(&moved);
    cr_expect_eq(moved.hash, a.hash);
}

static void expect_refused(const run_t *run, int code, const char *word)
{
    run_t again = *run;
    cr_expect_eq(run_go(&again), code, "not refused for: %s", word);
    cr_expect(strstr(epx_train_error(), word), "'%s' says nothing of '%s'", epx_train_error(), word);
}

static void change_byte(const char *path, long at)
{
    FILE *stream = fopen(path, "r+b");
    fseek(stream, at, at < 0 ? SEEK_END : SEEK_SET);
    int byte = fgetc(stream);
    fseek(stream, at, at < 0 ? SEEK_END : SEEK_SET);
    fputc(byte ^ 4, stream);
    fclose(stream);
}

Test(train_checkpoint, damaged_cut_and_foreign_files_are_refused)
{
    const char *path = run_path("checkpoint");
    run_t again = restored(3, 1, 2, path);
    expect_refused(&again, EPX_TRAIN_USAGE, "cannot read");
    saved(2, 1, 3, path);
    change_byte(path, -1000);
    expect_refused(&again, EPX_TRAIN_USAGE, "checksum of section");
    saved(2, 1, 3, path);
    change_byte(path, 40);
    expect_refused(&again, EPX_TRAIN_USAGE, "damaged header");
    saved(2, 1, 3, path);
    struct stat status;
    cr_assert_eq(stat(path, &status), 0);
    cr_assert_eq(truncate(path, status.st_size - 1), 0);
    expect_refused(&again, EPX_TRAIN_USAGE, "cut");
    cr_assert_eq(truncate(path, 10), 0);
    expect_refused(&again, EPX_TRAIN_USAGE, "too short");
    FILE *stream = fopen(path, "wb");
    for (int i = 0; i < 1000; i++)
        fputs("foreign ", stream);
    fclose(stream);
    expect_refused(&again, EPX_TRAIN_USAGE, "no checkpoint");
}

Test(train_checkpoint, other_models_and_seeds_are_refused_by_name)
{
    const char *path = run_path("checkpoint");
    run_t again = restored(2, 1, 3, path);
    saved(2, 1, 3, path);
    again.config.model.experts = 8;
    expect_refused(&again, EPX_TRAIN_USAGE, "--experts 7 and this run has --experts 8");
    again = restored(2, 1, 3, path);
    again.config.model.top_k = 2;
    expect_refused(&again, EPX_TRAIN_USAGE, "--top-k 3");
    again = restored(2, 1, 3, path);
    again.config.seed = 9;
    expect_refused(&again, EPX_TRAIN_USAGE, "--seed 1");
    again = restored(2, 1, 3, path);
    again.config.model.sequence = 30; /* no tensor depends on it */
    cr_expect_eq(run_go(&again), 0, "%s", epx_train_error());
}

Test(train_checkpoint, failed_save_leaves_what_was_there)
{
    run_t run = six_steps(2, 1, 3);
    run.steps = 1;
    run.config.checkpoint = "/no/such/folder/checkpoint";
    expect_refused(&run, EPX_TRAIN_FAILED, "cannot create the checkpoint /no/such/folder");
    const char *path = run_path("checkpoint");
    run_t first = saved(2, 1, 3, path);
    char partial[256];
    snprintf(partial, sizeof partial, "%s.partial", path);
    cr_expect_neq(access(partial, F_OK), 0, "a partial file stays");
    cr_assert_eq(mkdir(partial, 0700), 0); /* stands in the way of the next save */
    run.config.checkpoint = path;
    expect_refused(&run, EPX_TRAIN_FAILED, "cannot create");
    run_t again = restored(2, 1, 3, path);
    run_well(&again);
    cr_expect_eq(again.hash, first.hash);
    rmdir(partial);
}

/* ---- copies in memory, as epx-ab uses them --------------------------------------------------------------------------- */

typedef struct arms {
    run_t run;
    double loss[3][3];
    uint64_t digest[3];
} arms_t;

static int go_through_arms(epx_comm_h comm, int64_t rank, void *context)
{
    arms_t *arms = context;
    const char *const transports[] = {"ragged", "ring", "ragged"};
    epx_trainer_t *trainer = NULL;
    epx_snapshot_t *snapshot = NULL;
    epx_metrics_t metrics;
    int code = epx_trainer_create(&arms->run.config, comm, &trainer);
    if (code == EPX_TRAIN_OK)
        code = epx_trainer_open_group(trainer, &arms->run.config.group);
    if (code == EPX_TRAIN_OK)
        code = epx_trainer_step(trainer, &metrics);
    if (code == EPX_TRAIN_OK)
        code = epx_trainer_snapshot(trainer, &snapshot);
    for (int arm = 0; code == EPX_TRAIN_OK && arm < 3; arm++) {
        epx_group_config_t settings = arms->run.config.group;
        settings.transport = transports[arm];
        uint64_t digest = 0;
        epx_trainer_rewind(trainer, snapshot);
        code = epx_trainer_open_group(trainer, &settings);
        for (int step = 0; code == EPX_TRAIN_OK && step < 3; step++) {
            code = epx_trainer_step(trainer, &metrics);
            if (code == EPX_TRAIN_OK && step == 0)
                code = epx_trainer_routing_digest(trainer, &digest);
            if (rank == 0)
                arms->loss[arm][step] = metrics.loss;
        }
        if (rank == 0)
            arms->digest[arm] = digest;
    }
    epx_snapshot_destroy(&snapshot);
    epx_trainer_destroy(&trainer);
    return code;
}

Test(train_checkpoint, arms_start_from_the_same_copy)
{
    arms_t arms = {.run = six_steps(3, 1, 2)};
    cr_assert_eq(epx_ranks_run(3, go_through_arms, &arms), 0, "%s", epx_train_error());
    cr_expect_eq(arms.digest[0], arms.digest[1]);
    cr_expect_eq(arms.digest[0], arms.digest[2]);
    for (int step = 0; step < 3; step++) {
        cr_expect_eq(arms.loss[0][step], arms.loss[2][step]);
        cr_expect(fabs(arms.loss[0][step] / arms.loss[1][step] - 1) < 1e-5);
    }
}
