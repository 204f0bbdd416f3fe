/* SPDX-License-Identifier: Apache-2.0 */
#include "routing_file.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fail.h"
#include "hash.h"
#include "output_file.h"

static const char magic[8] = {'E', 'P', 'X', 'R', 'O', 'U', 'T', 'E'};
static const char text_magic[] = "epx-routing-text";

struct header {
    char magic[8];
    uint32_t version, kind;
    int32_t ranks, group, experts, top_k, layers, tokens, steps, unused;
    uint64_t payload;  /* checksum of the records, one after the other */
    uint64_t checksum; /* of the header up to here */
};

_Static_assert(sizeof(struct header) == 64, "the file format has a header of 64 bytes");

static uint64_t header_checksum(const struct header *header)
{
    return epx_hash(EPX_HASH_INIT, header, offsetof(struct header, checksum));
}

size_t epx_routing_record_bytes(const epx_routing_shape_t *shape)
{
    size_t places = (size_t)shape->layers * (size_t)shape->ranks;
    if (shape->kind == EPX_ROUTING_COUNTS)
        return places * (size_t)shape->experts * sizeof(int64_t);
    return places * (size_t)shape->tokens * (size_t)shape->top_k * sizeof(int32_t);
}

static int usage(const char *path, const char *wrong)
{
    return epx_train_fail(EPX_TRAIN_USAGE, "%s %s: record it again, or give another file", path, wrong);
}

static int plausible(const epx_routing_shape_t *shape)
{
    return shape->ranks >= 1 && shape->group >= 1 && shape->ranks % shape->group == 0 &&
           shape->experts >= 1 && shape->top_k >= 1 && shape->top_k <= shape->experts && shape->layers >= 1 &&
           shape->tokens >= 0 && (shape->kind == EPX_ROUTING_COUNTS || shape->kind == EPX_ROUTING_IDS);
}

/* ---- binary form --------------------------------------------------------------------------------------------------- */

static int check_ids(const char *path, const epx_routing_file_t *file)
{
    size_t count = epx_routing_record_bytes(&file->shape) / sizeof(int32_t) * (size_t)file->steps;
    for (size_t i = 0; i < count; i++)
        if (file->ids[i] < -1 || file->ids[i] >= file->shape.experts)
            return usage(path, "names an expert that does not exist");
    return EPX_TRAIN_OK;
}

static int point_into(const char *path, epx_routing_file_t *file)
{
    const char *records = (const char *)file->memory[0] + sizeof(struct header);
    if (file->shape.kind == EPX_ROUTING_COUNTS) {
        file->counts = (const int64_t *)(const void *)records;
        return EPX_TRAIN_OK;
    }
    int64_t *tokens = malloc((size_t)file->shape.ranks * sizeof *tokens);
    if (!tokens)
        return epx_train_fail(EPX_TRAIN_FAILED, "no memory for %d ranks of %s", (int)file->shape.ranks, path);
    for (int32_t r = 0; r < file->shape.ranks; r++)
        tokens[r] = file->shape.tokens;
    file->memory[1] = tokens;
    file->rank_tokens = tokens;
    file->ids = (const int32_t *)(const void *)records;
    return check_ids(path, file);
}

static int read_binary(const char *path, size_t bytes, epx_routing_file_t *file)
{
    struct header header;
    if (bytes < sizeof header)
        return usage(path, "is cut short");
    memcpy(&header, file->memory[0], sizeof header);
    if (header.version != 1)
        return usage(path, "is of another version than 1");
    if (header.checksum != header_checksum(&header))
        return usage(path, "has a damaged header");
    file->shape = (epx_routing_shape_t){.kind = (epx_routing_kind_t)header.kind,
                                        .ranks = header.ranks,
                                        .group = header.group,
                                        .experts = header.experts,
                                        .top_k = header.top_k,
                                        .layers = header.layers,
                                        .tokens = header.tokens};
    file->steps = header.steps;
    size_t each = plausible(&file->shape) ? epx_routing_record_bytes(&file->shape) : 0;
    if (each == 0 || header.steps < 1)
        return usage(path, "holds no routing");
    if (bytes != sizeof header + each * (size_t)header.steps)
        return usage(path,
                     bytes < sizeof header + each * (size_t)header.steps ? "is cut short" : "is too long");
    uint64_t hash = EPX_HASH_INIT;
    for (int32_t step = 0; step < header.steps; step++)
        hash = epx_hash(hash, (const char *)file->memory[0] + sizeof header + each * (size_t)step, each);
    if (hash != header.payload)
        return usage(path, "is damaged (its checksum is wrong)");
    return point_into(path, file);
}

/* ---- text form ----------------------------------------------------------------------------------------------------- */

/* The next line of the text, or NULL; cuts it at its end. */
static char *next_line(char **at)
{
    char *line = *at;
    if (*line == '\0')
        return NULL;
    char *end = strchr(line, '\n');
    *at = end ? end + 1 : line + strlen(line);
    if (end)
        *end = '\0';
    return line;
}

static int is_token(const char *line)
{
    line += strspn(line, " \t\r");
    return *line != '\0' && *line != '\n' && *line != '#';
}

/* Reads the integer at *at, in from..to. */
static int read_number(char **at, long from, long to, int32_t *value)
{
    char *end;
    errno = 0;
    long number = strtol(*at, &end, 10);
    if (end == *at || errno != 0 || number < from || number > to)
        return 0;
    *at = end;
    *value = (int32_t)number;
    return 1;
}

/* Reads one token line into ids, or only its rank where ids is NULL. 1 if it is well-formed. */
static int read_token(char *line, const epx_routing_shape_t *shape, int32_t *rank, int32_t *ids)
{
    if (!read_number(&line, 0, shape->ranks - 1, rank))
        return 0;
    for (int32_t k = 0; ids && k < shape->top_k; k++)
        if (!read_number(&line, -1, shape->experts - 1, &ids[k]))
            return 0;
    return !ids || line[strspn(line, " \t\r")] == '\0';
}

static int bad_line(const char *path, int64_t number)
{
    return epx_train_fail(
        EPX_TRAIN_USAGE,
        "%s, line %lld is no token: write 'rank id id ...' with ranks and experts that the first "
        "line allows",
        path, (long long)number);
}

/* Counts each rank's tokens: a first walk over the text, which it leaves as it was. */
static int count_tokens(const char *path, const char *text, epx_routing_file_t *file, int64_t *tokens)
{
    int64_t number = 1, most = 0;
    for (const char *line = text; *line != '\0'; number++) {
        int32_t rank;
        if (is_token(line)) {
            if (!read_token((char *)(uintptr_t)line, &file->shape, &rank, NULL))
                return bad_line(path, number + 1);
            most = ++tokens[rank] > most ? tokens[rank] : most;
        }
        const char *end = strchr(line, '\n');
        line = end ? end + 1 : line + strlen(line);
    }
    if (most == 0 || most > INT32_MAX)
        return usage(path, "holds no tokens");
    file->shape.tokens = (int32_t)most;
    return EPX_TRAIN_OK;
}

static int read_tokens(const char *path, char *text, const epx_routing_file_t *file, int64_t *seen,
                       int32_t *ids)
{
    int64_t number = 1, top_k = file->shape.top_k;
    for (char *line; (line = next_line(&text)) != NULL;) {
        int32_t rank;
        number++;
        if (!is_token(line))
            continue;
        if (!read_token(line, &file->shape, &rank, NULL))
            return bad_line(path, number);
        int32_t *to = ids + (rank * (int64_t)file->shape.tokens + seen[rank]++) * top_k;
        if (!read_token(line, &file->shape, &rank, to))
            return bad_line(path, number);
    }
    return EPX_TRAIN_OK;
}

static int read_text(const char *path, epx_routing_file_t *file)
{
    char *text = file->memory[0], *first = next_line(&text);
    int version = 0, code;
    file->shape = (epx_routing_shape_t){.kind = EPX_ROUTING_IDS, .layers = 1};
    file->steps = 1;
    if (!first || sscanf(first, "epx-routing-text %9d ranks=%9d experts=%9d top_k=%9d", &version,
                         &file->shape.ranks, &file->shape.experts, &file->shape.top_k) != 4)
        return usage(path, "has another first line than 'epx-routing-text 1 ranks=S experts=E top_k=K'");
    file->shape.group = file->shape.ranks;
    if (version != 1 || !plausible(&file->shape))
        return usage(path, "has a first line with a version or numbers that cannot be");
    int64_t *tokens = calloc(2 * (size_t)file->shape.ranks, sizeof *tokens);
    int32_t *ids = NULL;
    if (!tokens)
        return epx_train_fail(EPX_TRAIN_FAILED, "no memory for %d ranks of %s", (int)file->shape.ranks, path);
    code = count_tokens(path, text, file, tokens);
    if (code == EPX_TRAIN_OK) {
        size_t bytes = epx_routing_record_bytes(&file->shape);
        ids = malloc(bytes);
        code = ids ? EPX_TRAIN_OK : epx_train_fail(EPX_TRAIN_FAILED, "no memory for the tokens of %s", path);
        if (ids)
            memset(ids, 0xff, bytes); /* -1 */
    }
    if (code == EPX_TRAIN_OK)
        code = read_tokens(path, text, file, tokens + file->shape.ranks, ids);
    free(file->memory[0]);
    file->memory[0] = ids;
    file->memory[1] = tokens;
    file->ids = ids;
    file->rank_tokens = tokens;
    return code;
}

/* ---- both ---------------------------------------------------------------------------------------------------------- */

/* The whole file, with a zero behind it. */
static int read_all(const char *path, void **memory_p, size_t *bytes_p)
{
    FILE *stream = fopen(path, "rb");
    if (!stream)
        return epx_train_fail(EPX_TRAIN_USAGE, "cannot read the routing %s (%s): check the path", path,
                              strerror(errno));
    struct stat status;
    if (fstat(fileno(stream), &status) != 0 || !S_ISREG(status.st_mode)) {
        fclose(stream);
        return usage(path, "is no plain file");
    }
    char *memory = NULL;
    long bytes = fseek(stream, 0, SEEK_END) == 0 ? ftell(stream) : -1;
    if (bytes >= 0 && fseek(stream, 0, SEEK_SET) == 0)
        memory = malloc((size_t)bytes + 1);
    int whole = memory && fread(memory, 1, (size_t)bytes, stream) == (size_t)bytes;
    fclose(stream);
    if (!whole) {
        free(memory);
        return epx_train_fail(EPX_TRAIN_FAILED, "cannot read all of the routing %s: check file and memory",
                              path);
    }
    memory[bytes] = '\0';
    *memory_p = memory;
    *bytes_p = (size_t)bytes;
    return EPX_TRAIN_OK;
}

int epx_routing_read(const char *path, epx_routing_file_t *file_p)
{
    epx_routing_file_t file = {0};
    size_t bytes = 0;
    int code = read_all(path, &file.memory[0], &bytes);
    if (code != EPX_TRAIN_OK)
        return code;
    if (bytes >= sizeof magic && memcmp(file.memory[0], magic, sizeof magic) == 0)
        code = read_binary(path, bytes, &file);
    else if (strncmp(file.memory[0], text_magic, sizeof text_magic - 1) == 0)
        code = read_text(path, &file);
    else
        code = usage(path, "is no routing of epx");
    if (code != EPX_TRAIN_OK)
        epx_routing_free(&file);
    else
        *file_p = file;
    return code;
}

void epx_routing_free(epx_routing_file_t *file)
{
    free(file->memory[0]);
    free(file->memory[1]);
    memset(file, 0, sizeof *file);
}

/* ---- writer -------------------------------------------------------------------------------------------------------- */

struct epx_routing_writer {
    FILE *stream;
    struct header header;
    size_t record_bytes;
    char *path, *partial;
};

static void free_writer(epx_routing_writer_t *writer)
{
    if (writer->stream)
        fclose(writer->stream);
    free(writer->path);
    free(writer->partial);
    free(writer);
}

static int cannot_write(const epx_routing_writer_t *writer)
{
    return epx_train_fail(EPX_TRAIN_FAILED, "cannot write the routing %s (%s): check folder and space",
                          writer->path, strerror(errno));
}

int epx_routing_writer_open(const char *path, const epx_routing_shape_t *shape,
                            epx_routing_writer_t **writer_p)
{
    if (epx_output_refuse_special(EPX_TRAIN_FAILED, "routing", path) != EPX_TRAIN_OK)
        return EPX_TRAIN_FAILED;
    epx_routing_writer_t *writer = calloc(1, sizeof *writer);
    if (!writer || asprintf(&writer->partial, "%s.partial", path) < 0 || !(writer->path = strdup(path))) {
        free(writer);
        return epx_train_fail(EPX_TRAIN_FAILED, "no memory for writing the routing %s", path);
    }
    writer->record_bytes = epx_routing_record_bytes(shape);
    writer->header = (struct header){.version = 1,
                                     .kind = (uint32_t)shape->kind,
                                     .ranks = shape->ranks,
                                     .group = shape->group,
                                     .experts = shape->experts,
                                     .top_k = shape->top_k,
                                     .layers = shape->layers,
                                     .tokens = shape->tokens,
                                     .payload = EPX_HASH_INIT};
    memcpy(writer->header.magic, magic, sizeof magic);
    writer->stream = fopen(writer->partial, "wb");
    if (!writer->stream || fwrite(&writer->header, sizeof writer->header, 1, writer->stream) != 1) {
        int code = cannot_write(writer);
        free_writer(writer);
        return code;
    }
    *writer_p = writer;
    return EPX_TRAIN_OK;
}

int epx_routing_writer_add(epx_routing_writer_t *writer, const void *record)
{
    if (fwrite(record, 1, writer->record_bytes, writer->stream) != writer->record_bytes) {
        writer->header.steps = 0; /* closing leaves nothing of it behind */
        return cannot_write(writer);
    }
    writer->header.payload = epx_hash(writer->header.payload, record, writer->record_bytes);
    writer->header.steps++;
    return EPX_TRAIN_OK;
}

int epx_routing_writer_close(epx_routing_writer_t **writer_p)
{
    epx_routing_writer_t *writer = *writer_p;
    *writer_p = NULL;
    if (!writer)
        return EPX_TRAIN_OK;
    if (writer->header.steps == 0) { /* nobody could read it */
        unlink(writer->partial);
        free_writer(writer);
        return EPX_TRAIN_OK;
    }
    writer->header.checksum = header_checksum(&writer->header);
    int whole = fseek(writer->stream, 0, SEEK_SET) == 0 &&
                fwrite(&writer->header, sizeof writer->header, 1, writer->stream) == 1 &&
                fflush(writer->stream) == 0 && fsync(fileno(writer->stream)) == 0 &&
                rename(writer->partial, writer->path) == 0;
    int code = whole ? EPX_TRAIN_OK : cannot_write(writer);
    if (!whole)
        unlink(writer->partial);
    free_writer(writer);
    return code;
}
