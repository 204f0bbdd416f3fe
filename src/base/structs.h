/* Structs that a caller fills and that may be newer than the library. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_BASE_STRUCTS_H
#define EPX_BASE_STRUCTS_H

#include <stddef.h>

/* Whether a caller's struct of `size` bytes can be read as ours of `known` bytes: as large, or larger with a
 * zero tail. given NULL: no. */
int epx_struct_fits(const void *given, size_t size, size_t known);

#endif
