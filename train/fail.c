/* SPDX-License-Identifier: Apache-2.0 */
#include "fail.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char text[1024];
static _Thread_local int followed;

int epx_train_fail(int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    followed = 0;
    return code;
}

int epx_train_follow(int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    followed = 1;
    return code;
}

int epx_train_followed(void) { return followed; }

const char *epx_train_error(void) { return text; }
