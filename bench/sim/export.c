/* Routings and fates as files. SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/parallel.h"
#include "bench/sim/report.h"
#include "tools/common/program.h"
#include "train/fail.h"

/* ---- what became of every assignment ------------------------------------------------------------------------------ */

typedef struct dump {
    FILE *stream;
    int32_t top_k;
} dump_t;

static int dump_rank(void *context, int32_t rank, int64_t tokens, const epx_fate_t *fates)
{
    static const char *const words[] = {"kept", "sender", "receiver", "skipped"};
    const dump_t *dump = context;
    for (int64_t a = 0; a < tokens * dump->top_k; a++)
        fprintf(dump->stream, "%d %lld %d %d %s %d\n", rank, (long long)(a / dump->top_k),
                (int)(a % dump->top_k), fates[a].expert, words[fates[a].kind], fates[a].wave);
    return ferror(dump->stream) ? 1 : 0;
}

static int dump_sample(const epx_sim_settings_t *s, const epx_sim_input_t *input, FILE *stream)
{
    epx_sim_source_t source;
    epx_drops_t drops;
    dump_t dump = {.stream = stream, .top_k = (int32_t)s->shape.model.top_k};
    char problem[512];
    epx_sim_source_open(&source, input, 0, 1);
    int rc = epx_drops_fates(&source.routing, &s->cases[0].rules, (int32_t)s->threads, &drops, dump_rank,
                             &dump, problem, sizeof problem);
    if (rc < 0)
        rc = epx_tool_fail(EPX_EXIT_USAGE, "%s", problem);
    else
        epx_drops_free(&drops);
    epx_sim_source_close(&source);
    return rc;
}

int epx_sim_dump(const epx_sim_settings_t *s)
{
    epx_sim_input_t input;
    int rc = epx_sim_open_input(s, &input);
    if (rc != EPX_EXIT_OK)
        return rc;
    if (input.samples != 1)
        return epx_tool_fail(
            EPX_EXIT_USAGE,
            "--dump is about one sample and here are %d: give one seed, or a routing of one layer "
            "and step",
            input.samples);
    if (input.estimate)
        return epx_tool_fail(EPX_EXIT_USAGE,
                             "%s has counts only, which say nothing about a single assignment: "
                             "record ids",
                             s->routing.path);
    FILE *stream = fopen(s->dump, "w");
    if (stream == NULL)
        return epx_tool_fail(EPX_EXIT_FAILED, "cannot write %s (%s): check the path", s->dump,
                             strerror(errno));
    rc = dump_sample(s, &input, stream);
    if (fclose(stream) != 0 || rc > EPX_EXIT_USAGE || rc == EPX_EXIT_FAILED)
        return epx_tool_fail(EPX_EXIT_FAILED, "cannot write all of %s (%s): check space", s->dump,
                             strerror(errno));
    return rc;
}

/* ---- the routing -------------------------------------------------------------------------------------------------- */

typedef struct record {
    epx_sim_source_t source;
    int counts;
    int32_t *ids;    /* [N, T, K] */
    int64_t *number; /* [N, E] */
} record_t;

static void record_rank(void *context, int32_t rank, void *scratch)
{
    record_t *record = context;
    const epx_drops_routing_t *routing = &record->source.routing;
    int64_t each = routing->tokens_max * routing->top_k;
    int32_t *ids = record->counts ? scratch : record->ids + rank * each;
    int64_t tokens = routing->ids(routing->context, rank, ids);
    for (int64_t a = 0; record->counts && a < tokens * routing->top_k; a++)
        if (ids[a] >= 0)
            record->number[(int64_t)rank * routing->experts + ids[a]]++;
    for (int64_t a = tokens * routing->top_k; !record->counts && a < each; a++)
        ids[a] = -1;
}

static int record_samples(const epx_sim_settings_t *s, const epx_sim_input_t *input,
                          epx_routing_writer_t *writer)
{
    record_t record = {.counts = s->counts};
    size_t ranks = (size_t)s->shape.ranks, each = (size_t)(s->shape.tokens * s->shape.model.top_k);
    int code = EPX_TRAIN_OK;
    for (int32_t i = 0; i < input->samples && code == EPX_TRAIN_OK; i++) {
        if (s->counts)
            record.number = epx_tool_alloc(ranks * (size_t)s->shape.model.experts, sizeof *record.number);
        else
            record.ids = epx_tool_alloc(ranks * each, sizeof *record.ids);
        epx_sim_source_open(&record.source, input, i, 0);
        epx_parallel((int32_t)s->threads, (int32_t)ranks, record_rank, &record,
                     s->counts ? each * sizeof(int32_t) : 1);
        epx_sim_source_close(&record.source);
        code = epx_routing_writer_add(writer, s->counts ? (const void *)record.number : record.ids);
        free(record.number);
        free(record.ids);
    }
    return code;
}

int epx_sim_record(const epx_sim_settings_t *s)
{
    epx_sim_input_t input;
    epx_routing_writer_t *writer;
    int rc = epx_sim_open_input(s, &input);
    if (rc != EPX_EXIT_OK)
        return rc;
    if (input.estimate || input.columns != s->shape.model.top_k)
        return epx_tool_fail(EPX_EXIT_USAGE,
                             "only ids of as many choices as are routed can be recorded: leave out "
                             "spill, and counts");
    epx_routing_shape_t shape = {.kind = s->counts ? EPX_ROUTING_COUNTS : EPX_ROUTING_IDS,
                                 .ranks = (int32_t)s->shape.ranks,
                                 .group = (int32_t)s->shape.ranks,
                                 .experts = (int32_t)s->shape.model.experts,
                                 .top_k = (int32_t)s->shape.model.top_k,
                                 .layers = 1,
                                 .tokens = s->counts ? 0 : (int32_t)s->shape.tokens};
    int code = epx_routing_writer_open(s->record, &shape, &writer);
    if (code == EPX_TRAIN_OK) {
        code = record_samples(s, &input, writer);
        int closed = epx_routing_writer_close(&writer);
        code = code == EPX_TRAIN_OK ? closed : code;
    }
    return code == EPX_TRAIN_OK ? EPX_EXIT_OK : epx_tool_fail(EPX_EXIT_FAILED, "%s", epx_train_error());
}
