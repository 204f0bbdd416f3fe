/* SPDX-License-Identifier: Apache-2.0 */
#include "status.h"

#include "fail.h"

static _Thread_local int must_stop, lost_peer;

int epx_train_must_stop(void) { return must_stop; }

int epx_train_lost_peer(void) { return lost_peer; }

int epx_train_status(epx_status_t status)
{
    if (status == EPX_OK)
        return EPX_TRAIN_OK;
    must_stop |= status == EPX_ERR_CORRUPT || status == EPX_ERR_MISMATCH;
    lost_peer = status == EPX_ERR_PEER || status == EPX_ERR_FABRIC;
    const char *text = epx_last_error();
    if (status == EPX_ERR_PEER || status == EPX_ERR_ABORTED)
        return epx_train_follow(EPX_TRAIN_FAILED, "%s (%s)", text, epx_status_name(status));
    return epx_train_fail(EPX_TRAIN_FAILED, "%s (%s)", *text ? text : epx_status_text(status),
                          epx_status_name(status));
}

int epx_train_setting_status(epx_status_t status)
{
    int code = epx_train_status(status);
    return status == EPX_ERR_ARG ? EPX_TRAIN_USAGE : code;
}

int epx_train_agree(epx_comm_h world, int code)
{
    int64_t worst = code;
    epx_status_t status = epx_comm_allreduce(world, &worst, 1, EPX_NUMBER_INT64, EPX_MAX);
    if (code != EPX_TRAIN_OK) /* its sentence stands, even where a faster peer has already ended the call */
        return code;
    int reached = epx_train_status(status);
    if (reached != EPX_TRAIN_OK)
        return reached;
    if (worst == EPX_TRAIN_OK)
        return EPX_TRAIN_OK;
    return epx_train_follow((int)worst, "another rank failed: see its message");
}
