/*
 * epx-kernels: the GPU's kernels one by one, against what the device does of the same bytes in the same run.
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "bench/kernels/bench.h"
#include "kernels/cuda/graph.h"
#include "src/device/cuda/cuda.h"
#include "tools/common/options.h"
#include "tools/common/program.h"

enum { REPEATS_MAX = 1000 };

static int check(kernels_bench_t *bench, epx_status_t status, const char *what)
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
    check(bench,
          host != NULL ? bench->device->copy(memory, host, bytes, bench->stream)
                       : bench->device->fill(memory, 0x3c, bytes, bench->stream),
          "filling memory");
    check(bench, bench->device->synchronize(bench->stream), "filling memory");
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
    int ok = check(bench, epx_cuda_record_begin(bench->stream), "recording");
    for (int j = 0; ok && j < batch; j++)
        ok = check(bench, launch(bench, context), "a kernel");
    check(bench, epx_cuda_record_end(bench->stream, &graph), "recording");
    return graph;
}

double bench_time(kernels_bench_t *bench, bench_launch_fn launch, void *context, int batch)
{
    double seconds[REPEATS_MAX];
    const epx_device_ops_t *device = bench->device;
    void *graph = NULL;
    if (batch > 1 && check(bench, launch(bench, context), "a kernel")) /* asks the device what fits */
        graph = record(bench, launch, context, batch);
    for (int64_t i = -2; i < bench->repeats; i++) {
        int ok = check(bench, device->event_record(bench->from, bench->stream), "timing");
        if (graph != NULL)
            ok = ok && check(bench, epx_cuda_replay(graph, bench->stream), "a graph");
        else
            ok = ok && check(bench, launch(bench, context), "a kernel");
        ok = ok && check(bench, device->event_record(bench->to, bench->stream), "timing");
        ok = ok && check(bench, device->synchronize(bench->stream), "a kernel");
        if (!ok) {
            epx_cuda_record_destroy(graph);
            return 0;
        }
        if (i >= 0)
            check(bench, device->event_elapsed(bench->from, bench->to, &seconds[i]), "timing");
    }
    epx_cuda_record_destroy(graph);
    qsort(seconds, (size_t)bench->repeats, sizeof(seconds[0]), less);
    return seconds[bench->repeats / 2] / batch;
}

typedef struct two_areas {
    char *to, *from;
    size_t bytes;
} two_areas_t;

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

static void measure_floors(kernels_bench_t *bench)
{
    two_areas_t a = {.bytes = (size_t)(bench->tokens * bench->top_k * bench->width) * 2};
    double bytes = (double)a.bytes;
    bench->floor_to = bench_take(bench, a.bytes, NULL), bench->floor_from = bench_take(bench, a.bytes, NULL);
    bench->floor_bytes = a.bytes;
    double copy = bench_copy_floor(bench, bytes, bytes), fill = bench_fill_floor(bench, bytes);
    bench->copy_rate = 2 * bytes / copy;
    bench_print(
        bench,
        &(bench_line_t){.what = "the device's own copy", .seconds = copy, .read = bytes, .written = bytes});
    bench_print(bench, &(bench_line_t){.what = "the device's own fill", .seconds = fill, .written = bytes});
}

static int run(kernels_bench_t *bench)
{
    char reason[256];
    if (bench->device->probe(reason, sizeof(reason)) <= 0)
        return epx_tool_fail(EPX_EXIT_NO_VERDICT, "%s: run it on a machine with a GPU", reason);
    check(bench, bench->device->stream_create(&bench->stream), "a stream");
    check(bench, bench->device->event_create(1, &bench->from), "an event");
    check(bench, bench->device->event_create(1, &bench->to), "an event");
    if (bench->json != NULL)
        epx_json_array(bench->json, NULL);
    if (!bench->failed)
        measure_floors(bench);
    if (!bench->failed && !bench->only_routes)
        bench_rows(bench);
    if (!bench->failed)
        bench_routes(bench);
    if (bench->json != NULL)
        epx_json_close(bench->json);
    return bench->failed ? EPX_EXIT_FAILED : EPX_EXIT_OK;
}

int main(int argc, char **argv)
{
    int32_t as_json = 0;
    kernels_bench_t bench = {.device = &epx_device_cuda,
                             .kernels = epx_device_cuda.kernels,
                             .tokens = 8192,
                             .width = 7168,
                             .top_k = 8,
                             .experts = 256,
                             .repeats = 15,
                             .dice = 1};
    const epx_option_t options[] = {
        epx_option_int('t', "tokens", "tokens of a rank", &bench.tokens, 16, 1 << 20),
        epx_option_int('w', "width", "elements of a row, bf16", &bench.width, 8, 1 << 20),
        epx_option_int('k', "top-k", "experts of a token", &bench.top_k, 1, 64),
        epx_option_int('e', "experts", "experts in all, of two ranks", &bench.experts, 2, 4096),
        epx_option_int('n', "repeats", "runs, of which the median counts", &bench.repeats, 1, REPEATS_MAX),
        epx_option_flag('r', "routes", "routing kernels only", &bench.only_routes),
        epx_option_flag('j', "json", "JSON on stdout", &as_json),
        epx_option_end()};
    const epx_program_t program = {
        .name = "epx-kernels",
        .summary = "Times the GPU's kernels one by one, beside the device's own copy and fill of "
                   "the same bytes.",
        .options = options};
    int rc = epx_command_line(&program, argc, argv, NULL);
    if (rc != EPX_GO_ON)
        return rc;
    if (bench.top_k > bench.experts)
        return epx_tool_fail(EPX_EXIT_USAGE, "--top-k %d is more than --experts: give more experts",
                             (int)bench.top_k);
    epx_json_t json = epx_json_begin(stdout, 2);
    if (as_json)
        bench.json = &json;
    rc = run(&bench);
    if (as_json && epx_json_end(&json) != 0)
        rc = EPX_EXIT_FAILED;
    return epx_tool_end(rc);
}
