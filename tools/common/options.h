/* One table of options per program, which is also its help. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TOOLS_OPTIONS_H
#define EPX_TOOLS_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

typedef enum epx_option_kind {
    EPX_OPTION_END = 0, /* closes the table */
    EPX_OPTION_SECTION, /* a heading of the help; `help` is its text */
    EPX_OPTION_FLAG,    /* int32_t, becomes 1 */
    EPX_OPTION_INT,     /* int64_t in lo..hi; 4K, 2M, 1G are multiples of 1024 */
    EPX_OPTION_REAL,    /* double in lo..hi */
    EPX_OPTION_TEXT,    /* const char *, not empty */
    EPX_OPTION_CHOICE,  /* int32_t, index of the word in `choices` */
    EPX_OPTION_CALL     /* set(target, value, ...); may be given many times */
} epx_option_kind_t;

/* Reads one value. Returns 0, or -1 with "what is wrong: what to do" in `problem`. */
typedef int (*epx_option_set_fn)(void *target, const char *value, char *problem, size_t problem_bytes);

typedef struct epx_option {
    epx_option_kind_t kind;
    char letter;          /* 0: none */
    const char *name;     /* without the dashes */
    const char *argument; /* what help calls the value; NULL for a flag */
    const char *help;     /* without a full stop; the help adds the default that `target` holds */
    void *target;
    double lo, hi;              /* INT, REAL: bounds; both 0: none */
    const char *const *choices; /* CHOICE: ends with NULL */
    epx_option_set_fn set;      /* CALL; for a CALL with argument NULL the value is "" */
} epx_option_t;

/* Rows of a table, with the target's type checked. */
static inline epx_option_t epx_option_section(const char *help)
{
    return (epx_option_t){.kind = EPX_OPTION_SECTION, .help = help};
}
static inline epx_option_t epx_option_flag(char letter, const char *name, const char *help, int32_t *target)
{
    return (epx_option_t){
        .kind = EPX_OPTION_FLAG, .letter = letter, .name = name, .help = help, .target = target};
}
static inline epx_option_t epx_option_int(char letter, const char *name, const char *help, int64_t *target,
                                          double lo, double hi)
{
    return (epx_option_t){.kind = EPX_OPTION_INT,
                          .letter = letter,
                          .name = name,
                          .argument = "N",
                          .help = help,
                          .target = target,
                          .lo = lo,
                          .hi = hi};
}
static inline epx_option_t epx_option_real(char letter, const char *name, const char *help, double *target,
                                           double lo, double hi)
{
    return (epx_option_t){.kind = EPX_OPTION_REAL,
                          .letter = letter,
                          .name = name,
                          .argument = "X",
                          .help = help,
                          .target = target,
                          .lo = lo,
                          .hi = hi};
}
static inline epx_option_t epx_option_text(char letter, const char *name, const char *argument,
                                           const char *help, const char **target)
{
    return (epx_option_t){.kind = EPX_OPTION_TEXT,
                          .letter = letter,
                          .name = name,
                          .argument = argument,
                          .help = help,
                          .target = target};
}
static inline epx_option_t epx_option_choice(char letter, const char *name, const char *argument,
                                             const char *help, int32_t *target, const char *const *choices)
{
    return (epx_option_t){.kind = EPX_OPTION_CHOICE,
                          .letter = letter,
                          .name = name,
                          .argument = argument,
                          .help = help,
                          .target = target,
                          .choices = choices};
}
static inline epx_option_t epx_option_call(char letter, const char *name, const char *argument,
                                           const char *help, void *target, epx_option_set_fn set)
{
    return (epx_option_t){.kind = EPX_OPTION_CALL,
                          .letter = letter,
                          .name = name,
                          .argument = argument,
                          .help = help,
                          .target = target,
                          .set = set};
}
static inline epx_option_t epx_option_end(void) { return (epx_option_t){.kind = EPX_OPTION_END}; }

typedef struct epx_program {
    const char *name;     /* "epx-perf" */
    const char *summary;  /* one or two sentences */
    const char *operands; /* what may follow the options, "DIR..."; NULL: nothing may */
    const epx_option_t *options;
    const char *notes; /* printed below the options: examples, exit codes; may be NULL */
} epx_program_t;

#endif
