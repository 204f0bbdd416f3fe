/* Texts, shards and the order in which they are read. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/bigram.h"
#include "train/data.h"
#include "train/fail.h"

static char data_path[64];

static void write_file(const void *bytes, size_t count)
{
    strcpy(data_path, "/tmp/epx-data-XXXXXX");
    int file = mkstemp(data_path);
    cr_assert_geq(file, 0);
    cr_assert_eq(write(file, bytes, count), (ssize_t)count);
    close(file);
}

static void remove_file(void) { unlink(data_path); }

/* A text whose token at place i is i mod 251. */
static void write_text(size_t count)
{
    unsigned char *text = malloc(count);
    for (size_t i = 0; i < count; i++)
        text[i] = (unsigned char)(i % 251);
    write_file(text, count);
    free(text);
}

Test(train_data, inputs_and_targets_are_one_apart, .fini = remove_file)
{
    epx_data_t data;
    int32_t inputs[16], targets[16];
    write_text(4000);
    cr_assert_eq(epx_data_open(data_path, 16, 0.25, &data), 0, "%s", epx_train_error());
    cr_expect_eq(data.tokens, 4000);
    cr_expect_eq(data.train_tokens, 3000);
    for (int64_t n = 0; n < 500; n++) {
        epx_data_train(&data, 16, 7, n, inputs, targets);
        for (int i = 0; i < 16; i++)
            cr_assert_eq((inputs[i] + 1) % 251, targets[i]);
    }
    epx_data_validation(&data, 16, 2, inputs, targets);
    cr_expect_eq(inputs[0], (3000 + 32) % 251);
    cr_expect_eq(targets[15], (3000 + 48) % 251);
    epx_data_close(&data);
}

/* A token that says where it stands: two bytes. */
static void write_shard(uint32_t magic, uint32_t version, int32_t promised, int32_t tokens)
{
    size_t bytes = 1024 + 2 * (size_t)tokens;
    unsigned char *shard = calloc(1, bytes);
    uint32_t header[3] = {magic, version, (uint32_t)promised};
    memcpy(shard, header, sizeof header);
    for (int32_t i = 0; i < tokens; i++) {
        uint16_t token = (uint16_t)i;
        memcpy(shard + 1024 + 2 * i, &token, 2);
    }
    write_file(shard, bytes);
    free(shard);
}

Test(train_data, each_pass_takes_every_sequence_once_in_its_own_order, .fini = remove_file)
{
    enum { TOKENS = 20000, SEQUENCE = 10 };
    epx_data_t data;
    int32_t inputs[SEQUENCE], targets[SEQUENCE];
    write_shard(20240520, 1, TOKENS, TOKENS);
    cr_assert_eq(epx_data_open(data_path, SEQUENCE, 0.1, &data), 0, "%s", epx_train_error());
    int64_t count = (data.train_tokens - 1) / SEQUENCE - 1;
    static int32_t first_order[2000], order[2000];
    for (int64_t pass = 0; pass < 3; pass++) {
        static char seen[2000];
        memset(seen, 0, sizeof seen);
        for (int64_t i = 0; i < count; i++) {
            epx_data_train(&data, SEQUENCE, 3, pass * count + i, inputs, targets);
            order[i] = inputs[0] / SEQUENCE;
            cr_assert_lt(targets[SEQUENCE - 1], data.train_tokens, "a validation token in training");
            cr_assert_not(seen[order[i]], "sequence %d twice in pass %d", order[i], (int)pass);
            seen[order[i]] = 1;
        }
        if (pass == 0)
            memcpy(first_order, order, sizeof order);
        else
            cr_expect_neq(memcmp(first_order, order, (size_t)count * sizeof *order), 0,
                          "two passes in one order");
    }
    epx_data_close(&data);
}

Test(train_data, another_seed_is_another_order_and_the_same_seed_the_same, .fini = remove_file)
{
    epx_data_t data;
    int32_t a[10], b[10], targets[10];
    write_shard(20240520, 1, 20000, 20000);
    cr_assert_eq(epx_data_open(data_path, 10, 0.1, &data), 0, "%s", epx_train_error());
    int same = 0;
    for (int64_t n = 0; n < 100; n++) {
        epx_data_train(&data, 10, 1, n, a, targets);
        epx_data_train(&data, 10, 2, n, b, targets);
        same += a[0] == b[0];
        epx_data_train(&data, 10, 1, n, b, targets);
        cr_assert_eq(a[0], b[0]);
    }
    cr_expect_lt(same, 10);
    epx_data_close(&data);
}

Test(train_data, shard_tells_its_vocabulary, .fini = remove_file)
{
    epx_data_t data;
    write_shard(20240520, 1, 3000, 3000);
    cr_assert_eq(epx_data_open(data_path, 10, 0.1, &data), 0, "%s", epx_train_error());
    cr_expect_eq(data.token_bytes, 2);
    cr_expect_eq(data.vocabulary, 3000);
    cr_expect_eq(epx_data_token(&data, 2999), 2999);
    epx_data_close(&data);
}

static void expect_refused(const char *word)
{
    epx_data_t data;
    cr_expect_eq(epx_data_open(data_path, 10, 0.1, &data), EPX_TRAIN_USAGE);
    cr_expect(strstr(epx_train_error(), word), "'%s' says nothing of '%s'", epx_train_error(), word);
}

Test(train_data, cut_shard_is_refused, .fini = remove_file)
{
    write_shard(20240520, 1, 3001, 3000);
    expect_refused("cut short");
}

Test(train_data, shard_of_another_version_is_refused, .fini = remove_file)
{
    write_shard(20240520, 2, 3000, 3000);
    expect_refused("version 2");
}

Test(train_data, short_text_is_refused, .fini = remove_file)
{
    write_text(50);
    expect_refused("too few");
}

Test(train_data, missing_file_is_refused)
{
    strcpy(data_path, "/tmp/epx-no-such-file");
    expect_refused("--data FILE");
}

/* In "abab...", seen often, a is followed by b nearly surely. */
Test(train_data, bigram_model_knows_what_follows, .fini = remove_file)
{
    epx_data_t data;
    double loss;
    char text[10000];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "ab"[i % 2];
    write_file(text, sizeof text);
    cr_assert_eq(epx_data_open(data_path, 10, 0.1, &data), 0, "%s", epx_train_error());
    cr_assert_eq(epx_bigram_loss(&data, 10, 20, &loss), 0);
    /* One kind of successor in 4,500: p = (4500 + 1 * p(b)) / 4501 with p(b) near 1/2. */
    cr_expect_float_eq(loss, -log((4500 + 0.5) / 4501), 1e-5, "%g", loss);
    epx_data_close(&data);
}
