/* The command line, presets and schedules. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "train/fail.h"
#include "train/math.h"
#include "train/optimizer.h"
#include "train/options.h"

static int parse(epx_train_config_t *config, const char *line)
{
    static char words[512], program[] = "epx-train";
    char *argv[32] = {program};
    int argc = 1;
    snprintf(words, sizeof words, "%s", line);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    return epx_options_parse(argc, argv, config);
}

Test(train_options, values_reach_their_places)
{
    epx_train_config_t config;
    cr_assert_eq(parse(&config,
                       "--steps 7 --ep 3 --replicas 2 --lr 0.25 --balance aux --schedule constant --top-k 5 "
                       "--json --no-bigram --record-steps 2:9 --transport ring --preset d512"),
                 0, "%s", epx_train_error());
    cr_expect_str_eq(config.preset, "d512");
    cr_expect_eq(config.steps, 7);
    cr_expect_eq(config.ep, 3);
    cr_expect_eq(config.replicas, 2);
    cr_expect_eq(config.rate, 0.25);
    cr_expect_eq(config.balance, EPX_BALANCE_AUX);
    cr_expect_eq(config.schedule, EPX_SCHEDULE_CONSTANT);
    cr_expect_eq(config.model.top_k, 5);
    cr_expect_eq(config.model.width, 512);
    cr_expect_eq(config.json, 1);
    cr_expect_eq(config.bigram, 0);
    cr_expect_eq(config.record_from, 2);
    cr_expect_eq(config.record_to, 9);
    cr_expect_str_eq(config.group.transport, "ring");
    cr_assert_eq(parse(&config, "--ranks 4"), 0);
    cr_expect_eq(config.ep, 4);
}

Test(train_options, wrong_lines_are_refused_by_name)
{
    static const char *const lines[][2] = {
        {"--stepz 3", "--stepz"},
        {"--steps", "--steps needs a value"},
        {"--steps x", "--steps x"},
        {"--steps -1", "--steps -1"},
        {"--lr fast", "--lr fast"},
        {"--balance much", "quantile, bias"},
        {"--ranks 0", "--ranks 0"},
        {"--record-steps 3", "FROM:TO"},
        {"--record-steps 3:2", "FROM < TO"},
        {"--preset huge", "tiny, d512"},
        {"3", "no option 3"},
        {"--drop nan", "--drop nan"},
        {"--steps 3.5", "--steps 3.5"},
        {"--seed 99999999999999999999", "--seed"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        epx_train_config_t config;
        cr_expect_eq(parse(&config, lines[i][0]), EPX_TRAIN_USAGE, "%s", lines[i][0]);
        cr_expect(strstr(epx_train_error(), lines[i][1]), "%s: '%s'", lines[i][0], epx_train_error());
    }
}

Test(train_options, impossible_shapes_are_refused)
{
    static const char *const lines[][2] = {
        {"--top-k 65", "--top-k 65"},
        {"--heads 3", "multiple of --kv-heads"},
        {"--head-width 3", "odd"},
        {"--experts 0", "--experts is 0"},
        {"--batch 0", "--batch is 0"},
        {"--ep 4 --virtual-ep 6", "--virtual-ep 6"},
        {"--drop 1", "--drop 1"},
        {"--validation 0", "--validation 0"},
        {"--routing a --record-routing b", "give one"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        epx_train_config_t config;
        cr_assert_eq(parse(&config, lines[i][0]), 0, "%s", lines[i][0]);
        cr_expect_eq(epx_config_check(&config), EPX_TRAIN_USAGE, "%s", lines[i][0]);
        cr_expect(strstr(epx_train_error(), lines[i][1]), "%s: '%s'", lines[i][0], epx_train_error());
    }
}

Test(train_options, all_presets_can_be_trained)
{
    for (int i = 0; epx_preset_name(i); i++) {
        epx_train_config_t config;
        cr_assert_eq(epx_config_preset(epx_preset_name(i), &config), 0);
        cr_expect_eq(epx_config_check(&config), 0, "%s", epx_train_error());
    }
}

Test(train_options, learning_rate_warms_up_and_falls)
{
    epx_train_config_t config;
    cr_assert_eq(parse(&config, "--steps 110 --warmup 10 --lr 2 --lr-end 0.1"), 0);
    cr_expect_float_eq(epx_optimizer_rate(&config, 0), 0.2, 1e-12);
    cr_expect_float_eq(epx_optimizer_rate(&config, 9), 2, 1e-12);
    cr_expect_float_eq(epx_optimizer_rate(&config, 60), 1.1, 1e-12);
    cr_expect_float_eq(epx_optimizer_rate(&config, 110), 0.2, 1e-12);
    config.schedule = EPX_SCHEDULE_CONSTANT;
    cr_expect_float_eq(epx_optimizer_rate(&config, 100), 2, 1e-12);
}

Test(train_options, decay_of_router_and_gate_falls_to_nothing)
{
    epx_train_config_t config;
    cr_assert_eq(parse(&config, "--steps 100 --router-decay 0.4"), 0);
    cr_expect_float_eq(epx_optimizer_router_decay(&config, 0), 0.4, 1e-12);
    cr_expect_float_eq(epx_optimizer_router_decay(&config, 75), 0.1, 1e-12);
    cr_expect_eq(epx_optimizer_router_decay(&config, 100), 0);
    cr_expect_eq(epx_optimizer_router_decay(&config, 200), 0);
}

Test(train_options, first_steps_of_adamw_are_right)
{
    epx_adamw_t step = {.rate = 0.1f,
                        .beta1 = 0.9f,
                        .beta2 = 0.99f,
                        .epsilon = 0,
                        .decay = 0.5f,
                        .scale = 0.5f,
                        .correction1 = 10,
                        .correction2 = 100};
    float gradient[2] = {4, -2}, parameter[2] = {1, 1}, mean[2] = {0}, square[2] = {0};
    epx_math_adamw(&step, 2, gradient, parameter, mean, square);
    /* The first step has length rate in the direction of the gradient, and decays the old value. */
    cr_expect_float_eq(parameter[0], 1 - 0.1f * (1 + 0.5f), 1e-6);
    cr_expect_float_eq(parameter[1], 1 - 0.1f * (-1 + 0.5f), 1e-6);
    cr_expect_float_eq(mean[0], 0.1f * 2, 1e-6);
    cr_expect_float_eq(square[0], 0.01f * 4, 1e-6);
}

Test(train_options, router_takes_the_lower_expert_of_equals)
{
    float logits[8] = {1, 3, 3, 2, 3, 0, 0, 0}, bias[8] = {0}, weights[3];
    int32_t ids[3];
    epx_math_router_choose(1, 8, 3, logits, bias, ids);
    cr_expect(ids[0] == 1 && ids[1] == 2 && ids[2] == 4);
    bias[5] = 10; /* chosen by the bias, weighed without it */
    epx_math_router_choose(1, 8, 3, logits, bias, ids);
    cr_expect(ids[0] == 5 && ids[1] == 1 && ids[2] == 2);
    epx_math_router_weigh(1, 8, 3, logits, ids, weights);
    cr_expect_float_eq(weights[0] / weights[1], 0.0497870684f, 1e-6);
    cr_expect_float_eq(weights[0] + weights[1] + weights[2], 1, 1e-6);
    ids[1] = -1;
    epx_math_router_weigh(1, 8, 3, logits, ids, weights);
    cr_expect_eq(weights[1], 0);
    cr_expect_float_eq(weights[0] + weights[2], 1, 1e-6);
}
