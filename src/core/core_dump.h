/* The driver's core dump of a GPU (EPX_CORE_DUMP). SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_CORE_CORE_DUMP_H
#define EPX_CORE_CORE_DUMP_H

#include <stddef.h>

/* The pipe by which this process's driver is asked, and the file that it will write; "" where no dump is
 * asked for, and file "" where its name cannot be known beforehand. */
void epx_core_dump_paths(char *pipe, size_t pipe_bytes, char *file, size_t file_bytes);

#endif
