/* Matrix products by cuBLAS. SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf/product.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/common/numbers.h"
#include "tools/common/program.h"

/* The few calls of cuBLAS that are used, as its documentation gives them: its header may not be there. */
enum { NOT_TRANSPOSED = 0, TRANSPOSED = 1, TYPE_BF16 = 14, COMPUTE_FP32 = 68, ALGORITHM_DEFAULT = -1 };

typedef struct cublas {
    void *library;
    int (*create)(void **handle_p);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, void *stream);
    int (*set_units)(void *handle, int units);
    int (*multiply)(void *handle, int a_form, int b_form, int m, int n, int k, const void *alpha,
                    const void *a, int a_type, int a_stride, const void *b, int b_type, int b_stride,
                    const void *beta, void *c, int c_type, int c_stride, int compute, int algorithm);
} cublas_t;

struct epx_perf_product {
    const epx_device_ops_t *device;
    cublas_t cublas;
    void *handle;
    int32_t side;
    size_t bytes; /* of one matrix */
    void *matrix[3];
};

static int load(cublas_t *cublas)
{
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so",
                                        "/usr/local/cuda/lib64/libcublas.so"};
    for (size_t i = 0; i < sizeof names / sizeof *names && cublas->library == NULL; i++)
        cublas->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (cublas->library == NULL)
        return 0;
    struct {
        const char *name;
        void *to;
    } const wanted[] = {{"cublasCreate_v2", &cublas->create},
                        {"cublasDestroy_v2", &cublas->destroy},
                        {"cublasSetStream_v2", &cublas->set_stream},
                        {"cublasSetSmCountTarget", &cublas->set_units},
                        {"cublasGemmEx", &cublas->multiply}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *found = dlsym(cublas->library, wanted[i].name);
        if (found == NULL)
            return 0;
        *(void **)wanted[i].to = found;
    }
    return 1;
}

/* Moderate numbers of either sign: products of zeros run faster than others. */
static int fill(epx_perf_product_t *product)
{
    uint16_t *host = epx_tool_alloc(product->bytes / 2, sizeof *host);
    int good = 1;
    for (int m = 0; m < 2 && good; m++) {
        for (size_t i = 0; i < product->bytes / 2; i++) {
            uint64_t random = epx_mix64(i + (uint64_t)m * product->bytes);
            host[i] = (uint16_t)((random & 0x8000) | 0x3e00 | (random >> 20 & 0x1ff));
        }
        good = product->device->copy(product->matrix[m], host, product->bytes, NULL) == EPX_OK &&
               product->device->synchronize(NULL) == EPX_OK;
    }
    free(host);
    return good;
}

epx_perf_product_t *epx_perf_product_open(const epx_device_ops_t *device, int32_t side, char *why_not,
                                          size_t why_not_bytes)
{
    epx_perf_product_t *product = epx_tool_alloc(1, sizeof *product);
    product->device = device;
    product->side = side;
    product->bytes = (size_t)side * (size_t)side * 2;
    const char *problem = NULL;
    if (!load(&product->cublas))
        problem = "libcublas was not found: put its folder into LD_LIBRARY_PATH";
    for (int i = 0; i < 3 && problem == NULL; i++) {
        product->matrix[i] = device->allocate(product->bytes, 256);
        if (product->matrix[i] == NULL)
            problem = "no memory for the matrices";
    }
    if (problem == NULL && product->cublas.create(&product->handle) != 0)
        problem = "cublasCreate failed";
    if (problem == NULL && !fill(product))
        problem = "the matrices could not be filled";
    if (problem == NULL)
        return product;
    snprintf(why_not, why_not_bytes, "%s", problem);
    epx_perf_product_close(&product);
    return NULL;
}

void epx_perf_product_close(epx_perf_product_t **product_p)
{
    epx_perf_product_t *product = *product_p;
    *product_p = NULL;
    if (product == NULL)
        return;
    if (product->handle != NULL)
        product->cublas.destroy(product->handle);
    for (int i = 0; i < 3; i++)
        if (product->matrix[i] != NULL)
            product->device->release(product->matrix[i], product->bytes);
    free(product); /* the library stays loaded: it does not like to be unloaded */
}

double epx_perf_product_flops(const epx_perf_product_t *product)
{
    double side = product->side;
    return 2 * side * side * side;
}

int epx_perf_product_run(epx_perf_product_t *product, int32_t units, epx_stream_t stream)
{
    const float one = 1, zero = 0;
    int n = product->side, code = product->cublas.set_stream(product->handle, stream);
    if (code == 0)
        code = product->cublas.set_units(product->handle, units);
    return code != 0 ? code
                     : product->cublas.multiply(product->handle, TRANSPOSED, NOT_TRANSPOSED, n, n, n, &one,
                                                product->matrix[0], TYPE_BF16, n, product->matrix[1],
                                                TYPE_BF16, n, &zero, product->matrix[2], TYPE_BF16, n,
                                                COMPUTE_FP32, ALGORITHM_DEFAULT);
}
