/* The command line of programs that train. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TRAIN_OPTIONS_H
#define EPX_TRAIN_OPTIONS_H

#include <stdio.h>

#include "config.h"

/* Reads argv[1..argc) into *config, which holds the preset "tiny" before: first --preset, wherever it stands,
 * then the others in order; --ranks must agree with --ep and --replicas. EPX_TRAIN_USAGE and a sentence for
 * what cannot be understood. Strings point into argv. */
int epx_options_parse(int argc, char **argv, epx_train_config_t *config);

/* The list of options, one a line. */
void epx_options_help(FILE *stream);

#endif
