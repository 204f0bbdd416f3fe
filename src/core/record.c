/* Opening a recorder: the environment's word on it. SPDX-License-Identifier: Apache-2.0 */
#include "core/record.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/structs.h"
#include "core/config.h"
#include "core/core_dump.h"
#include "core/device_record.h"
#include "record/recorder.h"

/* A folder under /dev/shm for a user's job; jobs of one name on one host share it on purpose. */
static void default_folder(char *folder, size_t bytes, const char *job)
{
    size_t used = (size_t)snprintf(folder, bytes, "/dev/shm/epx-%u/", (unsigned)getuid());
    for (; *job != '\0' && used + 1 < bytes; job++)
        folder[used++] = (*job >= '0' && *job <= '9') || (*job >= 'a' && *job <= 'z') ||
                                 (*job >= 'A' && *job <= 'Z') || *job == '.' || *job == '-'
                             ? *job
                             : '_';
    folder[used] = '\0';
}

int epx_record_is_taken(const char *job)
{
    char folder[EPX_CONFIG_TEXT_BYTES];
    default_folder(folder, sizeof(folder), job);
    return access(folder, F_OK) == 0;
}

/* What the program says, where the environment says nothing. */
static void resolve(const epx_recorder_config_t *config, epx_settings_t *settings)
{
    if (strcmp(settings->record, "auto") == 0 && config->folder != NULL)
        snprintf(settings->record, sizeof(settings->record), "%s", config->folder);
    if (settings->on_hang_cmd[0] == '\0' && config->on_hang_cmd != NULL)
        snprintf(settings->on_hang_cmd, sizeof(settings->on_hang_cmd), "%s", config->on_hang_cmd);
}

static epx_on_hang_t action_of(const epx_recorder_config_t *config, const epx_settings_t *settings,
                               const char **failover_p)
{
    const char *colon = strchr(settings->on_hang, ':');
    *failover_p = config->failover;
    if (colon != NULL) {
        *failover_p = colon + 1;
        return EPX_ON_HANG_FAILOVER;
    }
    if (strcmp(settings->on_hang, "abort") == 0)
        return EPX_ON_HANG_ABORT;
    return config->on_hang != EPX_ON_HANG_DEFAULT ? config->on_hang : EPX_ON_HANG_REPORT;
}

epx_status_t epx_record_open(const epx_recorder_config_t *config, epx_recorder_h *recorder_p)
{
    char folder[EPX_CONFIG_TEXT_BYTES], pipe[EPX_RECORDER_PATH_BYTES], file[EPX_RECORDER_PATH_BYTES];
    epx_settings_t settings;
    if (config == NULL || recorder_p == NULL ||
        !epx_struct_fits(config, config->size, sizeof(epx_recorder_config_t)))
        return epx_fail(EPX_ERR_ARG,
                        "epx_record_open: begin the configuration with EPX_RECORDER_CONFIG_INIT");
    epx_group_config_t budgets = EPX_GROUP_CONFIG_INIT;
    budgets.hang_ms = config->hang_ms;
    budgets.timeout_ms = config->timeout_ms;
    epx_status_t status = epx_config_record(&budgets, &settings);
    if (status != EPX_OK)
        return status;
    const char *job = config->job != NULL ? config->job : "job";
    resolve(config, &settings);
    if (settings.record[0] == '\0') /* the program's: the environment's is refused with the setting */
        return epx_fail(EPX_ERR_ARG,
                        "epx_record_open: the folder is \"\"; give a name, or NULL for a new one "
                        "under /dev/shm");
    if (strcmp(settings.record, "off") == 0) {
        *recorder_p = NULL;
        return EPX_OK;
    }
    int is_default = strcmp(settings.record, "auto") == 0;
    if (is_default)
        default_folder(folder, sizeof(folder), job);
    else
        snprintf(folder, sizeof(folder), "%s", settings.record);
    epx_core_dump_paths(pipe, sizeof(pipe), file, sizeof(file));
    epx_recorder_set_up_t set_up = {.folder = folder,
                                    .keeps = !is_default,
                                    .job = job,
                                    .program = config->program != NULL ? config->program
                                                                       : program_invocation_short_name,
                                    .rank = config->rank,
                                    .ranks = config->ranks,
                                    .domain = config->domain,
                                    .domains = config->domains,
                                    .device = config->device,
                                    .hang_ms = settings.hang_ms,
                                    .timeout_ms = settings.timeout_ms,
                                    .on_hang_cmd = settings.on_hang_cmd,
                                    .dump_pipe = pipe,
                                    .dump_file = file,
                                    .watched = !config->no_watchdog,
                                    .find_device = epx_device_record_find,
                                    .use = epx_device_record_use};
    set_up.on_hang = action_of(config, &settings, &set_up.failover);
    return epx_recorder_open(&set_up, recorder_p);
}

void epx_record_close(epx_recorder_h *recorder_p) { epx_recorder_close(recorder_p); }
