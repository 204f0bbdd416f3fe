/* Structs that a caller fills. SPDX-License-Identifier: Apache-2.0 */
#include "base/structs.h"

int epx_struct_fits(const void *given, size_t size, size_t known)
{
    if (given == NULL || size < known)
        return 0;
    for (size_t i = known; i < size; i++)
        if (((const unsigned char *)given)[i] != 0)
            return 0;
    return 1;
}
