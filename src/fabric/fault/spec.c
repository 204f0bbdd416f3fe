/* Reading EPX_FAULT. SPDX-License-Identifier: Apache-2.0 */
#include "fabric/fault/spec.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/decimal.h"

static const char *const point_names[EPX_FAULT_POINTS] = {"enqueue",    "begin",       "put.pre",  "put.post",
                                                          "signal.pre", "signal.post", "wait.pre", "end",
                                                          "register",   "exchange"};
static const char *const op_names[EPX_FAULT_OPS] = {
    "route",     "dispatch",  "combine", "combine_backward", "dispatch_backward",
    "allreduce", "allgather", "barrier"};

#define AT(point) (1u << EPX_FAULT_##point)
#define CALL_POINTS (AT(ENQUEUE) | AT(BEGIN) | AT(END))
#define SIGNAL_POINTS (AT(SIGNAL_PRE) | AT(SIGNAL_POST))
#define PUT_POINTS (AT(PUT_PRE) | AT(PUT_POST))
#define EVERYWHERE ((1u << EPX_FAULT_POINTS) - 1)

typedef enum argument_kind { ARGUMENT_NONE, ARGUMENT_NEEDED, ARGUMENT_MAY } argument_kind_t;

/* What each action is called, what its number means, and where it can act. */
static const struct {
    const char *name, *argument;
    argument_kind_t kind;
    int64_t otherwise, most;
    uint32_t points;
} actions[EPX_FAULT_DOS] = {
    [EPX_FAULT_DROP] = {"drop", "", ARGUMENT_NONE, 0, 0,
                        AT(PUT_PRE) | AT(SIGNAL_PRE) | AT(EXCHANGE) | AT(REGISTER)},
    [EPX_FAULT_DELAY] = {"delay", "MS", ARGUMENT_NEEDED, 0, 86400000, EVERYWHERE},
    [EPX_FAULT_DUPLICATE] = {"duplicate", "", ARGUMENT_NONE, 0, 0,
                             AT(PUT_PRE) | SIGNAL_POINTS | AT(REGISTER)},
    [EPX_FAULT_REORDER] = {"reorder", "MS", ARGUMENT_MAY, 50, 86400000, AT(PUT_PRE) | AT(SIGNAL_PRE)},
    [EPX_FAULT_STALE] = {"stale", "", ARGUMENT_NONE, 0, 0, AT(SIGNAL_PRE)},
    [EPX_FAULT_FLIP] = {"flip", "BIT", ARGUMENT_NEEDED, 0, INT64_MAX,
                        AT(PUT_POST) | AT(SIGNAL_PRE) | AT(EXCHANGE)},
    [EPX_FAULT_STOP] = {"stop", "", ARGUMENT_NONE, 0, 0, EVERYWHERE},
    [EPX_FAULT_KILL] = {"kill", "", ARGUMENT_NONE, 0, 0, EVERYWHERE},
    [EPX_FAULT_EXIT] = {"exit", "", ARGUMENT_NONE, 0, 0, EVERYWHERE},
    [EPX_FAULT_SPIN] = {"spin", "MS", ARGUMENT_NEEDED, 0, 86400000, EVERYWHERE},
    [EPX_FAULT_SKIP] = {"skip", "", ARGUMENT_NONE, 0, 0, AT(ENQUEUE) | AT(WAIT_PRE) | AT(EXCHANGE)},
    [EPX_FAULT_HOG] = {"hog", "N", ARGUMENT_NEEDED, 0, 100000, AT(ENQUEUE) | AT(BEGIN)},
};

const char *epx_fault_point_name(epx_fault_point_t point) { return point_names[point]; }

const char *epx_fault_do_name(epx_fault_do_t what) { return actions[what].name; }

const char *epx_fault_op_name(int32_t op) { return op >= 0 ? op_names[op] : "any"; }

/* One word of the text while it is read. */
typedef struct word {
    char text[96];
    const char *value; /* behind the '=' */
    char *problem;
    size_t problem_bytes;
} word_t;

/* What may stand there instead. */
static epx_status_t bad(const word_t *word, const char *allowed)
{
    snprintf(word->problem, word->problem_bytes, "EPX_FAULT: \"%s\" is not understood: %s", word->text,
             allowed);
    return EPX_ERR_ARG;
}

static epx_status_t bad_name(const word_t *word, const char *key, const char *const *names, int32_t count)
{
    char allowed[320];
    size_t used = (size_t)snprintf(allowed, sizeof(allowed), "%s is one of", key);
    for (int32_t i = 0; i < count && used < sizeof(allowed); i++)
        used += (size_t)snprintf(allowed + used, sizeof(allowed) - used, "%s %s", i > 0 ? "," : "", names[i]);
    return bad(word, allowed);
}

static int read_whole(const char *text, int64_t most, int64_t *value_p)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < 0 || value > most)
        return 0;
    *value_p = value;
    return 1;
}

static epx_status_t read_number(const word_t *word, const char *key, int64_t most, int64_t *value_p)
{
    char allowed[96];
    if (read_whole(word->value, most, value_p))
        return EPX_OK;
    snprintf(allowed, sizeof(allowed), "%s is a whole number from 0 on", key);
    return bad(word, allowed);
}

static epx_status_t read_int(const word_t *word, const char *key, int32_t *value_p)
{
    int64_t value;
    epx_status_t status = read_number(word, key, INT32_MAX, &value);
    if (status == EPX_OK)
        *value_p = (int32_t)value;
    return status;
}

static epx_status_t read_name(const word_t *word, const char *key, const char *const *names, int32_t count,
                              int32_t *index_p)
{
    for (int32_t i = 0; i < count; i++) {
        if (strcmp(word->value, names[i]) == 0) {
            *index_p = i;
            return EPX_OK;
        }
    }
    return bad_name(word, key, names, count);
}

static epx_status_t read_action(const word_t *word, epx_fault_rule_t *rule)
{
    const char *colon = strchr(word->value, ':');
    size_t length = colon != NULL ? (size_t)(colon - word->value) : strlen(word->value);
    char allowed[320];
    size_t used = (size_t)snprintf(allowed, sizeof(allowed), "do is one of");
    for (int32_t i = 0; i < EPX_FAULT_DOS; i++) {
        if (strlen(actions[i].name) == length && strncmp(actions[i].name, word->value, length) == 0) {
            rule->what = (epx_fault_do_t)i;
            rule->argument = actions[i].otherwise;
            if ((colon != NULL) == (actions[i].kind == ARGUMENT_NEEDED) && colon == NULL)
                return EPX_OK;
            if (colon == NULL && actions[i].kind == ARGUMENT_MAY)
                return EPX_OK;
            if (colon != NULL && actions[i].kind != ARGUMENT_NONE &&
                read_whole(colon + 1, actions[i].most, &rule->argument))
                return EPX_OK;
            snprintf(allowed, sizeof(allowed), "it is written %s%s%s", actions[i].name,
                     actions[i].kind != ARGUMENT_NONE ? ":" : "", actions[i].argument);
            return bad(word, allowed);
        }
        used += (size_t)snprintf(allowed + used, sizeof(allowed) - used, "%s %s%s%s", i > 0 ? "," : "",
                                 actions[i].name, actions[i].kind != ARGUMENT_NONE ? ":" : "",
                                 actions[i].argument);
    }
    return bad(word, allowed);
}

static epx_status_t read_chance(const word_t *word, epx_fault_rule_t *rule)
{
    char *end;
    rule->chance = epx_decimal_read(word->value, &end);
    if (end == word->value || *end != '\0' || !(rule->chance > 0) || rule->chance > 1)
        return bad(word, "chance is a number above 0, up to 1");
    return EPX_OK;
}

/* What a rule has been given; `at` and `do` are needed where there is anything but a seed. */
enum { HAS_AT = 1, HAS_DO = 2, HAS_OTHER = 4 };

static epx_status_t read_word(word_t *word, epx_fault_spec_t *spec, epx_fault_rule_t *rule, uint32_t *has)
{
    static const char *const keys[] = {"rank", "op", "seq",   "wave",   "peer", "group",
                                       "at",   "do", "times", "chance", "seed"};
    enum { RANK, OP, SEQ, WAVE, PEER, GROUP, POINT, DO, TIMES, CHANCE, SEED, KEYS };
    char *equal = strchr(word->text, '=');
    int32_t key = 0, index = 0;
    int64_t number = 0;
    epx_status_t status = EPX_OK;
    if (equal == NULL)
        return bad_name(word, "a word is key=value, and the key", keys, KEYS);
    word->value = equal + 1;
    while (key < KEYS && (strncmp(keys[key], word->text, (size_t)(equal - word->text)) != 0 ||
                          strlen(keys[key]) != (size_t)(equal - word->text)))
        key++;
    *has |= key == POINT ? HAS_AT : key == DO ? HAS_DO : key == SEED ? 0 : HAS_OTHER;
    switch (key) {
    case RANK: return read_int(word, "rank", &rule->rank);
    case OP: return read_name(word, "op", op_names, EPX_FAULT_OPS, &rule->op);
    case SEQ: return read_number(word, "seq", INT64_MAX, &rule->seq);
    case WAVE: return read_int(word, "wave", &rule->wave);
    case PEER: return read_int(word, "peer", &rule->peer);
    case GROUP:
        if (word->value[0] == '\0' || strlen(word->value) >= sizeof(rule->group))
            return bad(word, "group is the name of a group, up to 31 bytes");
        snprintf(rule->group, sizeof(rule->group), "%s", word->value);
        return EPX_OK;
    case POINT:
        status = read_name(word, "at", point_names, EPX_FAULT_POINTS, &index);
        rule->at = (epx_fault_point_t)index;
        return status;
    case DO: return read_action(word, rule);
    case TIMES: return read_number(word, "times", INT64_MAX, &rule->times);
    case CHANCE: return read_chance(word, rule);
    case SEED:
        status = read_number(word, "seed", INT64_MAX, &number);
        spec->seed = (uint64_t)number;
        return status;
    default: return bad_name(word, "a key", keys, KEYS);
    }
}

/* A rule that could never act, or not as it is meant. */
static epx_status_t check_rule(const epx_fault_rule_t *rule, uint32_t has, char *problem, size_t bytes)
{
    if ((has & (HAS_AT | HAS_DO)) != (HAS_AT | HAS_DO)) {
        snprintf(problem, bytes, "EPX_FAULT: a rule needs both at= and do=, this one has no %s",
                 (has & HAS_AT) == 0 ? "at=" : "do=");
        return EPX_ERR_ARG;
    }
    if ((actions[rule->what].points & 1u << rule->at) == 0) {
        size_t used = (size_t)snprintf(problem, bytes, "EPX_FAULT: do=%s cannot be done at=%s, only at",
                                       actions[rule->what].name, point_names[rule->at]);
        for (int32_t i = 0; i < EPX_FAULT_POINTS && used < bytes; i++)
            if ((actions[rule->what].points & 1u << i) != 0)
                used += (size_t)snprintf(problem + used, bytes - used, " %s", point_names[i]);
        return EPX_ERR_ARG;
    }
    int peers = (PUT_POINTS | SIGNAL_POINTS) >> rule->at & 1;
    if (rule->peer != EPX_FAULT_ANY && !peers) {
        snprintf(problem, bytes, "EPX_FAULT: peer= has no meaning at=%s; it has at the put and signal points",
                 point_names[rule->at]);
        return EPX_ERR_ARG;
    }
    if (rule->op >= EPX_FAULT_OP_ALLREDUCE && (CALL_POINTS >> rule->at & 1) == 0) {
        snprintf(problem, bytes, "EPX_FAULT: op=%s can be disturbed at=enqueue, begin and end only",
                 op_names[rule->op]);
        return EPX_ERR_ARG;
    }
    return EPX_OK;
}

/* Reads words up to the ';' or the end; *text moves behind it. */
static epx_status_t read_rule(const char **text, epx_fault_spec_t *spec, char *problem, size_t bytes)
{
    epx_fault_rule_t rule = {.rank = EPX_FAULT_ANY,
                             .wave = EPX_FAULT_ANY,
                             .peer = EPX_FAULT_ANY,
                             .op = EPX_FAULT_ANY,
                             .seq = EPX_FAULT_ANY,
                             .chance = 1};
    uint32_t has = 0;
    for (;;) {
        *text += strspn(*text, " \t\n");
        size_t length = strcspn(*text, " \t\n;");
        if (length == 0)
            break;
        word_t word = {.problem = problem, .problem_bytes = bytes};
        snprintf(word.text, sizeof(word.text), "%.*s", (int)length, *text);
        epx_status_t status = length < sizeof(word.text) ? read_word(&word, spec, &rule, &has)
                                                         : bad(&word, "no word is as long as that");
        if (status != EPX_OK)
            return status;
        *text += length;
    }
    if (**text == ';')
        ++*text;
    if (has == 0)
        return EPX_OK;
    if (spec->rules == EPX_FAULT_RULES) {
        snprintf(problem, bytes, "EPX_FAULT: more than %d rules", EPX_FAULT_RULES);
        return EPX_ERR_ARG;
    }
    spec->rule[spec->rules++] = rule;
    return check_rule(&rule, has, problem, bytes);
}

epx_status_t epx_fault_parse(const char *text, epx_fault_spec_t *spec_p, char *problem, size_t problem_bytes)
{
    *spec_p = (epx_fault_spec_t){.seed = 1};
    while (*text != '\0') {
        epx_status_t status = read_rule(&text, spec_p, problem, problem_bytes);
        if (status != EPX_OK)
            return status;
    }
    return EPX_OK;
}
