/* SPDX-License-Identifier: Apache-2.0 */
#include "data.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fail.h"
#include "hash.h"
#include "random.h"

#define SHARD_MAGIC 20240520u /* llm.c, data_common.py: header of 256 int32: magic, version, tokens */
#define SHARD_HEADER_BYTES (256u * 4u)

static const char *const default_file = "new-testament-kjv.txt";

static uint32_t header_word(const epx_data_t *data, size_t index)
{
    uint32_t word;
    memcpy(&word, data->map + 4 * index, 4);
    return word;
}

int32_t epx_data_token(const epx_data_t *data, int64_t at)
{
    const unsigned char *byte = data->map + data->first_byte + (size_t)at * (size_t)data->token_bytes;
    return data->token_bytes == 1 ? byte[0] : byte[0] | byte[1] << 8;
}

/* Says whether the mapped file is a shard or a text, and checks a shard's header. */
static int read_header(epx_data_t *data, const char *path)
{
    if (data->map_bytes < SHARD_HEADER_BYTES || header_word(data, 0) != SHARD_MAGIC) {
        data->token_bytes = 1;
        data->tokens = (int64_t)data->map_bytes;
        data->vocabulary = 256;
        return EPX_TRAIN_OK;
    }
    if (header_word(data, 1) != 1)
        return epx_train_fail(EPX_TRAIN_USAGE,
                              "%s is a token shard of version %u: only version 1 (uint16 tokens) can be read",
                              path, header_word(data, 1));
    data->first_byte = SHARD_HEADER_BYTES;
    data->token_bytes = 2;
    data->tokens = (int64_t)header_word(data, 2);
    int64_t present = (int64_t)((data->map_bytes - SHARD_HEADER_BYTES) / 2);
    if (present < data->tokens)
        return epx_train_fail(
            EPX_TRAIN_USAGE,
            "%s is cut short: its header promises %lld tokens and %lld are there: copy it again", path,
            (long long)data->tokens, (long long)present);
    int32_t largest = 0;
    for (int64_t i = 0; i < data->tokens; i++) {
        int32_t token = epx_data_token(data, i);
        largest = token > largest ? token : largest;
    }
    data->vocabulary = (int64_t)largest + 1;
    return EPX_TRAIN_OK;
}

static int map_file(const char *path, epx_data_t *data)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return epx_train_fail(EPX_TRAIN_USAGE, "cannot read the text %s (%s): give another with --data FILE",
                              path, strerror(errno));
    struct stat status;
    if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size == 0) {
        close(file);
        return epx_train_fail(EPX_TRAIN_USAGE, "%s is empty or no plain file: give another with --data FILE",
                              path);
    }
    void *map = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (map == MAP_FAILED)
        return epx_train_fail(EPX_TRAIN_FAILED, "cannot map %s (%s): give another with --data FILE", path,
                              strerror(errno));
    data->map = map;
    data->map_bytes = (size_t)status.st_size;
    return EPX_TRAIN_OK;
}

int epx_data_open(const char *path, int64_t sequence, double validation, epx_data_t *data_p)
{
    epx_data_t data = {0};
    int code = map_file(path, &data);
    if (code != EPX_TRAIN_OK)
        return code;
    code = read_header(&data, path);
    if (code != EPX_TRAIN_OK)
        goto unmap;
    data.train_tokens = data.tokens - (int64_t)((double)data.tokens * validation);
    if (data.train_tokens < 2 * (sequence + 1) || epx_data_validation_count(&data, sequence) < 2) {
        code = epx_train_fail(
            EPX_TRAIN_USAGE,
            "%s has %lld tokens, too few for two sequences of %lld in each of training and validation: "
            "give a longer text or a smaller --sequence",
            path, (long long)data.tokens, (long long)sequence);
        goto unmap;
    }
    data.hash = epx_hash(EPX_HASH_INIT, data.map, data.map_bytes);
    *data_p = data;
    return EPX_TRAIN_OK;
unmap:
    epx_data_close(&data);
    return code;
}

void epx_data_close(epx_data_t *data)
{
    if (data->map)
        munmap((void *)(uintptr_t)data->map, data->map_bytes);
    memset(data, 0, sizeof *data);
}

int epx_data_default_path(char *path, size_t size)
{
    static const char *const beside_program[] = {"../../data", "../share/epx", "../../../data"};
    char program[1024];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash)
        *slash = '\0';
    snprintf(path, size, "data/%s", default_file);
    if (access(path, R_OK) == 0)
        return EPX_TRAIN_OK;
    for (size_t i = 0; slash && i < sizeof beside_program / sizeof *beside_program; i++) {
        snprintf(path, size, "%s/%s/%s", program, beside_program[i], default_file);
        if (access(path, R_OK) == 0)
            return EPX_TRAIN_OK;
    }
    return epx_train_fail(EPX_TRAIN_USAGE,
                          "the text %s is neither in ./data nor beside the program: give one with "
                          "--data FILE",
                          default_file);
}

/* A permutation of 0..count-1 that needs no table: four Feistel rounds over the next power of four, walked
 * until the value falls into the range. */
static int64_t permute(uint64_t seed, int64_t pass, int64_t index, int64_t count)
{
    int half_bits = 1;
    while ((int64_t)1 << (2 * half_bits) < count)
        half_bits++;
    uint64_t mask = ((uint64_t)1 << half_bits) - 1;
    uint64_t value = (uint64_t)index;
    do {
        uint64_t left = value >> half_bits, right = value & mask;
        for (uint64_t round = 0; round < 4; round++) {
            uint64_t key = (uint64_t)pass * 4 + round;
            uint64_t next = left ^ (epx_random_bits(seed ^ key << 32, EPX_STREAM_DATA, right) & mask);
            left = right;
            right = next;
        }
        value = left << half_bits | right;
    } while (value >= (uint64_t)count);
    return (int64_t)value;
}

static void read_window(const epx_data_t *data, int64_t start, int64_t sequence, int32_t *inputs,
                        int32_t *targets)
{
    for (int64_t i = 0; i < sequence; i++) {
        inputs[i] = epx_data_token(data, start + i);
        targets[i] = epx_data_token(data, start + i + 1);
    }
}

void epx_data_train(const epx_data_t *data, int64_t sequence, uint64_t seed, int64_t n, int32_t *inputs,
                    int32_t *targets)
{
    /* One sequence less than would fit leaves room for the offset, which differs from pass to pass. */
    int64_t count = (data->train_tokens - 1) / sequence - 1;
    int64_t pass = n / count;
    uint64_t bits = epx_random_bits(seed, EPX_STREAM_DATA, (uint64_t)pass << 32);
    int64_t offset = (int64_t)(bits % (uint64_t)sequence);
    int64_t start = offset + sequence * permute(seed, pass, n % count, count);
    read_window(data, start, sequence, inputs, targets);
}

int64_t epx_data_validation_count(const epx_data_t *data, int64_t sequence)
{
    return (data->tokens - data->train_tokens - 1) / sequence;
}

void epx_data_validation(const epx_data_t *data, int64_t sequence, int64_t n, int32_t *inputs,
                         int32_t *targets)
{
    read_window(data, data->train_tokens + n * sequence, sequence, inputs, targets);
}
