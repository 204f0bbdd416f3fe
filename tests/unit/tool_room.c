/* Memory that is left, of made-up machines. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/folder.h"
#include "tools/common/room.h"

static char root[FOLDER_BYTES];

static void begin(void) { folder_make(root, "/tmp"); }

static void end(void) { cr_assert_eq(folder_remove(root), 0, "%s stays", root); }

TestSuite(tool_room, .init = begin, .fini = end);

/* A file below the root, and the folders that it needs. */
static void write_file(const char *name, const char *format, ...)
{
    char path[256], command[300];
    snprintf(path, sizeof path, "%s/%s", root, name);
    snprintf(command, sizeof command, "mkdir -p $(dirname %s)", path);
    cr_assert_eq(system(command), 0);
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    va_list values;
    va_start(values, format);
    vfprintf(file, format, values);
    va_end(values);
    fclose(file);
}

static void has(int64_t bytes, const char *whose)
{
    const char *name = "";
    int64_t room = epx_room_below(root, &name);
    cr_expect_eq(room, bytes, "%lld bytes, not %lld", (long long)room, (long long)bytes);
    cr_expect_str_eq(name, whose);
}

static void machine(void)
{
    write_file(
        "proc/meminfo",
        "MemTotal: 3000 kB\nMemFree: 10 kB\nMemAvailable: 1000 kB\nSwapTotal: 9 kB\nSwapFree: 24 kB\n");
}

Test(tool_room, nothing_can_be_read) { has(INT64_MAX, "this machine"); }

Test(tool_room, no_groups)
{
    machine();
    has(1024 << 10, "this machine");
}

Test(tool_room, groups_of_version_2_within_each_other)
{
    machine();
    write_file("proc/self/cgroup", "0::/job/step\n");
    write_file("sys/fs/cgroup/job/step/memory.max", "max\n");
    write_file("sys/fs/cgroup/job/step/memory.current", "900000\n");
    has(1024 << 10, "this machine");
    write_file("sys/fs/cgroup/job/memory.max", "950000\n");
    write_file("sys/fs/cgroup/job/memory.current", "900000\n");
    has(50000, "this control group");
    write_file("sys/fs/cgroup/job/memory.stat", "anon 1\nfile 9\ninactive_file 7000\nactive_file 400\n");
    has(57400, "this control group");
    write_file("sys/fs/cgroup/job/memory.current", "990000\n"); /* about to be killed */
    has(0, "this control group");
}

/* The name is that of outside, and the container's own limits stand at the top. */
Test(tool_room, a_container_of_version_1)
{
    machine();
    write_file("proc/self/cgroup", "9:name=systemd:/\n4:memory:/outside/17\n3:cpuset:/\n0::/\n");
    write_file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    write_file("sys/fs/cgroup/memory/memory.usage_in_bytes", "100000\n");
    has(1024 << 10, "this machine");
    write_file("sys/fs/cgroup/memory/memory.limit_in_bytes", "300000\n");
    write_file("sys/fs/cgroup/memory/memory.stat",
               "inactive_file 5\ntotal_inactive_file 2000\ntotal_active_file 300\n");
    has(202300, "this control group");
}
