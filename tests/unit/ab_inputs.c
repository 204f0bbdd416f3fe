/* What epx-ab is told: arms, the order of runs, records of other programs. SPDX-License-Identifier:
 * Apache-2.0 */
#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/ab/arms.h"
#include "bench/ab/record.h"
#include "bench/ab/schedule.h"
#include "support/folder.h"

/* ---- arms ------------------------------------------------------------------------------------------------------------ */

static epx_ab_arm_t arm[EPX_AB_ARMS];
static int32_t arms;
static char problem[400];

static int read_arms(const char *text)
{
    arms = 0;
    return epx_ab_read_arms(text, arm, &arms, problem, sizeof problem);
}

Test(ab_arms, a_list_with_settings)
{
    cr_assert_eq(read_arms("pooled_wave:waves=4:sender_factor=1.3:capacity_factor=dropless,ragged:accept="
                           "fair:wire=rank,ring"),
                 0);
    cr_assert_eq(arms, 3);
    cr_assert_str_eq(arm[0].transport, "pooled_wave");
    cr_assert_str_eq(arm[0].name, "pooled_wave:waves=4:sender_factor=1.3:capacity_factor=dropless");
    cr_assert_eq(arm[0].config.waves, 4);
    cr_assert_eq(arm[0].config.sender_factor, 1.3);
    cr_assert_eq(arm[0].config.capacity_factor, EPX_DROPLESS);
    cr_assert_eq(arm[1].config.accept, EPX_ACCEPT_FAIR);
    cr_assert_eq(arm[1].config.wire, EPX_WIRE_RANK);
    cr_assert_eq(arm[2].config.capacity_factor, 0);
}

Test(ab_arms, the_same_arm_twice_gets_a_number)
{
    cr_assert_eq(read_arms("ragged,ragged,ragged:waves=4,ragged"), 0);
    cr_assert_str_eq(arm[0].name, "ragged");
    cr_assert_str_eq(arm[1].name, "ragged#2");
    cr_assert_str_eq(arm[2].name, "ragged:waves=4");
    cr_assert_str_eq(arm[3].name, "ragged#3");
}

Test(ab_arms, a_plug_in_is_called_by_the_last_part_of_its_path)
{
    cr_assert_eq(read_arms("/opt/some/where/libmine.so:waves=2,ragged"), 0);
    cr_assert_str_eq(arm[0].transport, "/opt/some/where/libmine.so");
    cr_assert_str_eq(arm[0].name, "libmine.so:waves=2");
}

Test(ab_arms, a_text_without_end)
{
    char text[2 * EPX_AB_PATH];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    cr_assert_neq(read_arms(text), 0);
    cr_assert_not_null(strstr(problem, "too long"));
}

Test(ab_arms, what_cannot_be_read)
{
    static const struct {
        const char *list, *says;
    } bad[] = {
        {"ragged,", "empty"},
        {"ragged:wave=3", "did you mean waves"},
        {"ragged:waves", "not understood"},
        {"ragged:waves=0", "waves=0"},
        {"ragged:waves=x", "waves=x"},
        {"ragged:accept=best", "accept=best"},
        {"ragged:fabric=ucx", "fabric"},
        {"pooled_wave:sender_factor=-1", "sender_factor=-1"},
        {"a,b,c,d,e,f,g,h,i", "more than 8"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_assert_neq(read_arms(bad[i].list), 0, "%s", bad[i].list);
        cr_assert_not_null(strstr(problem, bad[i].says), "%s: %s", bad[i].list, problem);
    }
}

Test(ab_arms, commands)
{
    arms = 0;
    cr_assert_eq(epx_ab_read_command("a=EPX_TRANSPORT=ring ./job --x=1", arm, &arms, problem, sizeof problem),
                 0);
    cr_assert_str_eq(arm[0].name, "a");
    cr_assert_str_eq(arm[0].command, "EPX_TRANSPORT=ring ./job --x=1");
    cr_assert_neq(epx_ab_read_command("./job", arm, &arms, problem, sizeof problem), 0);
    cr_assert_neq(epx_ab_read_command("a=", arm, &arms, problem, sizeof problem), 0);
    cr_assert_neq(epx_ab_read_command("=x", arm, &arms, problem, sizeof problem), 0);
}

Test(ab_arms, capacities_are_scaled_together)
{
    read_arms("pooled_wave,ragged:capacity_factor=2");
    for (int32_t a = 0; a < 2; a++)
        arm[a].config.transport = arm[a].transport;
    epx_group_config_t pooled = epx_ab_scaled(&arm[0].config, 2), ragged = epx_ab_scaled(&arm[1].config, 1.5);
    cr_assert_float_eq(pooled.capacity_factor, 2.3, 1e-12);
    cr_assert_float_eq(pooled.sender_factor, 2.3, 1e-12);
    cr_assert_float_eq(ragged.capacity_factor, 3, 1e-12);
    cr_assert_eq(ragged.sender_factor, 0, "ragged has no sender's gate");
}

/* ---- order ----------------------------------------------------------------------------------------------------------- */

/* Two arms, two pairs: A A' B, then (reference) and backwards: B' B A. */
Test(ab_schedule, pairs_alternate_with_a_a_pairs_among_them)
{
    const int32_t none[2] = {0, 0};
    epx_ab_item_t items[16];
    cr_assert_eq(epx_ab_schedule_rounds(2, 2, none, none, items), 7);
    static const epx_ab_item_t expected[] = {
        {0, EPX_AB_PLAIN, 0}, {0, EPX_AB_AGAIN, 0}, {1, EPX_AB_PLAIN, 0}, {-1, EPX_AB_REFERENCE, 1},
        {1, EPX_AB_AGAIN, 1}, {1, EPX_AB_PLAIN, 1}, {0, EPX_AB_PLAIN, 1},
    };
    for (int i = 0; i < 7; i++) {
        cr_assert_eq(items[i].arm, expected[i].arm, "item %d", i);
        cr_assert_eq(items[i].part, expected[i].part, "item %d", i);
        cr_assert_eq(items[i].round, expected[i].round, "item %d", i);
    }
}

Test(ab_schedule, every_arm_runs_once_in_every_round)
{
    const int32_t drops[3] = {1, 0, 0}, memory[3] = {1, 1, 0};
    epx_ab_item_t items[5 * 11];
    int32_t count = epx_ab_schedule_rounds(3, 5, drops, memory, items), seen[3][EPX_AB_PARTS] = {{0}},
            again = 0;
    for (int32_t i = 0; i < count; i++) {
        if (items[i].arm < 0)
            continue;
        seen[items[i].arm][items[i].part]++;
        again += items[i].part == EPX_AB_AGAIN;
    }
    for (int a = 0; a < 3; a++) {
        cr_assert_eq(seen[a][EPX_AB_PLAIN], 5);
        cr_assert_eq(seen[a][EPX_AB_EQUAL_DROPS], 5 * drops[a]);
        cr_assert_eq(seen[a][EPX_AB_EQUAL_MEMORY], 5 * memory[a]);
        cr_assert(seen[a][EPX_AB_AGAIN] >= 1 && seen[a][EPX_AB_AGAIN] <= 2);
    }
    cr_assert_eq(again, 5);
}

Test(ab_schedule, twins_follow_the_reference)
{
    epx_ab_item_t items[4];
    cr_assert_eq(epx_ab_schedule_twins(3, items), 4);
    cr_assert_eq(items[0].part, EPX_AB_REFERENCE);
    for (int i = 1; i < 4; i++)
        cr_assert(items[i].part == EPX_AB_TWIN && items[i].arm == i - 1);
}

/* ---- records --------------------------------------------------------------------------------------------------------- */

static const epx_ab_run_t *run_of(const epx_ab_record_t *record, int32_t discard, epx_ab_result_t *result)
{
    epx_ab_record_run(record, discard, result, 0, EPX_AB_PLAIN, 0);
    return &result->run[result->runs - 1];
}

Test(ab_record, step_lines_among_other_output)
{
    epx_ab_record_t record = {.steps = 0};
    epx_ab_result_t result = {.arms = 1};
    epx_ab_record_line(&record, "loading ...");
    epx_ab_record_line(&record, "{\"event\": \"start\"}");
    epx_ab_record_line(
        &record, "{\"step\": 7, \"loss\": 2.5, \"step_ms\": 10, \"mfu\": 0.25, \"mfu_executed\": 0.2, "
                 "\"drop_fraction\": 0.05, \"sender_drop_fraction\": 0.03, \"receiver_drop_fraction\": 0.02, "
                 "\"peak_bytes\": 1000, \"transport\": \"ring\", \"fabric\": \"local\"}");
    epx_ab_record_line(&record, "{\"step\": 8, \"loss\": null, \"step_ms\": 12, \"transport\": \"ring\"}\n");
    epx_ab_record_line(&record, "{\"step\": 9, ");
    const epx_ab_run_t *run = run_of(&record, 1, &result);
    cr_assert_eq(run->steps, 2);
    cr_assert(run->step[0].discarded && !run->step[1].discarded);
    cr_assert_eq(run->step[0].step, 7);
    cr_assert_eq(run->step[0].loss, 2.5);
    cr_assert_eq(run->step[0].mfu_executed, 0.2);
    cr_assert_eq(run->step[0].peak_bytes, 1000);
    cr_assert_float_eq(epx_ab_drop_fraction(&run->step[0].count), 0.05, 1e-9);
    cr_assert(run->fractions);
    cr_assert(isnan(run->step[1].loss) && isnan(run->step[1].mfu));
    cr_assert_eq(run->step[1].count.valid, -1);
    cr_assert_str_eq(run->transport, "ring");
    cr_assert_str_eq(run->accounting, "-");
    epx_ab_record_free(&record);
    epx_ab_free(&result);
}

static void write_file(const char *folder, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    fputs(text, file);
    fclose(file);
}

#define STATS(rank, routed, kept, dropped, sent, received)                                 \
    "{\"step\": 0, \"group\": \"g\", \"rank\": " #rank                                     \
    ", \"transport\": \"ragged\", \"fabric\": \"local\", \"routed\": " #routed             \
    ", \"skipped\": 0, \"kept\": " #kept ", \"spilled\": 0, \"dropped_sender\": " #dropped \
    ", \"dropped_receiver\": 0, \"sent_bytes\": " #sent ", \"received_bytes\": " #received \
    ", \"wait_ms\": 1.5}\n"

/* Two ranks, two steps: 100 + 100 routed, 90 + 95 kept, 15 dropped; sent = received = 300. */
Test(ab_record, library_lines_of_all_ranks_are_summed)
{
    char folder[FOLDER_BYTES];
    epx_ab_record_t record = {.steps = 0};
    epx_ab_result_t result = {.arms = 1};
    folder_make(folder, "/tmp");
    write_file(folder, "g-rank0.jsonl", STATS(0, 100, 90, 10, 100, 200) STATS(0, 100, 100, 0, 100, 200));
    write_file(folder, "g-rank1.jsonl", STATS(1, 100, 95, 5, 200, 100) STATS(1, 100, 100, 0, 200, 100));
    write_file(folder, "other.txt", "not read");
    cr_assert_eq(epx_ab_record_folder(&record, folder), 2);
    const epx_ab_run_t *run = run_of(&record, 0, &result);
    cr_assert_eq(run->steps, 2);
    cr_assert_eq(run->step[0].count.valid, 200);
    cr_assert_eq(run->step[0].count.kept, 185);
    cr_assert_eq(run->step[0].count.dropped_sender, 15);
    cr_assert_eq(run->step[1].count.dropped_sender, 0);
    cr_assert_eq(run->step[0].sent_bytes, 300);
    cr_assert_eq(run->step[0].received_bytes, 300);
    cr_assert_str_eq(run->accounting, "");
    cr_assert_str_eq(run->transport, "ragged");
    cr_assert(isnan(run->step[0].loss) && !run->fractions);
    epx_ab_record_free(&record);
    epx_ab_free(&result);
    cr_assert_eq(folder_remove(folder), 0, "%s stays", folder);
}

Test(ab_record, a_sum_that_does_not_add_up)
{
    char folder[FOLDER_BYTES];
    epx_ab_record_t record = {.steps = 0};
    epx_ab_result_t result = {.arms = 1};
    folder_make(folder, "/tmp");
    write_file(folder, "g-rank0.jsonl", STATS(0, 100, 90, 10, 0, 0));
    write_file(folder, "g-rank1.jsonl", STATS(1, 100, 95, 4, 0, 0));
    epx_ab_record_folder(&record, folder);
    cr_assert_not_null(strstr(run_of(&record, 0, &result)->accounting, "200 routed, but 185 kept + 14"));
    epx_ab_record_free(&record);
    epx_ab_free(&result);
    cr_assert_eq(folder_remove(folder), 0, "%s stays", folder);
}

Test(ab_record, a_rank_that_wrote_less)
{
    char folder[FOLDER_BYTES];
    epx_ab_record_t record = {.steps = 0};
    epx_ab_result_t result = {.arms = 1};
    folder_make(folder, "/tmp");
    write_file(folder, "g-rank0.jsonl", STATS(0, 100, 100, 0, 0, 0) STATS(0, 100, 100, 0, 0, 0));
    write_file(folder, "g-rank1.jsonl", STATS(1, 100, 100, 0, 0, 0));
    epx_ab_record_folder(&record, folder);
    cr_assert_not_null(strstr(run_of(&record, 0, &result)->accounting, "step 2 was written by 1 of 2 ranks"));
    epx_ab_record_free(&record);
    epx_ab_free(&result);
    cr_assert_eq(folder_remove(folder), 0, "%s stays", folder);
}
