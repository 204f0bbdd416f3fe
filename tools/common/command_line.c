/* Command lines. SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/command_line.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <epx/epx.h>

#include "tools/common/help.h"
#include "tools/common/program.h"

#define PROBLEM_BYTES 512
#define WORD_MAX 63

int epx_read_int(const char *text, int64_t *value_p)
{
    static const char units[] = "KMG";
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || errno != 0 || text[0] == ' ')
        return -1;
    if (*end != '\0') {
        const char *unit = strchr(units, *end >= 'a' ? *end - 'a' + 'A' : *end);
        if (unit == NULL || end[1] != '\0')
            return -1;
        if (__builtin_mul_overflow(value, 1ll << (10 * (unit - units + 1)), &value))
            return -1;
    }
    *value_p = value;
    return 0;
}

int epx_read_real(const char *text, double *value_p)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || text[0] == ' ' || !isfinite(value))
        return -1;
    *value_p = value;
    return 0;
}

/* Edits (insert, remove, replace) between two words of at most WORD_MAX letters. */
static size_t distance(const char *a, const char *b)
{
    size_t row[WORD_MAX + 1], length = strlen(b);
    for (size_t j = 0; j <= length; j++)
        row[j] = j;
    for (size_t i = 0; a[i] != '\0'; i++) {
        size_t corner = row[0];
        row[0] = i + 1;
        for (size_t j = 1; j <= length; j++) {
            size_t best = corner + (a[i] != b[j - 1]);
            best = row[j] + 1 < best ? row[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            corner = row[j];
            row[j] = best;
        }
    }
    return row[length];
}

const char *epx_nearest_word(const char *word, const char *const *words, size_t count)
{
    const char *nearest = NULL;
    size_t length = strlen(word), best = length / 3 + 2; /* further is no slip of the finger */
    if (length > WORD_MAX)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        if (words[i] == NULL || strlen(words[i]) > WORD_MAX)
            continue;
        size_t edits = distance(word, words[i]);
        if (edits < best) {
            best = edits;
            nearest = words[i];
        }
    }
    return nearest;
}

int epx_read_pairs(const char *text, char *name, size_t name_bytes, epx_pair_fn pair, void *context,
                   char *problem, size_t problem_bytes)
{
    size_t length = strcspn(text, ":");
    char word[512];
    if (length == 0 || length >= name_bytes) {
        snprintf(problem, problem_bytes, "'%s' has no name: write NAME or NAME:key=value,key=value", text);
        return -1;
    }
    memcpy(name, text, length);
    name[length] = '\0';
    text += length;
    while (*text != '\0') {
        text++; /* the colon, or a comma */
        length = strcspn(text, ",");
        if (length >= sizeof word) {
            snprintf(problem, problem_bytes, "'%.40s...' is too long: keep it below %zu bytes", text,
                     sizeof word);
            return -1;
        }
        memcpy(word, text, length);
        word[length] = '\0';
        text += length;
        char *equals = strchr(word, '=');
        if (equals == NULL || equals == word || equals[1] == '\0') {
            snprintf(problem, problem_bytes, "'%s' is not key=value: write %s:key=value,key=value", word,
                     name);
            return -1;
        }
        *equals = '\0';
        int rc = pair(context, word, equals + 1, problem, problem_bytes);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int set_number(const epx_option_t *option, const char *value, char *problem)
{
    int bounded = option->lo != 0 || option->hi != 0, rc;
    int64_t integer = 0;
    double real = 0;
    if (option->kind == EPX_OPTION_INT) {
        rc = epx_read_int(value, &integer);
        real = (double)integer;
    } else {
        rc = epx_read_real(value, &real);
    }
    if (rc != 0 || (bounded && !(real >= option->lo && real <= option->hi))) {
        const char *what = option->kind == EPX_OPTION_INT ? "an integer" : "a number";
        if (bounded)
            snprintf(problem, PROBLEM_BYTES, "'%s' is not %s from %.15g to %.15g", value, what, option->lo,
                     option->hi);
        else
            snprintf(problem, PROBLEM_BYTES, "'%s' is not %s", value, what);
        return -1;
    }
    if (option->kind == EPX_OPTION_INT)
        *(int64_t *)option->target = integer;
    else
        *(double *)option->target = real;
    return 0;
}

static int set_choice(const epx_option_t *option, const char *value, char *problem)
{
    size_t used = 0, count = 0;
    char list[PROBLEM_BYTES / 2] = "";
    for (; option->choices[count] != NULL; count++) {
        if (strcmp(value, option->choices[count]) == 0) {
            *(int32_t *)option->target = (int32_t)count;
            return 0;
        }
        int n = snprintf(list + used, sizeof list - used, "%s%s", count ? ", " : "", option->choices[count]);
        used = used + (size_t)n < sizeof list ? used + (size_t)n : sizeof list - 1;
    }
    const char *nearest = epx_nearest_word(value, option->choices, count);
    snprintf(problem, PROBLEM_BYTES, "'%s' is unknown: choose from %s%s%s%s", value, list,
             nearest ? " (did you mean " : "", nearest ? nearest : "", nearest ? "?)" : "");
    return -1;
}

static int set_option(const epx_option_t *option, const char *value, char *problem)
{
    switch (option->kind) {
    case EPX_OPTION_FLAG: *(int32_t *)option->target = 1; return 0;
    case EPX_OPTION_TEXT:
        if (value[0] == '\0') {
            snprintf(problem, PROBLEM_BYTES, "the value is empty: give %s", option->argument);
            return -1;
        }
        *(const char **)option->target = value;
        return 0;
    case EPX_OPTION_CHOICE: return set_choice(option, value, problem);
    case EPX_OPTION_CALL: return option->set(option->target, value, problem, PROBLEM_BYTES);
    default: return set_number(option, value, problem);
    }
}

static const epx_option_t *find_long(const epx_option_t *options, const char *name, size_t length)
{
    for (; options->kind != EPX_OPTION_END; options++)
        if (options->name != NULL && strlen(options->name) == length &&
            memcmp(options->name, name, length) == 0)
            return options;
    return NULL;
}

static const epx_option_t *find_letter(const epx_option_t *options, char letter)
{
    for (; options->kind != EPX_OPTION_END; options++)
        if (options->letter == letter)
            return options;
    return NULL;
}

static int unknown_option(const epx_program_t *program, const char *word)
{
    const char *names[128];
    size_t count = 0, length = strcspn(word, "=");
    char name[WORD_MAX + 1];
    for (const epx_option_t *o = program->options; o->kind != EPX_OPTION_END && count < 126; o++)
        if (o->name != NULL)
            names[count++] = o->name;
    names[count++] = "help";
    names[count++] = "version";
    length = length < sizeof name ? length : sizeof name - 1;
    memcpy(name, word, length);
    name[length] = '\0';
    const char *nearest = strncmp(name, "--", 2) == 0 ? epx_nearest_word(name + 2, names, count) : NULL;
    if (nearest != NULL)
        return epx_tool_fail(EPX_EXIT_USAGE, "%s is no option: did you mean --%s?", name, nearest);
    return epx_tool_fail(EPX_EXIT_USAGE, "%s is no option: see %s --help", name, program->name);
}

/* Sets `option`; value NULL: the next word of argv is it. Leaves *at on the last word that was read. */
static int take_value(const epx_option_t *option, const char *value, int argc, char **argv, int *at)
{
    char problem[PROBLEM_BYTES] = "";
    if (option->argument == NULL && value != NULL)
        return epx_tool_fail(EPX_EXIT_USAGE, "--%s takes no value: leave '%s' out", option->name, value);
    if (option->argument != NULL && value == NULL) {
        if (*at + 1 >= argc)
            return epx_tool_fail(EPX_EXIT_USAGE, "--%s needs a value: give %s", option->name,
                                 option->argument);
        value = argv[++*at];
    }
    if (set_option(option, value ? value : "", problem) != 0)
        return epx_tool_fail(EPX_EXIT_USAGE, "--%s: %s", option->name, problem);
    return EPX_GO_ON;
}

/* -a, -ab for -a -b, -nVALUE. */
static int parse_letters(const epx_program_t *program, int argc, char **argv, int *at)
{
    const char *word = argv[*at];
    for (const char *letter = word + 1; *letter != '\0'; letter++) {
        const epx_option_t *option = find_letter(program->options, *letter);
        if (option == NULL)
            return unknown_option(program, word);
        int takes = option->argument != NULL;
        int rc = take_value(option, takes && letter[1] != '\0' ? letter + 1 : NULL, argc, argv, at);
        if (takes || rc != EPX_GO_ON)
            return rc;
    }
    return EPX_GO_ON;
}

/* Reads the option at argv[*at]; leaves *at on its last word. */
static int parse_one(const epx_program_t *program, int argc, char **argv, int *at)
{
    const char *word = argv[*at];
    if (word[1] != '-')
        return parse_letters(program, argc, argv, at);
    size_t length = strcspn(word + 2, "=");
    const epx_option_t *option = find_long(program->options, word + 2, length);
    if (option == NULL)
        return unknown_option(program, word);
    return take_value(option, word[2 + length] == '=' ? word + 2 + length + 1 : NULL, argc, argv, at);
}

int epx_command_line(const epx_program_t *program, int argc, char **argv, int *first_operand_p)
{
    int operands = 0, only_operands = 0;
    epx_tool_begin(program->name);
    for (int at = 1; at < argc; at++) {
        char *word = argv[at];
        if (only_operands || word[0] != '-' || word[1] == '\0') {
            if (program->operands == NULL)
                return epx_tool_fail(EPX_EXIT_USAGE, "'%s' is not expected here: see %s --help", word,
                                     program->name);
            argv[1 + operands++] = word; /* never ahead of `at` */
        } else if (strcmp(word, "--") == 0) {
            only_operands = 1;
        } else if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            epx_help_print(program, stdout);
            return epx_tool_end(EPX_EXIT_OK);
        } else if (strcmp(word, "--version") == 0) {
            printf("%s %s\n", program->name, epx_version());
            return epx_tool_end(EPX_EXIT_OK);
        } else {
            int rc = parse_one(program, argc, argv, &at);
            if (rc != EPX_GO_ON)
                return rc;
        }
    }
    /* Operands were gathered at the front; the caller finds them at the end. */
    memmove(argv + argc - operands, argv + 1, (size_t)operands * sizeof *argv);
    if (first_operand_p != NULL)
        *first_operand_p = argc - operands;
    return EPX_GO_ON;
}
