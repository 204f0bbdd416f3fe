/* Every kernel of every file, by the driver's list of what a module holds. SPDX-License-Identifier:
 * Apache-2.0
 */
#include "kernels/cuda/load.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

enum { DEVICES_REMEMBERED = 32 };

static epx_cuda_file_t *files; /* whole before there are threads */

static struct {
    pthread_mutex_t mutex;
    int loaded[DEVICES_REMEMBERED]; /* kernels */
} done = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void epx_cuda_file_add(epx_cuda_file_t *file)
{
    file->next = files;
    files = file;
}

/* It is no error of a later launch. */
static int forget_error(void)
{
    cudaGetLastError();
    return 0;
}

/* The driver's functions, which the runtime finds: this library is not linked to the driver. */
typedef struct driver {
    CUresult (*module_of)(CUmodule *module_p, CUfunction function);
    CUresult (*count)(unsigned int *count_p, CUmodule module);
    CUresult (*list)(CUfunction *functions, unsigned int count, CUmodule module);
    CUresult (*load)(CUfunction function);
} driver_t;

#if CUDART_VERSION >= 12050
static int find(const char *name, void *function_p)
{
    enum { SINCE = 12040 };
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    if (cudaGetDriverEntryPointByVersion(name, &function, SINCE, cudaEnableDefault, &found) != cudaSuccess)
        return forget_error();
    if (found != cudaDriverEntryPointSuccess || function == NULL)
        return 0;
    memcpy(function_p, &function, sizeof(function));
    return 1;
}

static int find_driver(driver_t *driver)
{
    return find("cuFuncGetModule", &driver->module_of) && find("cuModuleGetFunctionCount", &driver->count) &&
           find("cuModuleEnumerateFunctions", &driver->list) && find("cuFuncLoad", &driver->load);
}
#else
static int find_driver(driver_t *driver)
{
    (void)driver;
    return 0;
}
#endif

/* What cannot be loaded now is loaded when it is launched. */
static int load_file(const driver_t *driver, const epx_cuda_file_t *file)
{
    cudaFunction_t one = NULL;
    CUmodule module = NULL;
    unsigned int count = 0;
    int loaded = 0;
    if (cudaGetFuncBySymbol(&one, file->kernel) != cudaSuccess)
        return forget_error();
    if (driver->module_of(&module, one) != CUDA_SUCCESS || driver->count(&count, module) != CUDA_SUCCESS ||
        count == 0)
        return 0;
    CUfunction *functions = calloc(count, sizeof(*functions));
    if (functions != NULL && driver->list(functions, count, module) == CUDA_SUCCESS)
        for (unsigned int i = 0; i < count; i++)
            loaded += functions[i] != NULL && driver->load(functions[i]) == CUDA_SUCCESS;
    free(functions);
    return loaded;
}

int epx_cuda_load(void)
{
    int device = 0, loaded = 0;
    driver_t driver;
    if (cudaGetDevice(&device) != cudaSuccess || device < 0 || device >= DEVICES_REMEMBERED)
        return 0;
    pthread_mutex_lock(&done.mutex);
    if (done.loaded[device] == 0 && find_driver(&driver)) {
        for (const epx_cuda_file_t *file = files; file != NULL; file = file->next)
            loaded += load_file(&driver, file);
        done.loaded[device] = loaded;
    }
    loaded = done.loaded[device];
    pthread_mutex_unlock(&done.mutex);
    return loaded;
}
