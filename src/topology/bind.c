/* What the system says about this process: its mask of processors, its GPUs. SPDX-License-Identifier:
 * Apache-2.0 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "topology/machine.h"

static int32_t count(const epx_processors_t *set)
{
    int32_t n = 0;
    for (int32_t w = 0; w < EPX_PROCESSOR_WORDS; w++)
        n += __builtin_popcountll(set->word[w]);
    return n;
}

int32_t epx_topology_bind(const epx_processors_t *set, int32_t processors, char *note, size_t bytes)
{
    epx_processors_t now = {{0}};
    if (sched_getaffinity(0, sizeof(now), (cpu_set_t *)(void *)&now) != 0) {
        snprintf(note, bytes, "not bound: the mask of this thread cannot be read (%s)", strerror(errno));
        return 0;
    }
    if (count(&now) < processors) {
        snprintf(note, bytes, "not bound: a mask of %d of %d processors was set before and stays",
                 count(&now), processors);
        return 0;
    }
    if (count(set) == 0 || count(set) >= processors) {
        snprintf(note, bytes, "not bound: its cores are all that the machine has");
        return 0;
    }
    if (sched_setaffinity(0, sizeof(*set), (const cpu_set_t *)(const void *)set) != 0) {
        snprintf(note, bytes, "not bound: the system refuses (%s)", strerror(errno));
        return 0;
    }
    snprintf(note, bytes, "bound");
    return 1;
}

int32_t epx_topology_sees_gpu(const char *address)
{
    char path[128];
    if (access("/proc/driver/nvidia/gpus", F_OK) != 0)
        return 1; /* no driver that could tell */
    snprintf(path, sizeof(path), "/proc/driver/nvidia/gpus/%s", address);
    return access(path, F_OK) == 0;
}
