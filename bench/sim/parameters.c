/* Parameters that a sweep or an answer changes. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/sim/settings.h"
#include "tools/common/command_line.h"

/* Steps are counted, so that rounding does not lose the last one. */
static int read_range(const char *text, epx_sim_sweep_t *sweep)
{
    char word[3][32], end;
    double from, to, step = 1;
    int words = sscanf(text, "%31[^:]:%31[^:]:%31[^:]%c", word[0], word[1], word[2], &end);
    if (words < 2 || words > 3 || epx_read_real(word[0], &from) != 0 || epx_read_real(word[1], &to) != 0 ||
        (words == 3 && epx_read_real(word[2], &step) != 0) || !(step > 0) || to < from)
        return -1;
    double count = floor((to - from) / step + 1e-9) + 1;
    if (count > EPX_SIM_STEPS)
        return -1;
    sweep->count = (int32_t)count;
    for (int32_t i = 0; i < sweep->count; i++) /* 12 digits: 1.15 rather than 1.1500000000000001 */
        sweep->value[i] = round((from + i * step) * 1e12) / 1e12;
    return 0;
}

int epx_sim_add_sweep(void *target, const char *value, char *problem, size_t problem_bytes)
{
    epx_sim_settings_t *s = target;
    size_t length = strcspn(value, "=");
    if (s->sweep_count == EPX_SIM_SWEEPS) {
        snprintf(problem, problem_bytes, "more than %d sweeps: leave one out", EPX_SIM_SWEEPS);
        return -1;
    }
    epx_sim_sweep_t *sweep = &s->sweep[s->sweep_count];
    snprintf(sweep->name, sizeof sweep->name, "%.*s", length < sizeof sweep->name ? (int)length : 0, value);
    if (value[length] != '=' || epx_sim_settings_change(sweep->name) == EPX_SIM_NOTHING) {
        snprintf(problem, problem_bytes,
                 "'%.*s' cannot be swept: choose from capacity_factor, sender_factor, capacity, waves, "
                 "ranks, tokens, "
                 "sequence, alpha, sigma, depth, or a constant of the machine",
                 (int)length, value);
        return -1;
    }
    if (read_range(value + length + 1, sweep) != 0) {
        snprintf(problem, problem_bytes,
                 "'%s' is no range of at most %d steps: write FROM:TO:STEP, for example 1.0:1.5:0.05",
                 value + length + 1, EPX_SIM_STEPS);
        return -1;
    }
    s->sweep_count++;
    return 0;
}

/* "drops=0.1%" or "drops=0.001". */
int epx_sim_set_answer(void *target, const char *value, char *problem, size_t problem_bytes)
{
    epx_sim_settings_t *s = target;
    char number[32] = "", unit = '\0', end;
    int words = sscanf(value, "drops=%31[0-9.eE+-]%c%c", number, &unit, &end);
    double share;
    if (words >= 1 && words <= 2 && epx_read_real(number, &share) == 0 && (words == 1 || unit == '%')) {
        share = words == 2 ? share / 100 : share;
        if (share > 0 && share < 1) {
            s->answer = share;
            return 0;
        }
    }
    snprintf(problem, problem_bytes,
             "'%s' asks nothing: write drops=0.1%% with a share above 0 and below 100%%", value);
    return -1;
}

static const char *const sweep_rules[] = {"capacity_factor", "sender_factor", "capacity", "waves", "depth"};
static const char *const sweep_routing[] = {"ranks", "tokens", "sequence", "alpha", "sigma"};

epx_sim_change_t epx_sim_settings_change(const char *name)
{
    for (size_t i = 0; i < sizeof sweep_routing / sizeof *sweep_routing; i++)
        if (strcmp(name, sweep_routing[i]) == 0)
            return EPX_SIM_ROUTING;
    for (size_t i = 0; i < sizeof sweep_rules / sizeof *sweep_rules; i++)
        if (strcmp(name, sweep_rules[i]) == 0)
            return EPX_SIM_RULES;
    for (int i = 0; i < EPX_CONSTANTS; i++)
        if (strcmp(name, epx_constant_row((epx_constant_t)i)->name) == 0)
            return EPX_SIM_RULES;
    return EPX_SIM_NOTHING;
}

static int set_whole(int64_t *target, const char *name, double value, double most, char *problem,
                     size_t bytes)
{
    if (value != floor(value) || value < 1 || value > most) {
        snprintf(problem, bytes, "%s=%g is no integer from 1 to %g", name, value, most);
        return -1;
    }
    *target = (int64_t)value;
    return 0;
}

static int set_factor(double *target, const char *name, double value, char *problem, size_t bytes)
{
    if (!(value > 0)) {
        snprintf(problem, bytes, "%s=%g is not above 0", name, value);
        return -1;
    }
    *target = value;
    return 0;
}

int epx_sim_settings_set(epx_sim_settings_t *s, const char *name, double value, char *problem, size_t bytes)
{
    char text[64];
    const struct {
        const char *name;
        int64_t *target;
        double most;
    } whole[] = {{"waves", &s->waves, 65536},
                 {"depth", &s->depth, 1024},
                 {"ranks", &s->shape.ranks, EPX_SIM_RANKS_MAX},
                 {"tokens", &s->shape.tokens, INT32_MAX},
                 {"sequence", &s->shape.model.sequence, INT32_MAX}};
    const struct {
        const char *name;
        double *target;
    } factors[] = {{"capacity_factor", &s->capacity_factor},
                   {"sender_factor", &s->sender_factor},
                   {"capacity", &s->capacity_factor},
                   {"alpha", &s->routing.alpha}};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (strcmp(name, whole[i].name) == 0)
            return set_whole(whole[i].target, name, value, whole[i].most, problem, bytes);
    if (strcmp(name, "capacity") == 0)
        s->sender_factor = value;
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++)
        if (strcmp(name, factors[i].name) == 0)
            return set_factor(factors[i].target, name, value, problem, bytes);
    if (strcmp(name, "sigma") == 0) {
        s->routing.sigma = value;
        return 0;
    }
    snprintf(text, sizeof text, "%s=%.17g", name, value);
    return epx_machine_set(&s->machine, text, problem, bytes);
}
