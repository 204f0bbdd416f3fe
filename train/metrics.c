/* SPDX-License-Identifier: Apache-2.0 */
#include "metrics.h"

#include <math.h>
#include <unistd.h>

/* JSON knows no NaN and no infinity. 17 digits bring back the same double. */
static void print_number(FILE *stream, const char *name, double value, int digits)
{
    if (isfinite(value))
        fprintf(stream, ", \"%s\": %.*g", name, digits, value);
    else
        fprintf(stream, ", \"%s\": null", name);
}

void epx_metrics_print(FILE *stream, const epx_metrics_t *m)
{
    fprintf(stream, "{\"step\": %lld", (long long)m->step);
    print_number(stream, "loss", m->loss, 17);
    fprintf(stream, ", \"tokens\": %lld", (long long)m->tokens);
    print_number(stream, "step_ms", m->step_ms, 7);
    print_number(stream, "tokens_per_s", m->tokens_per_s, 7);
    print_number(stream, "mfu", m->mfu, 7);
    print_number(stream, "mfu_executed", m->mfu_executed, 7);
    print_number(stream, "mfu_causal", m->mfu_causal, 7);
    print_number(stream, "drop_fraction", m->drop_fraction, 9);
    print_number(stream, "sender_drop_fraction", m->sender_drop_fraction, 9);
    print_number(stream, "receiver_drop_fraction", m->receiver_drop_fraction, 9);
    print_number(stream, "grad_norm", m->grad_norm, 17);
    print_number(stream, "gate_norm", m->gate_norm, 9);
    print_number(stream, "router_norm", m->router_norm, 9);
    fprintf(stream, ", \"peak_bytes\": %lld, \"host_rss_bytes\": %lld", (long long)m->peak_bytes,
            (long long)m->host_rss_bytes);
    fprintf(stream, ", \"transport\": \"%s\", \"fabric\": \"%s\"", m->transport, m->fabric);
    print_number(stream, "wait_ms_max", m->wait_ms_max, 7);
    fprintf(stream, ", \"wait_peer\": %lld", (long long)m->wait_peer);
    print_number(stream, "load_max_over_mean", m->load_max_over_mean, 7);
    if (m->evaluated)
        print_number(stream, "validation_loss", m->validation_loss, 17);
    if (m->evaluated && m->bigram_loss > 0)
        print_number(stream, "bigram_loss", m->bigram_loss, 17);
    fputs("}\n", stream);
}

int64_t epx_host_rss_bytes(void)
{
    FILE *stream = fopen("/proc/self/statm", "r");
    long long all = 0, resident = 0;
    int got = stream ? fscanf(stream, "%lld %lld", &all, &resident) : 0;
    if (stream)
        fclose(stream);
    return got == 2 ? resident * sysconf(_SC_PAGESIZE) : 0;
}
