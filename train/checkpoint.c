/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint_file.h"
#include "fail.h"
#include "hash.h"
#include "model_fields.h"
#include "output_file.h"
#include "status.h"

static int cannot_read(const char *path)
{
    return epx_train_fail(EPX_TRAIN_USAGE, "cannot read the checkpoint %s (%s): check the path", path,
                          errno ? strerror(errno) : "it became shorter");
}

static int file_error(const char *verb, const char *path)
{
    return epx_train_fail(EPX_TRAIN_FAILED,
                          "cannot %s the checkpoint %s (%s): check folder, space and rights", verb, path,
                          strerror(errno));
}

static int write_at(int file, const void *data, size_t bytes, uint64_t offset, const char *path)
{
    for (const char *at = data; bytes > 0;) {
        ssize_t written = pwrite(file, at, bytes, (off_t)offset);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return file_error("write", path);
        at += written;
        offset += (uint64_t)written;
        bytes -= (size_t)written;
    }
    return EPX_TRAIN_OK;
}

static int read_at(int file, void *data, size_t bytes, uint64_t offset, const char *path)
{
    for (char *at = data; bytes > 0;) {
        errno = 0;
        ssize_t got = pread(file, at, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return cannot_read(path);
        at += got;
        offset += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return EPX_TRAIN_OK;
}

/* The arrays of a section, one after the other. */
static void arrays_of(const epx_model_t *model, const epx_optimizer_t *optimizer,
                      const epx_checkpoint_place_t *place, epx_real_t *array[3])
{
    array[0] = place->arrays == 1 ? model->bias : model->parameter + place->offset;
    array[1] = optimizer->mean + place->offset;
    array[2] = optimizer->square + place->offset;
}

static uint64_t checksum_of(epx_real_t *const array[3], const epx_checkpoint_place_t *place)
{
    uint64_t hash = EPX_HASH_INIT;
    for (int i = 0; i < place->arrays; i++)
        hash = epx_hash(hash, array[i], (size_t)place->count * sizeof **array);
    return hash;
}

/* ---- save ------------------------------------------------------------------------------------------------------------ */

/* Of replica 0 every rank writes its experts, and the first one what all ranks hold. */
static int writes(const epx_ranks_t *ranks, const epx_checkpoint_place_t *place)
{
    return ranks->replica == 0 && (place->expert ? place->offset >= 0 : ranks->rank == 0);
}

static int write_sections(const char *partial, const epx_ranks_t *ranks, const epx_model_t *model,
                          const epx_optimizer_t *optimizer, const epx_checkpoint_front_t *front,
                          int64_t *checksums)
{
    int file = ranks->replica == 0 ? open(partial, O_WRONLY | O_CLOEXEC) : -1, code = EPX_TRAIN_OK;
    if (ranks->replica != 0)
        return EPX_TRAIN_OK;
    if (file < 0)
        return file_error("open", partial);
    epx_checkpoint_place_t place;
    for (int64_t i = 0; code == EPX_TRAIN_OK && epx_checkpoint_place(model, i, &place); i++) {
        if (!writes(ranks, &place))
            continue;
        epx_real_t *array[3];
        arrays_of(model, optimizer, &place, array);
        size_t bytes = (size_t)place.count * sizeof **array;
        for (int a = 0; code == EPX_TRAIN_OK && a < place.arrays; a++)
            code = write_at(file, array[a], bytes, front->section[i].offset + (uint64_t)a * bytes, partial);
        checksums[i] = (int64_t)checksum_of(array, &place);
    }
    if (code == EPX_TRAIN_OK && fsync(file) != 0)
        code = file_error("flush", partial);
    close(file);
    return code;
}

static int create_file(const char *partial, uint64_t bytes)
{
    int file = open(partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0)
        return file_error("create", partial);
    int code = ftruncate(file, (off_t)bytes) == 0 ? EPX_TRAIN_OK : file_error("make room for", partial);
    close(file);
    return code;
}

/* The folder's entry must reach the disk too, or a crash brings back the old file. */
static void flush_folder(const char *path)
{
    char folder[4096];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash)
        *(slash == folder ? slash + 1 : slash) = '\0';
    int file = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file >= 0) {
        fsync(file);
        close(file);
    }
}

static int complete_file(const char *path, const char *partial, const epx_checkpoint_front_t *front)
{
    int file = open(partial, O_WRONLY | O_CLOEXEC);
    if (file < 0)
        return file_error("open", partial);
    int code = write_at(file, front->memory, front->bytes, 0, partial);
    if (code == EPX_TRAIN_OK && fsync(file) != 0)
        code = file_error("flush", partial);
    close(file);
    if (code == EPX_TRAIN_OK && rename(partial, path) != 0)
        code = file_error("rename to", path);
    if (code == EPX_TRAIN_OK)
        flush_folder(path);
    return code;
}

int epx_checkpoint_save(const char *path, const epx_ranks_t *ranks, const epx_model_t *model,
                        const epx_optimizer_t *optimizer, const epx_progress_t *progress, uint64_t *hash_p)
{
    epx_checkpoint_front_t front = {0};
    char partial[4096];
    snprintf(partial, sizeof partial, "%s.partial", path);
    int code = epx_checkpoint_front(model, progress, &front);
    int64_t sections = front.memory ? (int64_t)front.header->sections : 0;
    int64_t *checksums = calloc((size_t)sections + 1, sizeof *checksums);
    if (code == EPX_TRAIN_OK && !checksums)
        code = epx_train_fail(EPX_TRAIN_FAILED, "no memory for the checksums of a checkpoint");
    if (code == EPX_TRAIN_OK && ranks->rank == 0)
        code = epx_output_refuse_special(EPX_TRAIN_FAILED, "checkpoint", path);
    if (code == EPX_TRAIN_OK && ranks->rank == 0)
        code = create_file(partial, front.header->file_bytes);
    code = epx_train_agree(ranks->world, code);
    if (code == EPX_TRAIN_OK) {
        code = write_sections(partial, ranks, model, optimizer, &front, checksums);
        code = epx_train_agree(ranks->world, code);
    }
    if (code == EPX_TRAIN_OK)
        code = epx_train_status(
            epx_comm_allreduce(ranks->world, checksums, sections, EPX_NUMBER_INT64, EPX_SUM));
    if (code == EPX_TRAIN_OK) {
        for (int64_t i = 0; i < sections; i++)
            front.section[i].checksum = (uint64_t)checksums[i];
        *hash_p = front.header->checksum = epx_checkpoint_front_checksum(&front);
        code = epx_train_agree(ranks->world,
                               ranks->rank == 0 ? complete_file(path, partial, &front) : EPX_TRAIN_OK);
    }
    if (code != EPX_TRAIN_OK && ranks->rank == 0)
        unlink(partial);
    free(checksums);
    free(front.memory);
    return code;
}

/* ---- restore --------------------------------------------------------------------------------------------------------- */

static int refuse(const char *path, const char *why)
{
    return epx_train_fail(EPX_TRAIN_USAGE, "%s %s: restore another checkpoint", path, why);
}

/* Reads header, shape and table of an open file and checks that they are whole. */
static int read_front(int file, const char *path, epx_checkpoint_front_t *front_p)
{
    struct stat status;
    epx_checkpoint_header_t header;
    if (fstat(file, &status) != 0)
        return cannot_read(path);
    if (!S_ISREG(status.st_mode))
        return refuse(path, "is no plain file");
    if ((size_t)status.st_size < sizeof header)
        return refuse(path, "is too short to be a checkpoint");
    int code = read_at(file, &header, sizeof header, 0, path);
    if (code != EPX_TRAIN_OK)
        return code;
    if (memcmp(header.magic, epx_checkpoint_magic, sizeof header.magic) != 0)
        return refuse(path, "is no checkpoint of epx-train");
    if (header.version != EPX_CHECKPOINT_VERSION || header.byte_order != EPX_CHECKPOINT_ORDER)
        return refuse(path, "was written by another version or on a machine of other byte order");
    if (header.file_bytes != (uint64_t)status.st_size)
        return epx_train_fail(
            EPX_TRAIN_USAGE,
            "%s has %lld bytes where %llu were written: it was cut or copied badly, restore another "
            "checkpoint",
            path, (long long)status.st_size, (unsigned long long)header.file_bytes);
    uint64_t room = header.file_bytes - sizeof header;
    if (header.shape_bytes > room || header.shape_bytes % 8 != 0 ||
        header.sections > (room - header.shape_bytes) / sizeof(epx_checkpoint_section_t))
        return refuse(path, "has a damaged header");
    epx_checkpoint_front_t front = {0};
    front.bytes = sizeof header + header.shape_bytes + header.sections * sizeof(epx_checkpoint_section_t);
    front.memory = malloc(front.bytes);
    if (!front.memory)
        return epx_train_fail(EPX_TRAIN_FAILED, "no memory for the table of %s", path);
    front.header = (epx_checkpoint_header_t *)(void *)front.memory;
    front.shape = front.memory + sizeof header;
    front.section = (epx_checkpoint_section_t *)(void *)(front.shape + header.shape_bytes);
    code = read_at(file, front.memory, front.bytes, 0, path);
    if (code == EPX_TRAIN_OK && epx_checkpoint_front_checksum(&front) != header.checksum)
        code = refuse(path, "has a damaged header (its checksum is wrong)");
    if (code == EPX_TRAIN_OK)
        *front_p = front;
    else
        free(front.memory);
    return code;
}

/* The value of `name` in lines "name=value"; -1 if it is not there. */
static int64_t shape_value(const char *shape, uint64_t bytes, const char *name)
{
    size_t length = strlen(name);
    for (const char *line = shape, *end = shape + bytes; line && line + length + 1 < end && *line;) {
        if (strncmp(line, name, length) == 0 && line[length] == '=')
            return strtoll(line + length + 1, NULL, 10);
        line = memchr(line, '\n', (size_t)(end - line));
        line = line ? line + 1 : NULL;
    }
    return -1;
}

static int check_agreement(const char *path, const epx_checkpoint_front_t *front, const epx_model_t *model,
                           const epx_progress_t *progress)
{
    const epx_checkpoint_header_t *header = front->header;
    for (const epx_model_field_t *field = epx_model_fields; field->name; field++) {
        int64_t theirs = shape_value(front->shape, header->shape_bytes, field->name);
        int64_t ours = epx_model_field_value(&model->config, field);
        if (field->shapes && theirs != ours)
            return epx_train_fail(EPX_TRAIN_USAGE,
                                  "%s holds a model with --%s %lld and this run has --%s %lld: make them "
                                  "agree",
                                  path, field->name, (long long)theirs, field->name, (long long)ours);
    }
    if (header->seed != progress->seed)
        return epx_train_fail(EPX_TRAIN_USAGE,
                              "%s was trained with --seed %llu and this run has --seed %llu: make them "
                              "agree",
                              path, (unsigned long long)header->seed, (unsigned long long)progress->seed);
    if (header->data_hash != progress->data_hash)
        return epx_train_fail(EPX_TRAIN_USAGE,
                              "%s was trained on another text (hash %016llx, not %016llx): give that one "
                              "with --data",
                              path, (unsigned long long)header->data_hash,
                              (unsigned long long)progress->data_hash);
    return EPX_TRAIN_OK;
}

static int read_sections(int file, const char *path, const epx_checkpoint_front_t *front, epx_model_t *model,
                         const epx_optimizer_t *optimizer)
{
    epx_checkpoint_place_t place;
    uint64_t i = 0;
    for (; epx_checkpoint_place(model, (int64_t)i, &place); i++) {
        if (i >= front->header->sections)
            return refuse(path, "has too few sections");
        const epx_checkpoint_section_t *section = &front->section[i];
        size_t bytes = (size_t)place.count * sizeof(epx_real_t);
        if (section->bytes != bytes * (size_t)place.arrays)
            return refuse(path, "has sections of other sizes than this model");
        if (place.offset < 0)
            continue;
        epx_real_t *array[3];
        arrays_of(model, optimizer, &place, array);
        for (int a = 0; a < place.arrays; a++) {
            int code = read_at(file, array[a], bytes, section->offset + (uint64_t)a * bytes, path);
            if (code != EPX_TRAIN_OK)
                return code;
        }
        if (checksum_of(array, &place) != section->checksum)
            return epx_train_fail(EPX_TRAIN_USAGE,
                                  "%s is damaged: the checksum of section %.63s is wrong: restore "
                                  "another checkpoint",
                                  path, section->name);
    }
    return i == front->header->sections ? EPX_TRAIN_OK : refuse(path, "has too many sections");
}

int epx_checkpoint_restore(const char *path, const epx_ranks_t *ranks, epx_model_t *model,
                           epx_optimizer_t *optimizer, epx_progress_t *progress, uint64_t *hash_p)
{
    epx_checkpoint_front_t front = {0};
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe is refused, not waited for */
    int code = file >= 0 ? read_front(file, path, &front) : cannot_read(path);
    if (code == EPX_TRAIN_OK)
        code = check_agreement(path, &front, model, progress);
    if (code == EPX_TRAIN_OK)
        code = read_sections(file, path, &front, model, optimizer);
    code = epx_train_agree(ranks->world, code);
    if (code == EPX_TRAIN_OK) {
        progress->step = front.header->step;
        progress->position = front.header->position;
        *hash_p = front.header->checksum;
    }
    free(front.memory);
    if (file >= 0)
        close(file);
    return code;
}
