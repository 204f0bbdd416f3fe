/*
 * The NCCL that this process has loaded. SPDX-License-Identifier: Apache-2.0
 *
 * libepx is not linked against libnccl. It must load where there is none; and a process that holds PyTorch
 * has a libnccl already, of PyTorch's own version, which is the one to use: two in one process fight for the
 * same GPU resources, and windows of one mean nothing to the other. So the library is looked for when a group
 * first asks: the one that is loaded, else the first that the loader finds.
 */
#ifndef EPX_FABRIC_NCCL_LIBRARY_H
#define EPX_FABRIC_NCCL_LIBRARY_H

#include <epx/info.h>
#include <epx/status.h>

#include <stddef.h>

struct nccl_api; /* api.h */

/*
 * The library of this process, looked up once; EPX_ERR_UNSUPPORTED with the reason in *why_p (static text)
 * where there is none, it is too old, or it has no set-up kernel here and gives no pointers itself (both
 * versions and its path).
 */
epx_status_t epx_nccl_api(const struct nccl_api **api_p, const char **why_p);

/* What epx_nccl_describe tells. */
void epx_nccl_tell(epx_nccl_info_t *info);

/* What is known to be bad about a version on a processor, as the end of a sentence; NULL: nothing. */
const char *epx_nccl_known_bad(int version, int is_aarch64);

/* "2.28.3" */
void epx_nccl_version_text(int version, char *text, size_t bytes);

/* For tests: another library from now on; NULL: as ever. Before any group opens. */
void epx_nccl_stand_in(const char *path);

#endif
