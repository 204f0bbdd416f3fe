/* Texts of launchers. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "launch/internal.h"

int epx_launch_number(const char *text, int64_t least, int64_t most, int64_t *value_p)
{
    char *end;
    if (text == NULL || text[0] < '0' || text[0] > '9')
        return 0;
    long long value = strtoll(text, &end, 10);
    if (*end != '\0' || value < least || value > most)
        return 0;
    *value_p = value;
    return 1;
}

uint64_t epx_launch_hash(uint64_t hash, const char *text)
{
    for (; text != NULL && *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return (hash ^ 0xff) * 0x100000001b3u;
}
