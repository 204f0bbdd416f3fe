/* How much longer a wait may last. SPDX-License-Identifier: Apache-2.0 */
#include "record/recorder.h"

#include "base/fail.h"
#include "record/recorder_state.h"
#include "record/view.h"

enum { WARM_UP_FACTOR = 20 };

/* How long a rank's announced pause still lasts, in ms. */
static int64_t pause_left(const epx_record_head_t *head, int64_t now)
{
    if (head->phase_budget_ms <= 0)
        return 0;
    int64_t left = head->phase_ns + head->phase_budget_ms * 1000000 - now;
    return left > 0 ? left / 1000000 + 1 : 0;
}

int64_t epx_recorder_patience(epx_recorder_h r, int64_t timeout_ms, int64_t waited_ns)
{
    enum { DEFAULT_TIMEOUT_MS = 60000 };
    if (r == NULL)
        return 0;
    int64_t now = epx_clock_ns(), more = 0;
    if (r->folder[0] != '\0') {
        epx_job_view_t *view = epx_view_open(r->folder, r->head->job, r->head->ranks);
        if (view != NULL)
            epx_view_map(view);
        for (int32_t i = 0; view != NULL && i < view->ranks; i++) {
            const epx_record_head_t *head = view->rank[i].record;
            int64_t left = head != NULL && head->life == EPX_RECORD_OPENED && head->boot == r->head->boot
                               ? pause_left(head, now)
                               : 0;
            more = left > more ? left : more;
        }
        epx_view_close(&view);
    }
    pthread_mutex_lock(&r->lock);
    epx_verdict_kind_t known = r->verdict.kind;
    pthread_mutex_unlock(&r->lock);
    int64_t warm_left = timeout_ms * WARM_UP_FACTOR - waited_ns / 1000000;
    if (more == 0 && timeout_ms == DEFAULT_TIMEOUT_MS && r->head->phase < EPX_RECORD_STEADY &&
        warm_left > 0 && (known == EPX_VERDICT_NONE || known == EPX_VERDICT_SLOW))
        more = warm_left < timeout_ms ? warm_left : timeout_ms;
    return more;
}
