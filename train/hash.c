/* SPDX-License-Identifier: Apache-2.0 */
#include "hash.h"

#include <string.h>

static uint64_t step(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9fb21c651e98df25u;
    return hash ^ (hash >> 32);
}

uint64_t epx_hash(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        hash = step(hash, word);
    }
    if (bytes > 0) {
        uint64_t word = 0;
        memcpy(&word, at, bytes);
        hash = step(hash, word ^ ((uint64_t)bytes << 56));
    }
    return hash;
}
