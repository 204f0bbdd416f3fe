/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "model_fields.h"
#include "status.h"

typedef enum kind { INTEGER, NUMBER, TEXT, SET, CLEAR, CHOICE } kind_t;

typedef struct option {
    const char *name, *value, *help;
    kind_t kind;
    size_t offset;              /* in epx_train_config_t */
    const char *const *choices; /* names of an enum's values, ended by NULL */
} option_t;

#define AT(member) offsetof(epx_train_config_t, member)

static const char *const balances[] = {"quantile", "bias", "aux", "none", NULL};
static const char *const schedules[] = {"cosine", "constant", NULL};

static const option_t options[] = {
    {"--steps", "N", "steps of the whole run", INTEGER, AT(steps), NULL},
    {"--batch", "N", "sequences per rank and step", INTEGER, AT(batch), NULL},
    {"--seed", "N", "of parameters, order of the text and chance", INTEGER, AT(seed), NULL},
    {"--data", "FILE", "text read as bytes, or an llm.c token shard; default: the text that ships", TEXT,
     AT(data), NULL},
    {"--validation", "FRACTION", "share of the text kept for validation", NUMBER, AT(validation), NULL},
    {"--ep", "S", "ranks that share the experts", INTEGER, AT(ep), NULL},
    {"--replicas", "D", "such groups, data parallel", INTEGER, AT(replicas), NULL},
    {"--virtual-ep", "N", "accept rules decide as if a group had N ranks", INTEGER, AT(virtual_ep), NULL},
    {"--transport", "NAME", "pooled_wave, ragged, ring or a plug-in; EPX_TRANSPORT wins", TEXT,
     AT(group.transport), NULL},
    {"--drop", "FRACTION", "drop assignments at random", NUMBER, AT(drop), NULL},
    {"--recompute", NULL, "dispatch again in the backward pass instead of keeping rows", SET, AT(recompute),
     NULL},
    {"--record-routing", "FILE", "write the routers' choices", TEXT, AT(record_routing), NULL},
    {"--record-counts", NULL, "write how many tokens chose each expert, instead of all choices", SET,
     AT(record_counts), NULL},
    {"--routing", "FILE", "use recorded choices instead of the routers'", TEXT, AT(routing), NULL},
    {"--checkpoint", "FILE", "write one at the end, on SIGTERM and on SIGUSR1", TEXT, AT(checkpoint), NULL},
    {"--save-every", "N", "and every N steps", INTEGER, AT(save_every), NULL},
    {"--restore", "FILE", "go on from a checkpoint, over any number of ranks", TEXT, AT(restore), NULL},
    {"--eval-every", "N", "validate every N steps; 0: at the end", INTEGER, AT(eval_every), NULL},
    {"--eval-sequences", "N", "sequences to validate on", INTEGER, AT(eval_sequences), NULL},
    {"--no-bigram", NULL, "leave out the bigram model that validation is compared with", CLEAR, AT(bigram),
     NULL},
    {"--metrics", "FILE", "write one JSON object per step", TEXT, AT(metrics), NULL},
    {"--links", "NAME,...", "tell the flight record what happens to these links: rank 0's, rank 1's, ...",
     TEXT, AT(links), NULL},
    {"--sysfs", "DIR", "another root than /sys for --links", TEXT, AT(sysfs), NULL},
    {"--json", NULL, "print them on standard output, and nothing else", SET, AT(json), NULL},
    {"--peak-flops", "X", "peak of all devices together for MFU; 0: measure", NUMBER, AT(peak_flops), NULL},
    {"--lr", "X", "learning rate after warming up", NUMBER, AT(rate), NULL},
    {"--lr-end", "X", "share of it that is left at the end", NUMBER, AT(rate_end), NULL},
    {"--warmup", "N", "steps of linear warm-up", INTEGER, AT(warmup), NULL},
    {"--schedule", "NAME", "cosine or constant", CHOICE, AT(schedule), schedules},
    {"--beta1", "X", "AdamW: memory of the mean", NUMBER, AT(beta1), NULL},
    {"--beta2", "X", "AdamW: memory of the square", NUMBER, AT(beta2), NULL},
    {"--weight-decay", "X", "AdamW: decay of matrices", NUMBER, AT(decay), NULL},
    {"--router-decay", "X", "of router and gate; falls linearly to 0 over the run", NUMBER, AT(router_decay),
     NULL},
    {"--clip", "X", "largest norm of the gradient; 0: any", NUMBER, AT(clip), NULL},
    {"--balance", "NAME", "of experts: quantile, bias, aux or none", CHOICE, AT(balance), balances},
    {"--balance-rate", "X", "speed of the biases; 0: the usual one", NUMBER, AT(balance_rate), NULL},
    {"--aux-loss", "X", "weight of the auxiliary loss with --balance aux", NUMBER, AT(aux_loss), NULL},
    {"--z-loss", "X", "weight of the router's z-loss", NUMBER, AT(z_loss), NULL},
};

#define OPTIONS (sizeof options / sizeof *options)

static int wrong(const char *name, const char *value, const char *expected)
{
    epx_train_fail(EPX_TRAIN_USAGE, "%s %s is not understood: give %s", name, value, expected);
    return -1;
}

static int read_integer(const char *text, int64_t *value)
{
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0)
        return 0;
    *value = number;
    return 1;
}

static int read_number(const char *text, double *value)
{
    char *end;
    errno = 0;
    *value = strtod(text, &end);
    return end != text && *end == '\0' && errno == 0 && *value >= 0 && *value <= 1e300;
}

static int read_choice(const option_t *option, const char *text, void *place)
{
    for (int i = 0; option->choices[i]; i++)
        if (strcmp(option->choices[i], text) == 0) {
            memcpy(place, &i, sizeof i); /* an enum's values are its choices in order */
            return 1;
        }
    return wrong(option->name, text, option->help);
}

/* Stores a value; 1 or -1. */
static int store(const option_t *option, const char *text, epx_train_config_t *config)
{
    void *place = (char *)config + option->offset;
    switch (option->kind) {
    case INTEGER:
        return read_integer(text, place) && *(int64_t *)place >= 0
                   ? 1
                   : wrong(option->name, text, "a whole number, 0 or more");
    case NUMBER: return read_number(text, place) ? 1 : wrong(option->name, text, "a number, 0 or more");
    case TEXT: *(const char **)place = text; return 1;
    case SET: *(int64_t *)place = 1; return 1;
    case CLEAR: *(int64_t *)place = 0; return 1;
    case CHOICE: return read_choice(option, text, place);
    }
    return -1;
}

static const option_t *find_option(const char *name)
{
    for (size_t i = 0; i < OPTIONS; i++)
        if (strcmp(options[i].name, name) == 0)
            return &options[i];
    return NULL;
}

static const epx_model_field_t *find_field(const char *name)
{
    for (const epx_model_field_t *field = epx_model_fields; field->name; field++)
        if (strncmp(name, "--", 2) == 0 && strcmp(field->name, name + 2) == 0)
            return field;
    return NULL;
}

/* Options that set more than one value. */
static int take_ranks(const char *text, epx_train_config_t *config)
{
    return read_integer(text, &config->ranks) && config->ranks >= 1
               ? 1
               : wrong("--ranks", text, "a whole number, 1 or more");
}

static int take_record_steps(const char *text, epx_train_config_t *config)
{
    char from[32], *colon = strchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : sizeof from;
    if (length >= sizeof from)
        return wrong("--record-steps", text, "FROM:TO");
    memcpy(from, text, length);
    from[length] = '\0';
    int good = read_integer(from, &config->record_from) && read_integer(colon + 1, &config->record_to);
    return good && config->record_from < config->record_to
               ? 1
               : wrong("--record-steps", text, "FROM:TO, FROM < TO");
}

/* One option: *at is its place in argv, moved past its value. 1: taken; 0: no option of training; -1: wrong,
 * with a sentence. --preset is checked and otherwise left alone. */
static int take_one(int argc, char **argv, int *at, epx_train_config_t *config)
{
    const char *name = argv[*at];
    const option_t *option = find_option(name);
    const epx_model_field_t *field = find_field(name);
    int ranks = strcmp(name, "--ranks") == 0, record = strcmp(name, "--record-steps") == 0;
    int preset = strcmp(name, "--preset") == 0;
    if (option && !option->value)
        return store(option, NULL, config);
    if (!option && !field && !ranks && !record && !preset)
        return 0;
    if (*at + 1 >= argc) {
        epx_train_fail(EPX_TRAIN_USAGE, "%s needs a value: see --help", name);
        return -1;
    }
    const char *text = argv[++*at];
    if (option)
        return store(option, text, config);
    if (ranks)
        return take_ranks(text, config);
    if (record)
        return take_record_steps(text, config);
    if (preset)
        return 1;
    int64_t *place = (int64_t *)(void *)((char *)&config->model + field->offset);
    return read_integer(text, place) && *place >= 0 ? 1 : wrong(name, text, "a whole number, 0 or more");
}

/* Sets *config to the preset that argv names, or to "tiny". */
static int take_preset(int argc, char **argv, epx_train_config_t *config)
{
    const char *name = "tiny";
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "--preset") == 0)
            name = argv[i + 1];
    return epx_config_preset(name, config);
}

/* --ranks alone says ep; beside --ep or --replicas, as -1 where not given, it must say the same. Under a
 * launcher its number of processes stands for --ranks where nothing else is given. */
static int join_ranks(epx_train_config_t *config)
{
    int32_t launched = 1;
    int code = epx_train_status(epx_comm_launched(NULL, &launched));
    if (code != EPX_TRAIN_OK)
        return code;
    if (launched > 1 && config->ranks == 0 && config->ep < 0 && config->replicas < 0)
        config->ranks = launched;
    int alone = config->ep < 0 && config->replicas < 0;
    config->ep = config->ep >= 0 ? config->ep : alone && config->ranks > 0 ? config->ranks : 1;
    config->replicas = config->replicas >= 0 ? config->replicas : 1;
    if (config->ranks == 0 || (config->replicas > 0 && config->ranks % config->replicas == 0 &&
                               config->ranks / config->replicas == config->ep))
        return EPX_TRAIN_OK;
    return epx_train_fail(EPX_TRAIN_USAGE,
                          "--ranks %lld is not --ep %lld times --replicas %lld: make them agree, or leave "
                          "--ranks out",
                          (long long)config->ranks, (long long)config->ep, (long long)config->replicas);
}

int epx_options_parse(int argc, char **argv, epx_train_config_t *config)
{
    int code = take_preset(argc, argv, config);
    config->ep = config->replicas = -1; /* not given */
    for (int i = 1; code == EPX_TRAIN_OK && i < argc; i++) {
        const char *name = argv[i];
        int taken = take_one(argc, argv, &i, config);
        if (taken == 0)
            code = epx_train_fail(EPX_TRAIN_USAGE, "there is no option %s: see --help", name);
        else if (taken < 0)
            code = EPX_TRAIN_USAGE;
    }
    return code == EPX_TRAIN_OK ? join_ranks(config) : code;
}

void epx_options_help(FILE *stream)
{
    fprintf(stream, "  --preset NAME               ");
    for (int i = 0; epx_preset_name(i); i++)
        fprintf(stream, "%s%s", i ? ", " : "", epx_preset_name(i));
    fprintf(stream, "\n  --ranks N                   short for --ep N --replicas 1\n");
    for (size_t i = 0; i < OPTIONS; i++)
        fprintf(stream, "  %-17s %-9s %s\n", options[i].name, options[i].value ? options[i].value : "",
                options[i].help);
    fprintf(stream, "  --record-steps    FROM:TO   steps to record, from FROM up to before TO\n");
    fprintf(stream, "Over the preset's shape:\n");
    for (const epx_model_field_t *field = epx_model_fields; field->name; field++)
        fprintf(stream, "  --%-15s N         %s\n", field->name, field->help);
}
