/* Memory, timing and lines of epx-kernels. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "bench/kernels/bench.h"
#include "kernels/cuda/graph.h"
#include "tools/common/program.h"

typedef struct two_areas {
    char *to, *from;
    size_t bytes;
} two_areas_t;

int bench_check(kernels_bench_t *bench, epx_status_t status, const char *what)
{
    if (status != EPX_OK && !bench->failed) {
        bench->failed = 1;
        epx_tool_fail_status(status, what);
    }
    return status == EPX_OK;
}

void *bench_take(kernels_bench_t *bench, size_t bytes, const void *host)
{
    void *memory = bench->device->allocate(bytes + 256, 256);
    if (memory == NULL) {
        epx_tool_fail(EPX_EXIT_FAILED, "no memory for %zu bytes: use fewer --tokens", bytes);
        exit(EPX_EXIT_FAILED);
    }
    bench_check(bench,
                host != NULL ? bench->device->copy(memory, host, bytes, bench->stream)
                             : bench->device->fill(memory, 0x3c, bytes, bench->stream),
                "filling memory");
    bench_check(bench, bench->device->synchronize(bench->stream), "filling memory");
    return memory;
}

uint64_t bench_dice(kernels_bench_t *bench)
{
    uint64_t z = bench->dice += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int less(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A graph of `batch` launches: one after the other, without the host in between. */
static void *record(kernels_bench_t *bench, bench_launch_fn launch, void *context, int batch)
{
    void *graph = NULL;
    int ok = bench_check(bench, epx_cuda_record_begin(bench->stream), "recording");
    for (int j = 0; ok && j < batch; j++)
        ok = bench_check(bench, launch(bench, context), "a kernel");
    bench_check(bench, epx_cuda_record_end(bench->stream, &graph), "recording");
    return graph;
}

double bench_time(kernels_bench_t *bench, bench_launch_fn launch, void *context, int batch)
{
    double seconds[BENCH_REPEATS_MAX];
    const epx_device_ops_t *device = bench->device;
    void *graph = NULL;
    if (batch > 1 && bench_check(bench, launch(bench, context), "a kernel")) /* asks the device what fits */
        graph = record(bench, launch, context, batch);
    for (int64_t i = -2; i < bench->repeats; i++) {
        int ok = bench_check(bench, device->event_record(bench->from, bench->stream), "timing");
        if (graph != NULL)
            ok = ok && bench_check(bench, epx_cuda_replay(graph, bench->stream), "a graph");
        else
            ok = ok && bench_check(bench, launch(bench, context), "a kernel");
        ok = ok && bench_check(bench, device->event_record(bench->to, bench->stream), "timing");
        ok = ok && bench_check(bench, device->synchronize(bench->stream), "a kernel");
        if (!ok) {
            epx_cuda_record_destroy(graph);
            return 0;
        }
        if (i >= 0)
            bench_check(bench, device->event_elapsed(bench->from, bench->to, &seconds[i]), "timing");
    }
    epx_cuda_record_destroy(graph);
    qsort(seconds, (size_t)bench->repeats, sizeof(seconds[0]), less);
    return seconds[bench->repeats / 2] / batch;
}

static epx_status_t copy_areas(kernels_bench_t *bench, void *context)
{
    const two_areas_t *a = context;
    return bench->device->copy(a->to, a->from, a->bytes, bench->stream);
}

static epx_status_t fill_area(kernels_bench_t *bench, void *context)
{
    const two_areas_t *a = context;
    return bench->device->fill(a->to, 0, a->bytes, bench->stream);
}

double bench_copy_floor(kernels_bench_t *bench, double read, double written)
{
    two_areas_t a = {bench->floor_to, bench->floor_from, (size_t)((read + written) / 2)};
    return a.bytes <= bench->floor_bytes ? bench_time(bench, copy_areas, &a, 1)
                                         : (read + written) / bench->copy_rate;
}

double bench_fill_floor(kernels_bench_t *bench, double written)
{
    two_areas_t a = {bench->floor_to, NULL, (size_t)written};
    return bench_time(bench, fill_area, &a, 1);
}

void bench_print(kernels_bench_t *bench, const bench_line_t *line)
{
    double share = line->floor_s > 0 ? line->floor_s / line->seconds : 0;
    if (bench->json != NULL) {
        epx_json_object(bench->json, NULL);
        epx_json_text(bench->json, "kernel", line->what);
        epx_json_real(bench->json, "us", line->seconds * 1e6);
        epx_json_real(bench->json, "read_bytes", line->read);
        epx_json_real(bench->json, "written_bytes", line->written);
        epx_json_real(bench->json, "floor_us", line->floor_s * 1e6);
        epx_json_real(bench->json, "target_share", line->target);
        epx_json_real(bench->json, "target_us", line->target_us);
        epx_json_close(bench->json);
        return;
    }
    printf("%-58s %9.1f us", line->what, line->seconds * 1e6);
    if (line->read + line->written > 0)
        printf("  %5.2f TB/s", (line->read + line->written) / line->seconds * 1e-12);
    if (line->floor_s > 0)
        printf("  %5.1f%% of the floor %.1f us", share * 100, line->floor_s * 1e6);
    if (line->target > 0)
        printf("  (target %.0f%%%s)", line->target * 100, share >= line->target ? "" : ", MISSED");
    if (line->target_us > 0)
        printf("  (target %.0f us%s)", line->target_us,
               line->seconds * 1e6 <= line->target_us ? "" : ", MISSED");
    printf("\n");
}
