/* EPX_FAULT: what is understood, and what is said of the rest. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "fabric/fault/spec.h"

static epx_fault_spec_t spec;
static char problem[512];

static int good(const char *text)
{
    problem[0] = 0;
    return epx_fault_parse(text, &spec, problem, sizeof(problem)) == EPX_OK;
}

Test(fault_spec, the_example_of_the_documentation)
{
    cr_assert(good("rank=2 op=dispatch seq=17 wave=0 peer=5 at=signal.pre do=drop"), "%s", problem);
    cr_assert_eq(spec.rules, 1);
    const epx_fault_rule_t *rule = &spec.rule[0];
    cr_assert(rule->rank == 2 && rule->op == EPX_FAULT_OP_DISPATCH && rule->seq == 17 && rule->wave == 0);
    cr_assert(rule->peer == 5 && rule->at == EPX_FAULT_SIGNAL_PRE && rule->what == EPX_FAULT_DROP);
    cr_assert(rule->times == 0 && rule->chance >= 1);
}

Test(fault_spec, what_is_left_out_means_any)
{
    cr_assert(good("at=begin do=spin:250"));
    const epx_fault_rule_t *rule = &spec.rule[0];
    cr_assert(rule->rank == EPX_FAULT_ANY && rule->op == EPX_FAULT_ANY && rule->seq == EPX_FAULT_ANY);
    cr_assert(rule->wave == EPX_FAULT_ANY && rule->peer == EPX_FAULT_ANY && rule->group[0] == 0);
    cr_assert_eq(rule->argument, 250);
}

Test(fault_spec, several_rules_and_a_seed)
{
    cr_assert(
        good(
            " seed=7 ; rank=1 at=enqueue do=skip times=2;; group=rack1 at=put.post do=flip:13 chance=0.25 ;"),
        "%s", problem);
    cr_assert_eq(spec.rules, 2);
    cr_assert_eq(spec.seed, 7);
    cr_assert_eq(spec.rule[0].times, 2);
    cr_assert_str_eq(spec.rule[1].group, "rack1");
    cr_assert_eq(spec.rule[1].argument, 13);
    cr_assert_float_eq(spec.rule[1].chance, 0.25, 1e-12);
    cr_assert(good("") && spec.rules == 0);
    cr_assert(good("at=signal.pre do=reorder") && spec.rule[0].argument == 50);
    cr_assert(good("at=signal.pre do=reorder:5") && spec.rule[0].argument == 5);
}

/* Each names the word that is wrong, and one of the words that would have been right. */
Test(fault_spec, slips_are_shown_with_what_is_allowed)
{
    static const struct {
        const char *text, *word, *allowed;
    } slips[] = {
        {"rank=x at=begin do=stop", "rank=x", "whole number"},
        {"rank=-1 at=begin do=stop", "rank=-1", "whole number"},
        {"at=signl.pre do=drop", "at=signl.pre", "signal.pre"},
        {"at=begin do=dorp", "do=dorp", "duplicate"},
        {"op=dispach at=begin do=stop", "op=dispach", "dispatch_backward"},
        {"rnk=1 at=begin do=stop", "rnk=1", "rank"},
        {"drop", "drop", "key"},
        {"at=begin do=delay", "do=delay", "delay:MS"},
        {"at=begin do=delay:soon", "do=delay:soon", "delay:MS"},
        {"at=begin do=stop:3", "do=stop:3", "stop"},
        {"rank=1 op=dispatch", "at=", "needs"},
        {"at=begin", "do=", "needs"},
        {"at=wait.pre do=drop", "do=drop", "put.pre"},
        {"at=begin peer=1 do=stop", "peer=", "signal"},
        {"op=allreduce at=signal.pre do=drop", "op=allreduce", "enqueue"},
        {"at=begin do=stop chance=2", "chance=2", "up to 1"},
    };
    for (size_t i = 0; i < sizeof(slips) / sizeof(slips[0]); i++) {
        cr_expect(!good(slips[i].text), "%s was taken", slips[i].text);
        cr_expect(strstr(problem, slips[i].word) && strstr(problem, slips[i].allowed), "%s: %s",
                  slips[i].text, problem);
    }
}

Test(fault_spec, too_many_rules)
{
    char text[1024] = "";
    for (int i = 0; i <= EPX_FAULT_RULES; i++)
        strcat(text, "at=end do=stop;");
    cr_assert(!good(text));
    cr_assert(strstr(problem, "16"));
}
