/*
 * Ranks that disagree: every rank learns the field and both values when the group opens.
 * SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/drive.h"
#include "support/memory.h"

TestSuite(mismatch, .init = clean_environment);

static const int32_t other_owner[7] = {0, 1, 2, 0, 1, 2, 0};

typedef struct difference {
    const char *arm, *field;
    void (*change)(epx_group_config_t *config);
    const char *mine, *theirs;                  /* as the text must show them; NULL: not said */
    void (*before)(epx_group_config_t *config); /* on all ranks, so that the change is one */
} difference_t;

#define CHANGE(name, statement) \
    static void name(epx_group_config_t *config) { statement; }
CHANGE(experts, config->experts = 8)
CHANGE(top_k, config->top_k = 3)
CHANGE(width, config->width = 6)
CHANGE(tokens_max, config->tokens_max = 9)
CHANGE(row_type, config->row_type = EPX_BF16)
CHANGE(out_type, config->out_type = EPX_FP32; config->row_type = EPX_FP16)
CHANGE(only_out_type, config->out_type = EPX_FP32)
CHANGE(aux_bytes, config->aux_bytes = 16)
CHANGE(row_align, config->row_align = 8)
CHANGE(lanes, config->lanes = 3)
CHANGE(depth, config->depth = 5)
CHANGE(backward, config->backward = EPX_BACKWARD_NONE)
CHANGE(recompute, config->backward = EPX_BACKWARD_RECOMPUTE)
CHANGE(origin, config->origin = 0)
CHANGE(in_caller, config->batch_in_caller = 1)
CHANGE(virtual_ranks, config->virtual_ranks = 12)
CHANGE(spill, config->spill_choices = 1)
CHANGE(capacity, config->capacity_factor = 1.25)
CHANGE(dropless, config->capacity_factor = EPX_DROPLESS)
CHANGE(sender, config->sender_factor = 1.5)
CHANGE(waves, config->waves = 4)
CHANGE(accept, config->accept = EPX_ACCEPT_FAIR)
CHANGE(overflow, config->overflow = EPX_OVERFLOW_EXTRA_WAVE)
CHANGE(wire, config->wire = EPX_WIRE_RANK)
CHANGE(batch, config->batch = EPX_BATCH_INDEXED)
CHANGE(check, config->check = EPX_CHECK_CANARY)
CHANGE(owner, config->owner = other_owner)
CHANGE(transport, config->transport = "ring"; config->waves = 0; config->wire = EPX_WIRE_DEFAULT)

static const difference_t differences[] = {
    {"ragged", "experts", experts, "7", "8", NULL},
    {"pooled_wave", "top_k", top_k, "2", "3", NULL},
    {"ring", "width", width, "5", "6", NULL},
    {"ragged", "tokens_max", tokens_max, "8", "9", NULL},
    {"ragged", "row_type", row_type, NULL, NULL, NULL},
    {"ragged", "row_type", out_type, NULL, NULL, NULL},
    {"pooled_wave", "out_type", only_out_type, NULL, NULL, .before = row_type},
    {"ring", "aux_bytes", aux_bytes, "0", "16", NULL},
    {"ragged", "row_align", row_align, "1", "8", NULL},
    {"pooled_wave", "lanes", lanes, "2", "3", NULL},
    {"ragged", "depth", depth, "2", "5", NULL},
    {"ring", "backward", backward, NULL, NULL, NULL},
    {"ragged", "backward", recompute, NULL, NULL, NULL},
    {"ragged", "origin", origin, "1", "0", NULL},
    {"ragged", "batch_in_caller", in_caller, "0", "1", NULL},
    {"ragged", "virtual_ranks", virtual_ranks, "3", "12", NULL},
    {"pooled_wave_spill", "spill_choices", spill, "2", "1", NULL},
    {"ragged", "capacity_factor", capacity, "1.15", "1.25", NULL},
    {"ring", "capacity_factor", dropless, "1.15", NULL, NULL},
    {"pooled_wave", "sender_factor", sender, "1.15", "1.5", NULL},
    {"ragged", "waves", waves, "2", "4", NULL},
    {"pooled_wave", "waves", waves, "3", "4", NULL},
    {"ring", "accept", accept, NULL, NULL, NULL},
    {"pooled_wave", "overflow", overflow, NULL, NULL, NULL},
    {"ragged", "wire", wire, NULL, NULL, NULL},
    {"ragged_rank", "batch", batch, NULL, NULL, NULL},
    {"ragged", "check", check, NULL, NULL, NULL},
    {"ragged", "owner", owner, NULL, NULL, NULL},
    {"ragged", "transport", transport, "ragged", "ring", NULL},
};

typedef struct pair {
    const difference_t *difference;
    problem_t *problem;
    int odd; /* the rank that differs */
} pair_t;

/* Only numbers and names that stand alone: "12" holds no "1". */
static int says(const char *text, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word)) {
        int before = at == text || !strchr("0123456789.", at[-1]), behind = !strchr("0123456789", at[length]);
        if (before && (behind || at[length] == 0))
            return 1;
    }
    return 0;
}

static void differ_rank(rank_t *self)
{
    const pair_t *pair = self->arg;
    const difference_t *d = pair->difference;
    memory_t memory;
    memory_new(&memory);
    epx_group_config_t config = problem_config(pair->problem);
    epx_group_h group = NULL;
    config.allocator = &memory.allocator;
    if (d->before)
        d->before(&config);
    if (self->rank == pair->odd)
        d->change(&config);
    epx_status_t status = epx_group_open(self->comm, &config, &group);
    expect_status(self, d->field, status, EPX_ERR_MISMATCH);
    expect_text(self, d->field, d->field, NULL);
    expect(self, !d->mine || says(epx_last_error(), d->mine), "%s: no '%s' in: %s", d->field, d->mine,
           epx_last_error());
    expect(self, !d->theirs || says(epx_last_error(), d->theirs), "%s: no '%s' in: %s", d->field, d->theirs,
           epx_last_error());
    expect(self, group == NULL, "%s: the handle was written", d->field);
    world_meet(self);
    memory_end(&memory, "a group that did not open");
    session_t session; /* and the comm still works */
    if (session_open(&session, self, pair->problem, NULL))
        session_close(&session);
}

Test(mismatch, every_field_on_every_rank)
{
    for (size_t i = 0; i < sizeof(differences) / sizeof(differences[0]); i++) {
        pair_t pair = {.difference = &differences[i], .odd = (int)(i % 3)};
        pair.problem = problem_new(arm_named(differences[i].arm), 3, 7, 2, 5, 8);
        world_note("%s of rank %d", differences[i].field, pair.odd);
        world_run(3, differ_rank, &pair);
        problem_free(pair.problem);
    }
}

/* What need not agree: name, time-out, allocator. */
static void may_differ_rank(rank_t *self)
{
    problem_t *p = self->arg;
    memory_t memory;
    epx_group_config_t config = problem_config(p);
    session_t session;
    memory_new(&memory);
    config.name = self->rank ? "one" : "other";
    config.timeout_ms = 20000 + self->rank;
    config.hang_ms = 10 + self->rank;
    config.allocator = self->rank ? &memory.allocator : NULL;
    config.ranks = self->rank ? 2 : 0;
    if (session_open(&session, self, p, &config))
        session_close(&session);
    world_meet(self);
    memory_end(&memory, "group");
}

Test(mismatch, what_may_differ)
{
    problem_t *p = problem_new(arm_named("ragged"), 2, 7, 2, 5, 8);
    world_run(2, may_differ_rank, p);
    problem_free(p);
}
