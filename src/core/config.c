/* The configuration table. SPDX-License-Identifier: Apache-2.0 */
#include "core/config.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/decimal.h"
#include "base/fail.h"
#include "fabric/fault/spec.h"
#include "transport/registry.h"

typedef enum row_kind { ROW_TEXT, ROW_REAL, ROW_COUNT, ROW_CHOICE, ROW_FAULT, ROW_LATER } row_kind_t;

enum { NOWHERE = -1 };

struct epx_config_row {
    const char *name; /* without EPX_ */
    row_kind_t kind;
    const char *fallback; /* default as text; "" where the transport decides or nothing is set */
    const char *values, *help;
    const char *const
        *choices;    /* ROW_CHOICE: index 0 stands for enum value 1; ROW_TEXT: known names, or NULL */
    int32_t program; /* offset in epx_group_config_t, or NOWHERE */
    int32_t at;      /* offset in epx_settings_t, or NOWHERE */
    int32_t bytes;   /* ROW_TEXT: room there; ROW_COUNT: 4 or 8 */
    double most;     /* ROW_REAL, ROW_COUNT: upper bound */
};

static const char *const accept_choices[] = {"prefix", "waterfill", "fair", NULL};
static const char *const overflow_choices[] = {"drop", "spill", "extra_wave", NULL};
static const char *const wire_choices[] = {"auto", "assignment", "rank", NULL};
static const char *const batch_choices[] = {"expanded", "indexed", NULL};
static const char *const check_choices[] = {"off", "canary", "full", NULL};
static const char *const path_choices[] = {"auto", "window", "sendrecv", NULL};
static const char *const dump_choices[] = {"off", "culprit", NULL};
static const char *const pin_choices[] = {"auto", "off", NULL};
static const char *const log_choices[] = {"error", "warn", "info", "debug", "trace", NULL};
static const char *const fabric_names[] = {"auto", "local", "ucx", "nccl", NULL};
static const char *const device_names[] = {"auto", "host", "cuda", NULL};

#define FROM(field) ((int32_t)offsetof(epx_group_config_t, field))
#define TO(field) ((int32_t)offsetof(epx_settings_t, field))

static const epx_config_row_t rows[] = {
    {"TRANSPORT", ROW_TEXT, "auto", "auto, pooled_wave, ragged, ring, PATH.so", "the algorithm", NULL,
     FROM(transport), TO(transport), EPX_CONFIG_TEXT_BYTES, 0},
    {"FABRIC", ROW_TEXT, "auto", "auto, local, ucx, nccl", "how bytes move", fabric_names, FROM(fabric),
     TO(fabric), 32, 0},
    {"DEVICE", ROW_TEXT, "auto", "auto, host, cuda", "where rows live", device_names, FROM(device),
     TO(device), 32, 0},
    {"CAPACITY_FACTOR", ROW_REAL, "1.15", "1.15, a number > 0 up to 1000000, dropless",
     "receiver capacity over the mean load", NULL, FROM(capacity_factor), TO(capacity_factor), 8, 1e6},
    {"SENDER_FACTOR", ROW_REAL, "", "1.15, a number > 0 up to 1000000",
     "sender capacity over the mean load (pooled_wave)", NULL, FROM(sender_factor), TO(sender_factor), 8,
     1e6},
    {"WAVES", ROW_COUNT, "", "3 (pooled_wave), 2 (ragged), 1..65536",
     "waves of pooled_wave, chunks of ragged", NULL, FROM(waves), TO(waves), 4, 65536},
    {"ACCEPT", ROW_CHOICE, "", "prefix, waterfill, fair",
     "who is kept when a receiver is full (ragged, ring)", accept_choices, FROM(accept), TO(accept), 4, 0},
    {"OVERFLOW", ROW_CHOICE, "", "drop, spill, extra_wave",
     "what pooled_wave does with what its sender gate refuses", overflow_choices, FROM(overflow),
     TO(overflow), 4, 0},
    {"WIRE", ROW_CHOICE, "", "auto, assignment, rank",
     "ragged: one row per (token, k), or per (token, destination rank)", wire_choices, FROM(wire), TO(wire),
     4, 0},
    {"BATCH", ROW_CHOICE, "", "expanded, indexed", "how a batch of the rank wire is handed over",
     batch_choices, FROM(batch), TO(batch), 4, 0},
    {"SM_BUDGET", ROW_COUNT, "", "multiprocessors, 1..65536",
     "how many the kernels that move rows may fill (cuda)", NULL, FROM(sm_budget), TO(sm_budget), 4, 65536},
    {"HANG_MS", ROW_COUNT, "5000", "5000, milliseconds > 0", "when a wait is classified and reported", NULL,
     FROM(hang_ms), TO(hang_ms), 8, 1e12},
    {"TIMEOUT_MS", ROW_COUNT, "60000", "60000, milliseconds > 0", "when a wait gives up with an error", NULL,
     FROM(timeout_ms), TO(timeout_ms), 8, 1e12},
    {"ON_HANG", ROW_TEXT, "report", "report, abort, failover:TRANSPORT", "what to do when stuck", NULL,
     NOWHERE, TO(on_hang), EPX_CONFIG_TEXT_BYTES, 0},
    {"ON_HANG_CMD", ROW_TEXT, "", "a command", "run once with the report's folder before anything is ended",
     NULL, NOWHERE, TO(on_hang_cmd), EPX_CONFIG_TEXT_BYTES, 0},
    {"CORE_DUMP", ROW_CHOICE, "off", "off, culprit", "the culprit's GPU core dump before waits are ended",
     dump_choices, NOWHERE, TO(core_dump), 4, 0},
    {"RECORD", ROW_TEXT, "auto", "auto (a new folder under /dev/shm), a folder, off", "flight recorder files",
     NULL, NOWHERE, TO(record), EPX_CONFIG_TEXT_BYTES, 0},
    {"STATS", ROW_TEXT, "", "a folder", "per-step JSONL of drops, waits and bytes, one file per rank", NULL,
     NOWHERE, TO(stats), EPX_CONFIG_TEXT_BYTES, 0},
    {"FAULT", ROW_FAULT, "", "rules of key=value words, docs/faults.md", "disturbs chosen calls, on purpose",
     NULL, NOWHERE, TO(fault), EPX_CONFIG_TEXT_BYTES, 0},
    {"CHECK", ROW_CHOICE, "off", "off, canary, full", "poison and verify buffers", check_choices, FROM(check),
     TO(check), 4, 0},
    {"NCCL_PATH", ROW_CHOICE, "auto", "auto, window, sendrecv",
     "how fabric nccl moves rows: stores into windows, or NCCL's sends", path_choices, NOWHERE, TO(nccl_path),
     4, 0},
    {"PIN", ROW_CHOICE, "auto", "auto, off", "whether epx_pin_rank binds ranks to cores near their device",
     pin_choices, NOWHERE, NOWHERE, 4, 0},
    {"LOG", ROW_CHOICE, "warn", "warn, error, info, debug, trace", "log level", log_choices, NOWHERE,
     TO(log_level), 4, 0},
};

enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

/* Variables that are not settings of a group. */
static const char *const other_variables[] = {"EPX_RANK", "EPX_WORLD_SIZE", "EPX_ROOT", "EPX_LIBRARY"};

const epx_config_row_t *epx_config_row(int32_t index)
{
    return index >= 0 && index < ROWS ? &rows[index] : NULL;
}

/* ---- nearest name ----------------------------------------------------------------------------------------------- */

enum { WORD_MAX = 64 };

/* Edit distance without regard to case; words longer than WORD_MAX are far from everything. */
static int32_t distance(const char *a, const char *b)
{
    int32_t row[WORD_MAX + 1];
    size_t la = strlen(a), lb = strlen(b);
    if (la > WORD_MAX || lb > WORD_MAX)
        return WORD_MAX;
    for (size_t j = 0; j <= lb; j++)
        row[j] = (int32_t)j;
    for (size_t i = 1; i <= la; i++) {
        int32_t diagonal = row[0];
        row[0] = (int32_t)i;
        for (size_t j = 1; j <= lb; j++) {
            int32_t above = row[j];
            int32_t best = diagonal + (tolower((unsigned char)a[i - 1]) != tolower((unsigned char)b[j - 1]));
            if (above + 1 < best)
                best = above + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = above;
            row[j] = best;
        }
    }
    return row[lb];
}

const char *epx_nearest(const char *word, const char *const *candidates, int32_t count)
{
    const char *found = NULL;
    int32_t least = WORD_MAX;
    for (int32_t i = 0; i < count && candidates[i] != NULL; i++) {
        int32_t d = distance(word, candidates[i]);
        if (d < least) {
            least = d;
            found = candidates[i];
        }
    }
    return found != NULL && least <= 2 + (int32_t)strlen(found) / 4 ? found : NULL;
}

/* ---- one row ---------------------------------------------------------------------------------------------------- */

static void upper_case(char *to, size_t bytes, const char *from)
{
    size_t i = 0;
    for (; from[i] != '\0' && i + 1 < bytes; i++)
        to[i] = (char)toupper((unsigned char)from[i]);
    to[i] = '\0';
}

/* As parse_number reads it again. */
static void decimal_text(char *text, size_t bytes, double value)
{
    locale_t before = epx_decimal_begin();
    snprintf(text, bytes, "%.17g", value);
    epx_decimal_end(before);
}

/* The program's value as text; 0: it says nothing. */
static int program_text(const epx_config_row_t *row, const epx_group_config_t *config, char *text,
                        size_t bytes)
{
    if (config == NULL || row->program == NOWHERE)
        return 0;
    const char *field = (const char *)config + row->program;
    switch (row->kind) {
    case ROW_TEXT: {
        const char *value;
        memcpy(&value, field, sizeof(value));
        if (value == NULL)
            return 0;
        snprintf(text, bytes, "%s", value);
        return 1;
    }
    case ROW_REAL: {
        double value;
        memcpy(&value, field, sizeof(value));
        if (value < 0 && value >= EPX_DROPLESS && value <= EPX_DROPLESS)
            snprintf(text, bytes, "dropless");
        else
            decimal_text(text, bytes, value);
        return value < 0 || value > 0 || value != value; /* anything but 0 was said, NaN included */
    }
    case ROW_COUNT: {
        int64_t value = 0;
        int32_t narrow;
        if (row->bytes == 8) {
            memcpy(&value, field, sizeof(value));
        } else {
            memcpy(&narrow, field, sizeof(narrow));
            value = narrow;
        }
        snprintf(text, bytes, "%" PRId64, value);
        return value != 0;
    }
    case ROW_CHOICE: {
        int32_t value, known = 0;
        memcpy(&value, field, sizeof(value));
        while (row->choices[known] != NULL)
            known++;
        if (value >= 1 && value <= known)
            snprintf(text, bytes, "%s", row->choices[value - 1]);
        else
            snprintf(text, bytes, "%d", value);
        return value != 0;
    }
    case ROW_FAULT:
    case ROW_LATER: break;
    }
    return 0;
}

/* Who said it: the variable that won, or the field of the program's configuration. */
static void name_source(const epx_setting_t *setting, char *text, size_t bytes)
{
    size_t i = 0;
    if (setting->source != EPX_SOURCE_PROGRAM) {
        snprintf(text, bytes, "%s", setting->set_by != NULL ? setting->set_by : setting->variable);
        return;
    }
    for (const char *c = setting->variable + 4; *c != '\0' && i + 1 < bytes; c++)
        text[i++] = (char)tolower((unsigned char)*c);
    text[i] = '\0';
}

static epx_status_t bad_value(const epx_setting_t *setting, char *problem, size_t bytes, const char *nearest)
{
    char source[96];
    name_source(setting, source, sizeof(source));
    snprintf(problem, bytes, "%s=%s is not one of: %s%s%s%s", source, setting->value, setting->values,
             nearest != NULL ? " (did you mean \"" : "", nearest != NULL ? nearest : "",
             nearest != NULL ? "\"?)" : "");
    return EPX_ERR_ARG;
}

/* Parses a number > 0, at most row->most; whole when ROW_COUNT. 0: it is none. */
static int parse_number(const epx_config_row_t *row, const char *text, double *value_p)
{
    char *end = NULL;
    errno = 0;
    if (row->kind == ROW_COUNT) {
        long long whole = strtoll(text, &end, 10);
        *value_p = (double)whole;
    } else {
        *value_p = epx_decimal_read(text, &end);
    }
    return end != text && *end == '\0' && errno == 0 && *value_p > 0 && *value_p <= row->most;
}

/* Text that fills its room may have been cut. */
static epx_status_t check_length(const epx_config_row_t *row, const epx_setting_t *setting, char *problem,
                                 size_t bytes, const char *what_to_do)
{
    char source[96];
    if (strlen(setting->value) + 1 < (size_t)row->bytes)
        return EPX_OK;
    name_source(setting, source, sizeof(source));
    snprintf(problem, bytes, "%s is longer than %d bytes; %s", source, row->bytes - 2, what_to_do);
    return EPX_ERR_ARG;
}

static epx_status_t parse_fault(const epx_config_row_t *row, const epx_setting_t *setting, char *problem,
                                size_t bytes, char *to)
{
    const char *text = setting->value;
    epx_fault_spec_t spec;
    epx_status_t status = check_length(row, setting, problem, bytes, "leave rules out");
    if (status != EPX_OK)
        return status;
    if (to != NULL)
        snprintf(to, (size_t)row->bytes, "%s", text);
    return epx_fault_parse(text, &spec, problem, bytes);
}

static const char failover[] = "failover:";

/* report, abort, or failover: and the name of a transport that is known, or of a plug-in's file. */
static int is_on_hang(const char *text)
{
    if (strcmp(text, "report") == 0 || strcmp(text, "abort") == 0)
        return 1;
    if (strncmp(text, failover, sizeof(failover) - 1) != 0)
        return 0;
    const char *name = text + sizeof(failover) - 1;
    for (int32_t i = 0; i < epx_registry_count(); i++)
        if (strcmp(epx_registry_at(i)->name, name) == 0)
            return 1;
    return strchr(name, '/') != NULL;
}

/* Checks the text of a setting and stores it in settings (NULL: check only). */
static epx_status_t parse_value(const epx_config_row_t *row, const epx_setting_t *setting, char *problem,
                                size_t bytes, epx_settings_t *settings)
{
    const char *text = setting->value;
    char *to = settings != NULL && row->at != NOWHERE ? (char *)settings + row->at : NULL;
    double number = 0;
    int32_t known = 0;
    switch (row->kind) {
    case ROW_LATER:
        if (strcmp(text, row->fallback) == 0)
            return EPX_OK;
        snprintf(problem, bytes, "%s=%s: this version has no such part; unset it", setting->variable, text);
        return EPX_ERR_UNSUPPORTED;
    case ROW_FAULT: return parse_fault(row, setting, problem, bytes, to);
    case ROW_TEXT:
        while (row->choices != NULL && row->choices[known] != NULL && strcmp(row->choices[known], text) != 0)
            known++;
        if (row->choices != NULL && row->choices[known] == NULL)
            return bad_value(setting, problem, bytes, epx_nearest(text, row->choices, known));
        if ((row->at == TO(on_hang) && !is_on_hang(text)) || (row->at == TO(record) && text[0] == '\0'))
            return bad_value(setting, problem, bytes, NULL);
        if (check_length(row, setting, problem, bytes, "give a shorter one") != EPX_OK)
            return EPX_ERR_ARG;
        if (to != NULL)
            snprintf(to, (size_t)row->bytes, "%s", text);
        return EPX_OK;
    case ROW_REAL:
    case ROW_COUNT:
        if (text[0] == '\0' && setting->source == EPX_SOURCE_DEFAULT)
            return EPX_OK;
        if (row->at == TO(capacity_factor) && strcmp(text, "dropless") == 0)
            number = EPX_DROPLESS;
        else if (!parse_number(row, text, &number))
            return bad_value(setting, problem, bytes, NULL);
        if (to == NULL)
            return EPX_OK;
        if (row->kind == ROW_REAL)
            memcpy(to, &number, sizeof(number));
        else if (row->bytes == 8)
            memcpy(to, &(int64_t){(int64_t)number}, 8);
        else
            memcpy(to, &(int32_t){(int32_t)number}, 4);
        return EPX_OK;
    case ROW_CHOICE:
        if (text[0] == '\0' && setting->source == EPX_SOURCE_DEFAULT)
            return EPX_OK;
        while (row->choices[known] != NULL && strcmp(row->choices[known], text) != 0)
            known++;
        if (row->choices[known] == NULL)
            return bad_value(setting, problem, bytes, epx_nearest(text, row->choices, known));
        if (to != NULL)
            memcpy(to, &(int32_t){known + 1}, 4);
        return EPX_OK;
    }
    return EPX_OK;
}

static epx_status_t resolve_row(const epx_config_row_t *row, const epx_group_config_t *config,
                                const char *transport, epx_setting_t *setting, epx_config_texts_t *texts,
                                epx_settings_t *settings)
{
    char prefix[WORD_MAX] = "";
    *setting = (epx_setting_t){
        .variable = texts->variable, .values = row->values, .help = row->help, .value = texts->value};
    texts->problem[0] = '\0';
    snprintf(texts->variable, sizeof(texts->variable), "EPX_%s", row->name);
    if (transport != NULL)
        upper_case(prefix, sizeof(prefix), transport);
    snprintf(texts->set_by, sizeof(texts->set_by), "EPX_%s_%s", prefix, row->name);
    /* A fail-over is the environment's own wish (EPX_ON_HANG), so it goes before EPX_TRANSPORT. */
    if (row->program == FROM(transport) && program_text(row, config, texts->value, sizeof(texts->value)) &&
        strncmp(texts->value, failover, sizeof(failover) - 1) == 0) {
        memmove(texts->value, texts->value + sizeof(failover) - 1,
                strlen(texts->value) - sizeof(failover) + 2);
        setting->source = EPX_SOURCE_PROGRAM;
        return parse_value(row, setting, texts->problem, sizeof(texts->problem), settings);
    }
    const char *from_environment = prefix[0] != '\0' ? getenv(texts->set_by) : NULL;
    setting->source = EPX_SOURCE_PREFIXED;
    if (from_environment == NULL) {
        snprintf(texts->set_by, sizeof(texts->set_by), "%s", texts->variable);
        from_environment = getenv(texts->variable);
        setting->source = EPX_SOURCE_ENVIRONMENT;
    }
    if (from_environment != NULL) {
        setting->set_by = texts->set_by;
        snprintf(texts->value, sizeof(texts->value), "%s", from_environment);
    } else if (program_text(row, config, texts->value, sizeof(texts->value))) {
        setting->source = EPX_SOURCE_PROGRAM;
    } else {
        setting->source = EPX_SOURCE_DEFAULT;
        snprintf(texts->value, sizeof(texts->value), "%s", row->fallback);
    }
    epx_status_t status = parse_value(row, setting, texts->problem, sizeof(texts->problem), settings);
    setting->problem = status != EPX_OK ? texts->problem : NULL;
    return status;
}

epx_status_t epx_config_resolve_row(const epx_config_row_t *row, const epx_group_config_t *config,
                                    const char *transport, epx_setting_t *setting, epx_config_texts_t *texts)
{
    return resolve_row(row, config, transport, setting, texts, NULL);
}

epx_status_t epx_config_resolve(const epx_group_config_t *config, const char *transport,
                                epx_settings_t *settings_p)
{
    epx_config_texts_t texts;
    memset(settings_p, 0, sizeof(*settings_p));
    for (int32_t i = 0; i < ROWS; i++) {
        epx_setting_t setting;
        epx_status_t status = resolve_row(&rows[i], config, transport, &setting, &texts, settings_p);
        if (status != EPX_OK)
            return epx_fail(status, "%s", texts.problem);
    }
    settings_p->log_level -= 1; /* the choice's number counts from 1 */
    return EPX_OK;
}

epx_status_t epx_config_record(const epx_group_config_t *config, epx_settings_t *settings_p)
{
    epx_config_texts_t texts;
    static const char *const names[] = {"HANG_MS",     "TIMEOUT_MS", "ON_HANG",
                                        "ON_HANG_CMD", "CORE_DUMP",  "RECORD"};
    memset(settings_p, 0, sizeof(*settings_p));
    for (int32_t i = 0; i < ROWS; i++) {
        epx_setting_t setting;
        size_t k = 0;
        while (k < sizeof(names) / sizeof(names[0]) && strcmp(names[k], rows[i].name) != 0)
            k++;
        if (k == sizeof(names) / sizeof(names[0]))
            continue;
        epx_status_t status = resolve_row(&rows[i], config, NULL, &setting, &texts, settings_p);
        if (status != EPX_OK)
            return epx_fail(status, "%s", texts.problem);
    }
    return EPX_OK;
}

epx_status_t epx_config_pin(int32_t *wanted_p)
{
    epx_config_texts_t texts;
    epx_setting_t setting;
    for (int32_t i = 0; i < ROWS; i++) {
        if (strcmp(rows[i].name, "PIN") != 0)
            continue;
        epx_status_t status = resolve_row(&rows[i], NULL, NULL, &setting, &texts, NULL);
        if (status != EPX_OK)
            return epx_fail(status, "%s", texts.problem);
        *wanted_p = strcmp(setting.value, "off") != 0;
    }
    return EPX_OK;
}

int epx_config_fault(char *text, size_t bytes)
{
    const char *given = getenv("EPX_FAULT");
    if (given == NULL || given[0] == '\0' || strlen(given) >= bytes)
        return 0;
    snprintf(text, bytes, "%s", given);
    return 1;
}

int epx_config_core_dump_is_asked(void)
{
    const char *text = getenv("EPX_CORE_DUMP");
    return text != NULL && strcmp(text, dump_choices[1]) == 0;
}

int epx_config_record_is_asked(void)
{
    const char *text = getenv("EPX_RECORD");
    return text != NULL && strcmp(text, "auto") != 0 && strcmp(text, "off") != 0;
}

/* ---- unknown variables ------------------------------------------------------------------------------------------ */

extern char **environ;

/* Whether `name` (bytes long) is EPX_<row>, or EPX_<TRANSPORT>_<row>. */
static int is_known(const char *name, const char *transport)
{
    char prefix[WORD_MAX + 8], upper[WORD_MAX];
    for (size_t i = 0; i < sizeof(other_variables) / sizeof(other_variables[0]); i++)
        if (strcmp(name, other_variables[i]) == 0)
            return 1;
    int32_t transports = epx_registry_count();
    for (int32_t t = -1; t <= transports; t++) {
        const char *word = t < 0 ? "" : t < transports ? epx_registry_at(t)->name : transport;
        if (word == NULL)
            continue;
        upper_case(upper, sizeof(upper), word);
        snprintf(prefix, sizeof(prefix), "EPX_%s%s", upper, t < 0 ? "" : "_");
        size_t length = strlen(prefix);
        if (strncmp(name, prefix, length) != 0)
            continue;
        for (int32_t i = 0; i < ROWS; i++)
            if (strcmp(name + length, rows[i].name) == 0)
                return 1;
    }
    return 0;
}

/* The variable nearest to an unknown one, into text: a known prefix stays, the rest is compared with the
 * rows. 0: none. */
static int nearest_variable(const char *name, const char *transport, char *text, size_t bytes)
{
    const char *words[ROWS + 1] = {NULL};
    char prefix[WORD_MAX + 8] = "EPX_", upper[WORD_MAX];
    for (int32_t i = 0; i < ROWS; i++)
        words[i] = rows[i].name;
    for (int32_t t = 0; t <= epx_registry_count(); t++) {
        char candidate[WORD_MAX + 8];
        const char *word = t < epx_registry_count() ? epx_registry_at(t)->name : transport;
        if (word == NULL)
            continue;
        upper_case(upper, sizeof(upper), word);
        snprintf(candidate, sizeof(candidate), "EPX_%s_", upper);
        if (strncmp(name, candidate, strlen(candidate)) == 0)
            snprintf(prefix, sizeof(prefix), "%s", candidate);
    }
    const char *word = epx_nearest(name + strlen(prefix), words, ROWS);
    if (word == NULL)
        return 0;
    snprintf(text, bytes, "%s%s", prefix, word);
    return 1;
}

void epx_config_unknown(const char *transport, epx_unknown_fn fn, void *context)
{
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++) {
        char name[96], nearest[128];
        const char *equal = strchr(*entry, '=');
        if (strncmp(*entry, "EPX_", 4) != 0 || equal == NULL || (size_t)(equal - *entry) >= sizeof(name))
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)(equal - *entry), *entry);
        if (is_known(name, transport))
            continue;
        int found = nearest_variable(name, transport, nearest, sizeof(nearest));
        fn(context, name, found ? nearest : NULL);
    }
}

static void warn_unknown(void *context, const char *variable, const char *nearest)
{
    (void)context;
    if (nearest != NULL)
        epx_log(EPX_LOG_WARN, "config", "%s is not a variable of epx and has no effect; did you mean %s?",
                variable, nearest);
    else
        epx_log(EPX_LOG_WARN, "config", "%s is not a variable of epx and has no effect", variable);
}

void epx_config_warn_unknown(const char *transport)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&warned))
        epx_config_unknown(transport, warn_unknown, NULL);
}

/* ---- launchers -------------------------------------------------------------------------------------------------- */

const char *epx_config_variable(const char *name) { return getenv(name); }
