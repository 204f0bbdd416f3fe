/*
 * epx-kernels: the GPU's kernels one by one, against what the device does of the same bytes in the same run.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bench/kernels/bench.h"
#include "src/device/cuda/cuda.h"
#include "tools/common/command_line.h"
#include "tools/common/program.h"

static void measure_floors(kernels_bench_t *bench)
{
    size_t size = (size_t)(bench->tokens * bench->top_k * bench->width) * 2;
    double bytes = (double)size;
    bench->floor_to = bench_take(bench, size, NULL), bench->floor_from = bench_take(bench, size, NULL);
    bench->floor_bytes = size;
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
    bench_check(bench, bench->device->stream_create(&bench->stream), "a stream");
    bench_check(bench, bench->device->event_create(1, &bench->from), "an event");
    bench_check(bench, bench->device->event_create(1, &bench->to), "an event");
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
        epx_option_int('n', "repeats", "runs, of which the median counts", &bench.repeats, 1,
                       BENCH_REPEATS_MAX),
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
