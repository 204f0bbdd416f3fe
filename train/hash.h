/* A 64-bit checksum for files and digests. It finds accidents, not attacks. SPDX-License-Identifier:
 * Apache-2.0 */
#ifndef EPX_TRAIN_HASH_H
#define EPX_TRAIN_HASH_H

#include <stddef.h>
#include <stdint.h>

#define EPX_HASH_INIT 0xcbf29ce484222325u

/* Continues `hash` (start: EPX_HASH_INIT) over `bytes` bytes at `data`. Eight bytes at a time, so that one
 * call over all of the data and several calls over pieces agree only if the pieces are cut at multiples of
 * eight. */
uint64_t epx_hash(uint64_t hash, const void *data, size_t bytes);

#endif
