/* The version of the library. SPDX-License-Identifier: Apache-2.0 */
#include <epx/epx.h>

#define EPX_TEXT_OF(number) #number
#define EPX_VERSION_TEXT(a, b, c) EPX_TEXT_OF(a) "." EPX_TEXT_OF(b) "." EPX_TEXT_OF(c)

const char *epx_version(void)
{
    return EPX_VERSION_TEXT(EPX_VERSION_MAJOR, EPX_VERSION_MINOR, EPX_VERSION_PATCH);
}
