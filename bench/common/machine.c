/* Machine files. SPDX-License-Identifier: Apache-2.0 */
#include "bench/common/machine.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/common/json.h"
#include "tools/common/json_read.h"
#include "tools/common/command_line.h"
#include "tools/common/program.h"

static const epx_constant_row_t rows[EPX_CONSTANTS] = {
    {"peak_flops", "FLOP/s", "dense rate of one rank by its maker, or measured: what MFU is a share of", 1e6,
     1e18},
    {"gemm_flops", "FLOP/s", "rate that large matrix products reach on one rank", 1e6, 1e18},
    {"attention_flops", "FLOP/s", "rate that attention reaches on one rank", 1e6, 1e18},
    {"memory_bytes_per_s", "B/s", "memory of one rank, read and written bytes together", 1e6, 1e16},
    {"link_bytes_per_s", "B/s", "link of one rank, per direction", 1e6, 1e16},
    {"link_share", "1", "share of the link that rows in many pieces reach", 1e-6, 1},
    {"operation_s", "s", "one call without rows: launch and the wait for words", 0, 1},
    {"peer_s", "s", "what each further rank adds to a call", 0, 1},
    {"barrier_s", "s", "all ranks meet once", 0, 1},
    {"overlap", "1", "share of what the schedule could hide that is hidden", 0, 1},
};

const epx_constant_row_t *epx_constant_row(epx_constant_t constant) { return &rows[constant]; }

static int find(const char *name)
{
    int i = 0;
    while (i < EPX_CONSTANTS && strcmp(rows[i].name, name) != 0)
        i++;
    return i;
}

static int unknown(const char *name, char *problem, size_t bytes)
{
    const char *names[EPX_CONSTANTS];
    for (int i = 0; i < EPX_CONSTANTS; i++)
        names[i] = rows[i].name;
    const char *nearest = epx_nearest_word(name, names, EPX_CONSTANTS);
    snprintf(problem, bytes, "'%s' is no constant of a machine%s%s%s", name, nearest ? ": did you mean " : "",
             nearest ? nearest : "", nearest ? "?" : ": see docs/simulation.md");
    return -1;
}

static int take(epx_machine_t *machine, int i, double value, const char *source, char *problem, size_t bytes)
{
    if (!(value >= rows[i].lo && value <= rows[i].hi)) {
        snprintf(problem, bytes, "%s is %.6g: it must be from %g to %g %s", rows[i].name, value, rows[i].lo,
                 rows[i].hi, rows[i].unit);
        return -1;
    }
    machine->value[i] = value;
    snprintf(machine->source[i], sizeof machine->source[i], "%s", source);
    return 0;
}

int epx_machine_set(epx_machine_t *machine, const char *text, char *problem, size_t problem_bytes)
{
    char name[64];
    size_t length = strcspn(text, "=");
    double value;
    if (text[length] != '=' || length == 0 || length >= sizeof name ||
        epx_read_real(text + length + 1, &value)) {
        snprintf(problem, problem_bytes, "'%s' is not NAME=VALUE: write for example link_share=0.5", text);
        return -1;
    }
    memcpy(name, text, length);
    name[length] = '\0';
    int i = find(name);
    if (i == EPX_CONSTANTS)
        return unknown(name, problem, problem_bytes);
    return take(machine, i, value, "given", problem, problem_bytes);
}

/* ---- reading ------------------------------------------------------------------------------------------------------ */

static int read_constant(epx_machine_t *machine, const epx_json_value_t *item, char *problem, size_t bytes)
{
    int i = find(item->key);
    if (i == EPX_CONSTANTS)
        return unknown(item->key, problem, bytes);
    const char *source = epx_json_text_of(item, "source", "");
    const char *unit = epx_json_text_of(item, "unit", "");
    if (source[0] == '\0') {
        snprintf(problem, bytes, "%s has no source: say where its value comes from", rows[i].name);
        return -1;
    }
    if (strcmp(unit, rows[i].unit) != 0) {
        snprintf(problem, bytes, "%s is in '%s': it must be in %s", rows[i].name, unit, rows[i].unit);
        return -1;
    }
    return take(machine, i, epx_json_number_of(item, "value", NAN), source, problem, bytes);
}

static int read_document(const epx_json_value_t *all, epx_machine_t *machine, char *problem, size_t bytes)
{
    const epx_json_value_t *constants = epx_json_member(all, "constants");
    if (strcmp(epx_json_text_of(all, "format", ""), EPX_MACHINE_FORMAT) != 0) {
        snprintf(problem, bytes, "this is no machine file: \"format\" must be \"%s\"", EPX_MACHINE_FORMAT);
        return -1;
    }
    snprintf(machine->name, sizeof machine->name, "%s", epx_json_text_of(all, "name", "unnamed"));
    snprintf(machine->summary, sizeof machine->summary, "%s", epx_json_text_of(all, "summary", ""));
    for (int i = 0; i < EPX_CONSTANTS; i++)
        machine->value[i] = NAN;
    for (const epx_json_value_t *item = epx_json_first(constants); item != NULL;
         item = epx_json_next(constants, item))
        if (constants->kind != EPX_JSON_OBJECT || read_constant(machine, item, problem, bytes) != 0)
            return -1;
    for (int i = 0; i < EPX_CONSTANTS; i++) {
        if (isnan(machine->value[i])) {
            snprintf(problem, bytes, "%s is missing: add it (%s)", rows[i].name, rows[i].meaning);
            return -1;
        }
    }
    return 0;
}

static char *read_file(FILE *stream, size_t *bytes_p)
{
    enum { MOST = 1 << 20 };
    char *text = epx_tool_alloc(MOST, 1);
    *bytes_p = fread(text, 1, MOST, stream);
    return text;
}

/* The file of that name, or the one that ships under it. The path goes into `path`. */
static FILE *open_file(const char *name, char *path, size_t bytes)
{
    static const char *const beside_program[] = {"../../bench/machines", "../share/epx/machines",
                                                 "../../../bench/machines"};
    char program[1024];
    snprintf(path, bytes, "%s", name);
    FILE *stream = fopen(path, "r");
    if (stream != NULL || strchr(name, '/') != NULL)
        return stream;
    snprintf(path, bytes, "bench/machines/%s.json", name);
    stream = fopen(path, "r");
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(program, '/');
    for (size_t i = 0; stream == NULL && slash != NULL && i < sizeof beside_program / sizeof *beside_program;
         i++) {
        *slash = '\0';
        snprintf(path, bytes, "%s/%s/%s.json", program, beside_program[i], name);
        stream = fopen(path, "r");
    }
    return stream;
}

int epx_machine_read(const char *name, epx_machine_t *machine_p, char *problem, size_t problem_bytes)
{
    char path[2048], what[640] = "\"constants\" is no object";
    epx_json_document_t document;
    epx_machine_t machine = {.name = ""};
    FILE *stream = open_file(name, path, sizeof path);
    if (stream == NULL) {
        snprintf(problem, problem_bytes,
                 "there is neither a file nor a machine '%s': take gb200-nvl72, h200x2, or a file of "
                 "epx-perf --calibrate",
                 name);
        return -1;
    }
    size_t bytes;
    char *text = read_file(stream, &bytes);
    fclose(stream);
    int rc = epx_json_read(text, bytes, &document, what, sizeof what);
    free(text);
    if (rc == 0) {
        rc = read_document(document.value, &machine, what, sizeof what);
        epx_json_document_free(&document);
    }
    if (rc == 0)
        *machine_p = machine;
    else
        snprintf(problem, problem_bytes, "%.200s: %s", path, what);
    return rc;
}

/* ---- writing ------------------------------------------------------------------------------------------------------ */

static int write_document(FILE *stream, const epx_machine_t *machine)
{
    epx_json_t json = epx_json_begin(stream, 2);
    epx_json_object(&json, NULL);
    epx_json_text(&json, "format", EPX_MACHINE_FORMAT);
    epx_json_text(&json, "name", machine->name);
    epx_json_text(&json, "summary", machine->summary);
    epx_json_object(&json, "constants");
    for (int i = 0; i < EPX_CONSTANTS; i++) {
        epx_json_object(&json, rows[i].name);
        epx_json_real(&json, "value", machine->value[i]);
        epx_json_text(&json, "unit", rows[i].unit);
        epx_json_text(&json, "source", machine->source[i]);
        epx_json_close(&json);
    }
    epx_json_close(&json);
    epx_json_close(&json);
    return epx_json_end(&json);
}

int epx_machine_write(const char *path, const epx_machine_t *machine, char *problem, size_t problem_bytes)
{
    struct stat there;
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode)) { /* renaming would put the file in its place */
        snprintf(problem, problem_bytes, "cannot write %s (no plain file): give another path", path);
        return -1;
    }
    char *partial = epx_tool_text("%s.partial", path);
    FILE *stream = fopen(partial, "w");
    int rc = stream != NULL ? write_document(stream, machine) : -1;
    if (stream != NULL && fclose(stream) != 0)
        rc = -1;
    if (rc == 0)
        rc = rename(partial, path);
    if (rc != 0)
        snprintf(problem, problem_bytes, "cannot write %s (%s): check folder and space", path,
                 strerror(errno));
    free(partial);
    return rc == 0 ? 0 : -1;
}
