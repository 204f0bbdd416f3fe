/* Dense bf16 rates of GPUs. SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/peaks.h"

#include <stddef.h>
#include <string.h>

static const epx_peak_t peaks[] = {
    {"GB200", 2.5e15},
    {"H200", 989e12},
    {"H100", 989e12},
};

enum { PEAKS = sizeof peaks / sizeof *peaks };

const epx_peak_t *epx_peak_at(int32_t index) { return index >= 0 && index < PEAKS ? &peaks[index] : NULL; }

const epx_peak_t *epx_peak_of(const char *device)
{
    for (int32_t i = 0; i < PEAKS; i++)
        if (strstr(device, peaks[i].name) != NULL)
            return &peaks[i];
    return NULL;
}
