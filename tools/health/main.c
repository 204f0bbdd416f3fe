/* epx-health: are the links of this host sound? SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tools/common/command_line.h"
#include "tools/common/program.h"
#include "tools/health/health.h"

typedef struct request {
    int32_t json, all, watch, probe, view;
    double interval, seconds, window, slow;
    int64_t ranks, probe_ms, probe_bytes;
    const char *sysfs, *nvml, *history, *host, *rack, *ledger, *placement;
} request_t;

static const char notes[] =
    "Verdicts: OK; WATCH, keep using it and look again; CORDON, take it out of service; CANNOT TELL.\n"
    "What is absent or unsupported is never taken for zero. docs/health.md says what is judged and how.\n"
    "\n"
    "examples:\n"
    "  epx-health --history /var/lib/epx/health.jsonl       from a timer, every few minutes\n"
    "  epx-health --watch                                   until interrupted, one line per change\n"
    "  mpirun -n 8 epx-health --probe                       every pair of ranks\n"
    "  epx-health --view host*.json                         reports of --json, by rack\n"
    "  epx-health --ledger runs.jsonl --placement job=j7,rack=r2,fault=yes\n"
    "\n"
    "exit code: 0 OK or WATCH, 1 CORDON or a slow pair, 2 bad usage or a file that cannot be used, 3 CANNOT "
    "TELL, 4 the output could not be written";

enum { UNWRITTEN = 4 };

static int parse(request_t *r, int argc, char **argv, int *first_p)
{
    const epx_option_t options[] = {
        epx_option_section("this host's links"),
        epx_option_real('i', "interval", "seconds between samples", &r->interval, 0.01, 86400),
        epx_option_flag('w', "watch", "sample until interrupted, and say what changes", &r->watch),
        epx_option_real(0, "seconds", "--watch: end after this time; 0: never", &r->seconds, 0, 1e9),
        epx_option_text(0, "history", "FILE", "keep samples there, and judge by those that are there",
                        &r->history),
        epx_option_real(0, "window", "seconds of history that count", &r->window, 1, 1e9),
        epx_option_flag('a', "all", "show the links that are OK too", &r->all),
        epx_option_text(0, "host", "NAME", "another name than the system's", &r->host),
        epx_option_text(0, "rack", "NAME", "the rack, for --view", &r->rack),
        epx_option_text(0, "sysfs", "DIR", "another root than /sys", &r->sysfs),
        epx_option_text(0, "nvml", "LIB", "another library than libnvidia-ml.so.1; none", &r->nvml),
        epx_option_section("ranks"),
        epx_option_flag('p', "probe", "measure every pair of ranks, under a launcher or as threads",
                        &r->probe),
        epx_option_int('n', "ranks", "--probe without a launcher: threads", &r->ranks, 2, 4096),
        epx_option_int(0, "probe-ms", "--probe: milliseconds for each pair", &r->probe_ms, 1, 600000),
        epx_option_int(0, "probe-bytes", "--probe: bytes that a rank sends in one exchange", &r->probe_bytes,
                       256, 1 << 28),
        epx_option_real(0, "slow", "--probe: share of the median below which a pair is slow", &r->slow, 0.01,
                        1),
        epx_option_section("several hosts, several runs"),
        epx_option_flag(0, "view", "reports of several hosts (the operands), by rack", &r->view),
        epx_option_text(0, "ledger", "FILE", "do faults stay with racks, or follow jobs?", &r->ledger),
        epx_option_text(0, "placement", "TEXT", "--ledger: note job=J,rack=R,fault=yes|no first",
                        &r->placement),
        epx_option_flag(0, "json", "print JSON", &r->json),
        epx_option_end(),
    };
    const epx_program_t program = {"epx-health",
                                   "Reads counters, states and events of links and says what they mean.",
                                   "[REPORT.json...]", options, notes};
    return epx_command_line(&program, argc, argv, first_p);
}

/* ---- one host ---- */

static volatile sig_atomic_t interrupted;
static void interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

static void pause_for(double seconds)
{
    struct timespec left = {.tv_sec = (time_t)seconds,
                            .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&left, NULL); /* a signal ends it early, which is meant */
}

static int sample(epx_health_h health, const request_t *r, health_store_t *store)
{
    store->now_s = health_clock();
    epx_status_t status = epx_health_sample(health, health_store_take, store);
    if (status != EPX_OK)
        return epx_tool_fail_status(status, "cannot read the links");
    return r->history != NULL ? health_history_append(r->history, r->host, store) : EPX_EXIT_OK;
}

/* Verdicts as they were said last, by link, so that only changes are said. */
static void say_changes(const health_host_t *before, const health_host_t *now, int32_t first)
{
    char when[32];
    time_t seconds = time(NULL);
    struct tm parts;
    strftime(when, sizeof when, "%H:%M:%S", localtime_r(&seconds, &parts));
    for (int32_t i = 0; i < now->links; i++) {
        const health_link_t *link = &now->link[i], *old = NULL;
        for (int32_t j = 0; !first && j < before->links; j++)
            if (strcmp(before->link[j].link, link->link) == 0)
                old = &before->link[j];
        int32_t news = old == NULL
                           ? link->verdict != EPX_HEALTH_OK
                           : old->verdict != link->verdict || strcmp(old->reasons, link->reasons) != 0;
        if (news)
            printf("%s  %s  %s  %s\n", when, link->link, epx_health_verdict_name(link->verdict),
                   link->reasons[0] != '\0' ? link->reasons : "nothing stands out any more");
    }
    fflush(stdout);
}

static int watch(epx_health_h health, const request_t *r, health_store_t *store)
{
    health_host_t before = {0}, now;
    double end = health_clock() + r->seconds;
    int rc = EPX_EXIT_OK;
    struct sigaction action = {.sa_handler = interrupt};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    for (int32_t first = 1; rc == EPX_EXIT_OK && !interrupted && (!(r->seconds > 0) || health_clock() < end);
         first = 0) {
        pause_for(r->interval);
        rc = sample(health, r, store);
        health_judge(store, r->host, r->rack, epx_health_blind_spots(health), r->window, &now);
        if (!r->json)
            say_changes(&before, &now, first);
        health_host_free(&before);
        before = now;
    }
    health_host_free(&before);
    return rc;
}

static int show(epx_health_h health, const request_t *r, const health_store_t *store, int32_t skipped)
{
    health_host_t host;
    health_judge(store, r->host, r->rack, epx_health_blind_spots(health), r->window, &host);
    int rc = health_exit_code(host.verdict);
    if (skipped > 0)
        epx_tool_note("%d lines of %s are no JSON and were skipped", skipped, r->history);
    if (r->json) {
        epx_json_t json = epx_json_begin(stdout, 2);
        epx_json_object(&json, NULL);
        epx_json_text(&json, "program", "epx-health");
        health_json(&json, &host, store, r->window);
        epx_json_close(&json);
        rc = epx_json_end(&json) != 0 ? EPX_EXIT_FAILED : rc;
    } else {
        health_print(&host, r->all);
    }
    health_host_free(&host);
    return rc;
}

static int look(const request_t *r)
{
    epx_health_config_t config = EPX_HEALTH_CONFIG_INIT;
    epx_health_h health;
    health_store_t store = {0};
    int32_t skipped = 0;
    config.sysfs = r->sysfs;
    config.nvml = r->nvml != NULL && strcmp(r->nvml, "none") == 0 ? "" : r->nvml;
    struct stat root;
    if (r->sysfs != NULL && (stat(r->sysfs, &root) != 0 || !S_ISDIR(root.st_mode)))
        return epx_tool_fail(
            EPX_EXIT_USAGE,
            "--sysfs: %s is no folder: name one that holds class/infiniband, or leave it out for "
            "/sys",
            r->sysfs);
    int rc = r->history != NULL ? health_history_load(r->history, r->host, &store, &skipped) : EPX_EXIT_OK;
    epx_status_t status = rc == EPX_EXIT_OK ? epx_health_open(&config, &health) : EPX_OK;
    if (status != EPX_OK)
        rc = epx_tool_fail_status(status, "cannot look at the links");
    if (rc != EPX_EXIT_OK) {
        health_store_free(&store);
        return rc;
    }
    rc = sample(health, r, &store);
    if (rc == EPX_EXIT_OK && r->watch) {
        rc = watch(health, r, &store);
    } else if (rc == EPX_EXIT_OK) {
        pause_for(r->interval);
        rc = sample(health, r, &store);
    }
    if (rc == EPX_EXIT_OK)
        rc = show(health, r, &store, skipped);
    epx_health_close(&health);
    health_store_free(&store);
    return rc;
}

int main(int argc, char **argv)
{
    request_t r = {
        .interval = 1, .window = 86400, .slow = 0.6, .ranks = 2, .probe_ms = 200, .probe_bytes = 1 << 20};
    char host[256] = "";
    int first = argc, rc = parse(&r, argc, argv, &first);
    if (rc != EPX_GO_ON)
        return rc;
    gethostname(host, sizeof host - 1);
    r.host = r.host != NULL ? r.host : host;
    r.rack = r.rack != NULL ? r.rack : "";
    if (!r.view && first < argc)
        return epx_tool_fail(EPX_EXIT_USAGE, "%s: reports belong to --view", argv[first]);
    if (r.placement != NULL && r.ledger == NULL)
        return epx_tool_fail(EPX_EXIT_USAGE, "--placement: name the file to note it in with --ledger");
    if (r.view)
        return epx_tool_end_as(health_rack_view(argc - first, argv + first, r.json), UNWRITTEN);
    if (r.ledger != NULL)
        return epx_tool_end_as(health_ledger(r.ledger, r.placement, r.json), UNWRITTEN);
    if (r.probe) {
        health_probe_t probe = {r.ranks, r.probe_ms, r.probe_bytes, r.slow, r.json};
        return epx_tool_end_as(health_probe(&probe), UNWRITTEN);
    }
    return epx_tool_end_as(look(&r), UNWRITTEN);
}
