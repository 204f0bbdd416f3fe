/* The report: what a person reads first, and the same for programs. SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/decimal.h"
#include "record/report.h"
#include "record/versions.h"

typedef struct page {
    char *text;
    size_t bytes, used;
    int32_t lines;
} page_t;

static void put(page_t *page, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(page_t *page, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int added = vsnprintf(page->text + page->used, page->bytes - page->used, format, arguments);
    va_end(arguments);
    if (added > 0)
        page->used += (size_t)added < page->bytes - page->used ? (size_t)added : page->bytes - page->used - 1;
}

/* One line of the report, under its label; none beyond the limit. */
static void line(page_t *page, const char *label, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void line(page_t *page, const char *label, const char *format, ...)
{
    char text[768];
    if (page->lines >= EPX_REPORT_LINES)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    put(page, "  %-10s %s\n", label, text);
    page->lines++;
}

/* "0-2,5": ranks that a question says yes to. */
typedef int (*ask_fn)(const epx_job_view_t *view, int32_t rank, const void *context);

static int32_t ranges(const epx_job_view_t *view, ask_fn ask, const void *context, char *text, size_t bytes)
{
    int32_t count = 0;
    size_t used = 0;
    text[0] = '\0';
    for (int32_t r = 0; r < view->ranks; r++) {
        int32_t last = r;
        if (!ask(view, r, context))
            continue;
        while (last + 1 < view->ranks && ask(view, last + 1, context))
            last++;
        count += last - r + 1;
        if (used + 32 < bytes)
            used += (size_t)snprintf(text + used, bytes - used, last > r ? "%s%d-%d" : "%s%d",
                                     used > 0 ? "," : "", r, last);
        else if (used + 4 < bytes)
            used += (size_t)snprintf(text + used, bytes - used, ",..");
        r = last;
    }
    return count;
}

static const epx_record_head_t *head_at(const epx_job_view_t *view, int32_t rank)
{
    return rank >= 0 && rank < view->ranks ? view->rank[rank].record : NULL;
}

/* ---- questions -------------------------------------------------------------------------------------------------- */

static int has_no_record(const epx_job_view_t *view, int32_t rank, const void *context)
{
    (void)context;
    return view->rank[rank].record == NULL;
}

/* Same place, same operation, waiting for the same one. */
static int waits_alike(const epx_job_view_t *view, int32_t rank, const void *context)
{
    const epx_rank_facts_t *a = &view->facts[rank], *b = context;
    return a->place == b->place && a->record != NULL && a->next == b->next &&
           (a->place == EPX_PLACE_OUTSIDE || a->place == EPX_PLACE_CLOSED ||
            (a->op.group_key == b->op.group_key && a->op.stream == b->op.stream &&
             a->op.sequence == b->op.sequence));
}

/* ---- parts ------------------------------------------------------------------------------------------------------ */

static const char *group_name(const epx_rank_facts_t *f)
{
    const epx_record_group_row_t *row = epx_record_group_row(f->record, f->op.group);
    return row != NULL ? row->name : "?";
}

static void who(const epx_job_view_t *view, const epx_verdict_t *v, page_t *page)
{
    const epx_record_head_t *head = head_at(view, v->rank);
    if (v->rank < 0)
        line(page, "culprit", "not found; %d of %d ranks wait", v->stuck, v->ranks);
    else if (head == NULL)
        line(page, "culprit", "rank %d, of which there is no record; %d of %d ranks wait", v->rank, v->stuck,
             v->ranks);
    else
        line(page, "culprit",
             "rank %d (domain %d, host %.63s, pid %d): 1 of %d, the rest are victims; %d wait", v->rank,
             head->domain, head->host, head->pid, v->ranks, v->stuck);
}

static void operation(const epx_job_view_t *view, const epx_verdict_t *v, page_t *page)
{
    if (v->op[0] == '\0')
        return;
    (void)view;
    char number[64];
    if (v->sequence >> 16 != 0)
        snprintf(number, sizeof(number), "pass %" PRIu64 ", call %" PRIu64, v->sequence >> 16,
                 v->sequence & 0xffff);
    else
        snprintf(number, sizeof(number), "number %" PRIu64, v->sequence);
    line(page, "operation", "%s of group %s, wave %d, %s; nothing has moved for %.1f s", v->op, v->group,
         v->wave, number, (double)v->stuck_ns * 1e-9);
}

static const char *const place_words[][2] = {[EPX_PLACE_NO_RECORD] = {"has no record", "have no record"},
                                             [EPX_PLACE_CLOSED] = {"has ended", "have ended"},
                                             [EPX_PLACE_OUTSIDE] = {"is in no call", "are in no call"},
                                             [EPX_PLACE_ENQUEUED] = {"has called", "have called"},
                                             [EPX_PLACE_INSIDE] = {"is inside of", "are inside of"},
                                             [EPX_PLACE_WAITS] = {"waits in", "wait in"}};

/* Who waits for whom, ranks that are alike in one line. */
static void waits(const epx_job_view_t *view, page_t *page)
{
    for (int32_t r = 0; r < view->ranks && page->lines < EPX_REPORT_LINES - 13; r++) {
        const epx_rank_facts_t *f = &view->facts[r];
        char text[160], domain[48] = "";
        int32_t before = r - 1;
        while (before >= 0 && !waits_alike(view, before, f))
            before--;
        if (f->record == NULL || before >= 0)
            continue;
        int32_t count = ranges(view, waits_alike, f, text, sizeof(text));
        const epx_record_head_t *head = f->record;
        if (head->domains > 1 || head->domain > 0)
            snprintf(domain, sizeof(domain), " (domain %d)", head->domain);
        char what[192] = "";
        if (f->place >= EPX_PLACE_ENQUEUED)
            snprintf(what, sizeof(what), " %.55s of %.63s wave %d", epx_record_kind_of(f->record, &f->op),
                     group_name(f), f->op.wave);
        if (f->place == EPX_PLACE_WAITS && f->next >= 0)
            line(page, "", "%s %s%s %s%s for rank %d", count > 1 ? "ranks" : "rank", text, domain,
                 place_words[f->place][count > 1], what, f->next);
        else
            line(page, "", "%s %s%s %s%s", count > 1 ? "ranks" : "rank", text, domain,
                 place_words[f->place][count > 1], what);
    }
}

static void last_calls(const epx_job_view_t *view, const epx_verdict_t *v, page_t *page)
{
    const epx_record_head_t *head = head_at(view, v->rank);
    char text[400] = "";
    size_t used = 0;
    if (head == NULL)
        return;
    uint64_t newest = head->operations;
    for (uint64_t n = newest; n > 0 && n + 4 > newest && used + 120 < sizeof(text); n--) {
        epx_record_operation_t op;
        if (!epx_record_operation(head, n, &op))
            continue;
        int64_t at = op.ended_ns != 0 ? op.ended_ns : op.begun_ns != 0 ? op.begun_ns : op.enqueued_ns;
        used +=
            (size_t)snprintf(text + used, sizeof(text) - used, "%s%.40s wave %d %s %.1f s ago",
                             used > 0 ? "; " : "", epx_record_kind_of(head, &op), op.wave,
                             op.state == EPX_RECORD_ENDED ? (op.status == 0 ? "ended" : "failed") : "open",
                             (double)(v->found_ns + view->evidence[v->rank].ahead_ns - at) * 1e-9);
    }
    line(page, "last calls", "%s", used > 0 ? text : "none");
    if (v->marker[0] != '\0')
        line(page, "marker", "\"%s\", set %.1f s ago", v->marker,
             (double)(v->found_ns + view->evidence[v->rank].ahead_ns - head->mark_ns) * 1e-9);
    static const char *const lives[] = {"was not asked about", "runs",      "sleeps",
                                        "is stopped",          "has ended", "has ended with its process"};
    line(page, "its thread", "%s; phase %.39s, %" PRIu64 " steps, %" PRIu64 " heartbeats",
         lives[view->facts[v->rank].life], head->phase_name, head->steps, head->heartbeats);
}

static int is_lower(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

enum { MEDIAN_MOST = 128 };

/* What is known of the devices of the culprit's domain: one number of each, its median. */
static uint32_t median_of(const epx_job_view_t *view, int32_t domain, size_t offset)
{
    uint32_t value[MEDIAN_MOST];
    size_t count = 0;
    for (int32_t r = 0; r < view->ranks && count < MEDIAN_MOST; r++) {
        const epx_record_head_t *head = head_at(view, r);
        if (head != NULL && head->domain == domain && head->device_use > 0)
            value[count++] = *(const uint32_t *)(const void *)((const char *)head + offset);
    }
    qsort(value, count, sizeof(*value), is_lower);
    return count > 0 ? value[count / 2] : 0;
}

/* Spinning is told from never launched by what the device does. 1: it is known. */
static int device_of(const epx_job_view_t *view, const epx_verdict_t *v, page_t *page)
{
    const epx_record_head_t *head = head_at(view, v->rank);
    if (head == NULL || head->device_use == 0)
        return 0;
    char shared[64] = "";
    if (head->device_processes > 1 && head->device_own > 0)
        snprintf(shared, sizeof(shared), " (%u%% this process, of %u there)", head->device_own - 1,
                 head->device_processes);
    else if (head->device_processes > 1)
        snprintf(shared, sizeof(shared), " (all of %u processes there)", head->device_processes);
    line(page, "its device", "%u%% busy%s, %.0f W, %u MHz; median of its domain %u%%, %.0f W, %u MHz",
         head->device_use - 1, shared, head->device_milliwatts * 1e-3, head->device_megahertz,
         median_of(view, head->domain, offsetof(epx_record_head_t, device_use)) - 1,
         median_of(view, head->domain, offsetof(epx_record_head_t, device_milliwatts)) * 1e-3,
         median_of(view, head->domain, offsetof(epx_record_head_t, device_megahertz)));
    return 1;
}

static int has_links_looked(const epx_job_view_t *view, int32_t rank, const void *context)
{
    const epx_record_head_t *head = head_at(view, rank);
    (void)context;
    return head != NULL && head->links_looked_ns != 0;
}

/* Link events of all ranks in order of time: the first few. */
static void links(const epx_job_view_t *view, const epx_verdict_t *v, page_t *page)
{
    static const char *const words[] = {"", "error", "down", "up", "recovering"};
    int64_t after = INT64_MIN;
    int32_t shown = 0;
    for (; shown < 3; shown++) {
        epx_record_link_row_t first = {.time_ns = INT64_MAX};
        int32_t of = -1;
        for (int32_t r = 0; r < view->ranks; r++) {
            const epx_record_head_t *head = head_at(view, r);
            uint64_t newest = head != NULL ? head->links : 0;
            for (uint64_t n = newest; n > 0 && n + (head != NULL ? head->links_max : 0) > newest; n--) {
                epx_record_link_row_t event;
                if (!epx_record_link_row(head, n, &event) || event.what > EPX_EVIDENCE_LINK_RECOVERING)
                    continue;
                int64_t at = event.time_ns - view->evidence[r].ahead_ns;
                if (at > after && at < first.time_ns) {
                    first = event;
                    first.time_ns = at;
                    of = r;
                }
            }
        }
        if (of < 0)
            break;
        after = first.time_ns;
        line(page, "link", "%.1f s ago at rank %d: %s %.55s", (double)(v->found_ns - after) * 1e-9, of,
             words[first.what], first.name);
    }
    if (shown > 0)
        return;
    char seen[96];
    if (ranges(view, has_links_looked, NULL, seen, sizeof(seen)) > 0)
        line(page, "links", "observed at ranks %s, and nothing was seen", seen);
    else
        line(page, "links", "no event was recorded: links were not observed");
}

static const char *action_of(const epx_verdict_t *v)
{
    switch (v->action) {
    case EPX_ACTION_RECOVER:
        return "recover the group in place (epx_group_recover, the same or another transport), redo the step";
    case EPX_ACTION_RESTART:
        return "leave (exit code 75) and restart elsewhere: a foreign kernel cannot be ended from outside";
    case EPX_ACTION_SHRINK:
        return "go on without the host and restore its experts, or leave (exit code 76) and restart without "
               "it";
    case EPX_ACTION_STOP: return "stop (exit code 77): going on would be wrong";
    case EPX_ACTION_WAIT: return "evidence is kept; wait for a person or the time-out (exit code 78)";
    case EPX_ACTION_NONE: break;
    }
    return "none";
}

static void records(const epx_job_view_t *view, page_t *page)
{
    char missing[160];
    int32_t absent = ranges(view, has_no_record, NULL, missing, sizeof(missing));
    if (absent > 0)
        line(page, "records", "%d of %d; missing: ranks %s", view->ranks - absent, view->ranks, missing);
    else
        line(page, "records", "all %d", view->ranks);
}

/* The record whose versions are told: the culprit's, else the first. */
static const epx_record_head_t *head_told(const epx_job_view_t *view, const epx_verdict_t *v)
{
    const epx_record_head_t *head = head_at(view, v->rank);
    for (int32_t r = 0; r < view->ranks && head == NULL; r++)
        head = head_at(view, r);
    return head;
}

static int has_others(const epx_job_view_t *view, int32_t rank, const void *context)
{
    const epx_record_head_t *head = head_at(view, rank);
    return head != NULL && !epx_versions_equal(head, context);
}

static void versions(const epx_job_view_t *view, const epx_verdict_t *v, page_t *page)
{
    const epx_record_head_t *head = head_told(view, v);
    char text[512], others[96];
    if (head == NULL)
        return;
    epx_versions_text(head, text, sizeof(text));
    if (ranges(view, has_others, head, others, sizeof(others)) > 0)
        line(page, "versions", "%s; others at ranks %s", text, others);
    else
        line(page, "versions", "%s", text);
}

void epx_report_text(const epx_job_view_t *view, const epx_verdict_t *v, char *text, size_t bytes)
{
    page_t page = {.text = text, .bytes = bytes, .lines = 1};
    char title[128];
    epx_verdict_title(v, title, sizeof(title));
    put(&page, "epx: job %.63s %s: %s\n", view->job,
        v->kind == EPX_VERDICT_CORRUPT ? "must stop" : "is stuck", title);
    who(view, v, &page);
    line(&page, "evidence", "%.500s", v->text);
    operation(view, v, &page);
    if (v->expected != 0)
        line(&page, "epochs", "expected %#" PRIx64 ", seen %#" PRIx64, v->expected, v->seen);
    line(&page, "who waits", "%d of %d ranks", v->stuck, v->ranks);
    waits(view, &page);
    last_calls(view, v, &page);
    int has_device = device_of(view, v, &page);
    links(view, v, &page);
    records(view, &page);
    versions(view, v, &page);
    line(&page, "unseen", "%swhat ran outside of epx beyond its markers",
         has_device ? "" : "use, power and clock of devices; ");
    line(&page, "action", "%s", action_of(v));
    line(&page, "files", "%s/verdict.json; epx-doctor %s tells more", view->folder, view->folder);
    line(&page, "replay", "epx-repro --replay %s", view->folder);
}

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

static void put_string(page_t *page, const char *name, const char *value)
{
    put(page, "  \"%s\": \"", name);
    for (; *value != '\0'; value++) {
        unsigned char c = (unsigned char)*value;
        if (c == '"' || c == '\\')
            put(page, "\\%c", c);
        else if (c < 0x20)
            put(page, "\\u%04x", c);
        else
            put(page, "%c", c);
    }
    put(page, "\",\n");
}

static const char *action_word(epx_action_t action)
{
    static const char *const words[] = {"none", "recover", "restart", "shrink", "stop", "wait"};
    return (int)action >= 0 && action <= EPX_ACTION_WAIT ? words[action] : "wait";
}

static void put_device(page_t *page, const epx_record_head_t *head)
{
    char own[32] = "null", processes[32] = "null";
    if (head->device_own > 0)
        snprintf(own, sizeof(own), "%u", head->device_own - 1);
    if (head->device_processes > 0)
        snprintf(processes, sizeof(processes), "%u", head->device_processes);
    put(page,
        "  \"device\": {\"busy_percent\": %u, \"watts\": %.1f, \"megahertz\": %u, \"processes\": %s, "
        "\"own_percent\": %s},\n",
        head->device_use - 1, head->device_milliwatts * 1e-3, head->device_megahertz, processes, own);
}

static void put_ranks(const epx_job_view_t *view, page_t *page)
{
    static const char *const places[] = {"no record", "closed", "outside", "enqueued", "inside", "waits"};
    put(page, "  \"waits\": [");
    int32_t first = 1;
    for (int32_t r = 0; r < view->ranks && page->used + 512 < page->bytes; r++) {
        const epx_rank_facts_t *f = &view->facts[r];
        if (f->place != EPX_PLACE_WAITS && f->place != EPX_PLACE_ENQUEUED)
            continue;
        put(page, "%s\n    {\"rank\": %d, \"place\": \"%s\", \"for\": %d, \"op\": \"%.40s\", \"wave\": %d}",
            first ? "" : ",", r, places[f->place], f->next, epx_record_kind_of(f->record, &f->op),
            f->op.wave);
        first = 0;
    }
    put(page, "%s]", first ? "" : "\n  ");
}

static void put_json(const epx_job_view_t *view, const epx_verdict_t *v, char *text, size_t bytes)
{
    page_t page = {.text = text, .bytes = bytes};
    const epx_record_head_t *head = head_at(view, v->rank);
    char title[128];
    epx_verdict_title(v, title, sizeof(title));
    put(&page, "{\n");
    put_string(&page, "verdict", epx_verdict_name(v->kind));
    put_string(&page, "title", title);
    put_string(&page, "job", view->job);
    put(&page, "  \"culprit\": %d,\n  \"peer\": %d,\n  \"stuck\": %d,\n  \"ranks\": %d,\n", v->rank, v->peer,
        v->stuck, v->ranks);
    put(&page, "  \"domain\": %d,\n  \"pid\": %d,\n", head != NULL ? head->domain : -1,
        head != NULL ? head->pid : -1);
    put_string(&page, "host", head != NULL ? head->host : "");
    put_string(&page, "group", v->group);
    put_string(&page, "op", v->op);
    put(&page,
        "  \"wave\": %d,\n  \"sequence\": %" PRIu64 ",\n  \"expected\": %" PRIu64 ",\n  \"seen\": %" PRIu64
        ",\n",
        v->wave, v->sequence, v->expected, v->seen);
    if (head != NULL && head->device_use > 0)
        put_device(&page, head);
    const epx_record_head_t *told = head_told(view, v);
    if (told != NULL) {
        char versions_text[512];
        epx_versions_text(told, versions_text, sizeof(versions_text));
        put_string(&page, "versions", versions_text);
    }
    put_string(&page, "field", v->field);
    put_string(&page, "marker", v->marker);
    put(&page, "  \"stuck_ms\": %.1f,\n  \"factor\": %.2f,\n", (double)v->stuck_ns * 1e-6, v->factor);
    put(&page, "  \"cycle\": [");
    for (int32_t i = 0; i < v->cycle_count; i++)
        put(&page, "%s%d", i > 0 ? ", " : "", v->cycle[i]);
    put(&page, "],\n");
    put_string(&page, "evidence", v->text);
    put_string(&page, "action", action_word(v->action));
    put(&page, "  \"exit_code\": %d,\n", v->exit_code);
    put_string(&page, "folder", view->folder);
    put_ranks(view, &page);
    put(&page, "\n}\n");
}

void epx_report_json(const epx_job_view_t *view, const epx_verdict_t *v, char *text, size_t bytes)
{
    locale_t before = epx_decimal_begin();
    put_json(view, v, text, bytes);
    epx_decimal_end(before);
}
