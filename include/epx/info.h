/*
 * What this library has, what a configuration comes to, and what opening a group would choose and why. For
 * programs that show or check a set-up; nothing here is needed to run a group.
 * SPDX-License-Identifier: Apache-2.0
 *
 * None of these calls is collective or opens anything; each may be called from any thread. The environment is
 * read anew at every call, as epx_group_open does. `config` is what a program would pass to epx_group_open
 * with `ranks` filled in, so that every answer is the one that opening would come to.
 */
#ifndef EPX_INFO_H
#define EPX_INFO_H

#include <epx/device.h>
#include <epx/epx.h>

#ifdef __cplusplus
extern "C" {
#endif

/* EPX_ABI of the loaded library (transport.h has the one that a caller was compiled against). */
int32_t epx_abi(void);

/* ---- configuration ---------------------------------------------------------------------------------------------- */

/* Who gave a setting its value; later ones win. */
typedef enum epx_source {
    EPX_SOURCE_DEFAULT = 0,
    EPX_SOURCE_PROGRAM,     /* the caller's configuration */
    EPX_SOURCE_ENVIRONMENT, /* the plain variable, EPX_WAVES */
    EPX_SOURCE_PREFIXED     /* the variable with the transport's name, EPX_RAGGED_WAVES */
} epx_source_t;

/* "default", "program", "environment", "prefixed variable"; static, any value allowed. */
const char *epx_source_name(epx_source_t source);

/* One setting. Strings are valid during the callback. */
typedef struct epx_setting {
    const char *variable; /* plain name, "EPX_WAVES" */
    const char *values;   /* what may be given, default first, "3 (pooled_wave), 2 (ragged)" */
    const char *help;     /* one line; NULL for a variable that the library does not know */
    const char *value;    /* what counts, as one would write it; "" where nothing is set (EPX_STATS) */
    epx_source_t source;
    const char *set_by;  /* the variable that won, "EPX_RAGGED_WAVES"; NULL unless the environment did */
    const char *problem; /* NULL, or why it cannot be used (text, bounds), or for an unknown variable the
                            nearest name */
} epx_setting_t;

typedef void (*epx_setting_fn)(void *context, const epx_setting_t *setting);

/*
 * Calls fn for every row of the configuration table in its order, then for every EPX_ variable of the
 * environment that the table does not know. Prefixed variables count for the transport that would be chosen
 * (as the configuration names it where the choice fails). config NULL: every default. Returns EPX_OK, or the
 * status that opening would give for the first setting with a problem; fn is called for all of them in either
 * case.
 */
epx_status_t epx_config_list(const epx_group_config_t *config, epx_setting_fn fn, void *context);

/* ---- what would be used ----------------------------------------------------------------------------------------- */

/* One transport, fabric or device. Strings are valid during the callback. */
typedef struct epx_candidate {
    const char *name;
    const char *summary; /* one line, what it is; may be "" */
    int32_t score;  /* > 0: it can be used for this configuration; `auto` takes the highest. 0: it cannot */
    int32_t chosen; /* 1: opening would take it */
    const char *reason; /* score 0: why not. chosen: why it ("EPX_TRANSPORT=ragged", "auto: highest score of
                           3"). else "" */
} epx_candidate_t;

typedef void (*epx_candidate_fn)(void *context, const epx_candidate_t *candidate);

/*
 * Call fn for every known candidate, in the order of the registry, those that this build lacks included (with
 * that reason); a plug-in named by the configuration comes last. Return EPX_OK when one is chosen, else the
 * status with which opening would fail (epx_last_error has the text); fn is called for all of them in either
 * case. Transports are asked for the chosen fabric, fabrics for the chosen device.
 */
epx_status_t epx_transport_list(const epx_group_config_t *config, epx_candidate_fn fn, void *context);
epx_status_t epx_fabric_list(const epx_group_config_t *config, epx_candidate_fn fn, void *context);
epx_status_t epx_device_list(const epx_group_config_t *config, epx_candidate_fn fn, void *context);

/*
 * Fills *info_p as epx_group_info would on rank 0 of a group opened with this configuration (`ranks` of it),
 * without opening it: transport, fabric, device, waves, wire, batch_rows_max, local_experts. Strings are
 * static or of a loaded plug-in; local_expert_ids and owner are NULL, generation is 0. Errors as
 * epx_group_memory's.
 */
epx_status_t epx_group_preview(const epx_group_config_t *config, epx_group_info_t *info_p);

/* Properties of a device by name ("host", "cuda"). EPX_ERR_UNSUPPORTED with the reason where it cannot be
 * used. */
epx_status_t epx_device_describe(const char *name, epx_device_properties_t *properties_p);

/*
 * The NCCL of this process, which fabric nccl takes: the one that is loaded already (a framework's), else the
 * first that the loader finds, which this call then loads.
 */
typedef struct epx_nccl_info {
    size_t size;
    char compiled[64]; /* what this build has set-up kernels for, "NCCL 2.28.3"; "no NCCL" */
    char loaded[24];   /* "2.28.9"; "": there is none */
    char file[512];    /* of the loaded one */
    char problem[512]; /* why fabric nccl cannot use it; "": it can, as far as versions go */
} epx_nccl_info_t;

#define EPX_NCCL_INFO_INIT EPX_BEGUN(epx_nccl_info_t)

/* EPX_ERR_ARG for a struct that was not begun so. */
epx_status_t epx_nccl_describe(epx_nccl_info_t *info_p);

/* ---- the build -------------------------------------------------------------------------------------------------- */

/* One optional part of the build. Static strings. */
typedef struct epx_build_part {
    const char *name;
    int32_t compiled;
    const char *reason; /* where it was found, or why it is not compiled */
} epx_build_part_t;

/* Row `index` (from 0) of the table of optional parts; EPX_ERR_ARG behind the last. */
epx_status_t epx_build_part(int32_t index, epx_build_part_t *part_p);

#ifdef __cplusplus
}
#endif
#endif
