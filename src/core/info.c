/* What this library has and what a configuration comes to. SPDX-License-Identifier: Apache-2.0 */
#include <epx/info.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/features.h"
#include "base/structs.h"
#include "core/select.h"
#include "device/registry.h"
#include "fabric/registry.h"
#include "transport/registry.h"

int32_t epx_abi(void) { return EPX_ABI; }

const char *epx_source_name(epx_source_t source)
{
    static const char *const names[] = {"default", "program", "environment", "prefixed variable"};
    return (unsigned)source < sizeof(names) / sizeof(names[0]) ? names[source] : "unknown";
}

epx_status_t epx_build_part(int32_t index, epx_build_part_t *part_p)
{
    int32_t count = 0;
    while (epx_features[count].name != NULL)
        count++;
    if (index < 0 || index >= count)
        return epx_fail(EPX_ERR_ARG, "epx_build_part: index is %d; it must be 0 to %d", index, count - 1);
    const epx_feature_t *feature = &epx_features[index];
    *part_p =
        (epx_build_part_t){.name = feature->name, .compiled = feature->compiled, .reason = feature->reason};
    return EPX_OK;
}

epx_status_t epx_nccl_describe(epx_nccl_info_t *info_p)
{
    if (info_p == NULL || !epx_struct_fits(info_p, info_p->size, sizeof(epx_nccl_info_t)))
        return epx_fail(EPX_ERR_ARG, "epx_nccl_describe: begin the answer with EPX_NCCL_INFO_INIT");
    epx_fabric_tell_nccl(info_p);
    return EPX_OK;
}

/* ---- one judging of everything ---------------------------------------------------------------------------------- */

/* All candidates as they were judged, and what came of it. Names and summaries are static or a plug-in's. */
typedef struct verdict {
    epx_judged_t *judged;
    int32_t count, room;
    epx_status_t status;
    char text[1024]; /* of an error */
    epx_selection_t selection;
    epx_group_config_t config;
    void *tables;
} verdict_t;

static void keep_judged(void *context, const epx_judged_t *judged)
{
    verdict_t *verdict = context;
    if (verdict->count < verdict->room)
        verdict->judged[verdict->count++] = *judged;
}

/* Without a configuration the smallest shape stands for it. */
static const epx_group_config_t *or_smallest(const epx_group_config_t *config)
{
    static const epx_group_config_t smallest = {.size = sizeof(epx_group_config_t),
                                                .ranks = 1,
                                                .experts = 1,
                                                .top_k = 1,
                                                .width = 1,
                                                .tokens_max = 1};
    return config != NULL ? config : &smallest;
}

static void free_verdict(verdict_t *verdict)
{
    free(verdict->judged);
    free(verdict->tables);
    free(verdict);
}

/* Chooses as opening would. NULL only where there is no memory. */
static verdict_t *judge_all(const epx_group_config_t *config)
{
    verdict_t *verdict = calloc(1, sizeof(*verdict));
    int32_t ranks = or_smallest(config)->ranks > 0 ? or_smallest(config)->ranks : 1;
    if (verdict == NULL)
        goto no_memory;
    verdict->room = epx_device_count() + epx_fabric_count() + epx_registry_count() + 1;
    verdict->judged = calloc((size_t)verdict->room, sizeof(*verdict->judged));
    if (verdict->judged == NULL)
        goto no_memory;
    verdict->status = epx_shape_check(or_smallest(config), ranks, &verdict->config);
    if (verdict->status == EPX_OK) {
        verdict->tables = malloc((size_t)epx_shape_table_bytes(&verdict->config, ranks));
        if (verdict->tables == NULL)
            goto no_memory;
        verdict->status = epx_select(&verdict->config, 0, ranks, verdict->tables, keep_judged, verdict,
                                     &verdict->selection);
    }
    if (verdict->status != EPX_OK)
        snprintf(verdict->text, sizeof(verdict->text), "%s", epx_last_error());
    return verdict;
no_memory:
    if (verdict != NULL)
        free_verdict(verdict);
    epx_fail(EPX_ERR_NO_MEMORY, "no memory for the tables of %d ranks", ranks);
    return NULL;
}

/* ---- configuration ---------------------------------------------------------------------------------------------- */

/* The transport whose prefixed variables count: the chosen one, else the one that is named. */
static const char *prefix_of(const verdict_t *verdict)
{
    if (verdict->selection.transport != NULL)
        return verdict->selection.transport->name;
    for (int32_t i = 0; epx_config_row(i) != NULL; i++) {
        epx_setting_t setting;
        epx_config_texts_t texts;
        epx_config_resolve_row(epx_config_row(i), &verdict->config, NULL, &setting, &texts);
        if (strcmp(setting.variable, "EPX_TRANSPORT") == 0) {
            const epx_transport_ops_t *named = epx_registry_find(setting.value);
            return named != NULL ? named->name : NULL;
        }
    }
    return NULL;
}

typedef struct unknown_context {
    epx_setting_fn fn;
    void *context;
} unknown_context_t;

static void pass_unknown(void *context, const char *variable, const char *nearest)
{
    const unknown_context_t *caller = context;
    char problem[160];
    epx_setting_t setting = {.variable = variable,
                             .values = "",
                             .value = "",
                             .source = EPX_SOURCE_ENVIRONMENT,
                             .set_by = variable};
    snprintf(problem, sizeof(problem), "not a variable of epx%s%s%s",
             nearest != NULL ? "; did you mean " : "", nearest != NULL ? nearest : "",
             nearest != NULL ? "?" : "");
    setting.problem = problem;
    caller->fn(caller->context, &setting);
}

epx_status_t epx_config_list(const epx_group_config_t *config, epx_setting_fn fn, void *context)
{
    verdict_t *verdict = judge_all(config);
    epx_status_t first = EPX_OK;
    char text[512] = "";
    if (verdict == NULL)
        return EPX_ERR_NO_MEMORY;
    const char *transport = prefix_of(verdict);
    for (int32_t i = 0; epx_config_row(i) != NULL; i++) {
        epx_setting_t setting;
        epx_config_texts_t texts;
        epx_status_t status =
            epx_config_resolve_row(epx_config_row(i), &verdict->config, transport, &setting, &texts);
        if (status != EPX_OK && first == EPX_OK) {
            first = status;
            snprintf(text, sizeof(text), "%s", texts.problem);
        }
        fn(context, &setting);
    }
    unknown_context_t caller = {fn, context};
    epx_config_unknown(transport, pass_unknown, &caller);
    free_verdict(verdict);
    return first != EPX_OK ? epx_fail(first, "%s", text) : EPX_OK;
}

/* ---- candidates ------------------------------------------------------------------------------------------------- */

/* Why `chosen` was taken: who asked for it, or how auto came to it. */
static void why_chosen(const verdict_t *verdict, const char *variable, const char *by_auto, char *why,
                       size_t bytes)
{
    for (int32_t i = 0; epx_config_row(i) != NULL; i++) {
        epx_setting_t setting;
        epx_config_texts_t texts;
        epx_config_resolve_row(epx_config_row(i), &verdict->config, NULL, &setting, &texts);
        if (strcmp(setting.variable, variable) != 0)
            continue;
        if (strcmp(setting.value, "auto") == 0)
            snprintf(why, bytes, "%s", by_auto);
        else if (setting.set_by != NULL)
            snprintf(why, bytes, "%s=%s", setting.set_by, setting.value);
        else
            snprintf(why, bytes, "the program asks for %s", setting.value);
    }
}

/* What the build says about a part of this name; NULL: nothing. */
static const char *build_reason(const char *name)
{
    for (const epx_feature_t *feature = epx_features; feature->name != NULL; feature++)
        if (strcmp(feature->name, name) == 0 && !feature->compiled)
            return feature->reason;
    return NULL;
}

/* Tells about one candidate of a kind that was not judged, because what comes before it already failed. */
static void pass_unjudged(const char *name, const char *why, epx_candidate_fn fn, void *context)
{
    epx_candidate_t candidate = {.name = name, .summary = "", .reason = why};
    fn(context, &candidate);
}

static void pass_all_unjudged(const verdict_t *verdict, const char *kind, epx_candidate_fn fn, void *context)
{
    char why[1100];
    snprintf(why, sizeof(why), "not asked: %s", verdict->text);
    if (strcmp(kind, "device") == 0)
        for (int32_t i = 0; i < epx_device_count(); i++)
            pass_unjudged(epx_device_at(i)->name, why, fn, context);
    else if (strcmp(kind, "fabric") == 0)
        for (int32_t i = 0; i < epx_fabric_count(); i++)
            pass_unjudged(epx_fabric_at(i)->name, why, fn, context);
    else
        for (int32_t i = 0; i < epx_registry_count(); i++)
            pass_unjudged(epx_registry_at(i)->name, why, fn, context);
}

static void pass_judged(const epx_judged_t *judged, const char *chosen, const char *why, epx_candidate_fn fn,
                        void *context)
{
    char reason[EPX_WHY_BYTES + EPX_CONFIG_TEXT_BYTES];
    const char *missing = judged->score <= 0 ? build_reason(judged->name) : NULL;
    epx_candidate_t candidate = {.name = judged->name, .summary = judged->summary, .score = judged->score};
    candidate.chosen = chosen != NULL && strcmp(judged->name, chosen) == 0;
    if (candidate.chosen)
        snprintf(reason, sizeof(reason), "%s", why);
    else
        snprintf(reason, sizeof(reason), "%s",
                 missing != NULL      ? missing
                 : judged->score <= 0 ? judged->reason
                                      : "");
    candidate.reason = reason;
    fn(context, &candidate);
}

static epx_status_t list(const epx_group_config_t *config, const char *kind, epx_candidate_fn fn,
                         void *context)
{
    verdict_t *verdict = judge_all(config);
    char why[EPX_WHY_BYTES + EPX_CONFIG_TEXT_BYTES] = "";
    const char *chosen = NULL;
    int32_t seen = 0;
    if (verdict == NULL)
        return EPX_ERR_NO_MEMORY;
    const epx_selection_t *s = &verdict->selection;
    if (strcmp(kind, "device") == 0 && s->device != NULL) {
        chosen = s->device->name;
        why_chosen(verdict, "EPX_DEVICE", s->why_device, why, sizeof(why));
    } else if (strcmp(kind, "fabric") == 0 && s->fabric != NULL) {
        chosen = s->fabric->name;
        why_chosen(verdict, "EPX_FABRIC", s->why_fabric, why, sizeof(why));
    } else if (strcmp(kind, "transport") == 0 && s->transport != NULL && verdict->status == EPX_OK) {
        chosen = s->transport->name;
        why_chosen(verdict, "EPX_TRANSPORT", s->why_transport, why, sizeof(why));
    }
    for (int32_t i = 0; i < verdict->count; i++) {
        if (strcmp(verdict->judged[i].kind, kind) != 0)
            continue;
        seen++;
        pass_judged(&verdict->judged[i], chosen, why, fn, context);
    }
    if (seen == 0)
        pass_all_unjudged(verdict, kind, fn, context);
    epx_status_t status = chosen != NULL ? EPX_OK : epx_fail(verdict->status, "%s", verdict->text);
    free_verdict(verdict);
    return status;
}

epx_status_t epx_transport_list(const epx_group_config_t *config, epx_candidate_fn fn, void *context)
{
    return list(config, "transport", fn, context);
}

epx_status_t epx_fabric_list(const epx_group_config_t *config, epx_candidate_fn fn, void *context)
{
    return list(config, "fabric", fn, context);
}

epx_status_t epx_device_list(const epx_group_config_t *config, epx_candidate_fn fn, void *context)
{
    return list(config, "device", fn, context);
}

epx_status_t epx_group_preview(const epx_group_config_t *config, epx_group_info_t *info_p)
{
    if (info_p == NULL || info_p->size != sizeof(epx_group_info_t))
        return epx_fail(EPX_ERR_ARG, "epx_group_preview: begin the answer with EPX_GROUP_INFO_INIT");
    verdict_t *verdict = judge_all(config);
    if (verdict == NULL)
        return EPX_ERR_NO_MEMORY;
    epx_status_t status = verdict->status;
    const epx_selection_t *s = &verdict->selection;
    if (status == EPX_OK)
        *info_p = (epx_group_info_t){
            .size = sizeof(*info_p),
            .ranks = s->shape.ranks,
            .experts = s->shape.experts,
            .top_k = s->shape.top_k,
            .width = s->shape.width,
            .tokens_max = s->shape.tokens_max,
            .local_experts = s->shape.real.first[1],
            .batch_rows_max = s->sizes.batch_rows_max,
            .waves = s->sizes.waves,
            .lanes = s->shape.lanes,
            .depth = s->shape.depth,
            .virtual_ranks = s->shape.virtual_ranks,
            .transport = s->transport->name,
            .fabric = s->fabric->name,
            .device = s->device->name,
            .wire = s->sizes.wire,
        };
    else
        epx_fail(status, "%s", verdict->text);
    free_verdict(verdict);
    return status;
}

epx_status_t epx_device_describe(const char *name, epx_device_properties_t *properties_p)
{
    for (int32_t i = 0; i < epx_device_count(); i++) {
        const epx_device_entry_t *entry = epx_device_at(i);
        char reason[320] = "";
        if (strcmp(entry->name, name) != 0)
            continue;
        const char *missing = build_reason(name);
        if (missing != NULL)
            return epx_fail(EPX_ERR_UNSUPPORTED, "device %s is not part of this build: %s", name, missing);
        if (entry->ops->probe(reason, sizeof(reason)) <= 0)
            return epx_fail(EPX_ERR_UNSUPPORTED, "device %s cannot be used here: %s", name, reason);
        return entry->ops->properties(properties_p);
    }
    return epx_fail(EPX_ERR_ARG, "%s is no device of epx; epx_device_list tells which there are", name);
}
