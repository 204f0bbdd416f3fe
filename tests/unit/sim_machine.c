/* Machine files of the cost model. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/common/machine.h"

static char problem[1024], path[] = "/tmp/epx-machine-XXXXXX";

/* A machine with a value and a source for everything. */
static epx_machine_t made_up(void)
{
    epx_machine_t machine = {.name = "made up", .summary = "for a test"};
    for (int i = 0; i < EPX_CONSTANTS; i++) {
        const epx_constant_row_t *row = epx_constant_row((epx_constant_t)i);
        machine.value[i] = row->hi / 3;
        snprintf(machine.source[i], sizeof machine.source[i], "\"invented\" %d", i);
    }
    return machine;
}

static char *text_of(const epx_machine_t *machine)
{
    static char text[1 << 16];
    cr_assert_eq(epx_machine_write(path, machine, problem, sizeof problem), 0, "%s", problem);
    FILE *stream = fopen(path, "r");
    text[fread(text, 1, sizeof text - 1, stream)] = '\0';
    fclose(stream);
    return text;
}

/* Replaces `old` in the file of a good machine and expects a problem that has `wanted` in it. */
static void expect_problem(const char *old, const char *new, const char *wanted)
{
    epx_machine_t machine = made_up();
    char *text = text_of(&machine), *at = strstr(text, old);
    cr_assert_not_null(at, "%s", old);
    FILE *stream = fopen(path, "w");
    fprintf(stream, "%.*s%s%s", (int)(at - text), text, new, at + strlen(old));
    fclose(stream);
    cr_assert_eq(epx_machine_read(path, &machine, problem, sizeof problem), -1, "%s", new);
    cr_assert(strstr(problem, wanted) != NULL, "%s gives: %s", new, problem);
    cr_assert(strstr(problem, path) != NULL, "%s", problem);
}

static void open_path(void) { close(mkstemp(path)); }
static void remove_path(void) { unlink(path); }

Test(sim_machine, comes_back_as_it_was_written, .init = open_path, .fini = remove_path)
{
    epx_machine_t machine = made_up(), back;
    text_of(&machine);
    cr_assert_eq(epx_machine_read(path, &back, problem, sizeof problem), 0, "%s", problem);
    cr_assert_str_eq(back.name, "made up");
    cr_assert_str_eq(back.summary, "for a test");
    for (int i = 0; i < EPX_CONSTANTS; i++) {
        cr_assert_eq(back.value[i], machine.value[i]);
        cr_assert_str_eq(back.source[i], machine.source[i]);
    }
}

Test(sim_machine, what_ships_can_be_read)
{
    static const char *const names[] = {"gb200-nvl72", "h200x2"};
    for (int i = 0; i < 2; i++) {
        epx_machine_t machine;
        cr_assert_eq(epx_machine_read(names[i], &machine, problem, sizeof problem), 0, "%s", problem);
        cr_assert_str_eq(machine.name, names[i]);
        cr_assert_leq(machine.value[EPX_GEMM_FLOPS], machine.value[EPX_PEAK_FLOPS]);
        for (int c = 0; c < EPX_CONSTANTS; c++)
            cr_assert_geq(strlen(machine.source[c]), 10, "%s has no source",
                          epx_constant_row((epx_constant_t)c)->name);
    }
}

Test(sim_machine, what_is_wrong_is_said, .init = open_path, .fini = remove_path)
{
    epx_machine_t machine;
    expect_problem("epx-machine 1", "epx-machine 2", "\"format\" must be");
    expect_problem("\"link_share\"", "\"link_shared\"", "did you mean link_share?");
    expect_problem("\"unit\": \"B/s\"", "\"unit\": \"GB/s\"",
                   "memory_bytes_per_s is in 'GB/s': it must be in B/s");
    expect_problem("\"\\\"invented\\\" 5\"", "\"\"", "link_share has no source");
    expect_problem("\"value\": 0.3333333333333333,", "\"value\": 1.5,", "link_share is 1.5: it must be from");
    expect_problem("\"value\": 0.3333333333333333,", "", "link_share is");
    expect_problem("\"constants\"", "\"constant\"", "peak_flops is missing");
    expect_problem("{", "[", "line 2");
    cr_assert_eq(epx_machine_read("no-such-machine", &machine, problem, sizeof problem), -1);
    cr_assert(strstr(problem, "neither a file nor a machine") != NULL, "%s", problem);
    cr_assert_eq(epx_machine_write("/nowhere/at/all", &machine, problem, sizeof problem), -1);
}

Test(sim_machine, what_is_no_plain_file_stays)
{
    epx_machine_t machine = made_up();
    char pipe[] = "/tmp/epx-machine-XXXXXX/pipe", *slash = strrchr(pipe, '/');
    struct stat there;
    *slash = '\0';
    cr_assert_neq(mkdtemp(pipe), NULL);
    *slash = '/';
    cr_assert_eq(mkfifo(pipe, 0600), 0);
    cr_assert_eq(epx_machine_write(pipe, &machine, problem, sizeof problem), -1);
    cr_assert(strstr(problem, "no plain file") != NULL, "%s", problem);
    cr_assert_eq(stat(pipe, &there), 0);
    cr_assert(S_ISFIFO(there.st_mode));
    unlink(pipe);
    *slash = '\0';
    cr_assert_eq(rmdir(pipe), 0, "something else was left there");
}

Test(sim_machine, single_values)
{
    epx_machine_t machine = made_up();
    cr_assert_eq(epx_machine_set(&machine, "link_share=0.25", problem, sizeof problem), 0);
    cr_assert_eq(machine.value[EPX_LINK_SHARE], 0.25);
    cr_assert_str_eq(machine.source[EPX_LINK_SHARE], "given");
    static const char *const bad[] = {"link_share",   "=1",       "link_share=",  "link_share=x",
                                      "link_share=2", "shares=1", "link_share=0", "overlap=-1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_expect_eq(epx_machine_set(&machine, bad[i], problem, sizeof problem), -1, "%s", bad[i]);
    cr_assert_eq(machine.value[EPX_LINK_SHARE], 0.25);
}
