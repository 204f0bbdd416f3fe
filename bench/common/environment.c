/* Options against the environment. SPDX-License-Identifier: Apache-2.0 */
#include "bench/common/environment.h"

#include <string.h>

#include <epx/info.h>

#include "tools/common/program.h"

typedef struct search {
    const epx_given_t *given;
    size_t count;
    int code;
} search_t;

static void look(void *context, const epx_setting_t *setting)
{
    search_t *search = context;
    if (setting->set_by == NULL)
        return;
    for (size_t i = 0; i < search->count; i++) {
        const epx_given_t *given = &search->given[i];
        if (given->value == NULL || strcmp(given->variable, setting->variable) != 0 ||
            strcmp(given->value, setting->value) == 0)
            continue;
        search->code =
            epx_tool_fail(EPX_EXIT_USAGE, "%s %s: %s=%s is set and wins: unset it, or leave %s out",
                          given->option, given->value, setting->set_by, setting->value, given->option);
    }
}

int epx_check_environment(const epx_group_config_t *config, const epx_given_t *given, size_t count)
{
    search_t search = {given, count, EPX_GO_ON};
    epx_config_list(config, look, &search); /* what is wrong with the settings themselves, opening says */
    return search.code;
}
