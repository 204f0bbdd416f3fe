/*
 * The end of a host's wait, and more time for it. SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_FABRIC_PATIENCE_H
#define EPX_FABRIC_PATIENCE_H

#include <epx/fabric.h>

/* Whether a wait that began at begin_ns is over. At its deadline it asks whoever may know why it lasts
 * (patience, or NULL); *deadline_p moves on by what that grants. */
static inline int epx_wait_is_over(const epx_patience_t *patience, int64_t timeout_ms, int64_t begin_ns,
                                   int64_t now_ns, int64_t *deadline_p)
{
    if (now_ns < *deadline_p)
        return 0;
    int64_t more_ms =
        patience != NULL ? patience->more_ms(patience->context, timeout_ms, now_ns - begin_ns) : 0;
    if (more_ms <= 0)
        return 1;
    *deadline_p = now_ns + more_ms * 1000000;
    return 0;
}

#endif
