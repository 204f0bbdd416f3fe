/* SPDX-License-Identifier: Apache-2.0 */
#include "base/network.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static struct {
    pthread_mutex_t lock;
    int is_set, differs;
    char device[EPX_NETWORK_NAME], interface[EPX_NETWORK_NAME];
} preferred = {.lock = PTHREAD_MUTEX_INITIALIZER};

void epx_network_prefer(const char *device, const char *interface)
{
    pthread_mutex_lock(&preferred.lock);
    if (preferred.is_set && strcmp(preferred.device, device) != 0)
        preferred.differs = 1;
    preferred.is_set = 1;
    snprintf(preferred.device, sizeof(preferred.device), "%s", device);
    snprintf(preferred.interface, sizeof(preferred.interface), "%s", interface);
    pthread_mutex_unlock(&preferred.lock);
}

int epx_network_preferred(char *device, char *interface)
{
    pthread_mutex_lock(&preferred.lock);
    int is_known = preferred.is_set && !preferred.differs;
    snprintf(device, EPX_NETWORK_NAME, "%s", is_known ? preferred.device : "");
    snprintf(interface, EPX_NETWORK_NAME, "%s", is_known ? preferred.interface : "");
    pthread_mutex_unlock(&preferred.lock);
    return is_known;
}
