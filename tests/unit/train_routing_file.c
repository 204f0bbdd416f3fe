/* Recorded routing: what is written is read, and what is damaged is refused. SPDX-License-Identifier:
 * Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/fail.h"
#include "train/routing_file.h"

static char path[64];

static void make_path(void)
{
    strcpy(path, "/tmp/epx-routing-XXXXXX");
    int file = mkstemp(path);
    cr_assert_geq(file, 0);
    close(file);
}

static void remove_path(void) { unlink(path); }

static const epx_routing_shape_t ids_shape = {
    .kind = EPX_ROUTING_IDS, .ranks = 4, .group = 2, .experts = 7, .top_k = 3, .layers = 2, .tokens = 5};

enum { IDS = 2 * 4 * 5 * 3, STEPS = 3 };

static void write_ids(void)
{
    epx_routing_writer_t *writer;
    int32_t record[IDS];
    cr_assert_eq(epx_routing_record_bytes(&ids_shape), sizeof record);
    cr_assert_eq(epx_routing_writer_open(path, &ids_shape, &writer), 0, "%s", epx_train_error());
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < IDS; i++)
            record[i] = (step * IDS + i) % 8 - 1;
        cr_assert_eq(epx_routing_writer_add(writer, record), 0, "%s", epx_train_error());
    }
    cr_assert_eq(epx_routing_writer_close(&writer), 0, "%s", epx_train_error());
    cr_assert_null(writer);
}

TestSuite(train_routing_file, .init = make_path, .fini = remove_path);

Test(train_routing_file, ids_come_back)
{
    epx_routing_file_t file;
    write_ids();
    cr_assert_eq(epx_routing_read(path, &file), 0, "%s", epx_train_error());
    cr_expect_eq(memcmp(&file.shape, &ids_shape, sizeof ids_shape), 0);
    cr_expect_eq(file.steps, STEPS);
    cr_expect_eq(file.rank_tokens[3], 5);
    for (int i = 0; i < STEPS * IDS; i++)
        cr_assert_eq(file.ids[i], i % 8 - 1);
    epx_routing_free(&file);
}

Test(train_routing_file, counts_come_back)
{
    epx_routing_shape_t shape = {
        .kind = EPX_ROUTING_COUNTS, .ranks = 2, .group = 2, .experts = 3, .top_k = 2, .layers = 1};
    int64_t record[6] = {1, 2, 3, 4, 5, (int64_t)1 << 40};
    epx_routing_writer_t *writer;
    epx_routing_file_t file;
    cr_assert_eq(epx_routing_writer_open(path, &shape, &writer), 0);
    cr_assert_eq(epx_routing_writer_add(writer, record), 0);
    cr_assert_eq(epx_routing_writer_close(&writer), 0);
    cr_assert_eq(epx_routing_read(path, &file), 0, "%s", epx_train_error());
    cr_expect_null(file.ids);
    cr_expect_eq(memcmp(file.counts, record, sizeof record), 0);
    epx_routing_free(&file);
}

static void expect_refused(const char *word)
{
    epx_routing_file_t file;
    cr_expect_eq(epx_routing_read(path, &file), EPX_TRAIN_USAGE, "not refused for being %s", word);
    cr_expect(strstr(epx_train_error(), word), "'%s' says nothing of '%s'", epx_train_error(), word);
}

static void change_byte(long at)
{
    FILE *stream = fopen(path, "r+b");
    fseek(stream, at, SEEK_SET);
    int byte = fgetc(stream);
    fseek(stream, at, SEEK_SET);
    fputc(byte ^ 1, stream);
    fclose(stream);
}

Test(train_routing_file, damaged_and_cut_files_are_refused)
{
    write_ids();
    change_byte(16); /* ranks */
    expect_refused("header");
    write_ids();
    change_byte(64 + 100);
    expect_refused("damaged");
    write_ids();
    cr_assert_eq(truncate(path, 64 + 200), 0);
    expect_refused("cut short");
    cr_assert_eq(truncate(path, 20), 0);
    expect_refused("cut short");
}

static void write_text(const char *text)
{
    FILE *stream = fopen(path, "wb");
    fputs(text, stream);
    fclose(stream);
}

Test(train_routing_file, foreign_files_are_refused)
{
    write_text("something else");
    expect_refused("no routing");
    write_text("");
    expect_refused("no routing");
}

Test(train_routing_file, text_form_is_read)
{
    epx_routing_file_t file;
    write_text("epx-routing-text 1 ranks=3 experts=4 top_k=2\n# a comment\n\n2 0 1\n0 3 -1\r\n2 2 2");
    cr_assert_eq(epx_routing_read(path, &file), 0, "%s", epx_train_error());
    int32_t ids[3][2][2] = {{{3, -1}, {-1, -1}}, {{-1, -1}, {-1, -1}}, {{0, 1}, {2, 2}}};
    cr_expect_eq(file.shape.tokens, 2);
    cr_expect_eq(file.rank_tokens[0], 1);
    cr_expect_eq(file.rank_tokens[1], 0);
    cr_expect_eq(file.rank_tokens[2], 2);
    cr_expect_eq(memcmp(file.ids, ids, sizeof ids), 0);
    epx_routing_free(&file);
}

Test(train_routing_file, wrong_lines_are_named)
{
    write_text("epx-routing-text 1 ranks=2 experts=4 top_k=2\n0 1 2\n0 1\n");
    expect_refused("line 3");
    write_text("epx-routing-text 1 ranks=2 experts=4 top_k=2\n0 1 4\n");
    expect_refused("line 2");
    write_text("epx-routing-text 1 ranks=2 experts=4 top_k=2\n2 1 1\n");
    expect_refused("line 2");
    write_text("epx-routing-text 1 ranks=2 experts=4 top_k=2\n1 1 1 1\n");
    expect_refused("line 2");
    write_text("epx-routing-text 1 ranks=4294967298 experts=4 top_k=2\n0 1 1\n"); /* 2 in 32 bits */
    expect_refused("first line");
    write_text("epx-routing-text 2 ranks=2 experts=4 top_k=2\n0 1 1\n");
    expect_refused("first line");
    write_text("epx-routing-text 1 ranks=2 experts=4\n0 1 1\n");
    expect_refused("first line");
    write_text("epx-routing-text 1 ranks=2 experts=4 top_k=2\n");
    expect_refused("no tokens");
}
