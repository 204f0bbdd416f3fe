/* Status codes of every epx call. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_STATUS_H
#define EPX_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/*
 * 0 is success, negative values are errors, grouped by what is lost. Numbers are part of the ABI.
 *
 *   the call     -1 .. -9    nothing changed; mend the arguments and call again
 *   a peer      -10 .. -19   the group is usable again after a good route (PEER from a failed route) or after
 *                            epx_group_recover (TIMEOUT, PEER from a lost rank)
 *   the group   -20 .. -29   needs epx_group_recover, or must not be opened like this
 *   the process -30 .. -39   leave
 */
typedef enum epx_status {
    EPX_OK = 0,
    EPX_ERR_ARG = -1,
    EPX_ERR_ROUTING = -2,
    EPX_ERR_UNSUPPORTED = -3,
    EPX_ERR_NO_MEMORY = -4,
    EPX_ERR_TIMEOUT = -10,
    EPX_ERR_PEER = -11,
    EPX_ERR_MISMATCH = -20,
    EPX_ERR_ABORTED = -21,
    EPX_ERR_FABRIC = -22,
    EPX_ERR_CORRUPT = -23,
    EPX_ERR_FATAL = -30
} epx_status_t;

/* The code's name, "EPX_ERR_ARG" for example; a static string, never NULL, any value allowed. */
const char *epx_status_name(epx_status_t status);

/* What the code means in a few words; a static string, never NULL. */
const char *epx_status_text(epx_status_t status);

/*
 * The text of the last error on the calling thread: what is wrong, where (rank, peer, token, ...) and what to
 * do. Owned by the library, valid until the next failing call on this thread, "" when nothing has failed yet.
 */
const char *epx_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
