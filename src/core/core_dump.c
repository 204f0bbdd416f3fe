/*
 * The driver's core dump of a GPU: what has to be in the environment, and which files it means.
 * SPDX-License-Identifier: Apache-2.0
 *
 * CUDA's driver makes the pipe together with the process's first context, so that programs which touch their
 * GPU before they open a group must have it set by then: the loader runs this first.
 */
#include "core/core_dump.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/config.h"

#define PIPE "CUDA_COREDUMP_PIPE"
#define FILE_NAME "CUDA_COREDUMP_FILE"

/* Where dumps are asked for: sets what CUDA's driver reads in the environment when it makes the process's
 * first context, and leaves alone what is set. Runs by itself when the library is loaded. */
__attribute__((constructor)) static void prepare(void)
{
    char file[EPX_CONFIG_TEXT_BYTES + 32];
    if (!epx_config_core_dump_is_asked())
        return;
    const char *folder = epx_config_record_is_asked() ? epx_config_variable("EPX_RECORD") : "/tmp";
    snprintf(file, sizeof(file), "%.*s/gpu-core.%%h.%%p", EPX_CONFIG_TEXT_BYTES, folder);
    setenv("CUDA_ENABLE_USER_TRIGGERED_COREDUMP", "1", 0);
    /* Without the GPU's memory, which may be 192 GB. Without skip_abort the driver ends the context, and the
     * process may end, while the file is still being written: driver 580 left a part of one. */
    setenv("CUDA_ENABLE_LIGHTWEIGHT_COREDUMP", "1", 0);
    setenv("CUDA_COREDUMP_GENERATION_FLAGS",
           "skip_abort,skip_global_memory,skip_shared_memory,skip_local_memory", 0);
    setenv(PIPE, "/tmp/epx-gpu-core-pipe.%h.%p", 0);
    setenv(FILE_NAME, file, 0);
}

/* %h: the host, %p: the process, as the driver has it. 0: there is another word in it, a time for example. */
static int expand(const char *pattern, char *text, size_t bytes)
{
    char host[65] = "";
    size_t used = 0;
    (void)gethostname(host, sizeof(host) - 1);
    for (; *pattern != '\0' && used + 1 < bytes; pattern++) {
        int wrote = 0;
        if (*pattern != '%')
            text[used++] = *pattern;
        else if (pattern[1] == 'h')
            wrote = snprintf(text + used, bytes - used, "%s", host);
        else if (pattern[1] == 'p')
            wrote = snprintf(text + used, bytes - used, "%d", (int)getpid());
        else
            return 0;
        pattern += *pattern == '%';
        used += (size_t)wrote < bytes - used ? (size_t)wrote : bytes - used - 1;
    }
    text[used] = '\0';
    return 1;
}

void epx_core_dump_paths(char *pipe, size_t pipe_bytes, char *file, size_t file_bytes)
{
    pipe[0] = file[0] = '\0';
    prepare();
    const char *by = epx_config_variable(PIPE), *to = epx_config_variable(FILE_NAME);
    if (!epx_config_core_dump_is_asked() || by == NULL || !expand(by, pipe, pipe_bytes))
        pipe[0] = '\0';
    if (pipe[0] == '\0' || to == NULL || !expand(to, file, file_bytes))
        file[0] = '\0';
}
