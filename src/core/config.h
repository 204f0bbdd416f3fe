/*
 * The configuration table: the only place that reads the environment. SPDX-License-Identifier: Apache-2.0
 *
 * For each setting: the variable with the transport's name (EPX_RAGGED_WAVES) wins over the plain one
 * (EPX_WAVES), which wins over what the program passes, which wins over the default. The environment is read
 * anew at every resolution.
 */
#ifndef EPX_CORE_CONFIG_H
#define EPX_CORE_CONFIG_H

#include <epx/info.h>

enum { EPX_CONFIG_TEXT_BYTES = 512 };

/* How fabric `nccl` moves rows. */
typedef enum epx_path { EPX_PATH_AUTO = 1, EPX_PATH_WINDOW, EPX_PATH_SENDRECV } epx_path_t;

/* All settings of one group, resolved. Numbers are 0 and enums DEFAULT where nothing was set and the default
 * depends on the transport. */
typedef struct epx_settings {
    char transport[EPX_CONFIG_TEXT_BYTES];
    char fabric[32], device[32];
    double capacity_factor;   /* EPX_DROPLESS or > 0 */
    double sender_factor;     /* 0: not set */
    int32_t waves, sm_budget; /* 0: not set */
    epx_accept_t accept;
    epx_overflow_t overflow;
    epx_wire_t wire;
    epx_batch_form_t batch;
    epx_check_t check;
    epx_path_t nccl_path;
    int64_t hang_ms, timeout_ms;
    char stats[EPX_CONFIG_TEXT_BYTES]; /* folder or "" */
    char fault[EPX_CONFIG_TEXT_BYTES]; /* a specification that has been read well, or "" */
    char record[EPX_CONFIG_TEXT_BYTES], on_hang[EPX_CONFIG_TEXT_BYTES], on_hang_cmd[EPX_CONFIG_TEXT_BYTES];
    int32_t core_dump; /* 2: of the culprit */
    int32_t log_level;
} epx_settings_t;

typedef struct epx_config_row epx_config_row_t;

/* Row `index` of the table, NULL behind the last. */
const epx_config_row_t *epx_config_row(int32_t index);

/* One row resolved for a configuration (may be NULL) and a transport name (may be NULL: plain variables
 * only). Fills *setting but for texts that must outlive the call, which go to value (EPX_CONFIG_TEXT_BYTES),
 * variable and problem (256 each). Returns EPX_OK or the status of its problem. */
typedef struct epx_config_texts {
    char variable[96], set_by[96], value[EPX_CONFIG_TEXT_BYTES], problem[512];
} epx_config_texts_t;
epx_status_t epx_config_resolve_row(const epx_config_row_t *row, const epx_group_config_t *config,
                                    const char *transport, epx_setting_t *setting, epx_config_texts_t *texts);

/* All rows; the first problem is the error. */
epx_status_t epx_config_resolve(const epx_group_config_t *config, const char *transport,
                                epx_settings_t *settings_p);

/* The rows of the flight recorder and its watchdog alone; hang_ms and timeout_ms of config (may be NULL)
 * count. */
epx_status_t epx_config_record(const epx_group_config_t *config, epx_settings_t *settings_p);
/* Whether EPX_CORE_DUMP asks for dumps; a value that cannot be asks for none, and is an error elsewhere. */
int epx_config_core_dump_is_asked(void);
/* Whether EPX_RECORD names a folder. */
int epx_config_record_is_asked(void);

/* EPX_PIN, which is not a setting of a group: 1, ranks are bound to cores. */
epx_status_t epx_config_pin(int32_t *wanted_p);

/* Calls fn(context, variable, nearest known name) for every EPX_ variable that the table does not know. Names
 * of plug-ins may be prefixes too: `transport` is one more known prefix (may be NULL). */
typedef void (*epx_unknown_fn)(void *context, const char *variable, const char *nearest);
void epx_config_unknown(const char *transport, epx_unknown_fn fn, void *context);

/* Warns once per process and variable about unknown ones. */
void epx_config_warn_unknown(const char *transport);

/* A variable that is no setting: a launcher's. NULL: not set. */
const char *epx_config_variable(const char *name);

/* The candidate nearest to `word` (edit distance), NULL when none is close. */
const char *epx_nearest(const char *word, const char *const *candidates, int32_t count);

/* What EPX_FAULT says, into text; 0: nothing. */
int epx_config_fault(char *text, size_t bytes);

#endif
