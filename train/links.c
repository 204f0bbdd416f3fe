/* SPDX-License-Identifier: Apache-2.0 */
#include "links.h"

#include <stdio.h>
#include <string.h>

#include "fail.h"
#include "status.h"

enum { INTERVAL_MS = 200 };

/* The rank's piece of "mlx5_0/,mlx5_1/": they go round where there are more ranks. 0: it is too long. */
static int find_piece(const char *links, int64_t rank, char *piece, size_t bytes)
{
    int64_t pieces = 1;
    for (const char *c = links; *c != '\0'; c++)
        pieces += *c == ',';
    const char *at = links;
    for (int64_t skip = rank % pieces; skip > 0; skip--)
        at = strchr(at, ',') + 1;
    size_t length = strcspn(at, ",");
    return length < bytes && snprintf(piece, bytes, "%.*s", (int)length, at) >= 0;
}

int epx_train_links_begin(const epx_train_config_t *config, epx_comm_h comm, int64_t rank,
                          epx_health_follow_h *follow_p)
{
    char piece[64];
    epx_health_follow_config_t follow = EPX_HEALTH_FOLLOW_CONFIG_INIT;
    if (config->sysfs != NULL && config->links == NULL)
        return epx_train_fail(EPX_TRAIN_USAGE, "--sysfs is where --links are looked for: give both");
    follow.recorder = config->links != NULL ? epx_comm_recorder(comm) : NULL;
    if (follow.recorder == NULL)
        return EPX_TRAIN_OK;
    if (!find_piece(config->links, rank, piece, sizeof piece))
        return epx_train_fail(EPX_TRAIN_USAGE, "--links %s: a name has more than %zu letters", config->links,
                              sizeof piece - 1);
    follow.links = piece;
    follow.health.sysfs = config->sysfs;
    follow.interval_ms = INTERVAL_MS;
    return epx_train_status(epx_health_follow(&follow, follow_p));
}
