/* The tables of docs/hangs.md are those of the code: rules, verdicts, actions. SPDX-License-Identifier:
 * Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "record/classify.h"
#include "record/rules.h"

enum { LINE_BYTES = 1024, CELLS = 4, RULES_MOST = 64 };

/* What HANGS says of each verdict, typed from there: not what the code says of itself. */
static const struct {
    epx_verdict_kind_t kind;
    const char *name;
    epx_action_t action;
    int32_t code;
    const char *cell; /* of the table of rules */
} expected[] = {
    {EPX_VERDICT_NONE, "NONE", EPX_ACTION_NONE, 0, "none"},
    {EPX_VERDICT_SLOW, "SLOW", EPX_ACTION_NONE, 0, "none"},
    {EPX_VERDICT_SIGNAL_LOST, "SIGNAL_LOST", EPX_ACTION_RECOVER, 0, "recover in place"},
    {EPX_VERDICT_EPOCH_SKEW, "EPOCH_SKEW", EPX_ACTION_RECOVER, 0, "recover in place"},
    {EPX_VERDICT_RESOURCE, "RESOURCE", EPX_ACTION_RECOVER, 0, "recover in place"},
    {EPX_VERDICT_NOT_RESIDENT, "NOT_RESIDENT", EPX_ACTION_RECOVER, 0, "recover in place"},
    {EPX_VERDICT_STUCK_BEFORE_OP, "STUCK_BEFORE_OP", EPX_ACTION_RESTART, 75, "restart elsewhere, 75"},
    {EPX_VERDICT_STREAM_BLOCKED, "STREAM_BLOCKED", EPX_ACTION_RESTART, 75, "restart elsewhere, 75"},
    {EPX_VERDICT_HOST_ABSENT, "HOST_ABSENT", EPX_ACTION_SHRINK, 76, "go on without it, 76"},
    {EPX_VERDICT_LINK, "LINK", EPX_ACTION_SHRINK, 76, "go on without it, 76"},
    {EPX_VERDICT_DESYNC, "DESYNC", EPX_ACTION_STOP, 77, "stop, 77"},
    {EPX_VERDICT_CORRUPT, "CORRUPT", EPX_ACTION_STOP, 77, "stop, 77"},
    {EPX_VERDICT_DEADLOCK, "DEADLOCK", EPX_ACTION_STOP, 77, "stop, 77"},
    {EPX_VERDICT_UNKNOWN, "UNKNOWN", EPX_ACTION_WAIT, 78, "keep the evidence, 78"},
};
enum { EXPECTED = sizeof(expected) / sizeof(expected[0]) };

/* "| a | b |" to cells without blanks around; returns how many. */
static int32_t cut(char *line, char *cell[CELLS])
{
    int32_t count = 0;
    if (line[0] != '|')
        return 0;
    for (char *at = strtok(line, "|\n"); at != NULL && count < CELLS; at = strtok(NULL, "|\n")) {
        at += strspn(at, " ");
        size_t length = strlen(at);
        while (length > 0 && at[length - 1] == ' ')
            at[--length] = '\0';
        if (length > 0)
            cell[count++] = at;
    }
    return count;
}

/* Rows of the table that begins with a header, one line of `rows` each; returns how many. */
static int32_t read_table(const char *header, char rows[RULES_MOST][LINE_BYTES])
{
    char line[LINE_BYTES];
    int32_t count = 0, inside = 0;
    FILE *file = fopen("docs/hangs.md", "r");
    cr_assert_not_null(file, "docs/hangs.md cannot be read: run from the top of the tree");
    while (fgets(line, sizeof(line), file) != NULL && count < RULES_MOST) {
        if (strncmp(line, header, strlen(header)) == 0)
            inside = 1;
        else if (inside && line[0] != '|')
            break;
        else if (inside && strncmp(line, "|--", 3) != 0)
            snprintf(rows[count++], LINE_BYTES, "%s", line);
    }
    fclose(file);
    return count;
}

Test(record_table, every_verdict_has_the_action_of_the_design)
{
    cr_assert_eq((int)EXPECTED, (int)EPX_VERDICTS, "a verdict is in no table");
    for (size_t i = 0; i < EXPECTED; i++) {
        int32_t code;
        cr_expect_str_eq(epx_verdict_name(expected[i].kind), expected[i].name);
        cr_expect_eq(epx_verdict_action(expected[i].kind, &code), expected[i].action, "%s", expected[i].name);
        cr_expect_eq(code, expected[i].code, "%s gives %d", expected[i].name, code);
    }
}

Test(record_table, rules_of_the_page_are_those_of_the_classifier)
{
    static char rows[RULES_MOST][LINE_BYTES];
    int32_t count = read_table("| rule |", rows);
    cr_assert_eq(count, epx_rules_count, "the page has %d rules, the classifier %d", count, epx_rules_count);
    for (int32_t i = 0; i < count; i++) {
        char *cell[CELLS], verdict[64];
        const epx_rule_t *rule = &epx_rules[i];
        cr_assert_eq(cut(rows[i], cell), CELLS, "row %d", i + 1);
        cr_expect_str_eq(cell[0], rule->name, "row %d is %s, not %s", i + 1, cell[0], rule->name);
        cr_expect_str_eq(cell[1], rule->condition, "%s: \"%s\", not \"%s\"", rule->name, cell[1],
                         rule->condition);
        snprintf(verdict, sizeof(verdict), "`%s`", epx_verdict_name(rule->verdict));
        cr_expect_str_eq(cell[2], verdict, "%s: %s, not %s", rule->name, cell[2], verdict);
        for (size_t k = 0; k < EXPECTED; k++)
            if (expected[k].kind == rule->verdict)
                cr_expect_str_eq(cell[3], expected[k].cell, "%s: %s, not %s", rule->name, cell[3],
                                 expected[k].cell);
    }
    cr_expect_eq(epx_rules[count - 1].verdict, EPX_VERDICT_UNKNOWN);
}

/* The other table: each verdict once, with the exit code of programs. */
Test(record_table, verdicts_of_the_page_have_their_exit_codes)
{
    static char rows[RULES_MOST][LINE_BYTES];
    int32_t count = read_table("| verdict |", rows), found[EPX_VERDICTS] = {0};
    for (int32_t i = 0; i < count; i++) {
        char *cell[CELLS], code[16];
        cr_assert_eq(cut(rows[i], cell), CELLS, "row %d", i + 1);
        size_t length = strcspn(cell[0] + 1, "(`");
        for (size_t k = 0; k < EXPECTED; k++) {
            if (strlen(expected[k].name) != length || strncmp(cell[0] + 1, expected[k].name, length) != 0)
                continue;
            found[expected[k].kind]++;
            snprintf(code, sizeof(code), "%d", expected[k].code);
            cr_expect_str_eq(cell[3], expected[k].code != 0 ? code : "none", "%s: %s", cell[0], cell[3]);
        }
    }
    for (int32_t kind = EPX_VERDICT_NONE + 1; kind < EPX_VERDICTS; kind++)
        cr_expect_eq(found[kind], 1, "%s is in the table %d times",
                     epx_verdict_name((epx_verdict_kind_t)kind), found[kind]);
}
