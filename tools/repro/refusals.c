/* What must be refused before anything runs. SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/program.h"
#include "tools/repro/repro.h"

typedef struct opening {
    pthread_t thread;
    const play_t *play;
    epx_comm_h comm;
    int32_t rank, change; /* which field differs here; -1: none */
    epx_status_t status;
    char text[512];
} opening_t;

/* One field each, with both values as they must be named (a type by its number in epx_type_t). */
static const struct {
    const char *field, *here, *there;
} fields[] = {{"tokens_max", "17", "16"}, {"top_k", "3", "2"}, {"row_type", "2", "1"}, {"waves", "3", "2"}};
enum { FIELDS = sizeof(fields) / sizeof(fields[0]) };

static void change(epx_group_config_t *config, int32_t field)
{
    if (field == 0)
        config->tokens_max = 17;
    if (field == 1)
        config->top_k = 3;
    if (field == 2)
        config->row_type = EPX_BF16;
    if (field == 3)
        config->waves = 3;
}

static void *open_one(void *argument)
{
    opening_t *opening = argument;
    epx_group_h group = NULL;
    epx_group_config_t config = play_config(opening->play, "shapes");
    config.tokens_max = 16;
    opening->status = play_select(opening->play, opening->rank);
    if (opening->status != EPX_OK) { /* the others must not wait for it */
        snprintf(opening->text, sizeof(opening->text), "%s", epx_last_error());
        epx_comm_destroy(&opening->comm);
        return NULL;
    }
    change(&config, opening->change);
    opening->status = epx_group_open(opening->comm, &config, &group);
    snprintf(opening->text, sizeof(opening->text), "%s", epx_last_error());
    epx_group_close(&group);
    epx_comm_destroy(&opening->comm);
    return NULL;
}

/* Whether every rank was refused, with the field and both values. field < 0: whether every rank could open.
 */
static int try_field(const play_t *play, int32_t field, outcome_t *outcome)
{
    opening_t opening[REPRO_RANKS_MAX];
    epx_comm_h comm[REPRO_RANKS_MAX];
    int good = epx_comm_threads(play->ranks, comm) == EPX_OK;
    for (int32_t r = 0; good && r < play->ranks; r++) {
        opening[r] =
            (opening_t){.play = play, .comm = comm[r], .rank = r, .change = r == play->culprit ? field : -1};
        good = pthread_create(&opening[r].thread, NULL, open_one, &opening[r]) == 0;
    }
    for (int32_t r = 0; good && r < play->ranks; r++)
        pthread_join(opening[r].thread, NULL);
    for (int32_t r = 0; good && r < play->ranks; r++) {
        const opening_t *o = &opening[r];
        if (field < 0)
            good = o->status == EPX_OK;
        else
            good = o->status == EPX_ERR_MISMATCH && strstr(o->text, fields[field].field) != NULL &&
                   strstr(o->text, fields[field].here) != NULL &&
                   strstr(o->text, fields[field].there) != NULL;
        if (!good)
            snprintf(outcome->text, sizeof(outcome->text), "rank %d: %s: %.400s", r,
                     epx_status_name(o->status), o->text);
    }
    return good;
}

void alone_shape_mismatch(play_t *play, outcome_t *outcome)
{
    int is_ring = strcmp(play->settings->transport, "ring") == 0;
    if (!play->faulty) {
        outcome->wrong = !try_field(play, -1, outcome);
        outcome->completed = play->ranks;
        return;
    }
    for (int32_t field = 0; field < FIELDS && !outcome->wrong; field++)
        if (!is_ring || strcmp(fields[field].field, "waves") != 0)
            outcome->wrong = !try_field(play, field, outcome);
    outcome->refused = !outcome->wrong;
    outcome->culprit = play->culprit;
    if (outcome->refused)
        snprintf(outcome->text, sizeof(outcome->text),
                 "every field was refused on every rank, with both values");
    snprintf(outcome->verdict, sizeof(outcome->verdict), outcome->refused ? "MISMATCH" : "NONE");
    snprintf(outcome->op, sizeof(outcome->op), "open");
}

void alone_double_window(play_t *play, outcome_t *outcome)
{
    static char memory[8192];
    epx_recorder_config_t config = EPX_RECORDER_CONFIG_INIT;
    epx_recorder_h recorder = NULL;
    char first[32], second[32];
    config.rank = play->culprit;
    config.ranks = play->ranks;
    snprintf(first, sizeof(first), "%p", (void *)memory);
    snprintf(second, sizeof(second), "%p", (void *)(memory + 4096));
    epx_status_t status = epx_record_open(&config, &recorder);
    if (status == EPX_OK)
        status = epx_record_segment(recorder, "window", memory, 6000);
    outcome->wrong = status != EPX_OK;
    if (status == EPX_OK && play->faulty)
        status = epx_record_segment(recorder, "window", memory + 4096, 1024);
    snprintf(outcome->text, sizeof(outcome->text), "%s", epx_last_error());
    if (play->faulty) {
        outcome->refused = status == EPX_ERR_ARG && strstr(outcome->text, first) != NULL &&
                           strstr(outcome->text, second) != NULL;
        outcome->wrong |= !outcome->refused;
        outcome->culprit = play->culprit;
        snprintf(outcome->verdict, sizeof(outcome->verdict), outcome->refused ? "REFUSED" : "NONE");
        snprintf(outcome->op, sizeof(outcome->op), "register");
    }
    outcome->completed = play->ranks;
    epx_record_close(&recorder);
}
