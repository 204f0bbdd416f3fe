/* The text of --help. SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/help.h"

#include <inttypes.h>
#include <string.h>

#define INDENT 30
#define WIDTH 100

void epx_print_wrapped(FILE *out, const char *text, int at, int indent, int width)
{
    int fresh = 1; /* nothing on this line yet */
    while (*text != '\0') {
        int length = (int)strcspn(text, " \n");
        if (!fresh && at + 1 + length > width) {
            fprintf(out, "\n%*s", indent, "");
            at = indent;
            fresh = 1;
        }
        at += fprintf(out, "%s%.*s", fresh ? "" : " ", length, text);
        fresh = 0;
        text += length;
        if (*text == '\n') {
            fprintf(out, "\n%*s", indent, "");
            at = indent;
            fresh = 1;
        }
        if (*text != '\0')
            text++;
    }
    fputc('\n', out);
}

/* The value that counts when the option is not given, as a text; "" where there is none to show. */
static void default_of(const epx_option_t *option, char *text, size_t bytes)
{
    text[0] = '\0';
    if (option->kind == EPX_OPTION_INT)
        snprintf(text, bytes, " (%" PRId64 ")", *(int64_t *)option->target);
    else if (option->kind == EPX_OPTION_REAL)
        snprintf(text, bytes, " (%g)", *(double *)option->target);
    else if (option->kind == EPX_OPTION_TEXT && *(const char **)option->target != NULL)
        snprintf(text, bytes, " (%s)", *(const char **)option->target);
    else if (option->kind == EPX_OPTION_CHOICE && *(int32_t *)option->target >= 0)
        snprintf(text, bytes, " (%s)", option->choices[*(int32_t *)option->target]);
}

static void print_option(const epx_option_t *option, FILE *out)
{
    char standard[160], help[2048];
    int at = 0;
    if (option->kind == EPX_OPTION_SECTION) {
        fprintf(out, "\n%s\n", option->help);
        return;
    }
    if (option->letter)
        at = fprintf(out, "  -%c, --%s", option->letter, option->name);
    else
        at = fprintf(out, "  --%s", option->name);
    if (option->argument != NULL)
        at += fprintf(out, " %s", option->argument);
    if (at > INDENT - 2) {
        fputc('\n', out);
        at = 0;
    }
    fprintf(out, "%*s", INDENT - at, "");
    default_of(option, standard, sizeof standard);
    snprintf(help, sizeof help, "%s%s", option->help, standard);
    epx_print_wrapped(out, help, INDENT, INDENT, WIDTH);
}

void epx_help_print(const epx_program_t *program, FILE *out)
{
    static const epx_option_t common[] = {
        {.kind = EPX_OPTION_FLAG, .letter = 'h', .name = "help", .help = "this text"},
        {.kind = EPX_OPTION_FLAG, .name = "version", .help = "version of the library"},
        {.kind = EPX_OPTION_END},
    };
    fprintf(out, "usage: %s [OPTION...]%s%s\n", program->name, program->operands ? " " : "",
            program->operands ? program->operands : "");
    epx_print_wrapped(out, program->summary, 0, 0, WIDTH);
    if (program->options->kind != EPX_OPTION_SECTION)
        fputc('\n', out);
    for (const epx_option_t *option = program->options; option->kind != EPX_OPTION_END; option++)
        print_option(option, out);
    for (const epx_option_t *option = common; option->kind != EPX_OPTION_END; option++)
        print_option(option, out);
    if (program->notes != NULL)
        fprintf(out, "\n%s\n", program->notes);
}
