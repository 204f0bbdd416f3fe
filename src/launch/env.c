/* Launchers and their variables. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "launch/internal.h"

/* One launcher: it counts where `size` is set (and `also`, which may be NULL). The first row wins. */
typedef struct launcher {
    const char *name;
    const char *size, *rank;
    const char *local_rank, *local_size;
    const char *also;
    int32_t speaks_pmix; /* it tells where rank 0 is, if PMIx's variables are there too */
    const char *key[3];  /* what tells this job from others on the same hosts */
    epx_status_t (*root)(epx_launch_variable_fn variable, epx_launch_t *launch);
} launcher_t;

static epx_status_t root_plain(epx_launch_variable_fn, epx_launch_t *);
static epx_status_t root_torchrun(epx_launch_variable_fn, epx_launch_t *);
static epx_status_t root_slurm(epx_launch_variable_fn, epx_launch_t *);
static epx_status_t root_one_host(epx_launch_variable_fn, epx_launch_t *);

static const launcher_t launchers[] = {
    {.name = "EPX_RANK",
     .size = "EPX_WORLD_SIZE",
     .rank = "EPX_RANK",
     .key = {"EPX_ROOT"},
     .root = root_plain},
    {.name = "torchrun",
     .size = "WORLD_SIZE",
     .rank = "RANK",
     .local_rank = "LOCAL_RANK",
     .local_size = "LOCAL_WORLD_SIZE",
     .also = "MASTER_PORT",
     .key = {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"},
     .root = root_torchrun},
    {.name = "Open MPI",
     .size = "OMPI_COMM_WORLD_SIZE",
     .rank = "OMPI_COMM_WORLD_RANK",
     .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
     .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
     .speaks_pmix = 1,
     .key = {"OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"},
     .root = root_one_host},
    {.name = "MPICH",
     .size = "PMI_SIZE",
     .rank = "PMI_RANK",
     .local_rank = "MPI_LOCALRANKID",
     .local_size = "MPI_LOCALNRANKS",
     .also = "MPI_LOCALNRANKS",
     .key = {"PMI_PORT", "PMI_ID"},
     .root = root_one_host},
    /* A batch script and salloc's shell have the number of tasks, but are none: only srun's children have a
     * rank. */
    {.name = "Slurm",
     .size = "SLURM_NTASKS",
     .rank = "SLURM_PROCID",
     .local_rank = "SLURM_LOCALID",
     .also = "SLURM_STEP_ID",
     .speaks_pmix = 1,
     .key = {"SLURM_JOB_ID", "SLURM_STEP_ID"},
     .root = root_slurm},
};

enum { LAUNCHERS = sizeof(launchers) / sizeof(launchers[0]) };

static int32_t port_of_key(uint64_t key) { return 21000 + (int32_t)(key % 2500) * 8; }

static epx_status_t take_root(const char *variable, const char *text, epx_launch_t *launch)
{
    snprintf(launch->root_from, sizeof(launch->root_from), "%s", variable);
    launch->root_ports = 1;
    if (epx_launch_split_address(text, launch->root_host, sizeof(launch->root_host), &launch->root_port))
        return EPX_OK;
    return epx_fail(EPX_ERR_ARG, "%s=%s is not host:port (an IPv6 address in brackets: [::1]:5000)", variable,
                    text);
}

static epx_status_t root_plain(epx_launch_variable_fn variable, epx_launch_t *launch)
{
    const char *root = variable("EPX_ROOT");
    if (root == NULL)
        return epx_fail(
            EPX_ERR_ARG,
            "EPX_WORLD_SIZE is %d and EPX_ROOT is not set: set it to host:port of rank 0, the same "
            "for all ranks",
            launch->size);
    return take_root("EPX_ROOT", root, launch);
}

/* torchrun's own store listens on MASTER_PORT, so the ports behind it are used. */
static epx_status_t root_torchrun(epx_launch_variable_fn variable, epx_launch_t *launch)
{
    const char *host = variable("MASTER_ADDR"), *port = variable("MASTER_PORT");
    int64_t number;
    if (host == NULL || host[0] == '\0' || strlen(host) >= sizeof(launch->root_host))
        return epx_fail(EPX_ERR_ARG,
                        "WORLD_SIZE is %d and MASTER_ADDR is not set: start with torchrun, or set "
                        "it to the host of rank 0",
                        launch->size);
    if (!epx_launch_number(port, 1, 65535 - EPX_LAUNCH_PORTS, &number))
        return epx_fail(EPX_ERR_ARG, "MASTER_PORT=%s is no port from 1 to %d", port,
                        65535 - EPX_LAUNCH_PORTS);
    snprintf(launch->root_host, sizeof(launch->root_host), "%s", host);
    snprintf(launch->root_from, sizeof(launch->root_from), "MASTER_ADDR and MASTER_PORT");
    launch->root_port = (int32_t)number + 1;
    launch->root_ports = EPX_LAUNCH_PORTS;
    return EPX_OK;
}

/* The first host of Slurm's short form: "a[07-09,12]b,c" is a07b. */
int epx_launch_first_host(const char *list, char *host, size_t bytes)
{
    size_t used = 0;
    int in_brackets = 0, is_first = 1;
    for (const char *c = list; *c != '\0' && used + 1 < bytes; c++) {
        if (*c == '[' || *c == ']') {
            in_brackets = *c == '[';
            is_first = 1;
        } else if (*c == ',' && !in_brackets) {
            break;
        } else if (in_brackets && (*c == ',' || *c == '-')) {
            is_first = 0;
        } else if (is_first) {
            host[used++] = *c;
        }
    }
    host[used] = '\0';
    return used > 0;
}

static epx_status_t root_slurm(epx_launch_variable_fn variable, epx_launch_t *launch)
{
    const char *from = "SLURM_STEP_NODELIST", *list = variable(from);
    if (list == NULL)
        list = variable(from = "SLURM_JOB_NODELIST");
    if (list == NULL || !epx_launch_first_host(list, launch->root_host, sizeof(launch->root_host)))
        return epx_fail(EPX_ERR_ARG,
                        "SLURM_NTASKS is %d and SLURM_STEP_NODELIST does not say where: set "
                        "EPX_ROOT to host:port of rank 0",
                        launch->size);
    snprintf(launch->root_from, sizeof(launch->root_from), "%s", from);
    launch->root_port = port_of_key(launch->key);
    launch->root_ports = EPX_LAUNCH_PORTS;
    return EPX_OK;
}

/* Without PMIx these launchers do not tell where rank 0 is; on one host it is here. */
static epx_status_t root_one_host(epx_launch_variable_fn variable, epx_launch_t *launch)
{
    (void)variable;
    if (launch->local_size != launch->size)
        return epx_fail(
            EPX_ERR_UNSUPPORTED,
            "%s started %d processes on several hosts, and without PMIx (%s) it does not say where "
            "rank 0 is: set EPX_ROOT to host:port of rank 0",
            launch->launcher, launch->size, epx_pmix_reason());
    snprintf(launch->root_host, sizeof(launch->root_host), "127.0.0.1");
    snprintf(launch->root_from, sizeof(launch->root_from), "EPX_ROOT");
    launch->root_port = port_of_key(launch->key);
    launch->root_ports = EPX_LAUNCH_PORTS;
    return EPX_OK;
}

/* More than any job has; memory for the table of its processes is taken before the first one has come. */
#define MOST_PROCESSES (1 << 20)

static epx_status_t read_row(const launcher_t *row, epx_launch_variable_fn variable, epx_launch_t *launch)
{
    int64_t size, rank, local;
    const char *text = variable(row->size);
    launch->launcher = row->name;
    if (!epx_launch_number(text, 1, MOST_PROCESSES, &size))
        return epx_fail(EPX_ERR_ARG, "%s=%s is not a number of processes >= 1 and <= %d; mend or unset it",
                        row->size, text, MOST_PROCESSES);
    launch->size = (int32_t)size;
    text = variable(row->rank);
    if (!epx_launch_number(text, 0, size - 1, &rank))
        return epx_fail(EPX_ERR_ARG, "%s is %s, and must be 0 to %d, because %s is %d", row->rank,
                        text != NULL ? text : "not set", launch->size - 1, row->size, launch->size);
    launch->rank = (int32_t)rank;
    if (row->local_rank != NULL && epx_launch_number(variable(row->local_rank), 0, size - 1, &local))
        launch->local_rank = (int32_t)local;
    if (row->local_size != NULL && epx_launch_number(variable(row->local_size), 1, size, &local))
        launch->local_size = (int32_t)local;
    launch->key = epx_launch_hash(0xcbf29ce484222325u, row->name);
    for (size_t i = 0; i < sizeof(row->key) / sizeof(row->key[0]) && row->key[i] != NULL; i++)
        launch->key = epx_launch_hash(launch->key, variable(row->key[i]));
    return EPX_OK;
}

epx_status_t epx_launch_from_env(epx_launch_variable_fn variable, epx_launch_t *launch_p)
{
    epx_launch_t launch = {.launcher = "none", .size = 1, .local_rank = -1};
    for (int32_t i = 0; i < LAUNCHERS; i++) {
        const launcher_t *row = &launchers[i];
        if (variable(row->size) == NULL || (row->also != NULL && variable(row->also) == NULL))
            continue;
        epx_status_t status = read_row(row, variable, &launch);
        const char *root = variable("EPX_ROOT");
        launch.uses_pmix = root == NULL && row->speaks_pmix && epx_pmix_is_there(variable);
        if (status == EPX_OK && launch.size > 1 && !launch.uses_pmix)
            status = root != NULL ? take_root("EPX_ROOT", root, &launch) : row->root(variable, &launch);
        if (status == EPX_OK)
            *launch_p = launch;
        return status;
    }
    if (epx_pmix_is_there(variable)) {
        launch.uses_pmix = 1;
        launch.launcher = "PMIx";
        epx_status_t status = epx_pmix_who(&launch);
        if (status == EPX_OK)
            *launch_p = launch;
        return status;
    }
    if (variable("EPX_RANK") != NULL)
        return epx_fail(EPX_ERR_ARG, "EPX_RANK is set and EPX_WORLD_SIZE is not: set both, or neither");
    *launch_p = launch;
    return EPX_OK;
}
