/* pooled_wave at the sender: what one wave takes along. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/host/pooled_layout.h"
#include "kernels/host/table.h"

#include <string.h>

static int32_t tag_of(const epx_k_pooled_pack_t *args, int32_t assignment)
{
    return assignment < 0 ? 0 : args->layout->local[args->expert[assignment]] + 1;
}

/* The header of the slab to d; padding behind the last tag is left as it is. */
static void write_header(const epx_k_pooled_pack_t *args, int32_t d)
{
    const epx_k_pooled_layout_t *layout = args->layout;
    int64_t row = args->header_row >= 0 ? args->header_row : d;
    unsigned char *header = (unsigned char *)args->dst[d] + args->headers_offset + row * layout->header_bytes;
    unsigned char *tags = header + EPX_POOLED_HEADER_VALID + (size_t)layout->splits * sizeof(int64_t);
    int32_t status = args->status != NULL && *args->status < 0 ? *args->status : EPX_OK;
    memcpy(header, &status, sizeof(status));
    memcpy(header + sizeof(status), &args->stamp, sizeof(args->stamp));
    memcpy(header + EPX_POOLED_HEADER_VALID, args->valid, (size_t)layout->splits * sizeof(int64_t));

    for (int32_t h = layout->base[d]; h < layout->base[d + 1]; h++) {
        uint32_t tag = (uint32_t)tag_of(args, args->list[h]);
        uint16_t narrow = (uint16_t)tag;
        size_t q = (size_t)(h - layout->base[d]);
        if (layout->tag_bytes == 2)
            memcpy(tags + q * sizeof(narrow), &narrow, sizeof(narrow));
        else
            memcpy(tags + q * sizeof(tag), &tag, sizeof(tag));
    }
}

epx_status_t epx_host_pooled_pack(const epx_k_pooled_pack_t *args, epx_stream_t stream)
{
    (void)stream;
    const epx_k_pooled_layout_t *layout = args->layout;
    int64_t n = epx_pooled_tokens(args->tokens, args->tokens_device) * layout->columns;
    for (int32_t h = 0; h < layout->home_rows; h++)
        args->list[h] = -1;
    for (int64_t a = 0; a < n; a++) {
        /* -1 stays outside whatever lo is. */
        int64_t h = args->place[a] - args->lo;
        if (args->place[a] >= 0 && h >= 0 && h < layout->home_rows &&
            (args->kept == NULL || args->kept[h] != 0))
            args->list[h] = (int32_t)a;
    }
    if (args->dst != NULL)
        for (int32_t d = 0; d < layout->ranks; d++)
            write_header(args, d);
    if (args->start != NULL) {
        for (int32_t h = 0; h < layout->home_rows; h++) {
            args->start[h] = h;
            args->count[h] = args->list[h] >= 0;
        }
    }
    return EPX_OK;
}
