/*
 * The environment wins over what a program passes. A program whose own options say otherwise must not go on
 * in silence. SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_BENCH_ENVIRONMENT_H
#define EPX_BENCH_ENVIRONMENT_H

#include <epx/epx.h>

/* An option given on the command line that stands for a variable. */
typedef struct epx_given {
    const char *variable; /* "EPX_TRANSPORT" */
    const char *option;   /* "--transport" */
    const char *value;    /* as the user wrote it; NULL: the option was not given */
} epx_given_t;

/* EPX_GO_ON, or EPX_EXIT_USAGE after a message when the environment sets one of `given` [count] to something
 * else. */
int epx_check_environment(const epx_group_config_t *config, const epx_given_t *given, size_t count);

#endif
