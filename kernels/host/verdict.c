/* What a kernel that decides a route says of it. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/host/verdict.h"

int32_t epx_notice_culprit(const void *notices, int64_t stride, int32_t rank, int32_t ranks)
{
    if (epx_notice_of(notices, stride, rank)->bad_at != EPX_NOTICE_GOOD)
        return rank;
    for (int32_t r = 0; r < ranks; r++)
        if (epx_notice_of(notices, stride, r)->bad_at != EPX_NOTICE_GOOD)
            return r;
    return -1;
}

epx_status_t epx_notice_status(const epx_route_notice_t *notice)
{
    return notice->bad_at == EPX_NOTICE_TOKENS ? EPX_ERR_ARG : EPX_ERR_ROUTING;
}

/* The host may look at any time: what it looks at first is written last. */
static void publish(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

void epx_verdict_dead(const epx_k_verdict_t *verdict, epx_status_t status, int32_t culprit,
                      const epx_route_notice_t *notice)
{
    epx_route_report_t *report = verdict->report;
    verdict->head->valid = status;
    verdict->head->tokens = 0;
    if (report == NULL)
        return;
    report->status = status;
    report->rank = culprit;
    report->bad_at = notice != NULL ? notice->bad_at : 0;
    report->bad_id = notice != NULL ? notice->bad_id : 0;
    publish(&report->dead, verdict->route);
}

void epx_verdict_done(const epx_k_verdict_t *verdict)
{
    const epx_plan_head_t *head = verdict->head;
    epx_route_report_t *report = verdict->report;
    if (report == NULL)
        return;
    report->routed = head->routed;
    report->skipped = head->skipped;
    report->kept = head->kept;
    report->spilled = head->spilled;
    report->dropped_sender = head->dropped_sender;
    report->dropped_receiver = head->dropped_receiver;
    publish(&report->done, verdict->route);
}
