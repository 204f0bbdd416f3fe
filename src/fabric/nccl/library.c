/* Finds libnccl and takes its functions; the version gate. SPDX-License-Identifier: Apache-2.0 */
#include "fabric/nccl/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "fabric/nccl/setup.h"

/* Windows can be registered since then. */
enum { OLDEST = 22800, ARM_GOOD_SINCE = 22903 };

#ifdef __aarch64__
enum { IS_AARCH64 = 1 };
#else
enum { IS_AARCH64 = 0 };
#endif

static const char library_name[] = "libnccl.so.2";

static struct {
    pthread_mutex_t mutex;
    int tried;
    const char *stand_in;
    nccl_api_t api;
    epx_status_t status;
    char why[800];
} found = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* A function of the library and where its address goes. */
typedef struct entry {
    const char *name;
    void *to;
    int optional;
} entry_t;

void epx_nccl_version_text(int version, char *text, size_t bytes)
{
    snprintf(text, bytes, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

const nccl_setup_t *epx_nccl_setup_for(int version)
{
    for (int i = 0; i < epx_nccl_setup_count; i++)
        if (epx_nccl_setups[i]->version / 100 == version / 100)
            return epx_nccl_setups[i];
    return NULL;
}

static epx_status_t refuse(const char *format, const char *a, const char *b, const char *c)
{
    snprintf(found.why, sizeof(found.why), format, a, b, c);
    return EPX_ERR_UNSUPPORTED;
}

static epx_status_t take_functions(void *library, nccl_api_t *api)
{
    const entry_t entries[] = {{"ncclGetVersion", &api->get_version, 0},
                               {"ncclGetUniqueId", &api->get_unique_id, 0},
                               {"ncclCommInitRank", &api->comm_init_rank, 0},
                               {"ncclCommAbort", &api->comm_abort, 0},
                               {"ncclCommDestroy", &api->comm_destroy, 0},
                               {"ncclCommGetAsyncError", &api->get_async_error, 0},
                               {"ncclGetErrorString", &api->get_error_string, 0},
                               {"ncclGetLastError", &api->get_last_error, 0},
                               {"ncclMemAlloc", &api->mem_alloc, 0},
                               {"ncclMemFree", &api->mem_free, 0},
                               {"ncclCommWindowRegister", &api->window_register, 0},
                               {"ncclCommWindowDeregister", &api->window_deregister, 0},
                               {"ncclTeamLsa", &api->team_lsa, 0},
                               {"ncclGroupStart", &api->group_start, 0},
                               {"ncclGroupEnd", &api->group_end, 0},
                               {"ncclSend", &api->send, 0},
                               {"ncclRecv", &api->receive, 0},
                               {"ncclDevCommCreate", &api->dev_comm_create, 0},
                               {"ncclDevCommDestroy", &api->dev_comm_destroy, 0},
                               {"ncclGetPeerDevicePointer", &api->get_peer_device_pointer, 1}};
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        void *function = dlsym(library, entries[i].name);
        if (function == NULL && !entries[i].optional)
            return refuse("%s has no %s: NCCL 2.28 or newer is needed%s", api->path, entries[i].name, "");
        memcpy(entries[i].to, &function, sizeof(function));
    }
    return EPX_OK;
}

/* What the set-up kernels of this build were compiled with, for a message. */
static void compiled_text(char *text, size_t bytes)
{
    size_t used = 0;
    if (epx_nccl_setup_count == 0)
        snprintf(text, bytes, "no NCCL");
    for (int i = 0; i < epx_nccl_setup_count && used < bytes; i++) {
        char version[24];
        epx_nccl_version_text(epx_nccl_setups[i]->version, version, sizeof(version));
        used += (size_t)snprintf(text + used, bytes - used, "%sNCCL %s", i > 0 ? ", " : "", version);
    }
}

const char *epx_nccl_known_bad(int version, int is_aarch64)
{
    if (is_aarch64 && version < ARM_GOOD_SINCE)
        return "is known to be bad on aarch64; use 2.29.3 or newer";
    return NULL;
}

static epx_status_t check_version(const nccl_api_t *api)
{
    char loaded[24], compiled[128];
    epx_nccl_version_text(api->version, loaded, sizeof(loaded));
    compiled_text(compiled, sizeof(compiled));
    if (api->version < OLDEST)
        return refuse("NCCL %s is loaded (%s); symmetric windows need 2.28 or newer%s", loaded, api->path,
                      "");
    if (epx_nccl_setup_for(api->version) == NULL && api->get_peer_device_pointer == NULL)
        return refuse(
            "this build has a set-up kernel for %s, but NCCL %s is loaded (%s); build epx against the "
            "headers of that version, or load another library first",
            compiled, loaded, api->path);
    if (epx_nccl_known_bad(api->version, IS_AARCH64) != NULL)
        epx_log(EPX_LOG_WARN, "nccl", "NCCL %s (%s) %s", loaded, api->path,
                epx_nccl_known_bad(api->version, IS_AARCH64));
    return EPX_OK;
}

static epx_status_t find(void)
{
    const char *name = found.stand_in != NULL ? found.stand_in : library_name;
    nccl_api_t *api = &found.api;
    Dl_info info;
    memset(api, 0, sizeof(*api));
    void *library = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
    if (library == NULL)
        library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *error = dlerror();
        return refuse("%s cannot be loaded (%s)%s; install NCCL 2.28 or newer, or set LD_LIBRARY_PATH", name,
                      error != NULL ? error : "no reason given", "");
    }
    void *version = dlsym(library, "ncclGetVersion");
    snprintf(api->path, sizeof(api->path), "%.500s",
             version != NULL && dladdr(version, &info) != 0 ? info.dli_fname : name);
    epx_status_t status = take_functions(library, api);
    if (status == EPX_OK && api->get_version(&api->version) != 0)
        status = refuse("ncclGetVersion of %s failed%s%s", api->path, "", "");
    return status == EPX_OK ? check_version(api) : status;
}

epx_status_t epx_nccl_api(const nccl_api_t **api_p, const char **why_p)
{
    pthread_mutex_lock(&found.mutex);
    if (!found.tried)
        found.status = find();
    found.tried = 1;
    pthread_mutex_unlock(&found.mutex);
    *api_p = &found.api;
    *why_p = found.why;
    return found.status;
}

void epx_nccl_tell(epx_nccl_info_t *info)
{
    const nccl_api_t *api;
    const char *why = "";
    epx_status_t status = epx_nccl_api(&api, &why);
    compiled_text(info->compiled, sizeof(info->compiled));
    info->loaded[0] = '\0';
    if (api->version > 0)
        epx_nccl_version_text(api->version, info->loaded, sizeof(info->loaded));
    snprintf(info->file, sizeof(info->file), "%.511s", api->path);
    snprintf(info->problem, sizeof(info->problem), "%.511s", status == EPX_OK ? "" : why);
}

void epx_nccl_stand_in(const char *path)
{
    pthread_mutex_lock(&found.mutex);
    found.stand_in = path;
    found.tried = 0;
    pthread_mutex_unlock(&found.mutex);
}
