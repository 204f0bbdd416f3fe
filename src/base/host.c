/* Which host this is. SPDX-License-Identifier: Apache-2.0 */
#include "base/host.h"

#include <stdio.h>
#include <sys/stat.h>

static uint64_t add(uint64_t hash, const char *text)
{
    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return (hash ^ 0xff) * 0x100000001b3u;
}

uint64_t epx_host_identity(void)
{
    static const char *const spaces[] = {"/proc/self/ns/ipc", "/proc/self/ns/pid", "/proc/self/ns/net"};
    char text[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file != NULL && fgets(text, sizeof(text), file) == NULL)
        text[0] = '\0';
    if (file != NULL)
        fclose(file);
    uint64_t hash = add(0xcbf29ce484222325u, text);
    for (int i = 0; i < (int)(sizeof(spaces) / sizeof(spaces[0])); i++) {
        struct stat space;
        text[0] = '\0';
        if (stat(spaces[i], &space) == 0)
            snprintf(text, sizeof(text), "%llu", (unsigned long long)space.st_ino);
        hash = add(hash, text);
    }
    return hash;
}
