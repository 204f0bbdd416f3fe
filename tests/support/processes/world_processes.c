/* world_run with processes. SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/processes/processes.h"
#include "support/world_inside.h"

/* A port that is free now. */
static int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof(address)) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &bytes) != 0)
        abort();
    close(listener);
    return ntohs(address.sin_port);
}

enum { PORTS = 1000 };

/* -1: all ranks are here. */
static int host(void)
{
    const char *value = getenv("TEST_HOST");
    return value != NULL ? atoi(value) : -1;
}

int world_plays(int rank) { return host() < 0 || (rank % 3 == 0 ? 0 : 1) == host(); }

typedef struct stage {
    world_t *world;
    rank_t *rank;
    rank_fn fn;
    char root[64], size[16];
    int ranks;
} stage_t;

static void play(void *context, int r)
{
    stage_t *stage = context;
    rank_t *self = &stage->rank[r];
    char number[16];
    snprintf(number, sizeof(number), "%d", r);
    processes_variable("EPX_RANK", number);
    processes_variable("EPX_WORLD_SIZE", stage->size);
    processes_variable("EPX_ROOT", stage->root);
    self->at = "epx_comm_world";
    if (!expect(self, epx_comm_world(&self->comm) == EPX_OK, "epx_comm_world: %s", epx_last_error()))
        return;
    self->at = "start";
    stage->fn(self);
    self->at = "ended";
    epx_comm_destroy(&self->comm);
}

static void ended(void *context, int r, int status)
{
    stage_t *stage = context;
    if (status == 0)
        return;
    fprintf(stderr, "rank %d's process ended with %#x in %s %d\n", r, (unsigned)status, stage->rank[r].at,
            stage->rank[r].number);
    expect(&stage->rank[r], 0, "its process ended with %s %d in %s %d",
           WIFSIGNALED(status) ? "signal" : "status",
           WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), stage->rank[r].at,
           stage->rank[r].number);
}

static void hang(void *context)
{
    stage_t *stage = context;
    world_report_hang(stage->rank, stage->ranks);
}

void world_play_processes(world_t *world, rank_t *rank, int ranks, rank_fn fn, int64_t limit_ms)
{
    stage_t stage = {.world = world, .rank = rank, .fn = fn, .ranks = ranks};
    const char *root = getenv("TEST_ROOT"), *colon = root != NULL ? strrchr(root, ':') : NULL;
    if (host() < 0 || colon == NULL) {
        snprintf(stage.root, sizeof(stage.root), "127.0.0.1:%d", free_port());
    } else { /* one port for each run, or who is through with one would meet it again */
        static int runs;
        snprintf(stage.root, sizeof(stage.root), "%.*s:%d", (int)(colon - root), root,
                 atoi(colon + 1) + runs++ % PORTS);
    }
    snprintf(stage.size, sizeof(stage.size), "%d", ranks);
    processes_call_t call = {.ranks = ranks,
                             .limit_ms = limit_ms,
                             .context = &stage,
                             .is_here = world_plays,
                             .play = play,
                             .ended = ended,
                             .hang = hang};
    processes_run(&call);
}

void *world_shared(size_t bytes) { return processes_shared(bytes); }
