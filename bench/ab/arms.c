/* Reading arms. SPDX-License-Identifier: Apache-2.0 */
#include "bench/ab/arms.h"

#include <stdio.h>
#include <string.h>

#include <epx/info.h>

#include "tools/common/command_line.h"
#include "tools/common/program.h"

/* ---- settings of an arm -------------------------------------------------------------------------------------------- */

static const char *const accepts[] = {"prefix", "waterfill", "fair", NULL};
static const char *const overflows[] = {"drop", "spill", "extra_wave", NULL};
static const char *const wires[] = {"auto", "assignment", "rank", NULL};
static const char *const batches[] = {"expanded", "indexed", NULL};
static const char *const keys[] = {"waves", "capacity_factor", "sender_factor", "accept", "overflow", "wire",
                                   "batch"};
enum { KEYS = sizeof keys / sizeof *keys };

/* The enums count from 1; 0 is the library's default. */
static int read_word(const char *value, const char *const *words, int *to)
{
    for (int i = 0; words[i] != NULL; i++) {
        if (strcmp(words[i], value) == 0) {
            *to = i + 1;
            return 0;
        }
    }
    return -1;
}

static int read_factor(const char *value, int dropless_too, double *to)
{
    if (dropless_too && strcmp(value, "dropless") == 0) {
        *to = EPX_DROPLESS;
        return 0;
    }
    return epx_read_real(value, to) == 0 && *to > 0 && *to <= 1e6 ? 0 : -1;
}

static int set_key(epx_group_config_t *config, const char *key, const char *value)
{
    int64_t number = 0;
    int word = 0, rc = -1;
    if (strcmp(key, "waves") == 0) {
        rc = epx_read_int(value, &number) == 0 && number >= 1 && number <= 65536 ? 0 : -1;
        config->waves = (int32_t)number;
    } else if (strcmp(key, "capacity_factor") == 0) {
        rc = read_factor(value, 1, &config->capacity_factor);
    } else if (strcmp(key, "sender_factor") == 0) {
        rc = read_factor(value, 0, &config->sender_factor);
    } else if (strcmp(key, "accept") == 0) {
        rc = read_word(value, accepts, &word);
        config->accept = (epx_accept_t)word;
    } else if (strcmp(key, "overflow") == 0) {
        rc = read_word(value, overflows, &word);
        config->overflow = (epx_overflow_t)word;
    } else if (strcmp(key, "wire") == 0) {
        rc = read_word(value, wires, &word);
        config->wire = (epx_wire_t)word;
    } else if (strcmp(key, "batch") == 0) {
        rc = read_word(value, batches, &word);
        config->batch = (epx_batch_form_t)word;
    }
    return rc;
}

static int read_setting(epx_ab_arm_t *arm, char *word, char *problem, size_t bytes)
{
    char *equals = strchr(word, '=');
    int known = 0;
    if (equals != NULL)
        *equals = '\0';
    for (int i = 0; i < KEYS; i++)
        known |= strcmp(keys[i], word) == 0;
    if (!known) {
        const char *near = epx_nearest_word(word, keys, KEYS);
        snprintf(problem, bytes,
                 "an arm has no setting '%s'%s%s%s: choose from waves, capacity_factor, sender_factor, "
                 "accept, overflow, wire, batch",
                 word, near ? " (did you mean " : "", near ? near : "", near ? "?)" : "");
        return -1;
    }
    if (equals == NULL || set_key(&arm->config, word, equals + 1) != 0) {
        snprintf(problem, bytes, "%s=%s is not understood: %s takes what EPX_ and its name in capitals takes",
                 word, equals ? equals + 1 : "", word);
        return -1;
    }
    return 0;
}

/* ---- lists of arms ------------------------------------------------------------------------------------------------- */

static void name_arm(epx_ab_arm_t *arms, int32_t at, const char *name)
{
    int32_t same = 1;
    for (int32_t i = 0; i < at; i++) {
        size_t length = strlen(name);
        same += strncmp(arms[i].name, name, length) == 0 &&
                (arms[i].name[length] == '\0' || arms[i].name[length] == '#');
    }
    if (same > 1)
        snprintf(arms[at].name, sizeof arms[at].name, "%.50s#%d", name, (int)same);
    else
        snprintf(arms[at].name, sizeof arms[at].name, "%s", name);
}

static int no_room(int32_t count, char *problem, size_t bytes)
{
    if (count < EPX_AB_ARMS)
        return 0;
    snprintf(problem, bytes, "more than %d arms: compare fewer at a time", EPX_AB_ARMS);
    return -1;
}

/* What an arm is called: as written, of a plug-in's path the last part. */
static const char *short_name(const char *text)
{
    size_t transport = strcspn(text, ":"), last = 0;
    for (size_t i = 0; i < transport; i++)
        last = text[i] == '/' ? i + 1 : last;
    return text + last;
}

static int read_arm(const char *text, epx_ab_arm_t *arms, int32_t *count_p, char *problem, size_t bytes)
{
    char word[EPX_AB_PATH], *rest = word;
    epx_ab_arm_t *arm = &arms[*count_p];
    if (no_room(*count_p, problem, bytes))
        return -1;
    epx_group_config_t none = EPX_GROUP_CONFIG_INIT;
    *arm = (epx_ab_arm_t){.config = none};
    snprintf(word, sizeof word, "%s", text);
    char *transport = strsep(&rest, ":");
    if (*transport == '\0') {
        snprintf(problem, bytes, "an arm is empty: write transports between commas");
        return -1;
    }
    snprintf(arm->transport, sizeof arm->transport, "%s", transport);
    for (char *setting = strsep(&rest, ":"); setting != NULL; setting = strsep(&rest, ":"))
        if (read_setting(arm, setting, problem, bytes) != 0)
            return -1;
    name_arm(arms, (*count_p)++, short_name(text));
    return 0;
}

int epx_ab_read_arms(const char *text, epx_ab_arm_t *arms, int32_t *count_p, char *problem,
                     size_t problem_bytes)
{
    char word[EPX_AB_PATH];
    for (const char *at = text;; at++) {
        size_t length = strcspn(at, ",");
        if (length >= sizeof word) {
            snprintf(problem, problem_bytes, "the arm '%.40s...' is too long: keep it below %d bytes", at,
                     EPX_AB_PATH);
            return -1;
        }
        snprintf(word, sizeof word, "%.*s", (int)length, at);
        if (read_arm(word, arms, count_p, problem, problem_bytes) != 0)
            return -1;
        at += length;
        if (*at == '\0')
            return 0;
    }
}

int epx_ab_read_command(const char *text, epx_ab_arm_t *arms, int32_t *count_p, char *problem,
                        size_t problem_bytes)
{
    size_t length = strcspn(text, "=");
    char name[EPX_AB_NAME];
    if (no_room(*count_p, problem, problem_bytes))
        return -1;
    if (text[length] == '\0' || length == 0 || length >= sizeof name || text[length + 1] == '\0') {
        snprintf(problem, problem_bytes,
                 "'%s' is not NAME=command: write --arm ragged='EPX_TRANSPORT=ragged ./train.sh'", text);
        return -1;
    }
    snprintf(name, sizeof name, "%.*s", (int)length, text);
    arms[*count_p] = (epx_ab_arm_t){.command = text + length + 1};
    name_arm(arms, (*count_p)++, name);
    return 0;
}

/* ---- against the environment --------------------------------------------------------------------------------------- */

typedef struct clash {
    const epx_ab_arm_t *arm;
    int code;
} clash_t;

/* Settings that make arms what they are. Fabric, device, log and time-outs are the same for all arms. */
static void look_for_clash(void *context, const epx_setting_t *setting)
{
    static const char *const ours[] = {"EPX_TRANSPORT", "EPX_CAPACITY_FACTOR", "EPX_SENDER_FACTOR",
                                       "EPX_WAVES",     "EPX_ACCEPT",          "EPX_OVERFLOW",
                                       "EPX_WIRE",      "EPX_BATCH",           "EPX_CHECK"};
    clash_t *clash = context;
    int mine = 0;
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        mine |= strcmp(ours[i], setting->variable) == 0;
    if (!mine || setting->set_by == NULL || clash->code != EPX_GO_ON)
        return;
    if (strcmp(setting->variable, "EPX_CHECK") == 0)
        clash->code = epx_tool_fail(EPX_EXIT_USAGE, "%s=%s is set and would be timed with the arms: unset %s",
                                    setting->set_by, setting->value, setting->set_by);
    else
        clash->code = epx_tool_fail(
            EPX_EXIT_USAGE,
            "%s=%s is set and would win over the arm %s: unset %s, and write settings into the "
            "arm (--arms %s:waves=3)",
            setting->set_by, setting->value, clash->arm->name, setting->set_by, clash->arm->transport);
}

int epx_ab_check_environment(const epx_ab_arm_t *arms, int32_t count)
{
    clash_t clash = {.code = EPX_GO_ON};
    for (int32_t i = 0; i < count && clash.code == EPX_GO_ON; i++) {
        epx_group_config_t config = arms[i].config;
        config.transport = arms[i].transport;
        config.ranks = config.experts = config.top_k = config.width = config.tokens_max = 1;
        clash.arm = &arms[i];
        epx_config_list(&config, look_for_clash, &clash);
    }
    return clash.code;
}

/* ---- capacities ----------------------------------------------------------------------------------------------------- */

epx_group_config_t epx_ab_dropless(const epx_group_config_t *config)
{
    epx_group_config_t all = *config;
    all.capacity_factor = EPX_DROPLESS;
    all.sender_factor = 0;
    return all;
}

double epx_ab_capacity_of(const epx_group_config_t *config)
{
    return config->capacity_factor != 0 ? config->capacity_factor : 1.15;
}

static double sender_factor_of(const epx_group_config_t *config)
{
    if (config->transport == NULL || strcmp(config->transport, "pooled_wave") != 0 ||
        config->capacity_factor < 0)
        return 0;
    return config->sender_factor > 0 ? config->sender_factor : 1.15;
}

epx_group_config_t epx_ab_scaled(const epx_group_config_t *config, double scale)
{
    epx_group_config_t more = *config;
    if (config->capacity_factor < 0)
        return more;
    more.capacity_factor = scale * epx_ab_capacity_of(config);
    more.sender_factor = scale * sender_factor_of(config);
    return more;
}
