/* The core dump of the culprit's GPU. SPDX-License-Identifier: Apache-2.0 */
#include "record/dump.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fail.h"

/* A dump that has not grown for so long is whole; one whose name is not known, or that does not come, is
 * waited for so long. */
enum { STILL_MS = 1000, MOST_MS = 20000 };

/* Whoever writes into the pipe has the driver dump: it reads there beside a kernel that never ends. */
static int ask(epx_recorder_h r)
{
    int pipe = open(r->dump_pipe, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    int asked = pipe >= 0 && write(pipe, "1", 1) == 1;
    int error = errno;
    if (pipe >= 0)
        close(pipe);
    if (asked)
        epx_log(EPX_LOG_WARN, "record",
                "rank %d is the culprit: its GPU's driver is asked for a core dump (%s)", r->head->rank,
                r->dump_file[0] != '\0' ? r->dump_file : "CUDA_COREDUMP_FILE");
    else
        epx_log(
            EPX_LOG_WARN, "record",
            "rank %d is the culprit, and there is no core dump of its GPU: %s: %s; the driver makes that "
            "pipe with "
            "the process's first context, if CUDA_ENABLE_USER_TRIGGERED_COREDUMP=1 and CUDA_COREDUMP_PIPE "
            "are set by then",
            r->head->rank, r->dump_pipe, strerror(error));
    return asked;
}

int epx_dump_is_over(epx_recorder_h r, epx_dump_t *dump, int64_t now)
{
    struct stat info = {0};
    if (dump->over || r->dump_pipe[0] == '\0')
        return 1;
    if (dump->begun_ns == 0) {
        dump->begun_ns = dump->still_ns = now;
        dump->over = !ask(r);
        return dump->over;
    }
    int is_there = r->dump_file[0] != '\0' && stat(r->dump_file, &info) == 0 && info.st_size > 0;
    if (!is_there || (int64_t)info.st_size != dump->bytes)
        dump->still_ns = now;
    dump->bytes = is_there ? (int64_t)info.st_size : 0;
    dump->over = (is_there && now - dump->still_ns >= (int64_t)STILL_MS * 1000000) ||
                 now - dump->begun_ns >= (int64_t)MOST_MS * 1000000;
    return dump->over;
}
