/* epx-ab: which transport, and how sure. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench/ab/external.h"
#include "bench/ab/guards.h"
#include "bench/ab/machine.h"
#include "bench/ab/report.h"
#include "bench/ab/session.h"
#include "bench/ab/verdict.h"
#include "bench/ab/verdict_text.h"
#include "tools/common/program.h"

static void begin_scope(const epx_ab_settings_t *s, epx_ab_scope_t *scope)
{
    const epx_model_config_t *model = &s->train.model;
    time_t now = time(NULL);
    struct tm local;
    *scope = (epx_ab_scope_t){.preset = s->preset,
                              .ranks = (int32_t)s->ranks,
                              .ep = (int32_t)s->ep,
                              .replicas = (int32_t)s->replicas,
                              .processes = s->processes,
                              .virtual_ep = (int32_t)s->virtual_ep,
                              .target_ranks = (int32_t)s->target_ranks,
                              .layers = model->layers,
                              .experts = model->experts,
                              .top_k = model->top_k,
                              .sequence = model->sequence,
                              .tokens_per_rank = s->train.batch * model->sequence,
                              .seed = (uint64_t)s->seed,
                              .pairs = (int32_t)s->pairs,
                              .steps = (int32_t)s->steps,
                              .discard = (int32_t)s->discard,
                              .margin = s->margin};
    snprintf(scope->data, sizeof scope->data, "%s",
             s->train.data != NULL ? s->train.data : "the text that ships with epx");
    if (localtime_r(&now, &local) != NULL)
        strftime(scope->started, sizeof scope->started, "%Y-%m-%d %H:%M:%S %z", &local);
    epx_ab_describe_machine(&scope->machine);
}

static int judge_and_report(const epx_ab_settings_t *s, epx_ab_result_t *result)
{
    epx_ab_check_guards(result);
    epx_ab_give_verdicts(result);
    int code = epx_ab_exit_code(result), rc = EPX_EXIT_OK;
    if (s->json == NULL || strcmp(s->json, "-") != 0)
        epx_ab_print(result, stdout, isatty(STDOUT_FILENO));
    if (s->json != NULL)
        rc = epx_ab_write_json(result, s->json);
    if (s->html != NULL && rc == EPX_EXIT_OK)
        rc = epx_ab_write_html(result, s->html);
    return rc != EPX_EXIT_OK ? rc : code;
}

int main(int argc, char **argv)
{
    static epx_ab_settings_t settings; /* large, and threads look at it */
    static epx_ab_result_t result;
    int is_first = 1, code = epx_ab_settings_read(&settings, argc, argv);
    if (code != EPX_GO_ON)
        return code;
    int64_t began = epx_now_ns();
    begin_scope(&settings, &result.scope);
    if (settings.compare)
        code = epx_ab_read_folders(&settings, &result);
    else if (settings.external)
        code = epx_ab_run_commands(&settings, &result);
    else
        code = epx_ab_run_session(&settings, &result, &is_first);
    result.scope.seconds = 1e-9 * (double)(epx_now_ns() - began);
    if (code == EPX_EXIT_OK && is_first)
        code = judge_and_report(&settings, &result);
    epx_ab_free(&result);
    return epx_tool_end(code);
}
