/*
 * A flight record that is read while it is written, as the watchdogs of other processes do: readers look at
 * the rows that are just about to be overwritten. A row that is handed out is one row, and a state comes with
 * the times that belong to it (F1, F2, F3 of record/format.h). On a processor that reorders stores or loads
 * (64-bit ARM) a fence too few shows as a row of two halves. SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bell.h"
#include "base/clock.h"
#include "record/classify.h"
#include "record/recorder.h"
#include "support/folder.h"

enum { READERS = 2, WRITE_MS = 1000, TRIES = 2000 };

/* What stands in a row is a function of its number. */
#define MIX(n) ((uint64_t)(n)*0x9e3779b97f4a7c15u)

typedef struct reader {
    pthread_t thread;
    const void *record;
    atomic_int *over;
    uint64_t rows, events, words, halves, early;
    uint32_t random;
} reader_t;

/* The row that comes next, until it is there; or the one that is overwritten next, until it is gone. */
static uint64_t choose(reader_t *reader, uint64_t newest, uint64_t rows)
{
    reader->random = reader->random * 1664525u + 1013904223u;
    return (reader->random & 0x8000u) != 0 && newest >= rows ? newest + 1 - rows : newest + 1;
}

static int check_operation(reader_t *reader, uint64_t number)
{
    epx_record_operation_t op;
    epx_record_progress_t words;
    if (!epx_record_operation(reader->record, number, &op))
        return 0;
    reader->rows++;
    reader->halves += op.signature != MIX(op.sequence) || op.bytes != (int64_t)(op.sequence * 3) ||
                      op.sequence != op.number;
    reader->early += (op.state >= EPX_RECORD_BEGUN && op.begun_ns == 0) ||
                     (op.state == EPX_RECORD_ENDED && (op.ended_ns == 0 || op.posted_ns == 0));
    if (epx_record_progress_copy(reader->record, &op, &words, sizeof(words))) {
        reader->words++;
        reader->halves += words.sequence != op.sequence;
    }
    return 1;
}

static int check_event(reader_t *reader, uint64_t number)
{
    epx_record_event_t event;
    if (!epx_record_event(reader->record, number, &event))
        return 0;
    reader->events++;
    reader->halves += event.what == EPX_EVIDENCE_DEVICE_BUSY && event.value != event.time_ns * 7;
    return 1;
}

static void look(reader_t *reader, int (*check)(reader_t *, uint64_t), const uint64_t *count, uint64_t rows)
{
    uint64_t newest = __atomic_load_n(count, __ATOMIC_ACQUIRE), number = choose(reader, newest, rows);
    for (int i = 0; i < TRIES; i++)
        if (check(reader, number) == (number > newest))
            break;
}

static void *read_on(void *argument)
{
    reader_t *reader = argument;
    const epx_record_head_t *head = reader->record;
    while (!atomic_load_explicit(reader->over, memory_order_acquire)) {
        look(reader, check_operation, &head->operations, head->ops_max);
        look(reader, check_event, &head->events, head->events_max);
    }
    return NULL;
}

static void write_operation(epx_recorder_h recorder, int32_t group, int32_t text, uint64_t n)
{
    epx_recorder_call_t call = {.group_id = group,
                                .sequence = n,
                                .kind = EPX_RECORD_DISPATCH,
                                .signature = MIX(n),
                                .bytes = (int64_t)(n * 3)};
    uint64_t op = epx_recorder_enqueue(recorder, &call);
    epx_recorder_begin(recorder, op);
    epx_recorder_posted(recorder, op);
    epx_recorder_end(recorder, op, EPX_OK);
    (void)epx_record_evidence(recorder, EPX_EVIDENCE_DEVICE_BUSY, text, (int64_t)n * 7, (int64_t)n);
}

/* The record's pages once more, as another process sees them. */
static const void *map_again(const char *folder, char *path, size_t path_bytes, size_t *bytes_p)
{
    struct stat info;
    const char *why;
    snprintf(path, path_bytes, "%s/rank00000" EPX_RECORD_SUFFIX, folder);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    cr_assert(file >= 0 && fstat(file, &info) == 0, "%s is not there", path);
    *bytes_p = (size_t)info.st_size;
    void *record = mmap(NULL, *bytes_p, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    cr_assert(record != MAP_FAILED && epx_record_is_one(record, *bytes_p, &why));
    return record;
}

Test(record_stress, a_row_that_is_read_is_one_row, .timeout = 120)
{
    char folder[FOLDER_BYTES], path[128];
    size_t bytes;
    atomic_int over = 0;
    reader_t reader[READERS];
    epx_recorder_h recorder = NULL;
    folder_make(folder, "/tmp");
    epx_recorder_set_up_t set_up = {
        .folder = folder, .job = "job", .rank = 0, .ranks = 2, .hang_ms = 60000, .timeout_ms = 60000};
    cr_assert_eq(epx_recorder_open(&set_up, &recorder), EPX_OK);
    epx_recorder_group_t row = {.name = "experts", .key = 7, .ranks = 2, .rank = 0};
    int32_t group = epx_recorder_group_begin(recorder, &row), text = epx_record_text(recorder, "a device");
    const void *record = map_again(folder, path, sizeof(path), &bytes);
    for (uint32_t i = 0; i < READERS; i++) {
        reader[i] = (reader_t){.record = record, .over = &over, .random = 77 + i};
        cr_assert_eq(pthread_create(&reader[i].thread, NULL, read_on, &reader[i]), 0);
    }
    int64_t end_ns = epx_clock_ns() + (int64_t)WRITE_MS * 1000000;
    uint32_t random = 1;
    for (uint64_t n = 1; n % 64 != 0 || epx_clock_ns() < end_ns; n++) {
        write_operation(recorder, group, text, n);
        random = random * 1664525u + 1013904223u;
        for (uint32_t i = random >> 27; i > 0; i--)
            epx_spin_pause();
    }
    atomic_store_explicit(&over, 1, memory_order_release);
    for (int i = 0; i < READERS; i++) {
        pthread_join(reader[i].thread, NULL);
        cr_expect_gt(reader[i].rows, 0);
        cr_expect_gt(reader[i].events, 0);
        cr_expect_eq(reader[i].halves, 0, "reader %d: %llu of %llu rows were two halves", i,
                     (unsigned long long)reader[i].halves, (unsigned long long)reader[i].rows);
        cr_expect_eq(reader[i].early, 0, "reader %d: %llu states came before their times", i,
                     (unsigned long long)reader[i].early);
    }
    munmap((void *)(uintptr_t)record, bytes);
    epx_recorder_close(&recorder);
    cr_assert_eq(folder_remove(folder), 0, "%s stays", folder);
}
