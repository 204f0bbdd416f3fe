/*
 * Ranges by NVTX, which is headers alone: without a profiler a range is one test of a pointer. They stand in
 * a domain of their own, "epx", with the wave as payload. SPDX-License-Identifier: Apache-2.0
 */
#include "device/cuda/marks.h"

#include <stddef.h>

#if defined(__has_include)
#if __has_include(<nvtx3/nvToolsExt.h>)
#define HAS_NVTX 1
#endif
#endif

#ifdef HAS_NVTX
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wundef"
#include <nvtx3/nvToolsExt.h>
#pragma GCC diagnostic pop

#include <pthread.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static nvtxDomainHandle_t domain;

static void open_domain(void) { domain = nvtxDomainCreateA("epx"); }

void epx_cuda_mark_begin(const char *what, int64_t number)
{
    nvtxEventAttributes_t range = {.version = NVTX_VERSION,
                                   .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                   .payloadType = NVTX_PAYLOAD_TYPE_INT64,
                                   .payload.llValue = number,
                                   .messageType = NVTX_MESSAGE_TYPE_ASCII,
                                   .message.ascii = what};
    pthread_once(&once, open_domain);
    nvtxDomainRangePushEx(domain, &range);
}

void epx_cuda_mark_end(void) { nvtxDomainRangePop(domain); }

#else

void epx_cuda_mark_begin(const char *what, int64_t number) { (void)what, (void)number; }
void epx_cuda_mark_end(void) {}

#endif
