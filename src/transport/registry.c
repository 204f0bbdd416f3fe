/* The transports that this library has, and plug-ins. SPDX-License-Identifier: Apache-2.0 */
#include "transport/registry.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "pooled_wave/pooled_wave.h"
#include "ragged/ragged.h"
#include "ring/ring.h"

static const epx_transport_ops_t *const transports[] = {
    &epx_transport_pooled_wave,
    &epx_transport_ragged,
    &epx_transport_ring,
};

enum { TRANSPORTS = sizeof(transports) / sizeof(transports[0]) };

int32_t epx_registry_count(void) { return TRANSPORTS; }

const epx_transport_ops_t *epx_registry_at(int32_t index)
{
    return index >= 0 && index < TRANSPORTS ? transports[index] : NULL;
}

const epx_transport_ops_t *epx_registry_find(const char *name)
{
    for (int32_t i = 0; i < TRANSPORTS; i++)
        if (strcmp(transports[i]->name, name) == 0)
            return transports[i];
    return NULL;
}

void epx_registry_names(char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int32_t i = 0; i < TRANSPORTS && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i > 0 ? ", " : "", transports[i]->name);
}

int epx_registry_is_path(const char *value)
{
    size_t length = strlen(value);
    return strchr(value, '/') != NULL || (length > 3 && strcmp(value + length - 3, ".so") == 0);
}

/* Every function of the table must be there: missing operations are typed stubs, never NULL. */
static int is_complete(const epx_transport_ops_t *ops)
{
    return ops->name != NULL && ops->name[0] != '\0' && ops->summary != NULL && ops->probe != NULL &&
           ops->query != NULL && ops->open != NULL && ops->close != NULL && ops->route != NULL &&
           ops->dispatch_start != NULL && ops->dispatch_finish != NULL && ops->combine_start != NULL &&
           ops->combine_finish != NULL && ops->combine_backward_start != NULL &&
           ops->combine_backward_finish != NULL && ops->dispatch_backward_start != NULL &&
           ops->dispatch_backward_finish != NULL && ops->account != NULL && ops->dump != NULL;
}

epx_status_t epx_registry_load(const char *path, const epx_transport_ops_t **ops_p)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return epx_fail(EPX_ERR_ARG, "transport plug-in %s cannot be loaded: %s", path, dlerror());
    void *symbol = dlsym(library, EPX_TRANSPORT_SYMBOL);
    epx_transport_plugin_fn plugin;
    memcpy(&plugin, &symbol, sizeof(plugin)); /* an object pointer is not a function pointer to ISO C */
    epx_status_t status = EPX_OK;
    const epx_transport_ops_t *ops = symbol != NULL ? plugin() : NULL;
    if (symbol == NULL)
        status = epx_fail(EPX_ERR_ARG, "transport plug-in %s has no symbol %s", path, EPX_TRANSPORT_SYMBOL);
    else if (ops == NULL)
        status = epx_fail(EPX_ERR_ARG, "transport plug-in %s gave no table", path);
    else if (ops->abi != EPX_ABI || ops->ops_bytes != sizeof(epx_transport_ops_t))
        status = epx_fail(
            EPX_ERR_MISMATCH,
            "transport plug-in %s is built for ABI %u with a table of %u bytes, this library has ABI %d "
            "and %zu; build it against this library's headers",
            path, ops->abi, ops->ops_bytes, EPX_ABI, sizeof(epx_transport_ops_t));
    else if (!is_complete(ops))
        status = epx_fail(EPX_ERR_ARG, "transport plug-in %s leaves functions of its table empty", path);
    else if (epx_registry_find(ops->name) != NULL)
        status =
            epx_fail(EPX_ERR_ARG, "transport plug-in %s calls itself %s, which is taken", path, ops->name);
    if (status != EPX_OK) {
        dlclose(library);
        return status;
    }
    *ops_p = ops;
    return EPX_OK;
}
