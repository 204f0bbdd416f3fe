/* Who a process is, by the variables of launchers. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

#include "launch/internal.h"

/* An environment: NAME=VALUE, NULL ends it. */
static const char *const *now;

static const char *variable(const char *name)
{
    size_t length = strlen(name);
    for (const char *const *at = now; *at != NULL; at++)
        if (strncmp(*at, name, length) == 0 && (*at)[length] == '=')
            return *at + length + 1;
    return NULL;
}

static epx_status_t read_all(const char *const *environment, epx_launch_t *launch)
{
    now = environment;
    *launch = (epx_launch_t){.size = -1};
    return epx_launch_from_env(variable, launch);
}

#define VARIABLES(...) \
    (const char *const[]) { __VA_ARGS__, NULL }

typedef struct right {
    const char *const *variables;
    const char *launcher;
    int32_t rank, size, local_rank, local_size;
    const char *host;
    int32_t port, ports; /* port 0: by the job's key */
} right_t;

Test(launch_env, the_first_launcher_counts)
{
    const right_t rights[] = {
        {VARIABLES("HOME=/root"), "none", 0, 1, -1, 0, "", 0, 0},
        {VARIABLES("EPX_RANK=2", "EPX_WORLD_SIZE=5", "EPX_ROOT=node7:5000"), "EPX_RANK", 2, 5, -1, 0, "node7",
         5000, 1},
        {VARIABLES("EPX_RANK=0", "EPX_WORLD_SIZE=2", "EPX_ROOT=[fe80::1]:5001"), "EPX_RANK", 0, 2, -1, 0,
         "fe80::1", 5001, 1},
        /* one rank needs no root */
        {VARIABLES("EPX_RANK=0", "EPX_WORLD_SIZE=1"), "EPX_RANK", 0, 1, -1, 0, "", 0, 0},
        /* torchrun's store has MASTER_PORT itself */
        {VARIABLES("RANK=7", "WORLD_SIZE=16", "LOCAL_RANK=3", "LOCAL_WORLD_SIZE=4", "MASTER_ADDR=10.0.0.9",
                   "MASTER_PORT=29500"),
         "torchrun", 7, 16, 3, 4, "10.0.0.9", 29501, EPX_LAUNCH_PORTS},
        /* EPX_ROOT says where, whoever says who */
        {VARIABLES("RANK=7", "WORLD_SIZE=16", "MASTER_ADDR=a", "MASTER_PORT=29500", "EPX_ROOT=b:9"),
         "torchrun", 7, 16, -1, 0, "b", 9, 1},
        /* epx's own go before those of a launcher that started the launcher */
        {VARIABLES("SLURM_NTASKS=8", "SLURM_PROCID=6", "SLURM_STEP_ID=0", "EPX_RANK=1", "EPX_WORLD_SIZE=2",
                   "EPX_ROOT=c:10"),
         "EPX_RANK", 1, 2, -1, 0, "c", 10, 1},
        {VARIABLES("SLURM_NTASKS=8", "SLURM_PROCID=6", "SLURM_LOCALID=2", "SLURM_STEP_ID=0",
                   "SLURM_JOB_ID=77", "SLURM_STEP_NODELIST=gpu[07-09,12],big1"),
         "Slurm", 6, 8, 2, 0, "gpu07", 0, EPX_LAUNCH_PORTS},
        /* in a batch script, which is no task */
        {VARIABLES("SLURM_NTASKS=8", "SLURM_JOB_ID=77"), "none", 0, 1, -1, 0, "", 0, 0},
        /* MPICH and Open MPI on one host */
        {VARIABLES("PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALNRANKS=2", "MPI_LOCALRANKID=1"), "MPICH", 1, 2, 1, 2,
         "127.0.0.1", 0, EPX_LAUNCH_PORTS},
        {VARIABLES("OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=3",
                   "OMPI_COMM_WORLD_LOCAL_SIZE=4"),
         "Open MPI", 3, 4, 3, 4, "127.0.0.1", 0, EPX_LAUNCH_PORTS},
    };
    for (size_t i = 0; i < sizeof(rights) / sizeof(rights[0]); i++) {
        const right_t *right = &rights[i];
        epx_launch_t launch;
        cr_assert_eq(read_all(right->variables, &launch), EPX_OK, "%zu: %s", i, epx_last_error());
        cr_expect_str_eq(launch.launcher, right->launcher, "%zu: launcher %s", i, launch.launcher);
        cr_expect(launch.rank == right->rank && launch.size == right->size, "%zu: rank %d of %d", i,
                  launch.rank, launch.size);
        cr_expect(launch.local_rank == right->local_rank && launch.local_size == right->local_size,
                  "%zu: local rank %d of %d", i, launch.local_rank, launch.local_size);
        cr_expect_str_eq(launch.root_host, right->host, "%zu: host %s", i, launch.root_host);
        cr_expect_eq(launch.root_ports, right->ports, "%zu: %d ports", i, launch.root_ports);
        if (right->port != 0)
            cr_expect_eq(launch.root_port, right->port, "%zu: port %d", i, launch.root_port);
        else if (right->ports > 0)
            cr_expect(launch.root_port >= 21000 && launch.root_port < 41000, "%zu: port %d", i,
                      launch.root_port);
    }
}

typedef struct wrong {
    const char *const *variables;
    epx_status_t status;
    const char *says[2];
} wrong_t;

Test(launch_env, wrong_variables_are_named)
{
    const wrong_t wrongs[] = {
        {VARIABLES("EPX_WORLD_SIZE=many", "EPX_RANK=0"), EPX_ERR_ARG, {"EPX_WORLD_SIZE=many", "mend"}},
        {VARIABLES("EPX_WORLD_SIZE=", "EPX_RANK=0"), EPX_ERR_ARG, {"EPX_WORLD_SIZE=", "number"}},
        {VARIABLES("EPX_WORLD_SIZE=0", "EPX_RANK=0"), EPX_ERR_ARG, {"EPX_WORLD_SIZE=0", ">= 1"}},
        {VARIABLES("EPX_WORLD_SIZE=2147483647", "EPX_RANK=0"),
         EPX_ERR_ARG,
         {"EPX_WORLD_SIZE=2147483647", "<= 1048576"}},
        {VARIABLES("EPX_WORLD_SIZE=99999999999", "EPX_RANK=0"), EPX_ERR_ARG, {"99999999999", "number"}},
        {VARIABLES("EPX_WORLD_SIZE=4"), EPX_ERR_ARG, {"EPX_RANK is not set", "0 to 3"}},
        {VARIABLES("EPX_WORLD_SIZE=4", "EPX_RANK=4"), EPX_ERR_ARG, {"EPX_RANK is 4", "0 to 3"}},
        {VARIABLES("EPX_WORLD_SIZE=4", "EPX_RANK=-1"), EPX_ERR_ARG, {"EPX_RANK is -1", "0 to 3"}},
        {VARIABLES("EPX_WORLD_SIZE=4", "EPX_RANK=1x"), EPX_ERR_ARG, {"EPX_RANK is 1x", "0 to 3"}},
        {VARIABLES("EPX_WORLD_SIZE=4", "EPX_RANK=1"), EPX_ERR_ARG, {"EPX_ROOT is not set", "host:port"}},
        {VARIABLES("EPX_RANK=1"), EPX_ERR_ARG, {"EPX_WORLD_SIZE is not", "both"}},
        {VARIABLES("EPX_WORLD_SIZE=4", "EPX_RANK=1", "EPX_ROOT=::1:5000"),
         EPX_ERR_ARG,
         {"::1:5000", "brackets"}},
        {VARIABLES("EPX_WORLD_SIZE=4", "EPX_RANK=1", "EPX_ROOT=host"),
         EPX_ERR_ARG,
         {"EPX_ROOT=host", "host:port"}},
        {VARIABLES("EPX_WORLD_SIZE=4", "EPX_RANK=1", "EPX_ROOT=host:70000"),
         EPX_ERR_ARG,
         {"70000", "host:port"}},
        {VARIABLES("WORLD_SIZE=2", "RANK=0", "MASTER_PORT=29500"),
         EPX_ERR_ARG,
         {"MASTER_ADDR is not set", "torchrun"}},
        {VARIABLES("WORLD_SIZE=2", "RANK=0", "MASTER_ADDR=a", "MASTER_PORT=x"),
         EPX_ERR_ARG,
         {"MASTER_PORT=x", "port"}},
        {VARIABLES("SLURM_NTASKS=2", "SLURM_PROCID=0", "SLURM_STEP_ID=0"),
         EPX_ERR_ARG,
         {"SLURM_STEP_NODELIST", "EPX_ROOT"}},
        {VARIABLES("PMI_RANK=1", "PMI_SIZE=4", "MPI_LOCALNRANKS=2"),
         EPX_ERR_UNSUPPORTED,
         {"several hosts", "EPX_ROOT"}},
    };
    for (size_t i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); i++) {
        epx_launch_t launch;
        cr_expect_eq(read_all(wrongs[i].variables, &launch), wrongs[i].status, "%zu", i);
        for (int w = 0; w < 2; w++)
            cr_expect(strstr(epx_last_error(), wrongs[i].says[w]) != NULL, "%zu: '%s' does not say '%s'", i,
                      epx_last_error(), wrongs[i].says[w]);
        cr_expect_eq(launch.size, -1, "%zu: written in spite of the error", i);
    }
}

/* Two jobs on the same hosts get different keys, the ranks of one job the same. */
Test(launch_env, keys_tell_jobs_apart)
{
    epx_launch_t a, b, c;
    read_all(VARIABLES("EPX_RANK=0", "EPX_WORLD_SIZE=2", "EPX_ROOT=a:1"), &a);
    read_all(VARIABLES("EPX_RANK=1", "EPX_WORLD_SIZE=2", "EPX_ROOT=a:1"), &b);
    read_all(VARIABLES("EPX_RANK=1", "EPX_WORLD_SIZE=2", "EPX_ROOT=a:2"), &c);
    cr_assert_eq(a.key, b.key);
    cr_assert_neq(a.key, c.key);
    read_all(VARIABLES("SLURM_NTASKS=2", "SLURM_PROCID=0", "SLURM_JOB_ID=7", "SLURM_STEP_ID=0",
                       "SLURM_STEP_NODELIST=a"),
             &a);
    read_all(VARIABLES("SLURM_NTASKS=2", "SLURM_PROCID=1", "SLURM_JOB_ID=7", "SLURM_STEP_ID=1",
                       "SLURM_STEP_NODELIST=a"),
             &b);
    cr_assert_neq(a.key, b.key, "two steps of a job are two jobs here");
}

Test(launch_env, addresses_and_lists_of_hosts)
{
    static const struct {
        const char *text, *host;
        int32_t port;
    } addresses[] = {{"a:1", "a", 1},         {"10.0.0.1:65535", "10.0.0.1", 65535},
                     {"[::1]:80", "::1", 80}, {"a", NULL, 0},
                     {":1", NULL, 0},         {"a:", NULL, 0},
                     {"a:0", NULL, 0},        {"a:65536", NULL, 0},
                     {"[::1]80", NULL, 0},    {"[]:80", NULL, 0},
                     {"[::1:80", NULL, 0},    {"a:1 ", NULL, 0}};
    static const char *const lists[][2] = {{"a07", "a07"},     {"a[07-09,12],b", "a07"},
                                           {"a,b", "a"},       {"r[1-2]n[3-9]-b,c", "r1n3-b"},
                                           {"x[1,2]y", "x1y"}, {"", NULL}};
    char host[EPX_LAUNCH_TEXT_BYTES];
    for (size_t i = 0; i < sizeof(addresses) / sizeof(addresses[0]); i++) {
        int32_t port = 0;
        int ok = epx_launch_split_address(addresses[i].text, host, sizeof(host), &port);
        cr_expect_eq(ok, addresses[i].host != NULL, "'%s'", addresses[i].text);
        if (ok && addresses[i].host != NULL)
            cr_expect(strcmp(host, addresses[i].host) == 0 && port == addresses[i].port, "'%s': '%s' %d",
                      addresses[i].text, host, port);
    }
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        int ok = epx_launch_first_host(lists[i][0], host, sizeof(host));
        cr_expect_eq(ok, lists[i][1] != NULL, "'%s'", lists[i][0]);
        if (ok && lists[i][1] != NULL)
            cr_expect_str_eq(host, lists[i][1], "'%s': '%s'", lists[i][0], host);
    }
}
