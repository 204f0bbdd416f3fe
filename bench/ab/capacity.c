/* Capacities. SPDX-License-Identifier: Apache-2.0 */
#include "bench/ab/capacity.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/ab/arms.h"
#include "bench/common/drops.h"
#include "train/fail.h"

enum { SCALE_MOST = 16 };

static void say(epx_ab_rank_t *self, epx_ab_adjusted_t *to, const char *why)
{
    if (self->rank == 0)
        snprintf(to->why, sizeof to->why, "%s", why);
}

/* ---- by the rules -------------------------------------------------------------------------------------------------- */

/* One layer of one group, as the rules' virtual ranks see it. */
typedef struct recorded {
    const int32_t *ids; /* [ep, tokens, top_k] */
    int64_t tokens, top_k;
    int32_t splits;
} recorded_t;

/* Tokens of a rank in contiguous blocks, the first ones one more. */
static int64_t write_ids(void *context, int32_t rank, int32_t *ids)
{
    const recorded_t *recorded = context;
    int64_t each = recorded->tokens / recorded->splits, more = recorded->tokens % recorded->splits;
    int64_t part = rank % recorded->splits, first = part * each + (part < more ? part : more);
    int64_t count = each + (part < more);
    first += rank / recorded->splits * recorded->tokens;
    memcpy(ids, recorded->ids + first * recorded->top_k, (size_t)(count * recorded->top_k) * sizeof *ids);
    return count;
}

/* The rules of an arm, with the library's defaults; -1 for a transport whose rules are not known here. */
static int case_of(const epx_group_config_t *config, epx_drops_case_t *how, char *why, size_t bytes)
{
    const char *name = config->transport;
    int pooled = strcmp(name, "pooled_wave") == 0, ring = strcmp(name, "ring") == 0;
    if (!pooled && !ring && strcmp(name, "ragged") != 0) {
        snprintf(why, bytes, "the accept rules of %.100s are not known here", name);
        return -1;
    }
    if (config->overflow == EPX_OVERFLOW_SPILL) {
        snprintf(why, bytes, "spilled choices are not recorded");
        return -1;
    }
    *how = (epx_drops_case_t){
        .transport = pooled ? EPX_DROPS_POOLED_WAVE
                     : ring ? EPX_DROPS_RING
                            : EPX_DROPS_RAGGED,
        .capacity_factor = epx_ab_capacity_of(config),
        .sender_factor = config->sender_factor > 0 ? config->sender_factor : 1.15,
        .waves = config->waves > 0 ? config->waves
                 : pooled          ? 3
                 : ring            ? 1
                                   : 2,
        .accept = config->accept != EPX_ACCEPT_DEFAULT ? config->accept : EPX_ACCEPT_PREFIX,
        .overflow = config->overflow != EPX_OVERFLOW_DEFAULT ? config->overflow : EPX_OVERFLOW_DROP,
    };
    return 0;
}

static void add_drops(const epx_drops_t *drops, epx_ab_ruled_t *sum)
{
    sum->count.valid += drops->routed;
    sum->count.kept += drops->kept;
    sum->count.dropped_sender += drops->dropped_sender;
    sum->count.dropped_receiver += drops->dropped_receiver;
    for (int32_t w = 0; w < drops->waves; w++)
        for (int32_t r = 0; r < drops->ranks; r++)
            sum->by_wave[w < EPX_AB_WAVES ? w : EPX_AB_WAVES - 1] +=
                drops->refused[(int64_t)w * drops->ranks + r];
}

/* Drops of the first `layers` kept layers in all groups; ranks stays 0 where they cannot be known. Rank 0. */
static void count_drops(const epx_ab_rank_t *self, const epx_group_config_t *config, int32_t ranks,
                        int64_t layers, epx_ab_ruled_t *sum)
{
    const epx_ab_settings_t *settings = self->session->settings;
    const epx_model_t *model = epx_trainer_model(self->trainer);
    recorded_t recorded = {
        .tokens = model->tokens, .top_k = model->config.top_k, .splits = ranks / (int32_t)settings->ep};
    epx_drops_routing_t routing = {.ranks = ranks,
                                   .real_ranks = (int32_t)settings->ep,
                                   .experts = (int32_t)model->config.experts,
                                   .top_k = (int32_t)recorded.top_k,
                                   .columns = (int32_t)recorded.top_k,
                                   .tokens_max = (recorded.tokens + recorded.splits - 1) / recorded.splits,
                                   .ids = write_ids,
                                   .context = &recorded};
    epx_drops_case_t how;
    *sum = (epx_ab_ruled_t){.ranks = 0};
    int rc = case_of(config, &how, sum->why, sizeof sum->why);
    for (int64_t i = 0; rc == 0 && i < layers * settings->replicas; i++) {
        epx_drops_t drops;
        recorded.ids = self->choices + i * settings->ep * recorded.tokens * recorded.top_k;
        rc = epx_drops_count(&routing, &how, 1, 1, &drops, sum->why, sizeof sum->why);
        if (rc == 0) {
            add_drops(&drops, sum);
            epx_drops_free(&drops);
        }
    }
    sum->ranks = rc == 0 ? ranks : 0;
}

static int32_t deciding_ranks(const epx_ab_settings_t *settings)
{
    return (int32_t)(settings->virtual_ep > 0 ? settings->virtual_ep : settings->ep);
}

void epx_ab_rule_drops(epx_ab_rank_t *self)
{
    const epx_ab_settings_t *settings = self->session->settings;
    int32_t ranks[EPX_AB_RULED] = {deciding_ranks(settings), (int32_t)settings->ep,
                                   (int32_t)settings->target_ranks};
    for (int32_t a = 0; self->rank == 0 && a < settings->arms; a++) {
        epx_ab_arm_t *arm = &self->session->result->arm[a];
        count_drops(self, &settings->arm[a].config, ranks[0], 1, &arm->ruled_first);
        for (int i = 0; i < EPX_AB_RULED; i++) {
            int known = 0;
            for (int j = 0; j < i; j++)
                known |= ranks[j] == ranks[i];
            if (!known)
                count_drops(self, &settings->arm[a].config, ranks[i], self->choice_layers, &arm->ruled[i]);
        }
    }
}

/* ---- equal drops --------------------------------------------------------------------------------------------------- */

static int64_t dropped(const epx_ab_counts_t *count)
{
    return count->dropped_sender + count->dropped_receiver;
}

/* What the rules drop at `scale`; -1: not known. */
static int64_t dropped_at(const epx_ab_rank_t *self, const epx_group_config_t *config, double scale)
{
    epx_group_config_t more = epx_ab_scaled(config, scale);
    epx_ab_ruled_t sum;
    count_drops(self, &more, deciding_ranks(self->session->settings), self->choice_layers, &sum);
    return sum.ranks > 0 ? dropped(&sum.count) : -1;
}

/* The smallest scale, to 1%, at which the rules drop no more than `target`; 0 when none up to the most does.
 * Rank 0. */
static double scale_for_drops(const epx_ab_rank_t *self, const epx_group_config_t *config, int64_t target)
{
    double low = 1, high = 1;
    for (int64_t drops = target + 1; drops > target || drops < 0;) {
        low = high;
        high *= 1.5;
        if (high > SCALE_MOST)
            return 0;
        drops = dropped_at(self, config, high);
    }
    while (high / low > 1.01) {
        double middle = sqrt(low * high);
        if (dropped_at(self, config, middle) > target)
            low = middle;
        else
            high = middle;
    }
    return high;
}

static void find_drops(epx_ab_rank_t *self, epx_ab_capacities_t *capacities)
{
    epx_ab_result_t *result = self->session->result;
    int64_t target = INT64_MAX;
    for (int32_t a = 0; a < result->arms; a++)
        if (result->arm[a].ruled[0].ranks > 0 && dropped(&result->arm[a].ruled[0].count) < target)
            target = dropped(&result->arm[a].ruled[0].count);
    for (int32_t a = 0; a < result->arms; a++) {
        epx_ab_arm_t *arm = &result->arm[a];
        if (arm->ruled[0].ranks == 0) {
            say(self, &arm->equal_drops, arm->ruled[0].why);
        } else if (dropped(&arm->ruled[0].count) <= target) {
            say(self, &arm->equal_drops, "no arm drops fewer");
        } else {
            capacities->drops_scale[a] =
                scale_for_drops(self, &self->session->settings->arm[a].config, target);
            capacities->drops[a] = capacities->drops_scale[a] > 0;
            if (!capacities->drops[a])
                say(self, &arm->equal_drops,
                    "no capacity up to sixteen times its own brings its drops down so far");
        }
    }
}

/* ---- equal memory -------------------------------------------------------------------------------------------------- */

/* Memory of the largest rank with a group of these settings. Collective. */
static int memory_of(epx_ab_rank_t *self, const epx_group_config_t *config, int64_t *bytes_p)
{
    epx_group_config_t counted = *config;
    counted.allocator = &self->session->allocator;
    int code = epx_trainer_open_group(self->trainer, &counted);
    if (code != EPX_TRAIN_OK)
        return code;
    *bytes_p = epx_trainer_bytes(self->trainer);
    code = epx_trainer_agree(self->trainer, bytes_p);
    epx_trainer_close_group(self->trainer);
    return code;
}

/* Memory grows with capacity, nearly in proportion: two points give the slope, and a few more steps land
 * below the budget. *scale_p stays 1 where there is no room or no slope. */
static int scale_for_memory(epx_ab_rank_t *self, const epx_group_config_t *config, int64_t bytes,
                            int64_t budget, double *scale_p)
{
    double scale = 1.25, best = 1, slope = 0;
    int64_t at = bytes;
    for (int i = 0; i < 6; i++) {
        epx_group_config_t more = epx_ab_scaled(config, scale);
        int code = memory_of(self, &more, &at);
        if (code != EPX_TRAIN_OK)
            return code;
        if (at <= budget && scale > best)
            best = scale;
        if (at <= budget && (double)at > 0.995 * (double)budget)
            break;
        slope = (double)(at - bytes) / (scale - 1);
        if (!(slope > 0))
            break;
        /* Aim a little below, so that rounding up of capacities does not lead above. */
        scale = 1 + (0.998 * (double)budget - (double)bytes) / slope;
        scale = scale > SCALE_MOST ? SCALE_MOST : scale;
        if (scale <= 1.005)
            break;
    }
    *scale_p = best;
    return EPX_TRAIN_OK;
}

static int find_memory(epx_ab_rank_t *self, epx_ab_capacities_t *capacities)
{
    const epx_ab_settings_t *settings = self->session->settings;
    int64_t bytes[EPX_AB_ARMS], budget = 0;
    int code = EPX_TRAIN_OK;
    for (int32_t a = 0; code == EPX_TRAIN_OK && a < settings->arms; a++) {
        code = memory_of(self, &settings->arm[a].config, &bytes[a]);
        budget = code == EPX_TRAIN_OK && bytes[a] > budget ? bytes[a] : budget;
    }
    for (int32_t a = 0; code == EPX_TRAIN_OK && a < settings->arms; a++) {
        epx_ab_adjusted_t *to = &self->session->result->arm[a].equal_memory;
        double scale = 1;
        if (settings->arm[a].config.capacity_factor < 0) {
            say(self, to, "it drops nothing, so that more memory changes nothing");
            continue;
        }
        if ((double)bytes[a] > 0.99 * (double)budget) {
            say(self, to, "no arm takes more memory by 1%");
            continue;
        }
        code = scale_for_memory(self, &settings->arm[a].config, bytes[a], budget, &scale);
        capacities->memory[a] = scale > 1.005;
        capacities->memory_scale[a] = scale;
        if (!capacities->memory[a])
            say(self, to, "the memory of the largest arm has no room for a larger capacity");
    }
    return code;
}

/* ---- together ------------------------------------------------------------------------------------------------------ */

static void note(epx_ab_adjusted_t *to, const epx_group_config_t *config, int32_t made, double scale)
{
    if (!made)
        return;
    epx_group_config_t more = epx_ab_scaled(config, scale);
    to->made = 1;
    to->scale = scale;
    to->capacity_factor = more.capacity_factor;
    to->sender_factor = more.sender_factor;
}

int epx_ab_find_capacities(epx_ab_rank_t *self, epx_ab_capacities_t *capacities)
{
    const epx_ab_settings_t *settings = self->session->settings;
    double scales[EPX_AB_ARMS];
    *capacities = (epx_ab_capacities_t){0};
    for (int32_t a = 0; self->rank == 0 && a < settings->arms && settings->no_adjust; a++) {
        say(self, &self->session->result->arm[a].equal_drops, "--no-adjust");
        say(self, &self->session->result->arm[a].equal_memory, "--no-adjust");
    }
    if (settings->no_adjust)
        return EPX_TRAIN_OK;
    if (self->rank == 0)
        find_drops(self, capacities);
    for (int32_t a = 0; a < EPX_AB_ARMS; a++)
        scales[a] = self->rank == 0 ? capacities->drops_scale[a] : 0;
    int code = epx_train_status(epx_comm_allreduce(self->world, scales, EPX_AB_ARMS, EPX_NUMBER_DOUBLE,
                                                   EPX_SUM)); /* rank 0's, for all */
    if (code != EPX_TRAIN_OK)
        return code;
    for (int32_t a = 0; a < EPX_AB_ARMS; a++) {
        capacities->drops_scale[a] = scales[a];
        capacities->drops[a] = scales[a] > 0;
    }
    code = find_memory(self, capacities);
    for (int32_t a = 0; self->rank == 0 && code == EPX_TRAIN_OK && a < settings->arms; a++) {
        epx_ab_arm_t *arm = &self->session->result->arm[a];
        note(&arm->equal_drops, &settings->arm[a].config, capacities->drops[a], capacities->drops_scale[a]);
        note(&arm->equal_memory, &settings->arm[a].config, capacities->memory[a],
             capacities->memory_scale[a]);
    }
    return code;
}
