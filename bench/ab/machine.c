/* Reads what Linux shows. SPDX-License-Identifier: Apache-2.0 */
#include "bench/ab/machine.h"

#include <link.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "tools/common/numbers.h"
#include "tools/common/program.h"

enum { CORES_MOST = 4096 };

/* The first line of a file without its end; 0, or -1. */
static int read_line(const char *path, char *line, size_t bytes)
{
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return -1;
    int got = fgets(line, (int)bytes, file) != NULL;
    fclose(file);
    if (!got)
        return -1;
    line[strcspn(line, "\n")] = '\0';
    return 0;
}

/* ---- clocks ------------------------------------------------------------------------------------------------------- */

/* From cpufreq, which gives kHz. */
static int32_t clocks_of_cpufreq(double *mhz, int32_t room)
{
    int32_t count = 0;
    for (int32_t cpu = 0; cpu < CORES_MOST && count < room; cpu++) {
        char path[96], line[64];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cpufreq/scaling_cur_freq", (int)cpu);
        if (read_line(path, line, sizeof line) != 0)
            break;
        mhz[count++] = atof(line) * 1e-3;
    }
    return count;
}

static int32_t clocks_of_cpuinfo(double *mhz, int32_t room)
{
    char line[512];
    int32_t count = 0;
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file != NULL && count < room && fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "cpu MHz", 7) == 0 && colon != NULL)
            mhz[count++] = atof(colon + 1);
    }
    if (file != NULL)
        fclose(file);
    return count;
}

double epx_ab_clock_now(int32_t busy)
{
    double *mhz = epx_tool_alloc(CORES_MOST, sizeof *mhz);
    int32_t count = clocks_of_cpufreq(mhz, CORES_MOST);
    if (count == 0)
        count = clocks_of_cpuinfo(mhz, CORES_MOST);
    epx_sort_reals(mhz, (size_t)count);
    int32_t fast = busy < count ? busy : count;
    double median = epx_ab_median(mhz + count - fast, fast);
    free(mhz);
    return median > 0 ? median : NAN;
}

int64_t epx_ab_throttles_now(void)
{
    static const char *const counters[] = {"core_throttle_count", "package_throttle_count"};
    int64_t sum = 0;
    int seen = 0;
    for (int32_t cpu = 0; cpu < CORES_MOST; cpu++) {
        int here = 0;
        for (int i = 0; i < 2; i++) {
            char path[128], line[64];
            snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/thermal_throttle/%s", (int)cpu,
                     counters[i]);
            if (read_line(path, line, sizeof line) != 0)
                continue;
            sum += atoll(line);
            here = seen = 1;
        }
        if (!here)
            break;
    }
    return seen ? sum : -1;
}

static void describe_sources(epx_ab_machine_t *machine)
{
    char line[64];
    double one;
    if (clocks_of_cpufreq(&one, 1) == 1)
        snprintf(machine->clock_source, sizeof machine->clock_source, "/sys/devices/system/cpu/*/cpufreq");
    else if (clocks_of_cpuinfo(&one, 1) == 1)
        snprintf(machine->clock_source, sizeof machine->clock_source,
                 "/proc/cpuinfo (no cpufreq here: a virtual machine may show its nominal clock)");
    else
        snprintf(machine->clock_source, sizeof machine->clock_source, "not shown by this machine");
    if (read_line("/sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", line, sizeof line) ==
        0)
        snprintf(machine->throttle_source, sizeof machine->throttle_source,
                 "/sys/devices/system/cpu/*/thermal_throttle");
    else
        snprintf(machine->throttle_source, sizeof machine->throttle_source, "not counted by this machine");
}

/* ---- other programs ------------------------------------------------------------------------------------------------ */

epx_ab_cpu_time_t epx_ab_cpu_time_now(void)
{
    char line[256];
    epx_ab_cpu_time_t now = {.all = NAN, .busy = NAN, .own = NAN};
    double user, nice, system, idle, wait, irq, soft, steal, tick = (double)sysconf(_SC_CLK_TCK);
    struct rusage own;
    if (read_line("/proc/stat", line, sizeof line) != 0 || getrusage(RUSAGE_SELF, &own) != 0 ||
        sscanf(line, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &user, &nice, &system, &idle, &wait, &irq, &soft,
               &steal) != 8)
        return now;
    now.busy = (user + nice + system + irq + soft + steal) / tick;
    now.all = now.busy + (idle + wait) / tick;
    now.own = (double)(own.ru_utime.tv_sec + own.ru_stime.tv_sec) +
              1e-6 * (double)(own.ru_utime.tv_usec + own.ru_stime.tv_usec);
    return now;
}

double epx_ab_others_share(const epx_ab_cpu_time_t *from, const epx_ab_cpu_time_t *to)
{
    double all = to->all - from->all;
    if (!(all > 0))
        return NAN;
    double share = ((to->busy - from->busy) - (to->own - from->own)) / all;
    return share < 0 ? 0 : share > 1 ? 1 : share;
}

/* ---- the build ----------------------------------------------------------------------------------------------------- */

/* The GNU build id among the notes of a loaded object; "" where it has none. */
static void find_build_id(const struct dl_phdr_info *info, char *text, size_t bytes)
{
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type != PT_NOTE)
            continue;
        const char *at = (const char *)(info->dlpi_addr + segment->p_vaddr), *end = at + segment->p_memsz;
        while (at + sizeof(ElfW(Nhdr)) <= end) {
            const ElfW(Nhdr) *note = (const ElfW(Nhdr) *)(const void *)at;
            const char *name = at + sizeof *note;
            const unsigned char *id = (const unsigned char *)name + ((note->n_namesz + 3u) & ~3u);
            if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 && memcmp(name, "GNU", 4) == 0) {
                for (size_t b = 0; b < note->n_descsz && 2 * b + 2 < bytes; b++)
                    snprintf(text + 2 * b, 3, "%02x", id[b]);
                return;
            }
            at = (const char *)id + ((note->n_descsz + 3u) & ~3u);
        }
    }
}

static int add_library(struct dl_phdr_info *info, size_t size, void *context)
{
    epx_ab_machine_t *machine = context;
    (void)size;
    if (machine->libraries == (int32_t)(sizeof machine->library / sizeof *machine->library))
        return 1;
    epx_ab_library_t *library = &machine->library[machine->libraries++];
    *library = (epx_ab_library_t){.path = ""};
    if (info->dlpi_name[0] != '\0') {
        snprintf(library->path, sizeof library->path, "%s", info->dlpi_name);
    } else {
        ssize_t length = readlink("/proc/self/exe", library->path, sizeof library->path - 1);
        library->path[length > 0 ? length : 0] = '\0';
    }
    find_build_id(info, library->build_id, sizeof library->build_id);
    return 0;
}

static void describe_cpu(epx_ab_machine_t *machine)
{
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(machine->cpu, sizeof machine->cpu, "processor unknown");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(machine->cpu, sizeof machine->cpu, "%.120s", colon + 2);
            break;
        }
    }
    if (file != NULL)
        fclose(file);
}

void epx_ab_describe_machine(epx_ab_machine_t *machine)
{
    struct utsname name;
    *machine = (epx_ab_machine_t){.cores = (int32_t)sysconf(_SC_NPROCESSORS_ONLN)};
    machine->memory_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    if (uname(&name) == 0) {
        snprintf(machine->host, sizeof machine->host, "%.60s", name.nodename);
        snprintf(machine->kernel, sizeof machine->kernel, "%.30s %.60s %.30s", name.sysname, name.release,
                 name.machine);
    }
    describe_cpu(machine);
    describe_sources(machine);
    dl_iterate_phdr(add_library, machine);
}
