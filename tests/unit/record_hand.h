/* Records of a job, written by hand at chosen moments. SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RECORD_HAND_H
#define TESTS_RECORD_HAND_H

#include "record/classify.h"
#include "record/recorder.h"

enum { HAND_RANKS_MAX = 8, HAND_HANG_MS = 5000 };

#define SECOND ((int64_t)1000000000)

typedef struct hand {
    int64_t now_ns; /* of the clock that stands in */
    int32_t ranks;
    epx_recorder_h rec[HAND_RANKS_MAX];
    int32_t world[HAND_RANKS_MAX], group[HAND_RANKS_MAX], second[HAND_RANKS_MAX]; /* ids in the records */
    epx_rank_evidence_t evidence[HAND_RANKS_MAX];
    epx_rank_facts_t facts[HAND_RANKS_MAX];
} hand_t;
extern hand_t hand;

/* n ranks in steady state with a world comm and two groups of all of them, at second 100. */
void hand_begin(int32_t n);

/* What begin opened. */
void hand_end(void);

/* What the classifier makes of it now. */
epx_verdict_t hand_judge(void);

/* A data call of the group on lane 0, up to where its start returns. */
uint64_t hand_start(int32_t r, int32_t id, epx_record_kind_t kind, uint64_t sequence, int32_t wave);

/* Its finish waits for a peer whose word holds `seen`. */
void hand_wait_for(int32_t r, int32_t channel, int32_t peer, uint64_t expected, uint64_t seen);

/* A whole call that went well on all ranks: words of the channel hold its epoch from then on. */
void hand_good(epx_record_kind_t kind, uint64_t sequence, int32_t wave, int32_t channel);

/* So many ranks, all in their second dispatch, of which nobody waits yet. */
void hand_in_dispatch(int32_t ranks);

/* A dispatch that waits for a peer. */
void hand_call_and_wait(int32_t r, int32_t id, uint64_t sequence, int32_t peer, uint64_t seen);

/* A collective of the world; peer -1: nobody says for whom it waits. */
void hand_collective(int32_t r, uint64_t sequence, int32_t peer);

/* The verdict is this one, of this rank; peer -1: none is looked at. */
void hand_expect(epx_verdict_kind_t kind, int32_t rank, int32_t peer);

/* Time goes by. */
void hand_pass(double seconds);

#endif
