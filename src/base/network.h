/*
 * The network device that this process's ranks are nearest to, from who reads the topology to who opens the
 * network. SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_BASE_NETWORK_H
#define EPX_BASE_NETWORK_H

enum { EPX_NETWORK_NAME = 64 };

/* A rank prefers an RDMA device ("mlx5_0") and its network interface (may be ""). Ranks of one process that
 * prefer different ones have no preference together. Any thread. */
void epx_network_prefer(const char *device, const char *interface);

/* Copies both names, [EPX_NETWORK_NAME] each; 0: there is no preference. */
int epx_network_preferred(char *device, char *interface);

#endif
