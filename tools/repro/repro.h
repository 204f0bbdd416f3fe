/*
 * The parts of epx-repro. SPDX-License-Identifier: Apache-2.0
 *
 * A scenario is played twice, each time in a process of its own: as it is, and with its fault. A play has
 * ranks (threads, or processes where one is to be killed), which make steps like a training loop: route,
 * dispatch, the experts' computation, combine, and with several domains an all-reduce between them. What came
 * of it is the verdict of the library's own watchdog over the flight records; nothing here tells it what was
 * injected.
 */
#ifndef TOOLS_REPRO_REPRO_H
#define TOOLS_REPRO_REPRO_H

#include <pthread.h>
#include <stdatomic.h>

#include <epx/comm.h>
#include <epx/device.h>
#include <epx/health.h>
#include <epx/record.h>

enum { REPRO_RANKS_MAX = 256, REPRO_FAULT_STEP = 12, REPRO_STEPS = 24, REPRO_WAVES = 2 };

/* The caller's own computation between dispatch and combine, exported by --kernel LIB.so as epx_repro_kernel:
 * y of rows first[e] .. first[e] + count[e] - 1 of each local expert e, row_bytes each; 0 on success. */
typedef int (*repro_kernel_fn)(const void *rows, void *y, const int64_t *first, const int64_t *count,
                               int32_t experts, int64_t row_bytes, epx_stream_t stream);
#define REPRO_KERNEL_SYMBOL "epx_repro_kernel"

typedef struct settings {
    int32_t ranks, domains;
    int32_t domains_given, ranks_given;
    const char *transport, *fabric, *device;
    const char *kernel_path;
    repro_kernel_fn kernel;
    int64_t hang_ms, timeout_ms;
    double minutes; /* 0: as long as a scenario takes */
    uint64_t seed;
    int64_t operations; /* of clean-soak; 0: its own number */
    int32_t perturb;
    int32_t backward; /* 1: every step has a backward pass, too */
    int32_t
        recover; /* 1: after the first verdict that can be mended in place the group recovers and goes on */
} settings_t;

/* What a play says of itself, once, through a pipe. */
typedef struct outcome {
    int32_t ended;     /* 1: this was written */
    int32_t refused;   /* 1: a call was refused as it should be; `verdict` says how */
    int32_t wrong;     /* 1: something that the play checks itself was not so: `text` */
    int32_t slow;      /* SLOW was seen on the way */
    int32_t completed; /* ranks that made all their steps */
    int32_t culprit, peer, wave;
    int32_t recovered;  /* ranks that have recovered their group */
    int32_t recoveries; /* of links, that a monitor has told the recorder of */
    epx_verdict_kind_t kind;
    char verdict[64], op[56], marker[56], field[32], group[64], text[512];
    int64_t steps;
    double detect_ms; /* from the fault to the verdict; < 0: none */
    uint64_t trace;
} outcome_t;

typedef struct play play_t;
typedef struct actor actor_t;

/* What an actor does before a step: goes on, leaves this step out, or leaves for good (and stays idle). */
typedef enum way { WAY_STEP, WAY_DONE, WAY_LEAVE } way_t;

typedef struct scenario {
    const char *name, *fault, *expected; /* for people: --list and JSON */
    uint32_t verdicts;                   /* 1 << epx_verdict_kind_t: any of them is right; 0: silence */
    const char *op;                      /* NULL: whatever the transport waits in first */
    /* EPX_FAULT, with {rank}, {peer}, {group} and {seq} filled in: of the dispatch of wave 0 in the step of
     * the fault; NULL: the act does it */
    const char *spec;
    const char *spec_group;       /* instead, where processes have a group; NULL: the same */
    way_t (*act)(actor_t *actor); /* before every step; NULL: nothing. Sees play->faulty */
    void (*alone)(play_t *play, outcome_t *outcome);            /* instead of steps */
    int (*right)(const play_t *play, const outcome_t *outcome); /* beyond verdict, culprit and operation */
    const char *check;                                          /* EPX_CHECK, or NULL */
    int32_t processes;                                          /* 1: ranks must be processes */
    int32_t domains;                                            /* at least */
    int32_t two_groups; /* every actor opens a second group of the same ranks */
    int32_t idle_peer;  /* 1: no token of the culprit goes to its peer */
    int32_t names_peer; /* 1: the verdict must name the peer too */
    int32_t nobody;     /* 1: no culprit is expected */
    /* 1: two calls differ, and who makes the wrong one is told by what most make: of two ranks either may be
     * named, with the other one as its peer */
    int32_t by_most;
    int64_t steps;      /* 0: as many as usual */
    int32_t is_clean;   /* 1: there is no fault, it is played once */
    int32_t links;      /* 1: every rank has links of its own, which a monitor follows */
    int32_t host_rows;  /* 1: rows are touched on their way: device host alone */
    const char *cannot; /* why this build or machine cannot play it; NULL: it can */
} scenario_t;

struct play {
    const scenario_t *scenario;
    const settings_t *settings;
    int32_t faulty, ranks, domains, per_domain;
    int32_t culprit, peer; /* ranks of the job */
    int64_t steps;
    char folder[256];
    actor_t *actor;           /* [ranks] */
    _Atomic int64_t acted_ns; /* when an act did it; 0: not yet */
    atomic_int stop, running, opened, completed, recovered;
    _Atomic int64_t mended_ns; /* found_ns of the verdict that was recovered from; 0: none was */
};

struct actor {
    play_t *play;
    int32_t rank, domain, place; /* place: rank in the domain */
    epx_comm_h world, part, across;
    epx_recorder_h recorder;
    epx_health_follow_h links;
    epx_group_h group[2];
    epx_plan_h plan[2];
    epx_group_info_t info;
    int32_t mark_attention, mark_gemm;
    const epx_device_ops_t *device; /* where rows live */
    epx_stream_t stream;
    int32_t *ids, *ids_there; /* the host's, and the device's */
    float *weights, *weights_there, *x, *y, *out;
    int32_t tokens;
    int64_t step;
    int32_t failed, idle, recovered;
    epx_status_t status;
    char error[512];
    pthread_t thread;
};

extern const scenario_t scenarios[];
extern const int32_t scenarios_count;
const scenario_t *scenario_named(const char *name);

/* ---- play.c ---- */

/* Plays in this process, which is a child; fills *outcome_p. */
void play_here(play_t *play, outcome_t *outcome_p);

int actor_open(actor_t *actor);
/* Parts of a step; 1: all went well, else the actor has failed. */
int actor_route(actor_t *actor, int32_t which);
int actor_wave(actor_t *actor, int32_t which, int32_t wave);
int actor_backward(actor_t *actor);
int actor_step(actor_t *actor);
/* All of them; 1: made to the end. */
int actor_steps(actor_t *actor);
void actor_close(actor_t *actor);
/* Whether a verdict is the one that the play recovers from, and not the one to judge. */
int play_mends(play_t *play, const epx_verdict_t *verdict);
/* Waits for the actor's stream. */
int actor_synchronize(actor_t *actor);
/* Why these settings cannot play a scenario; NULL: they can. */
const char *scenario_cannot(const scenario_t *scenario, const settings_t *settings);
int play_on_device(const settings_t *settings);
/* The calling thread's current device becomes that of a rank; nothing where ranks live on the host. */
epx_status_t play_select(const play_t *play, int32_t rank);
epx_group_config_t play_config(const play_t *play, const char *name);

/* ---- actor.c: what acts are made of ---- */

/* 1: all is well; else the actor has failed, with the library's last message if it is the first. */
int actor_check(actor_t *actor, epx_status_t status);
/* The act has done its fault now. */
void actor_acts(actor_t *actor);
int actor_is_culprit(const actor_t *actor);
/* Sleeps, or until the play ends. */
void actor_sleep(const actor_t *actor, int64_t ms);
void repro_nap_ms(int64_t ms);

/* ---- child.c ---- */

/* Forks, plays, waits in bounded time. lines_p: of the report that was printed, 0: none. */
int play_apart(const scenario_t *scenario, const settings_t *settings, int32_t faulty, outcome_t *outcome_p,
               int32_t *lines_p, play_t *play_p);
/* Fills a play's numbers. */
void play_set_up(play_t *play, const scenario_t *scenario, const settings_t *settings, int32_t faulty);

/* ---- processes.c ---- */

void play_processes(play_t *play, outcome_t *outcome_p, int pipe_end);

/* ---- links.c ---- */

int links_open(actor_t *actor);
/* How many recoveries a rank's record holds. */
int32_t links_recoveries(const actor_t *actor);
int links_were_recovering(const play_t *play, const outcome_t *outcome);

/* ---- own.c ---- */

way_t act_pool_empty(actor_t *actor);
way_t act_not_resident(actor_t *actor);
/* Which pool, and how many blocks of how many, the verdict names. */
int is_of_the_pool(const play_t *play, const outcome_t *outcome);
int is_one_short(const play_t *play, const outcome_t *outcome);

/* ---- acts.c, links.c, refusals.c ---- */

way_t act_zero_tokens(actor_t *actor);
way_t act_slow_host(actor_t *actor);
way_t act_desync(actor_t *actor);
way_t act_two_graphs(actor_t *actor);
way_t act_pause(actor_t *actor);
way_t act_mixed_order(actor_t *actor);
way_t act_failed_route(actor_t *actor);
way_t act_link_flap(actor_t *actor);
way_t act_link_cascade(actor_t *actor);
way_t act_link_recovering(actor_t *actor);
way_t act_soak(actor_t *actor);
void alone_shape_mismatch(play_t *play, outcome_t *outcome);
void alone_double_window(play_t *play, outcome_t *outcome);

/* ---- against.c, replay.c ---- */

int repro_against(const char *folder, const settings_t *settings);
int repro_replay(const char *folder, const settings_t *settings);

#endif
