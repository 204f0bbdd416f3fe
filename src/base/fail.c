/* Status texts and the log. SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"

#include <stdatomic.h>
#include <stdio.h>

typedef struct status_row {
    epx_status_t status;
    const char *name, *text;
} status_row_t;

static const status_row_t status_rows[] = {
    {EPX_OK, "EPX_OK", "success"},
    {EPX_ERR_ARG, "EPX_ERR_ARG", "an argument or setting is wrong"},
    {EPX_ERR_ROUTING, "EPX_ERR_ROUTING", "an expert id is out of range"},
    {EPX_ERR_UNSUPPORTED, "EPX_ERR_UNSUPPORTED", "not possible here"},
    {EPX_ERR_NO_MEMORY, "EPX_ERR_NO_MEMORY", "not enough memory"},
    {EPX_ERR_TIMEOUT, "EPX_ERR_TIMEOUT", "a wait gave up"},
    {EPX_ERR_PEER, "EPX_ERR_PEER", "another rank failed"},
    {EPX_ERR_MISMATCH, "EPX_ERR_MISMATCH", "ranks disagree"},
    {EPX_ERR_ABORTED, "EPX_ERR_ABORTED", "the group was aborted or recovered"},
    {EPX_ERR_FABRIC, "EPX_ERR_FABRIC", "the fabric failed"},
    {EPX_ERR_CORRUPT, "EPX_ERR_CORRUPT", "data is not what was sent"},
    {EPX_ERR_FATAL, "EPX_ERR_FATAL", "the process cannot go on"},
};

static const status_row_t *find_status(epx_status_t status)
{
    for (size_t i = 0; i < sizeof(status_rows) / sizeof(status_rows[0]); i++)
        if (status_rows[i].status == status)
            return &status_rows[i];
    return NULL;
}

const char *epx_status_name(epx_status_t status)
{
    const status_row_t *row = find_status(status);
    return row != NULL ? row->name : "EPX_ERR_?";
}

const char *epx_status_text(epx_status_t status)
{
    const status_row_t *row = find_status(status);
    return row != NULL ? row->text : "unknown status";
}

static _Thread_local char last_error[1024];

const char *epx_last_error(void) { return last_error; }

epx_status_t epx_fail(epx_status_t status, const char *format, ...)
{
    /* The arguments may quote the last error itself: format beside it, then copy. */
    char text[sizeof(last_error)];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    snprintf(last_error, sizeof(last_error), "%s", text);
    return status;
}

static atomic_int log_level = EPX_LOG_WARN;

void epx_log_set_level(int level) { atomic_store_explicit(&log_level, level, memory_order_relaxed); }

int epx_log_level(void) { return atomic_load_explicit(&log_level, memory_order_relaxed); }

void epx_log(int level, const char *tag, const char *format, ...)
{
    static const char *const names[] = {"error", "warn", "info", "debug", "trace"};
    if (level > epx_log_level() || level < 0)
        return;
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    /* One call, so that lines of several ranks do not mix. */
    fprintf(stderr, "epx %s %s: %s\n", names[level > EPX_LOG_TRACE ? EPX_LOG_TRACE : level], tag, text);
}
