/* Ranges for profilers: one around each part of each call, with its wave. SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include <epx/epx.h>

#include "device/registry.h"
#include "support/guarded.h"
#include "support/world.h"

TestSuite(marks, .init = clean_environment);

enum { TOKENS = 4, WIDTH = 8, EXPERTS = 2 };

/* What was marked, as lines; there is one rank. */
static char log_text[4096];
static int depth;

static void begin(const char *what, int64_t number)
{
    size_t used = strlen(log_text);
    snprintf(log_text + used, sizeof(log_text) - used, "%s %d\n", what, (int)number);
    depth++;
}

static void end(void) { depth--; }

static epx_device_ops_t marking;

/* Memory that the tests of this file never look at. */
static void *blank(size_t bytes)
{
    void *memory = guarded_device.allocate(bytes, 256);
    cr_assert(memory != NULL && guarded_device.fill(memory, 0, bytes, NULL) == EPX_OK &&
              guarded_device.synchronize(NULL) == EPX_OK);
    return memory;
}

static void marked_rank(rank_t *self)
{
    epx_group_config_t config = EPX_GROUP_CONFIG_INIT;
    epx_routing_t routing = EPX_ROUTING_INIT;
    epx_batch_t batch = EPX_BATCH_INIT, dy = EPX_BATCH_INIT;
    epx_group_h group = NULL;
    epx_plan_h plan = NULL;
    void *rows = blank(1 << 16), *out = blank(1 << 16);
    epx_stream_t stream;
    guarded_device.stream_create(&stream);
    config.experts = EXPERTS;
    config.top_k = 1;
    config.width = WIDTH;
    config.tokens_max = TOKENS;
    config.device = "cuda";
    config.transport = "ragged";
    config.waves = 1;
    routing.tokens = TOKENS;
    routing.ids = blank(TOKENS * sizeof(int32_t));
    routing.weights = blank(TOKENS * sizeof(float));
    expect_came(self, "open", epx_group_open(self->comm, &config, &group), EPX_OK);
    expect_came(self, "plan", epx_plan_create(group, 0, NULL, &plan), EPX_OK);
    expect_came(self, "route", epx_plan_route(plan, &routing, stream), EPX_OK);
    expect_came(self, "dispatch", epx_dispatch(plan, 0, rows, &batch, stream), EPX_OK);
    expect_came(self, "combine", epx_combine(plan, 0, rows, out, stream), EPX_OK);
    expect_came(self, "combine_backward", epx_combine_backward(plan, 0, rows, rows, &dy, stream), EPX_OK);
    expect_came(self, "dispatch_backward", epx_dispatch_backward(plan, 0, rows, out, NULL, stream), EPX_OK);
    /* Refused before any transport is asked: no range. */
    expect_came(self, "dispatch", epx_dispatch(plan, 7, rows, &batch, stream), EPX_ERR_ARG);
    guarded_device.synchronize(stream);
    epx_plan_destroy(&plan);
    epx_group_close(&group);
    guarded_device.stream_destroy(stream);
}

Test(marks, every_part_of_a_call_is_a_range)
{
    marking = guarded_device;
    marking.mark_begin = begin;
    marking.mark_end = end;
    epx_device_stand_in("cuda", &marking);
    world_run(1, marked_rank, NULL);
    cr_expect_str_eq(log_text, "route 0\n"
                               "dispatch, start 0\n"
                               "dispatch, finish 0\n"
                               "combine, start 0\n"
                               "combine, finish 0\n"
                               "combine_backward, start 0\n"
                               "combine_backward, finish 0\n"
                               "dispatch_backward, start 0\n"
                               "dispatch_backward, finish 0\n");
    cr_expect_eq(depth, 0, "%d ranges were left open", depth);
}
