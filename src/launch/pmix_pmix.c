/* PMIx: who this process is, and the one text that rank 0 tells. SPDX-License-Identifier: Apache-2.0
 *
 * The library is initialised for each of the two and ended again: it counts, so that a program may use it
 * too.
 */
#include <pmix.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "launch/internal.h"

/* A launcher that speaks PMIx sets both. */
int epx_pmix_is_there(epx_launch_variable_fn variable)
{
    return variable("PMIX_NAMESPACE") != NULL && variable("PMIX_RANK") != NULL;
}

const char *epx_pmix_reason(void) { return "the launcher does not speak it"; }

static int get_number(const pmix_proc_t *proc, const char *key, int64_t *value_p)
{
    pmix_value_t *value = NULL;
    if (PMIx_Get(proc, key, NULL, 0, &value) != PMIX_SUCCESS || value == NULL)
        return 0;
    int known = 1;
    if (value->type == PMIX_UINT32)
        *value_p = value->data.uint32;
    else if (value->type == PMIX_UINT16)
        *value_p = value->data.uint16;
    else if (value->type == PMIX_PROC_RANK)
        *value_p = value->data.rank;
    else
        known = 0;
    PMIX_VALUE_RELEASE(value);
    return known;
}

/* Worlds are opened by one thread at a time. */
static pmix_proc_t self;
static int is_begun;

static epx_status_t begin(pmix_proc_t *me)
{
    pmix_status_t rc = is_begun ? PMIX_SUCCESS : PMIx_Init(&self, NULL, 0);
    if (rc == PMIX_SUCCESS) {
        is_begun = 1;
        *me = self;
        return EPX_OK;
    }
    return epx_fail(EPX_ERR_FABRIC, "the launcher's PMIx server does not answer (%s)", PMIx_Error_string(rc));
}

void epx_pmix_end(void)
{
    if (is_begun)
        PMIx_Finalize(NULL, 0);
    is_begun = 0;
}

static void wildcard(const pmix_proc_t *me, pmix_proc_t *job)
{
    *job = *me;
    job->rank = PMIX_RANK_WILDCARD;
}

epx_status_t epx_pmix_who(epx_launch_t *launch)
{
    pmix_proc_t me, job;
    int64_t value;
    epx_status_t status = begin(&me);
    if (status != EPX_OK)
        return status;
    wildcard(&me, &job);
    launch->rank = (int32_t)me.rank;
    launch->key = epx_launch_hash(0xcbf29ce484222325u, me.nspace);
    if (get_number(&job, PMIX_JOB_SIZE, &value) && value >= 1 && value <= INT32_MAX && me.rank < value)
        launch->size = (int32_t)value;
    else
        status =
            epx_fail(EPX_ERR_FABRIC, "the launcher's PMIx server does not say how many processes there are");
    if (get_number(&job, PMIX_LOCAL_SIZE, &value))
        launch->local_size = (int32_t)value;
    if (get_number(&me, PMIX_LOCAL_RANK, &value))
        launch->local_rank = (int32_t)value;
    return status;
}

static epx_status_t say(const char *key, char *text)
{
    pmix_value_t value;
    PMIX_VALUE_CONSTRUCT(&value);
    value.type = PMIX_STRING;
    value.data.string = text;
    pmix_status_t rc = PMIx_Put(PMIX_GLOBAL, key, &value);
    return rc == PMIX_SUCCESS ? EPX_OK : epx_fail(EPX_ERR_FABRIC, "PMIx_Put gave %s", PMIx_Error_string(rc));
}

epx_status_t epx_pmix_tell(const epx_launch_t *launch, int32_t meeting, char *text, int64_t timeout_ms)
{
    pmix_proc_t me, job, root;
    pmix_value_t *value = NULL;
    pmix_info_t info[2];
    char key[64];
    bool collect = true;
    int seconds = (int)((timeout_ms + 999) / 1000);
    epx_status_t status = begin(&me);
    if (status != EPX_OK)
        return status;
    wildcard(&me, &job);
    root = me;
    root.rank = 0;
    snprintf(key, sizeof(key), "epx.root.%d", meeting);
    if (launch->rank == 0)
        status = say(key, text);
    (void)PMIx_Commit();
    PMIX_INFO_LOAD(&info[0], PMIX_COLLECT_DATA, &collect, PMIX_BOOL);
    PMIX_INFO_LOAD(&info[1], PMIX_TIMEOUT, &seconds, PMIX_INT);
    pmix_status_t rc = PMIx_Fence(&job, 1, info, 2);
    if (rc != PMIX_SUCCESS && status == EPX_OK)
        status = epx_fail(rc == PMIX_ERR_TIMEOUT ? EPX_ERR_TIMEOUT : EPX_ERR_FABRIC,
                          "rank %d: not all processes of the job met in PMIx within %d s (%s)", launch->rank,
                          seconds, PMIx_Error_string(rc));
    if (status == EPX_OK && launch->rank != 0) {
        rc = PMIx_Get(&root, key, NULL, 0, &value);
        if (rc == PMIX_SUCCESS && value != NULL && value->type == PMIX_STRING)
            snprintf(text, EPX_LAUNCH_TEXT_BYTES, "%s", value->data.string);
        else
            status =
                epx_fail(EPX_ERR_PEER, "rank 0 did not say where it listens (%s)", PMIx_Error_string(rc));
        if (value != NULL)
            PMIX_VALUE_RELEASE(value);
    }
    PMIX_INFO_DESTRUCT(&info[0]);
    PMIX_INFO_DESTRUCT(&info[1]);
    return status;
}
