/*
 * NCCL's C functions, as a loaded library gives them. SPDX-License-Identifier: Apache-2.0
 *
 * They are plain C with a stable ABI since NCCL 2.28 (windows) or before, so their few types are declared
 * here, and this part is compiled everywhere. What is not stable, NCCL's device structs, is seen by the
 * set-up kernel alone (setup.h).
 */
#ifndef EPX_FABRIC_NCCL_API_H
#define EPX_FABRIC_NCCL_API_H

#include <stddef.h>

typedef struct nccl_comm *nccl_comm_t;
typedef struct nccl_window *nccl_window_t;
typedef struct nccl_id {
    char bytes[128];
} nccl_id_t;
typedef struct nccl_team {
    int ranks, rank, stride;
} nccl_team_t;
typedef int nccl_result_t; /* 0: success */

enum { NCCL_SYMMETRIC = 1, NCCL_INT8 = 0, NCCL_IN_PROGRESS = 7 };

typedef struct nccl_api {
    nccl_result_t (*get_version)(int *version);
    nccl_result_t (*get_unique_id)(nccl_id_t *id);
    nccl_result_t (*comm_init_rank)(nccl_comm_t *comm, int ranks, nccl_id_t id, int rank);
    nccl_result_t (*comm_abort)(nccl_comm_t comm);
    nccl_result_t (*comm_destroy)(nccl_comm_t comm);
    nccl_result_t (*get_async_error)(nccl_comm_t comm, nccl_result_t *state);
    const char *(*get_error_string)(nccl_result_t result);
    const char *(*get_last_error)(nccl_comm_t comm);
    nccl_result_t (*mem_alloc)(void **memory, size_t bytes);
    nccl_result_t (*mem_free)(void *memory);
    nccl_result_t (*window_register)(nccl_comm_t comm, void *memory, size_t bytes, nccl_window_t *window,
                                     int flags);
    nccl_result_t (*window_deregister)(nccl_comm_t comm, nccl_window_t window);
    nccl_team_t (*team_lsa)(nccl_comm_t comm); /* the ranks that loads and stores reach */
    nccl_result_t (*group_start)(void);
    nccl_result_t (*group_end)(void);
    nccl_result_t (*send)(const void *from, size_t count, int type, int peer, nccl_comm_t comm, void *stream);
    nccl_result_t (*receive)(void *to, size_t count, int type, int peer, nccl_comm_t comm, void *stream);
    /* For the set-up kernel. */
    void *dev_comm_create, *dev_comm_destroy;
    /* Since 2.29: a peer's address on the host; NULL before. */
    nccl_result_t (*get_peer_device_pointer)(nccl_window_t window, size_t offset, int peer, void **pointer);
    int version; /* as NCCL counts: 22803 is 2.28.3 */
    char path[512];
} nccl_api_t;

#endif
