/* Faults: made for a rank, told what it does, freed. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "fabric/fault/internal.h"

epx_status_t epx_fault_new(const char *text, const char *name, int32_t rank, epx_fault_t **fault_p)
{
    epx_fault_spec_t spec;
    char problem[512];
    int32_t wanted = 0;
    *fault_p = NULL;
    if (epx_fault_parse(text, &spec, problem, sizeof(problem)) != EPX_OK)
        return epx_fail(EPX_ERR_ARG, "%s", problem);
    for (int32_t i = 0; i < spec.rules; i++)
        wanted += epx_fault_names_group(&spec.rule[i], name);
    if (wanted == 0)
        return EPX_OK;
    epx_fault_t *fault = calloc(1, sizeof(*fault));
    if (fault == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "%s: no memory for the faults of EPX_FAULT", name);
    fault->spec = spec;
    fault->rank = rank;
    snprintf(fault->name, sizeof(fault->name), "%s", name);
    *fault_p = fault;
    return EPX_OK;
}

void epx_fault_free(epx_fault_t **fault_p)
{
    if (*fault_p == NULL)
        return;
    epx_fault_set_segment(*fault_p, NULL);
    epx_fault_end_kernels(*fault_p);
    if ((*fault_p)->beside != NULL)
        (*fault_p)->device->stream_destroy((*fault_p)->beside);
    uint64_t *stop = atomic_load_explicit(&(*fault_p)->stop, memory_order_acquire);
    if (stop != NULL)
        (*fault_p)->device->release_shared(stop, sizeof(*stop));
    free(*fault_p);
    *fault_p = NULL;
}

epx_status_t epx_fault_check(epx_fault_t *fault, uint32_t caps, const epx_device_ops_t *device)
{
    for (int32_t i = 0; i < fault->spec.rules; i++) {
        const epx_fault_rule_t *rule = &fault->spec.rule[i];
        int put = rule->at == EPX_FAULT_PUT_PRE || rule->at == EPX_FAULT_PUT_POST ||
                  rule->what == EPX_FAULT_REORDER;
        if (rule->what == EPX_FAULT_HOG && device->host_access)
            return epx_fail(EPX_ERR_UNSUPPORTED,
                            "EPX_FAULT: do=hog occupies multiprocessors, and device %s has none",
                            device->name);
        if (put && (!device->host_access || (caps & EPX_FABRIC_LOADSTORE) == 0))
            return epx_fail(
                EPX_ERR_UNSUPPORTED,
                "EPX_FAULT: do=%s at=%s touches rows on their way, which needs a fabric with loads and "
                "stores and device host (device %s)",
                epx_fault_do_name(rule->what), epx_fault_point_name(rule->at), device->name);
    }
    fault->device = device;
    return EPX_OK;
}

void epx_fault_watch(epx_fault_t *fault, epx_fabric_t *fabric)
{
    if (fault != NULL)
        fault->inner = fabric;
}

void epx_fault_call(epx_fault_t *fault, const epx_fault_call_t *call) { fault->call = *call; }
