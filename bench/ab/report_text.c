/* The table on the terminal. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "bench/ab/report.h"
#include "bench/ab/verdict_text.h"
#include "tools/common/help.h"
#include "tools/common/numbers.h"
#include "tools/common/table.h"

enum { WIDTH = 110 };

/* ---- colours --------------------------------------------------------------------------------------------------------- */

typedef struct pen {
    FILE *out;
    int colours;
} pen_t;

static const char *colour_of(const char *word)
{
    return strcmp(word, "VOID") == 0           ? "\033[1;31m"
           : strcmp(word, "DIFFERENT") == 0    ? "\033[1;34m"
           : strcmp(word, "EQUIVALENT") == 0   ? "\033[32m"
           : strcmp(word, "INCONCLUSIVE") == 0 ? "\033[33m"
                                               : "\033[1m";
}

/* A word, padded to `width`, in the colour that it has everywhere. */
static void put_word(const pen_t *pen, const char *word, int width)
{
    if (pen->colours)
        fprintf(pen->out, "%s%s\033[0m%*s", colour_of(word), word,
                width - (int)strlen(word) > 0 ? width - (int)strlen(word) : 0, "");
    else
        fprintf(pen->out, "%-*s", width, word);
}

static void put_title(const pen_t *pen, const char *title)
{
    fprintf(pen->out, pen->colours ? "\n\033[1m%s\033[0m\n" : "\n%s\n", title);
}

/* ---- verdicts -------------------------------------------------------------------------------------------------------- */

static void print_verdict(const pen_t *pen, const epx_ab_verdict_t *verdict)
{
    fprintf(pen->out, "  %-20s", epx_ab_quantity_name(verdict->quantity));
    put_word(pen, verdict->given ? epx_ab_word_name(verdict->word) : "-", 14);
    epx_print_wrapped(pen->out, verdict->text, 36, 36, WIDTH);
}

static void print_verdicts(const epx_ab_result_t *result, const pen_t *pen)
{
    for (int32_t i = 0; i < result->verdicts; i++) {
        const epx_ab_verdict_t *verdict = &result->verdict[i];
        if (verdict->quantity == 0) {
            char title[2 * EPX_AB_NAME + 16];
            snprintf(title, sizeof title, "%s against %s", result->arm[verdict->a].name,
                     result->arm[verdict->b].name);
            put_title(pen, title);
        }
        if (epx_ab_is_shown(result, verdict))
            print_verdict(pen, verdict);
        if (verdict->quantity == EPX_AB_QUANTITIES - 1) {
            char remark[EPX_AB_TEXT];
            epx_ab_sign_remark(result, verdict->a, verdict->b, remark, sizeof remark);
            if (remark[0] != '\0')
                fprintf(pen->out, "  %s\n", remark);
        }
    }
}

/* ---- arms ------------------------------------------------------------------------------------------------------------ */

static void cell_number(epx_table_t *table, double value, double scale, int digits, const char *unit)
{
    if (isnan(value))
        epx_table_cell(table, "-");
    else
        epx_table_cell(table, "%.*f%s", digits, scale * value, unit);
}

static double part_of(int64_t part, const epx_ab_counts_t *count)
{
    return count->valid > 0 ? (double)part / (double)count->valid : count->valid == 0 ? 0 : NAN;
}

/* Time of experts, attention and gradients; a mark where one is flagged. */
static void cell_bystanders(epx_table_t *table, const epx_ab_arm_t *arm)
{
    const int32_t *flag = arm->bystander_flag;
    if (isnan(arm->experts_ms + arm->attention_ms + arm->gradients_ms))
        epx_table_cell(table, "-");
    else
        epx_table_cell(table, "%.1f%s/%.1f%s/%.1f%s", arm->experts_ms, flag[0] ? "!" : "", arm->attention_ms,
                       flag[1] ? "!" : "", arm->gradients_ms, flag[2] ? "!" : "");
}

static void print_arms(const epx_ab_result_t *result, const pen_t *pen)
{
    static const epx_column_t columns[] = {{"arm", 0},           {"executed MFU", 1}, {"MFU", 1},
                                           {"step ms", 1},       {"dropped", 1},      {"sender", 1},
                                           {"receiver", 1},      {"loss", 1},         {"exposed ms", 1},
                                           {"bystanders ms", 1}, {"memory", 1},       {"", 0}};
    epx_table_t *table = epx_table_new(columns, sizeof columns / sizeof *columns);
    for (int32_t a = 0; a < result->arms; a++) {
        const epx_ab_arm_t *arm = &result->arm[a];
        char memory[32];
        epx_table_cell(table, "%s", arm->name);
        cell_number(table, arm->mfu_executed.mean, 100, 2, "%");
        cell_number(table, arm->mfu.mean, 100, 2, "%");
        cell_number(table, arm->step_ms.mean, 1, 1, "");
        cell_number(table, epx_ab_drop_fraction(&arm->count), 100, 3, "%");
        cell_number(table, part_of(arm->count.dropped_sender, &arm->count), 100, 3, "%");
        cell_number(table, part_of(arm->count.dropped_receiver, &arm->count), 100, 3, "%");
        cell_number(table, arm->loss.mean, 1, 4, "");
        cell_number(table, arm->exposed_ms.mean, 1, 1, "");
        cell_bystanders(table, arm);
        if (arm->peak_bytes < 0)
            epx_table_cell(table, "-");
        else
            epx_table_cell(table, "%s", epx_text_of_bytes(memory, sizeof memory, (double)arm->peak_bytes));
        epx_table_cell(table, "%s", arm->is_void ? "VOID" : "");
    }
    put_title(pen, "arms");
    epx_table_print(table, pen->out, 2);
    fputs("  bystanders: experts/attention/gradients; ! differs from the first arm's by more than 1% and "
          "than A/A\n",
          pen->out);
    epx_table_free(table);
}

/* ---- drops by the rules ---------------------------------------------------------------------------------------------- */

static const char *ruled_title(const epx_ab_result_t *result, int i, char *text, size_t bytes)
{
    for (int32_t a = 0; a < result->arms; a++) {
        if (result->arm[a].ruled[i].ranks > 0) {
            snprintf(text, bytes, "by rules at %d", result->arm[a].ruled[i].ranks);
            return text;
        }
    }
    return NULL;
}

static void print_rules(const epx_ab_result_t *result, const pen_t *pen)
{
    epx_column_t columns[EPX_AB_RULED + 2] = {{"arm", 0}, {"measured", 1}};
    char titles[EPX_AB_RULED][32];
    int shown[EPX_AB_RULED], count = 0;
    for (int i = 0; i < EPX_AB_RULED; i++) {
        const char *title = ruled_title(result, i, titles[count], sizeof titles[count]);
        if (title == NULL)
            continue;
        columns[2 + count] = (epx_column_t){title, 1};
        shown[count++] = i;
    }
    if (count == 0)
        return;
    epx_table_t *table = epx_table_new(columns, count + 2);
    for (int32_t a = 0; a < result->arms; a++) {
        epx_table_cell(table, "%s", result->arm[a].name);
        cell_number(table, epx_ab_drop_fraction(&result->arm[a].count), 100, 3, "%");
        for (int i = 0; i < count; i++) {
            const epx_ab_ruled_t *ruled = &result->arm[a].ruled[shown[i]];
            cell_number(table, ruled->ranks > 0 ? epx_ab_drop_fraction(&ruled->count) : NAN, 100, 3, "%");
        }
    }
    put_title(pen, "drops, measured and computed by the accept rules from the first step's routing");
    epx_table_print(table, pen->out, 2);
    epx_table_free(table);
    for (int32_t a = 0; a < result->arms; a++) {
        char reason[EPX_AB_TEXT], line[EPX_AB_TEXT + EPX_AB_NAME + 4];
        epx_ab_drop_reason(result, a, reason, sizeof reason);
        if (reason[0] == '\0')
            continue;
        snprintf(line, sizeof line, "%s: %s", result->arm[a].name, reason);
        fputs("  ", pen->out);
        epx_print_wrapped(pen->out, line, 2, 4, WIDTH);
    }
}

static void print_adjusted(const epx_ab_result_t *result, const pen_t *pen)
{
    static const epx_ab_part_t parts[] = {EPX_AB_EQUAL_DROPS, EPX_AB_EQUAL_MEMORY};
    static const char *const names[] = {"equal drops", "equal memory"};
    for (int i = 0; i < 2; i++) {
        for (int32_t a = 0; a < result->arms; a++) {
            char text[EPX_AB_TEXT], line[EPX_AB_TEXT + EPX_AB_NAME + 32];
            if (!epx_ab_say_adjusted(result, a, parts[i], text, sizeof text))
                continue;
            snprintf(line, sizeof line, "at %s %s has %s", names[i], result->arm[a].name, text);
            fputs("  ", pen->out);
            epx_print_wrapped(pen->out, line, 2, 4, WIDTH);
        }
    }
}

/* ---- guards, scope --------------------------------------------------------------------------------------------------- */

static void print_guards(const epx_ab_result_t *result, const pen_t *pen)
{
    put_title(pen, "guards");
    for (int g = 0; g < EPX_AB_GUARDS; g++) {
        static const char *const words[] = {"-", "ok", "VOID"};
        epx_ab_state_t state = epx_ab_guard_state(result, (epx_ab_guard_t)g);
        fprintf(pen->out, "  %-13s", epx_ab_guard_name((epx_ab_guard_t)g));
        if (state == EPX_AB_PASSED)
            fprintf(pen->out, "%-6s", words[state]);
        else
            put_word(pen, words[state], 6);
        epx_print_wrapped(pen->out, epx_ab_guard_checks((epx_ab_guard_t)g), 21, 21, WIDTH);
        for (int32_t a = 0; a < result->arms; a++) {
            const epx_ab_finding_t *finding = &result->arm[a].guard[g];
            char line[EPX_AB_TEXT + EPX_AB_NAME + 4];
            if (finding->state != EPX_AB_VOID && !(finding->state == EPX_AB_UNCHECKED && a == 0))
                continue;
            snprintf(line, sizeof line, "%s%s%s",
                     finding->state == EPX_AB_VOID ? result->arm[a].name : "not checked", ": ",
                     finding->text);
            fprintf(pen->out, "%*s", 21, "");
            epx_print_wrapped(pen->out, line, 21, 23, WIDTH);
        }
    }
    for (int32_t i = 0; i < result->runs; i++)
        if (result->run[i].void_why[0] != '\0' && result->run[i].arm >= 0)
            fprintf(pen->out, "  run %d (%s, %s) does not count: %s\n", result->run[i].order + 1,
                    result->arm[result->run[i].arm].name, epx_ab_part_name(result->run[i].part),
                    result->run[i].void_why);
}

static void print_scope_line(void *context, const char *label, const char *text)
{
    const pen_t *pen = context;
    fprintf(pen->out, "  %-15s", label);
    epx_print_wrapped(pen->out, text, 17, 17, WIDTH);
}

void epx_ab_print(const epx_ab_result_t *result, FILE *out, int colours)
{
    pen_t pen = {out, colours};
    char headline[2 * EPX_AB_TEXT], subtitle[EPX_AB_TEXT];
    epx_ab_headline(result, headline, sizeof headline);
    epx_ab_subtitle(result, subtitle, sizeof subtitle);
    size_t word = strcspn(headline, ":");
    char first[32];
    snprintf(first, sizeof first, "%.*s", (int)word, headline);
    put_word(&pen, first, 0);
    fprintf(out, "%s\n%s\n", headline + word, subtitle);
    char caution[EPX_AB_TEXT];
    if (epx_ab_say_caution(result, caution, sizeof caution))
        fprintf(out, "%s\n", caution);
    for (int32_t a = 0; a < result->arms; a++) {
        char why[EPX_AB_TEXT + 64], line[EPX_AB_TEXT + EPX_AB_NAME + 80];
        if (!epx_ab_say_void(result, a, why, sizeof why))
            continue;
        snprintf(line, sizeof line, "%s is void: %s", result->arm[a].name, why);
        epx_print_wrapped(out, line, 0, 2, WIDTH);
    }
    print_verdicts(result, &pen);
    print_arms(result, &pen);
    print_rules(result, &pen);
    print_adjusted(result, &pen);
    print_guards(result, &pen);
    put_title(&pen, "scope");
    epx_ab_scope_lines(result, print_scope_line, &pen);
}
