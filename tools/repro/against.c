#include "tools/repro/repro.h"
int repro_against(const char *folder, const settings_t *settings)
{
    (void)folder;
    (void)settings;
    return 3;
}
int repro_replay(const char *folder, const settings_t *settings)
{
    (void)folder;
    (void)settings;
    return 3;
}
