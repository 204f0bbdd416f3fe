/*
 * Link health: counters, states and events of InfiniBand ports and NVLinks, and what they mean.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Reading and judging are apart: a monitor reads values, a program keeps them with their time, and
 * epx_health_judge, a pure function, looks at how one value went. A value that is absent or unsupported is
 * not zero: it carries the reason's code and is never judged.
 */
#ifndef EPX_HEALTH_H
#define EPX_HEALTH_H

#include <epx/record.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { EPX_HEALTH_NAME = 48, EPX_HEALTH_REASON = 200 };

/* Worse ones have higher numbers. */
typedef enum epx_health_verdict {
    EPX_HEALTH_OK = 0,
    EPX_HEALTH_CANNOT_TELL,
    EPX_HEALTH_WATCH, /* keep using it, and look again */
    EPX_HEALTH_CORDON /* take it out of service */
} epx_health_verdict_t;

/* "OK", "CANNOT TELL", "WATCH", "CORDON"; static, any value allowed. */
const char *epx_health_verdict_name(int32_t verdict);

/* ---- reading ------------------------------------------------------------------------------------------------------ */

typedef struct epx_health_config {
    size_t size;
    const char *sysfs; /* another root than /sys, "tests/fake/sys"; asynchronous events are not read then */
    const char *nvml;  /* another library than libnvidia-ml.so.1; "": none */
} epx_health_config_t;

#define EPX_HEALTH_CONFIG_INIT EPX_BEGUN(epx_health_config_t)

typedef struct epx_health *epx_health_h;

/* One value at the time of a sample. Strings are valid during the callback. */
typedef struct epx_health_reading {
    const char *link; /* "mlx5_0/1" (device and port), "GPU0", "GPU0/nvlink3" */
    const char *name; /* "state", "link_downed", "nvlink_recoveries": docs/health.md lists what is judged */
    int32_t known;    /* 0: absent or unsupported; value means nothing */
    int32_t code;     /* why it is not known: errno for ports, NVML's return code for GPUs */
    uint64_t value;
} epx_health_reading_t;

typedef void (*epx_health_fn)(void *context, const epx_health_reading_t *reading);

/*
 * Looks for ports and GPUs, and starts one reader of asynchronous events per RDMA device, where the build has
 * libibverbs and the device may be opened. Finding nothing is no error. EPX_ERR_ARG, EPX_ERR_NO_MEMORY.
 */
epx_status_t epx_health_open(const epx_health_config_t *config, epx_health_h *health_p);

/* Reads everything once. fn is called on the calling thread; one thread at a time. */
epx_status_t epx_health_sample(epx_health_h health, epx_health_fn fn, void *context);

/* What cannot be seen here and why, "GPUs: libnvidia-ml.so.1: cannot open ..."; one line each, "" for
 * nothing. Owned by the monitor. */
const char *epx_health_blind_spots(epx_health_h health);

/* Ends the readers, frees, clears the handle. */
void epx_health_close(epx_health_h *health_p);

/* What a GPU does right now. */
typedef struct epx_health_use {
    size_t size;
    int32_t percent;    /* of the last moments in which it executed something; -1: not known */
    int32_t milliwatts; /* 0: not known */
    int32_t megahertz;  /* of its multiprocessors; 0: not known */
    int32_t processes;  /* that have it, as far as this one's PID namespace shows them; 0: not known */
    int32_t own;        /* percent of this process alone; -1: not known */
} epx_health_use_t;

#ifdef __cplusplus
#define EPX_HEALTH_USE_INIT \
    epx_health_use_t { sizeof(epx_health_use_t), -1, 0, 0, 0, -1 }
#else
#define EPX_HEALTH_USE_INIT                                        \
    {                                                              \
        .size = sizeof(epx_health_use_t), .percent = -1, .own = -1 \
    }
#endif

/*
 * Asks NVML, which is opened at the first call of a process: `nvml` names it then (NULL: libnvidia-ml.so.1).
 * bus: "0000:1b:00.0". Any thread; takes a millisecond or two, and needs nothing of the GPU's own queue, so
 * it answers beside a kernel that is stuck. EPX_ERR_UNSUPPORTED where nobody can be asked, with the reason.
 */
epx_status_t epx_health_gpu_use(const char *nvml, const char *bus, epx_health_use_t *use_p);

/* ---- for the flight recorder ---------------------------------------------------------------------------------------- */

typedef struct epx_health_follow_config {
    size_t size;
    epx_health_config_t health; /* begun with EPX_HEALTH_CONFIG_INIT; copied */
    epx_recorder_h recorder;    /* of the rank whose links they are; must outlive the follower */
    const char *links;          /* those whose name begins so ("mlx5_3/", "GPU3"); NULL: all of the host */
    int64_t interval_ms;        /* between two looks; 0: 1000 */
} epx_health_follow_config_t;

#ifdef __cplusplus
#define EPX_HEALTH_FOLLOW_CONFIG_INIT                                                   \
    epx_health_follow_config_t                                                          \
    {                                                                                   \
        sizeof(epx_health_follow_config_t), EPX_HEALTH_CONFIG_INIT, nullptr, nullptr, 0 \
    }
#else
#define EPX_HEALTH_FOLLOW_CONFIG_INIT                                                \
    {                                                                                \
        .size = sizeof(epx_health_follow_config_t), .health = EPX_HEALTH_CONFIG_INIT \
    }
#endif

typedef struct epx_health_follow *epx_health_follow_h;

/*
 * Looks at links again and again, on a thread of its own that makes no call of a GPU's queue, and tells the
 * recorder what changes from one look to the next: a state that is left or comes back (DOWN, UP), a counter
 * of downs that has risen between two looks at a good state (DOWN and UP), recoveries (RECOVERING, a
 * warning), a fatal event, a driver that wants a reset, and errors that rise so fast that epx_health_judge
 * would take the link out (ERROR). The first look is what changes are seen against. EPX_ERR_ARG,
 * EPX_ERR_NO_MEMORY, EPX_ERR_UNSUPPORTED (no thread).
 */
epx_status_t epx_health_follow(const epx_health_follow_config_t *config, epx_health_follow_h *follow_p);
/* How many looks are over. Any thread. */
int64_t epx_health_follow_looks(epx_health_follow_h follow);
/* Ends the thread, frees, clears the handle. */
void epx_health_unfollow(epx_health_follow_h *follow_p);

/* ---- judging ------------------------------------------------------------------------------------------------------ */

typedef struct epx_health_point {
    double time_s; /* ascending; any origin */
    int32_t known;
    uint64_t value;
} epx_health_point_t;

/* finding.judged of a value that means nothing alone: epx_health_judge_beside. */
enum { EPX_HEALTH_BESIDE = 2 };

typedef struct epx_health_finding {
    int32_t judged; /* 1; 0: nobody judges this name (traffic), or nothing is known of it; or BESIDE */
    epx_health_verdict_t verdict;
    uint64_t increments; /* within the window; resets and wraps count nothing */
    double per_hour;     /* over the known points of the window, at least EPX_HEALTH_LEAST_S of them */
    char reason[EPX_HEALTH_REASON]; /* "" when there is nothing to say */
    double level; /* BESIDE: what is compared with the others', errors within the window or a speed */
} epx_health_finding_t;

/* A rate is never taken over less than this: one error in a second is not 3,600 an hour. */
enum { EPX_HEALTH_LEAST_S = 360 };

/* How one value of a link went, points [count], as far as they lie within window_s before the last of them.
 */
void epx_health_judge(const char *name, const epx_health_point_t *points, int32_t count, double window_s,
                      epx_health_finding_t *finding_p);

/*
 * Where that says EPX_HEALTH_BESIDE: the finding beside others, levels [count] of the same name of the other
 * links of the same device, in the same window. Errors that a link corrects itself, and its speed: WATCH
 * where it is far from its neighbours, never CORDON. Sets verdict and reason; needs three others, with fewer
 * it leaves the finding as it is, which is OK.
 */
void epx_health_judge_beside(const char *name, const double *others, int32_t count,
                             epx_health_finding_t *finding_p);

#ifdef __cplusplus
}
#endif
#endif
