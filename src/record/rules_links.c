/* Rules: data that is not what was sent, and links. SPDX-License-Identifier: Apache-2.0 */
#include "record/rules_links.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "record/read.h"

/* ---- errors that were reported ---------------------------------------------------------------------------------- */

/* The number behind a phrase, -1: it is not there. */
static int32_t number_after(const char *text, const char *phrase)
{
    const char *at = strstr(text, phrase);
    if (at == NULL)
        return -1;
    at += strlen(phrase);
    char *end;
    long value = strtol(at, &end, 10);
    return end != at && value >= 0 && value <= INT32_MAX ? (int32_t)value : -1;
}

/* Who wrote what was found to be wrong: the sentences of the checks name the rank in one of these ways. */
static int32_t writer_in(const char *text)
{
    static const char *const phrases[] = {"from rank ", "at rank ", "which rank ", "a token of rank "};
    for (size_t i = 0; i < sizeof(phrases) / sizeof(phrases[0]); i++)
        if (number_after(text, phrases[i]) >= 0)
            return number_after(text, phrases[i]);
    return -1;
}

int epx_rule_corrupt(const epx_scene_t *s, epx_verdict_t *v)
{
    if (s->at != EPX_ROOT_ERROR)
        return 0;
    const epx_record_head_t *head = epx_scene_root(s)->record;
    char text[sizeof(head->error_text)];
    snprintf(text, sizeof(text), "%.*s", (int)sizeof(text) - 1, head->error_text);
    int32_t writer = writer_in(text);
    int by_caller = strstr(text, "the caller's computation") != NULL && number_after(text, "at rank ") < 0;
    v->peer = s->root;
    v->rank = by_caller ? s->root : writer >= 0 ? epx_record_member(head, s->op.group, writer) : -1;
    snprintf(v->text, sizeof(v->text), "%.500s", text);
    return 1;
}

/* ---- links ------------------------------------------------------------------------------------------------------ */

/* How long before a wait an event of a link may have caused it. What a fabric sends again and again before it
 * gives up takes seconds, whatever the budget: a signal that was lost may have been for so long. */
static int64_t window_ns(const epx_scene_t *s)
{
    enum { TWO_BUDGETS = 2, RETRIES_MS = 10000 };
    int64_t window = TWO_BUDGETS * s->budget_ns, retries = RETRIES_MS * (int64_t)1000000;
    return s->at == EPX_ROOT_SIGNAL && window < retries ? retries : window;
}

/* The rank whose link or device error came first, in the time of this wait. */
static int32_t first_link_error(const epx_scene_t *s, epx_record_link_row_t *first)
{
    int32_t found = -1;
    int64_t since = s->job->now_ns - s->age_ns - window_ns(s), best = INT64_MAX;
    for (int32_t r = 0; r < s->job->ranks; r++) {
        const epx_rank_evidence_t *e = &s->job->rank[r];
        const epx_record_head_t *head = e->record;
        if (head == NULL)
            continue;
        uint64_t newest = __atomic_load_n(&head->links, __ATOMIC_ACQUIRE);
        for (uint64_t n = newest; n > 0 && n + head->links_max > newest; n--) {
            epx_record_link_row_t event;
            if (!epx_record_link_row(head, n, &event) ||
                (event.what != EPX_EVIDENCE_LINK_ERROR && event.what != EPX_EVIDENCE_LINK_DOWN))
                continue;
            int64_t when = event.time_ns - e->ahead_ns;
            if (when >= since && when < best) {
                best = when;
                found = r;
                *first = event;
            }
        }
    }
    return found;
}

/* Whether the same link has come up again since. */
static int is_back(const void *record, const epx_record_link_row_t *down)
{
    const epx_record_head_t *head = record;
    uint64_t newest = __atomic_load_n(&head->links, __ATOMIC_ACQUIRE);
    for (uint64_t n = newest; n > down->number; n--) {
        epx_record_link_row_t event;
        if (epx_record_link_row(record, n, &event) && event.what == EPX_EVIDENCE_LINK_UP &&
            strcmp(event.name, down->name) == 0)
            return 1;
    }
    return 0;
}

int epx_rule_link(const epx_scene_t *s, epx_verdict_t *v)
{
    epx_record_link_row_t first = {0};
    if (s->at == EPX_ROOT_DESYNC || s->at == EPX_ROOT_CYCLE || s->victim < 0 || !epx_scene_is_late(s))
        return 0;
    int32_t origin = first_link_error(s, &first);
    if (origin < 0)
        return 0;
    const void *record = s->room[origin].record;
    int back = is_back(record, &first);
    v->rank = origin;
    snprintf(v->field, sizeof(v->field), "%s",
             first.what == EPX_EVIDENCE_LINK_ERROR ? "error"
             : back                                ? "flap"
                                                   : "down");
    snprintf(v->text, sizeof(v->text), "%s of rank %d came first in time (%s); what waits now is its victim",
             first.what == EPX_EVIDENCE_LINK_ERROR ? "an error of a link or device" : "a link that went down",
             origin, first.name);
    return 1;
}
