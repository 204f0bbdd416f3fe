/* First launches wait for nothing that runs: these tests come before any other. SPDX-License-Identifier:
 * Apache-2.0 */
#include <stdio.h>
#include <time.h>

#include <epx/kernels_words.h>

#include "device/cuda/cuda.h"
#include "gpu/check.h"
#include "kernels/cuda/load.h"
#include "kernels/cuda/table.h"

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Beside a kernel that runs for 1.5 s, others are launched for the first time, and run. */
static void first_launches(void)
{
    dice_t dice;
    epx_stream_t held = NULL, other = NULL;
    if (!gpu_round(&dice, 1))
        return;
    twin_t rows = twin_make(4096);
    double begin = now_s();
    int kernels = epx_cuda_load();
    printf("  %d kernels were loaded in %.0f ms\n", kernels, (now_s() - begin) * 1e3);
    CHECK(kernels > (int)(sizeof(epx_kernels_t) / sizeof(epx_kernels_cuda.spin)),
          "%d kernels were loaded: fewer than the table has", kernels);
    CHECK(epx_device_cuda.stream_create(&held) == EPX_OK && epx_device_cuda.stream_create(&other) == EPX_OK,
          "no streams");
    epx_k_spin_t spin = {.ns = 1500000000};
    epx_k_poison_t poison = {.rows = rows.device, .bytes = 4096};
    begin = now_s();
    CHECK(epx_cuda_spin(&spin, held) == EPX_OK, "spin was not launched");
    CHECK(epx_cuda_poison(&poison, other) == EPX_OK, "poison was not launched");
    double launched = now_s() - begin;
    CHECK(epx_device_cuda.synchronize(other) == EPX_OK, "poison failed");
    double ran = now_s() - begin;
    CHECK(epx_device_cuda.synchronize(held) == EPX_OK, "spin failed");
    double all = now_s() - begin;
    CHECK(all >= 1.4, "the kernel beside it ran %.2f s", all);
    CHECK(launched < 0.7, "launching took %.2f s", launched);
    CHECK(ran < 1.0, "poison had run after %.2f s", ran);
    epx_device_cuda.stream_destroy(held);
    epx_device_cuda.stream_destroy(other);
    while (gpu_round(&dice, 1))
        ;
}

const gpu_test_t gpu_load_tests[] = {{"first_launches", first_launches}, {NULL, NULL}};
