/*
 * Settings: the environment wins, mistakes are named, meaningless ones refused. SPDX-License-Identifier:
 * Apache-2.0
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/drive.h"

TestSuite(environment, .init = clean_environment);

/* Opens a group with one or two variables set, and says what came of it. */
typedef struct setting {
    const char *transport; /* of the program; NULL: auto */
    const char *name, *value, *name2, *value2;
    epx_status_t status;
    const char *word, *word2; /* that the error's text holds */
    int waves;                /* of the open group, 0: any */
} setting_t;

static void opens_rank(rank_t *self)
{
    const setting_t *s = self->arg;
    epx_group_config_t config = EPX_GROUP_CONFIG_INIT;
    epx_group_info_t info = EPX_GROUP_INFO_INIT;
    epx_group_h group = NULL;
    config.experts = 4;
    config.top_k = 2;
    config.width = 8;
    config.tokens_max = 16;
    config.transport = s->transport;
    epx_status_t status = epx_group_open(self->comm, &config, &group);
    if (expect(self, status == s->status, "%s=%s gave %s (%s)", s->name, s->value, epx_status_name(status),
               epx_last_error())) {
        if (s->word)
            expect_text(self, s->name, s->word, NULL);
        if (s->word2)
            expect_text(self, s->name, s->word2, NULL);
    }
    if (status == EPX_OK) {
        epx_group_info(group, &info);
        expect(self, !s->waves || info.waves == s->waves, "%s=%s: %d waves, not %d", s->name, s->value,
               info.waves, s->waves);
        expect(self,
               !s->transport || strcmp(s->transport, info.transport) == 0 ||
                   strcmp(s->name, "EPX_TRANSPORT") == 0,
               "the transport is %s", info.transport);
    }
    epx_group_close(&group);
}

static void try_setting(const setting_t *s)
{
    clean_environment();
    if (s->name)
        setenv(s->name, s->value, 1);
    if (s->name2)
        setenv(s->name2, s->value2, 1);
    world_run(2, opens_rank, (void *)(size_t)s);
}

static void try_settings(const setting_t *settings, size_t count)
{
    for (size_t i = 0; i < count; i++)
        try_setting(&settings[i]);
}

#define TRY(settings) try_settings(settings, sizeof(settings) / sizeof(settings[0]))

Test(environment, values_that_are_none)
{
    static const setting_t settings[] = {
        {NULL, "EPX_TRANSPORT", "Ragged", .status = EPX_ERR_ARG, .word = "Ragged", .word2 = "\"ragged\""},
        {NULL, "EPX_TRANSPORT", "", .status = EPX_ERR_ARG, .word = "EPX_TRANSPORT"},
        {NULL, "EPX_TRANSPORT", "pooled-wave", .status = EPX_ERR_ARG, .word = "pooled_wave"},
        {"ragged", "EPX_WAVES", "0", .status = EPX_ERR_ARG, .word = "EPX_WAVES=0"},
        {"ragged", "EPX_WAVES", "abc", .status = EPX_ERR_ARG, .word = "EPX_WAVES=abc"},
        {"ragged", "EPX_WAVES", "3x", .status = EPX_ERR_ARG, .word = "EPX_WAVES=3x"},
        {"ragged", "EPX_WAVES", "2.5", .status = EPX_ERR_ARG, .word = "EPX_WAVES=2.5"},
        {"ragged", "EPX_WAVES", "-1", .status = EPX_ERR_ARG, .word = "EPX_WAVES=-1"},
        {"ragged", "EPX_WAVES", "", .status = EPX_ERR_ARG, .word = "EPX_WAVES"},
        {"ragged", "EPX_WAVES", "99999999999999999999", .status = EPX_ERR_ARG, .word = "EPX_WAVES"},
        {"ragged", "EPX_CAPACITY_FACTOR", "0", .status = EPX_ERR_ARG, .word = "EPX_CAPACITY_FACTOR=0"},
        {"ragged", "EPX_CAPACITY_FACTOR", "-1", .status = EPX_ERR_ARG, .word = "EPX_CAPACITY_FACTOR=-1"},
        {"ragged", "EPX_CAPACITY_FACTOR", "nan", .status = EPX_ERR_ARG, .word = "EPX_CAPACITY_FACTOR=nan"},
        {"ragged", "EPX_CAPACITY_FACTOR", "inf", .status = EPX_ERR_ARG, .word = "EPX_CAPACITY_FACTOR=inf"},
        {"ragged", "EPX_CAPACITY_FACTOR", "Dropless", .status = EPX_ERR_ARG, .word = "dropless"},
        {"pooled_wave", "EPX_SENDER_FACTOR", "much", .status = EPX_ERR_ARG, .word = "EPX_SENDER_FACTOR=much"},
        {"pooled_wave", "EPX_SENDER_FACTOR", "dropless", .status = EPX_ERR_ARG, .word = "EPX_SENDER_FACTOR"},
        {"ragged", "EPX_ACCEPT", "fare", .status = EPX_ERR_ARG, .word = "EPX_ACCEPT=fare",
         .word2 = "\"fair\""},
        {"pooled_wave", "EPX_OVERFLOW", "extra-wave", .status = EPX_ERR_ARG, .word = "\"extra_wave\""},
        {"ragged", "EPX_WIRE", "ranks", .status = EPX_ERR_ARG, .word = "\"rank\""},
        {"ragged", "EPX_BATCH", "index", .status = EPX_ERR_ARG, .word = "EPX_BATCH=index"},
        {"ragged", "EPX_CHECK", "yes", .status = EPX_ERR_ARG, .word = "canary"},
        {"ragged", "EPX_TIMEOUT_MS", "0", .status = EPX_ERR_ARG, .word = "EPX_TIMEOUT_MS=0"},
        {"ragged", "EPX_TIMEOUT_MS", "1s", .status = EPX_ERR_ARG, .word = "EPX_TIMEOUT_MS=1s"},
        {"ragged", "EPX_FABRIC", "lokal", .status = EPX_ERR_ARG, .word = "\"local\""},
        {"ragged", "EPX_DEVICE", "hots", .status = EPX_ERR_ARG, .word = "\"host\""},
        {"ragged", "EPX_LOG", "loud", .status = EPX_ERR_ARG, .word = "EPX_LOG=loud"},
        {"ragged", "EPX_RAGGED_WAVES", "abc", .status = EPX_ERR_ARG, .word = "EPX_RAGGED_WAVES=abc"},
        {"ragged", "EPX_RECORD", "", .status = EPX_ERR_ARG, .word = "EPX_RECORD= is not one of"},
        {"ragged", "EPX_STATS", "/no/such/folder", .status = EPX_ERR_ARG,
         .word = "EPX_STATS=/no/such/folder"},
        {"ragged", "EPX_STATS", "/proc/cpuinfo", .status = EPX_ERR_ARG, .word = "EPX_STATS=/proc/cpuinfo"},
    };
    TRY(settings);
}

/* What is too long is not cut: a part of a name is another folder, a part of a command another command. */
Test(environment, texts_without_end)
{
    static const char *const names[] = {"EPX_TRANSPORT", "EPX_STATS",       "EPX_RECORD",
                                        "EPX_ON_HANG",   "EPX_ON_HANG_CMD", "EPX_FAULT"};
    static const size_t lengths[] = {511, 512, 4000};
    char text[4001], word[64];
    for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++)
        for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
            memset(text, 'x', sizeof(text));
            memcpy(text, "/tmp/", 5);
            if (strcmp(names[n], "EPX_ON_HANG") == 0)
                memcpy(text, "failover:/", 10);
            text[lengths[i]] = '\0';
            snprintf(word, sizeof(word), "%s is longer than 510 bytes", names[n]);
            try_setting(&(setting_t){.name = names[n], .value = text, .status = EPX_ERR_ARG, .word = word});
        }
}

Test(environment, values_that_hold)
{
    static const setting_t settings[] = {
        {"ragged", "EPX_WAVES", "5", .waves = 5},
        {"pooled_wave", "EPX_WAVES", "5", .waves = 5},
        {"ragged", "nothing", "", .waves = 2},
        {"pooled_wave", "nothing", "", .waves = 3},
        {"ring", "nothing", "", .waves = 2}, /* one hop a rank */
        {"pooled_wave", "EPX_OVERFLOW", "extra_wave", .status = EPX_OK},
        {"ragged", "EPX_CAPACITY_FACTOR", "dropless", .status = EPX_OK},
        {"ragged", "EPX_CAPACITY_FACTOR", "1e-3", .status = EPX_OK},
        {"ring", "EPX_ACCEPT", "waterfill", .status = EPX_OK},
        {"ragged", "EPX_BATCH", "indexed", "EPX_WIRE", "rank", .status = EPX_OK},
        {NULL, "EPX_TRANSPORT", "auto", .status = EPX_OK},
        {"ring", "EPX_TRANSPORT", "ragged", .waves = 2},
        {"ragged", "EPX_CHECK", "full", .status = EPX_OK},
        {"ragged", "EPX_FABRIC", "auto", "EPX_DEVICE", "host", .status = EPX_OK},
    };
    TRY(settings);
    try_setting(&(setting_t){"ragged", "EPX_FABRIC", ranks_are_processes() ? "ucx" : "local", "EPX_DEVICE",
                             "host", .status = EPX_OK});
}

Test(environment, prefixed_variables_win)
{
    static const setting_t settings[] = {
        {"ragged", "EPX_RAGGED_WAVES", "5", "EPX_WAVES", "4", .waves = 5},
        {"pooled_wave", "EPX_RAGGED_WAVES", "5", "EPX_WAVES", "4", .waves = 4},
        {"pooled_wave", "EPX_POOLED_WAVE_WAVES", "7", "EPX_RAGGED_WAVES", "4", .waves = 7},
        {"ring", "EPX_RAGGED_WAVES", "5", "EPX_POOLED_WAVE_WAVES", "4", .status = EPX_OK}, /* not its own */
        {"ring", "EPX_RAGGED_WAVES", "abc", .status = EPX_OK}, /* nor does their value concern it */
        {"ragged", "EPX_RAGGED_WIRE", "rank", "EPX_WIRE", "assignment", .status = EPX_OK},
    };
    TRY(settings);
}

Test(environment, settings_without_meaning)
{
    static const setting_t settings[] = {
        {"ragged", "EPX_OVERFLOW", "spill", .status = EPX_ERR_UNSUPPORTED, .word = "OVERFLOW"},
        {"ring", "EPX_OVERFLOW", "extra_wave", .status = EPX_ERR_UNSUPPORTED, .word = "OVERFLOW"},
        {"ragged", "EPX_SENDER_FACTOR", "1.5", .status = EPX_ERR_UNSUPPORTED, .word = "SENDER_FACTOR"},
        {"ring", "EPX_SENDER_FACTOR", "1.5", .status = EPX_ERR_UNSUPPORTED, .word = "SENDER_FACTOR"},
        {"ring", "EPX_WAVES", "2", .status = EPX_ERR_UNSUPPORTED, .word = "WAVES"},
        {"pooled_wave", "EPX_ACCEPT", "fair", .status = EPX_ERR_UNSUPPORTED, .word = "ACCEPT"},
        {"pooled_wave", "EPX_WIRE", "rank", .status = EPX_ERR_UNSUPPORTED, .word = "WIRE"},
        {"ring", "EPX_WIRE", "rank", .status = EPX_ERR_UNSUPPORTED, .word = "WIRE"},
        {"pooled_wave", "EPX_BATCH", "indexed", .status = EPX_OK},
        {"ring", "EPX_BATCH", "indexed", .status = EPX_ERR_UNSUPPORTED, .word = "BATCH"},
        {"ragged", "EPX_BATCH", "indexed", "EPX_WIRE", "assignment", .status = EPX_ERR_UNSUPPORTED,
         .word = "BATCH"},
    };
    TRY(settings);
}

/* An explicit choice that cannot run here says everybody's reason. */
Test(environment, choices_that_cannot_run)
{
    only_on_host("elsewhere there is another device");
    static const setting_t settings[] = {
        {"ragged", "EPX_FABRIC", "nccl", .status = EPX_ERR_UNSUPPORTED, .word = "nccl", .word2 = "local"},
        {"ragged", "EPX_DEVICE", "cuda", .status = EPX_ERR_UNSUPPORTED, .word = "cuda", .word2 = "host"},
    };
    TRY(settings);
}

static char *warnings_of(const char *name, const char *value)
{
    static const setting_t plain = {.transport = "ragged", .name = "nothing", .value = ""};
    setenv(name, value, 1);
    capture_begin();
    world_run(2, opens_rank, (void *)(size_t)&plain);
    return capture_end();
}

/* A warning is given once in a process. */
static void only_in_a_process_of_its_own(void)
{
#ifdef CRITERION_ALONE
    cr_skip_test("%s", "a warning comes once a process, and with this runner tests share one");
#endif
}

Test(environment, unknown_variable_with_a_near_name)
{
    only_in_a_process_of_its_own();
    char *log = warnings_of("EPX_WAEVS", "3");
    cr_assert(strstr(log, "EPX_WAEVS") && strstr(log, "EPX_WAVES"), "the log says: %s", log);
    cr_assert(strstr(log, "EPX_WAEVS") == strrchr(log, 'A') - 5 ||
                  !strstr(strstr(log, "EPX_WAEVS") + 5, "EPX_WAEVS"),
              "warned twice: %s", log);
    free(log);
}

Test(environment, unknown_variable_like_nothing)
{
    only_in_a_process_of_its_own();
    char *log = warnings_of("EPX_ZZZZZZZZZZZZZZZZ", "3");
    cr_assert(strstr(log, "EPX_ZZZZZZZZZZZZZZZZ"), "the log says: %s", log);
    free(log);
}

Test(environment, unknown_prefixed_variable)
{
    only_in_a_process_of_its_own();
    char *log = warnings_of("EPX_RAGGED_WAVE", "3");
    cr_assert(strstr(log, "EPX_RAGGED_WAVE") && strstr(log, "EPX_RAGGED_WAVES"), "the log says: %s", log);
    free(log);
}

Test(environment, known_variables_are_not_warned_about)
{
    char *log = warnings_of("EPX_RING_ACCEPT", "fair");
    cr_assert_eq(strlen(log), 0, "the log says: %s", log);
    free(log);
}

/* One line says what was taken. */
Test(environment, the_choice_is_logged)
{
    static const setting_t any = {.name = "nothing", .value = ""};
    setenv("EPX_LOG", "info", 1);
    capture_begin();
    world_run(2, opens_rank, (void *)(size_t)&any);
    char *log = capture_end();
    cr_assert(strstr(log, "epx info") && strstr(log, ranks_are_processes() ? "ucx" : "local") &&
                  strstr(log, "host"),
              "the log says: %s", log);
    cr_assert(strstr(log, "pooled_wave") || strstr(log, "ragged") || strstr(log, "ring"), "the log says: %s",
              log);
    free(log);
}

/* EPX_WIRE=auto says which wire it took, and why. */
Test(environment, the_choice_of_a_wire_is_logged)
{
    static const setting_t ragged = {.transport = "ragged", .name = "nothing", .value = ""};
    setenv("EPX_LOG", "info", 1);
    setenv("EPX_WIRE", "auto", 1);
    capture_begin();
    world_run(2, opens_rank, (void *)(size_t)&ragged);
    char *log = capture_end();
    const char *line = strstr(log, "EPX_WIRE=auto");
    cr_assert(line && (strstr(line, "assignment") || strstr(line, "rank")), "the log says: %s", log);
    free(log);
}

/* Values are the same on all ranks, or it is a mismatch: a variable cannot differ between threads, so this is
 * only the program's own value against the environment's. */
static void override_rank(rank_t *self)
{
    epx_group_config_t config = EPX_GROUP_CONFIG_INIT;
    epx_group_info_t info = EPX_GROUP_INFO_INIT;
    epx_group_h group = NULL;
    config.experts = 4;
    config.top_k = 1;
    config.width = 2;
    config.tokens_max = 4;
    config.transport = self->rank ? "ring" : "pooled_wave";
    config.waves = 9 + self->rank;
    if (!expect_status(self, "epx_group_open", epx_group_open(self->comm, &config, &group), EPX_OK))
        return;
    epx_group_info(group, &info);
    expect(self, strcmp(info.transport, "ragged") == 0 && info.waves == 6, "%s with %d waves", info.transport,
           info.waves);
    epx_group_close(&group);
}

Test(environment, the_environment_wins)
{
    setenv("EPX_TRANSPORT", "ragged", 1);
    setenv("EPX_RAGGED_WAVES", "6", 1);
    world_run(2, override_rank, NULL);
}
