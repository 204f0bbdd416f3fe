/* No graphs in a build without CUDA. SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "kernels/cuda/graph.h"

epx_status_t epx_cuda_record_begin(void *stream)
{
    (void)stream;
    return epx_fail(EPX_ERR_UNSUPPORTED,
                    "this build has no CUDA: build it where the CUDA toolkit is installed");
}

epx_status_t epx_cuda_record_end(void *stream, void **graph_p)
{
    *graph_p = NULL;
    return epx_cuda_record_begin(stream);
}

epx_status_t epx_cuda_replay(void *graph, void *stream)
{
    (void)graph;
    return epx_cuda_record_begin(stream);
}

void epx_cuda_record_destroy(void *graph) { (void)graph; }
