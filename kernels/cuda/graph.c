/* Launches recorded once and replayed: what benches time. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/graph.h"

#include "kernels/cuda/fail.h"

epx_status_t epx_cuda_record_begin(void *stream)
{
    return epx_cuda_status(cudaStreamBeginCapture((cudaStream_t)stream, cudaStreamCaptureModeThreadLocal),
                           "recording a graph");
}

epx_status_t epx_cuda_record_end(void *stream, void **graph_p)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready = NULL;
    epx_status_t status =
        epx_cuda_status(cudaStreamEndCapture((cudaStream_t)stream, &graph), "recording a graph");
    if (status == EPX_OK)
        status = epx_cuda_status(cudaGraphInstantiate(&ready, graph, 0), "instantiating a graph");
    if (graph != NULL)
        cudaGraphDestroy(graph);
    *graph_p = ready;
    return status;
}

epx_status_t epx_cuda_replay(void *graph, void *stream)
{
    return epx_cuda_status(cudaGraphLaunch((cudaGraphExec_t)graph, (cudaStream_t)stream), "a graph");
}

void epx_cuda_record_destroy(void *graph)
{
    if (graph != NULL)
        cudaGraphExecDestroy((cudaGraphExec_t)graph);
}
