/* Which device, fabric and transport a configuration comes to, and why. SPDX-License-Identifier: Apache-2.0
 */
#include "core/select.h"

#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "core/comm_link.h"
#include "core/services.h"
#include "device/registry.h"
#include "fabric/registry.h"
#include "transport/registry.h"

/* Everybody's reason, for the text of a choice that fails. */
typedef struct reasons {
    char text[720];
    size_t used;
    epx_judged_fn fn;
    void *context;
} reasons_t;

static void judge(reasons_t *reasons, const epx_judged_t *judged)
{
    if (reasons->fn != NULL)
        reasons->fn(reasons->context, judged);
    if (reasons->used + 1 >= sizeof(reasons->text))
        return;
    int wrote =
        snprintf(reasons->text + reasons->used, sizeof(reasons->text) - reasons->used, "%s%s: %s",
                 reasons->used > 0 ? "; " : "", judged->name, judged->score > 0 ? "can run" : judged->reason);
    reasons->used += wrote > 0 ? (size_t)wrote : 0;
}

static int is_auto(const char *name) { return strcmp(name, "auto") == 0; }

/* The common end of every choice: the best of the judged, or the named one. */
static epx_status_t settle(const char *kind, const char *variable, const char *wanted, int32_t best,
                           int32_t candidates, const char *best_name, const reasons_t *reasons, char *why)
{
    if (best <= 0 && is_auto(wanted))
        return epx_fail(EPX_ERR_UNSUPPORTED, "no %s can run here: %s", kind, reasons->text);
    if (best <= 0)
        return epx_fail(EPX_ERR_UNSUPPORTED, "%s %s cannot run here: %s", kind, wanted, reasons->text);
    if (is_auto(wanted))
        snprintf(why, EPX_WHY_BYTES, "auto: %s scores highest of %d", best_name, candidates);
    else
        snprintf(why, EPX_WHY_BYTES, "%s or the program asks for it", variable);
    return EPX_OK;
}

static epx_status_t choose_device(const epx_settings_t *settings, reasons_t *reasons,
                                  epx_selection_t *selection)
{
    int32_t best = 0;
    reasons->used = 0;
    for (int32_t i = 0; i < epx_device_count(); i++) {
        const epx_device_ops_t *device = epx_device_at(i)->ops;
        epx_judged_t judged = {.kind = "device", .name = epx_device_at(i)->name, .summary = ""};
        judged.score = device->probe(judged.reason, sizeof(judged.reason));
        judge(reasons, &judged);
        if (judged.score > best &&
            (is_auto(settings->device) || strcmp(settings->device, judged.name) == 0)) {
            best = judged.score;
            selection->device = device;
        }
    }
    return settle("device", "EPX_DEVICE", settings->device, best, epx_device_count(),
                  best > 0 ? selection->device->name : "", reasons, selection->why_device);
}

static epx_status_t choose_fabric(const epx_settings_t *settings, epx_reach_t reach, reasons_t *reasons,
                                  epx_selection_t *selection)
{
    int32_t best = 0;
    reasons->used = 0;
    for (int32_t i = 0; i < epx_fabric_count(); i++) {
        const epx_fabric_ops_t *fabric = epx_fabric_at(i)->ops;
        epx_judged_t judged = {.kind = "fabric", .name = epx_fabric_at(i)->name, .summary = ""};
        if (fabric != NULL && (fabric->caps & EPX_FABRIC_SHARED_ADDRESS) != 0 && reach != EPX_REACH_PROCESS)
            snprintf(judged.reason, sizeof(judged.reason),
                     "it joins threads of one process, and the ranks are in several");
        else if (fabric != NULL)
            judged.score = fabric->probe(selection->device, judged.reason, sizeof(judged.reason));
        else
            snprintf(judged.reason, sizeof(judged.reason), "not part of this build");
        judge(reasons, &judged);
        if (judged.score > best &&
            (is_auto(settings->fabric) || strcmp(settings->fabric, judged.name) == 0)) {
            best = judged.score;
            selection->fabric = fabric;
        }
    }
    return settle("fabric", "EPX_FABRIC", settings->fabric, best, epx_fabric_count(),
                  best > 0 ? selection->fabric->name : "", reasons, selection->why_fabric);
}

static uint32_t caps_of(const epx_settings_t *settings, const epx_fabric_ops_t *fabric, epx_reach_t reach)
{
    if (settings->nccl_path == EPX_PATH_SENDRECV && fabric->caps_apart != 0)
        return fabric->caps_apart;
    return fabric->caps_among != NULL ? fabric->caps_among(reach != EPX_REACH_NETWORK) : fabric->caps;
}

/* Where candidates of a transport are judged: all share one table, which depends on the configuration alone.
 */
typedef struct judging {
    const epx_group_config_t *config;
    int32_t rank, ranks;
    void *tables;
} judging_t;

/* Resolves the settings with the transport's prefix, makes the shape, asks it. */
static epx_status_t judge_transport(const judging_t *judging, const epx_transport_ops_t *ops,
                                    epx_selection_t *selection, epx_judged_t *judged,
                                    epx_settings_t *settings, epx_shape_t *shape)
{
    epx_status_t status = epx_config_resolve(judging->config, ops->name, settings);
    if (status == EPX_OK)
        status =
            epx_shape_make(judging->config, settings, judging->rank, judging->ranks, judging->tables, shape);
    if (status != EPX_OK) {
        snprintf(judged->reason, sizeof(judged->reason), "%s", epx_last_error());
        return status;
    }
    judged->score = ops->probe(shape, selection->caps, judged->reason, sizeof(judged->reason));
    return EPX_OK;
}

static epx_status_t unknown_transport(const epx_group_config_t *config, const char *wanted)
{
    char names[128];
    const char *words[16] = {"auto"};
    int32_t count = 1;
    epx_setting_t setting;
    epx_config_texts_t texts;
    for (int32_t i = 0; i < epx_registry_count() && count < 16; i++)
        words[count++] = epx_registry_at(i)->name;
    epx_registry_names(names, sizeof(names));
    epx_config_resolve_row(epx_config_row(0), config, NULL, &setting, &texts);
    const char *nearest = epx_nearest(wanted, words, count);
    return epx_fail(EPX_ERR_ARG, "%s=%s is not one of: auto, %s, or a path to a plug-in%s%s%s",
                    setting.set_by != NULL ? setting.set_by : "transport", wanted, names,
                    nearest != NULL ? " (did you mean \"" : "", nearest != NULL ? nearest : "",
                    nearest != NULL ? "\"?)" : "");
}

static epx_status_t choose_transport(const judging_t *judging, const char *wanted, reasons_t *reasons,
                                     epx_selection_t *selection)
{
    const epx_transport_ops_t *named = NULL;
    epx_status_t status, named_status = EPX_OK;
    char named_text[512] = "";
    int32_t best = 0, count = epx_registry_count();
    if (epx_registry_is_path(wanted)) {
        status = epx_registry_load(wanted, &named);
        if (status != EPX_OK)
            return status;
    } else if (!is_auto(wanted)) {
        named = epx_registry_find(wanted);
        if (named == NULL)
            return unknown_transport(judging->config, wanted);
    }
    reasons->used = 0;
    for (int32_t i = 0; i <= count; i++) {
        const epx_transport_ops_t *ops = i < count ? epx_registry_at(i) : named;
        if (i == count && (named == NULL || epx_registry_find(named->name) != NULL))
            break;
        epx_judged_t judged = {.kind = "transport", .name = ops->name, .summary = ops->summary};
        epx_settings_t settings;
        epx_shape_t shape;
        status = judge_transport(judging, ops, selection, &judged, &settings, &shape);
        if (ops == named && status != EPX_OK) {
            named_status = status;
            snprintf(named_text, sizeof(named_text), "%s", epx_last_error());
        }
        judge(reasons, &judged);
        if (judged.score > best && (named == NULL || ops == named)) {
            best = judged.score;
            selection->transport = ops;
            selection->settings = settings;
            selection->shape = shape;
        }
    }
    /* A bad value is the user's slip, not the transport's inability. */
    if (named_status != EPX_OK)
        return epx_fail(named_status, "%s", named_text);
    return settle("transport", "EPX_TRANSPORT", named != NULL ? named->name : "auto", best, count,
                  best > 0 ? selection->transport->name : "", reasons, selection->why_transport);
}

epx_status_t epx_select_among(const epx_group_config_t *config, int32_t rank, int32_t ranks,
                              epx_reach_t reach, void *tables, epx_judged_fn fn, void *context,
                              epx_selection_t *selection_p)
{
    epx_settings_t settings;
    reasons_t reasons = {.fn = fn, .context = context};
    judging_t judging = {.config = config, .rank = rank, .ranks = ranks, .tables = tables};
    memset(selection_p, 0, sizeof(*selection_p));
    epx_status_t status = epx_config_resolve(config, NULL, &settings);
    if (status != EPX_OK)
        return status;
    epx_log_set_level(settings.log_level);
    status = choose_device(&settings, &reasons, selection_p);
    if (status == EPX_OK)
        status = choose_fabric(&settings, reach, &reasons, selection_p);
    if (status == EPX_OK)
        selection_p->caps = caps_of(&settings, selection_p->fabric, reach) |
                            (selection_p->device->host_access ? EPX_FABRIC_HOST_ACCESS : 0);
    if (status == EPX_OK)
        status = choose_transport(&judging, settings.transport, &reasons, selection_p);
    /* Now a plug-in's name is known: it may be a prefix too. */
    epx_config_warn_unknown(selection_p->transport != NULL ? selection_p->transport->name : NULL);
    if (status != EPX_OK)
        return status;
    return selection_p->transport->query(&selection_p->shape, selection_p->caps, epx_services(),
                                         &selection_p->sizes);
}

epx_status_t epx_select(const epx_group_config_t *config, int32_t rank, int32_t ranks, void *tables,
                        epx_judged_fn fn, void *context, epx_selection_t *selection_p)
{
    return epx_select_among(config, rank, ranks, epx_comm_expected_reach(), tables, fn, context, selection_p);
}
