/* Transports with their rules, from options, environment and the library's defaults. SPDX-License-Identifier:
 * Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <epx/info.h>

#include "bench/common/environment.h"
#include "bench/sim/settings.h"
#include "tools/common/program.h"

const char *const epx_sim_transports[] = {"pooled_wave", "ragged", "ring", NULL};
const char *const epx_sim_accepts[] = {"prefix", "waterfill", "fair", NULL};
static const char *const overflows[] = {"drop", "spill", "extra_wave", NULL};

/* What the library would use. */
typedef struct resolved {
    const char *transport;
    char capacity[32], sender[32], waves[32], accept[32], overflow[32], wire[32];
} resolved_t;

/*
 * Where nothing is set, what may be set says the default: "prefix, waterfill, fair" begins with it, and "3
 * (pooled_wave), 2 (ragged), ..." has one for each transport.
 */
static void take_value(const epx_setting_t *setting, const char *transport, char *value, size_t bytes)
{
    char mine[64];
    const char *text = setting->values;
    snprintf(mine, sizeof mine, " (%s)", transport);
    const char *found = strstr(text, mine);
    for (const char *at = found; at != NULL && at > text; at--)
        if (at[-1] == ' ') {
            text = at;
            break;
        }
    snprintf(value, bytes, "%.*s", (int)strcspn(text, ", "), text);
    if (setting->value[0] != '\0')
        snprintf(value, bytes, "%s", setting->value);
}

static void look(void *context, const epx_setting_t *setting)
{
    resolved_t *resolved = context;
    const struct {
        const char *variable;
        char *value;
    } wanted[] = {
        {"EPX_CAPACITY_FACTOR", resolved->capacity},
        {"EPX_SENDER_FACTOR", resolved->sender},
        {"EPX_WAVES", resolved->waves},
        {"EPX_ACCEPT", resolved->accept},
        {"EPX_OVERFLOW", resolved->overflow},
        {"EPX_WIRE", resolved->wire},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (strcmp(wanted[i].variable, setting->variable) == 0)
            take_value(setting, resolved->transport, wanted[i].value, sizeof resolved->capacity);
}

/* Index of `word`; 0 where it is none of them. */
static int32_t index_of(const char *const *words, const char *word)
{
    for (int32_t i = 0; words[i] != NULL; i++)
        if (strcmp(words[i], word) == 0)
            return i;
    return 0;
}

/* The wire as it would be; what the library cannot open has one row per assignment. */
static int rank_wire(const epx_group_config_t *config, const char *wire)
{
    epx_group_info_t info = EPX_GROUP_INFO_INIT;
    if (strcmp(wire, "rank") == 0 || strcmp(wire, "assignment") == 0)
        return strcmp(wire, "rank") == 0;
    return epx_group_preview(config, &info) == EPX_OK && info.wire == EPX_WIRE_RANK;
}

static int resolve(epx_sim_case_t *one, const epx_sim_settings_t *s)
{
    resolved_t resolved = {.transport = one->transport};
    epx_status_t status = epx_config_list(&one->config, look, &resolved);
    if (status != EPX_OK)
        return epx_tool_fail_status(status, "the settings cannot be used");
    int pooled = strcmp(one->transport, "pooled_wave") == 0, ring = strcmp(one->transport, "ring") == 0;
    one->rules = (epx_drops_case_t){.transport = pooled ? EPX_DROPS_POOLED_WAVE
                                                 : ring ? EPX_DROPS_RING
                                                        : EPX_DROPS_RAGGED,
                                    .capacity_factor = strcmp(resolved.capacity, "dropless") == 0
                                                           ? EPX_DROPLESS
                                                           : strtod(resolved.capacity, NULL),
                                    .sender_factor = strtod(resolved.sender, NULL),
                                    .waves = (int32_t)strtol(resolved.waves, NULL, 10),
                                    .accept = EPX_ACCEPT_PREFIX,
                                    .overflow = EPX_OVERFLOW_DROP};
    if (pooled) {
        int32_t overflow = index_of(overflows, resolved.overflow);
        one->overflow = overflows[overflow];
        one->rules.overflow = (epx_overflow_t)(EPX_OVERFLOW_DROP + overflow);
    } else {
        int32_t accept = index_of(epx_sim_accepts, resolved.accept);
        one->accept = epx_sim_accepts[accept];
        one->rules.accept = (epx_accept_t)(EPX_ACCEPT_PREFIX + accept);
        one->rules.rank_wire = !ring && rank_wire(&one->config, resolved.wire);
    }
    if (pooled && one->rules.overflow == EPX_OVERFLOW_SPILL && s->spill_choices == 0)
        return epx_tool_fail(EPX_EXIT_USAGE, "spill needs further choices: give --spill-choices N");
    return EPX_GO_ON;
}

static int check_given(const epx_sim_settings_t *s, const epx_sim_case_t *one)
{
    char sender[32], waves[32];
    snprintf(sender, sizeof sender, "%.15g", s->sender_factor);
    snprintf(waves, sizeof waves, "%d", (int)s->waves);
    int pooled = one->config.overflow != 0 || strcmp(one->transport, "pooled_wave") == 0;
    const epx_given_t given[] = {
        {"EPX_TRANSPORT", "--transports", one->transport},
        {"EPX_CAPACITY_FACTOR", "--capacity-factor", s->capacity_text},
        {"EPX_SENDER_FACTOR", "--sender-factor", pooled && s->sender_factor > 0 ? sender : NULL},
        {"EPX_WAVES", "--waves", one->config.waves > 0 ? waves : NULL},
        {"EPX_ACCEPT", "--accept", s->accept_count > 0 && !pooled ? one->accept : NULL},
        {"EPX_OVERFLOW", "--overflow", one->config.overflow ? one->overflow : NULL},
    };
    return epx_check_environment(&one->config, given, sizeof given / sizeof *given);
}

/* Settings that have no meaning for a transport are not passed to it. */
static int add_case(epx_sim_settings_t *s, int32_t transport, int32_t accept)
{
    epx_sim_case_t *one = &s->cases[s->case_count++];
    int pooled = transport == 0, ring = transport == 2;
    *one = (epx_sim_case_t){.transport = epx_sim_transports[transport],
                            .config = epx_sim_group_config(&s->shape)};
    one->config.transport = one->transport;
    one->config.depth = (int32_t)s->depth;
    one->config.capacity_factor = s->capacity_factor;
    if (pooled) {
        one->config.sender_factor = s->sender_factor;
        one->config.overflow = (epx_overflow_t)s->overflow;
        one->config.spill_choices = s->overflow == EPX_OVERFLOW_SPILL ? (int32_t)s->spill_choices : 0;
    } else if (accept >= 0) {
        one->config.accept = (epx_accept_t)(EPX_ACCEPT_PREFIX + accept);
    }
    if (!ring)
        one->config.waves = (int32_t)s->waves;
    if (transport == 1)
        one->config.wire = (epx_wire_t)s->wire;
    int rc = resolve(one, s);
    return rc == EPX_GO_ON ? check_given(s, one) : rc;
}

int epx_sim_cases_make(epx_sim_settings_t *s)
{
    int rc = EPX_GO_ON;
    s->case_count = 0;
    for (int32_t t = 0; t < s->transport_count && rc == EPX_GO_ON; t++) {
        int32_t rules = s->transport[t] == 0 || s->accept_count == 0 ? 1 : s->accept_count;
        for (int32_t a = 0; a < rules && rc == EPX_GO_ON; a++)
            rc = add_case(s, s->transport[t], s->accept_count > 0 ? s->accept[a] : -1);
    }
    return rc;
}

int32_t epx_sim_columns(const epx_sim_settings_t *s)
{
    int32_t columns = (int32_t)s->shape.model.top_k;
    for (int32_t i = 0; i < s->case_count; i++)
        if (s->cases[i].rules.overflow == EPX_OVERFLOW_SPILL)
            columns = (int32_t)(s->shape.model.top_k + s->spill_choices);
    return columns;
}
