/* Launches recorded once and replayed: what benches time. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_KERNELS_CUDA_GRAPH_H
#define EPX_KERNELS_CUDA_GRAPH_H

#include <epx/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* From begin to end, what is put into `stream` (not the default one) is recorded and does not run. */
epx_status_t epx_cuda_record_begin(void *stream);
epx_status_t epx_cuda_record_end(void *stream, void **graph_p);

/* Stream-ordered. */
epx_status_t epx_cuda_replay(void *graph, void *stream);

void epx_cuda_record_destroy(void *graph);

#ifdef __cplusplus
}
#endif
#endif
