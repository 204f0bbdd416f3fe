/* Pieces of posts. SPDX-License-Identifier: Apache-2.0 */
#include "transport/pieces.h"

void epx_pieces_send(epx_pieces_t *pieces, int32_t peer, int64_t local, int64_t remote, int64_t bytes)
{
    epx_piece_t *last = pieces->send + pieces->sends - 1;
    if (bytes <= 0)
        return;
    if (pieces->sends > pieces->first_send && last->peer == peer && last->remote + last->bytes == remote) {
        last->bytes += bytes;
        return;
    }
    pieces->send[pieces->sends++] =
        (epx_piece_t){.peer = peer, .local = local, .remote = remote, .bytes = bytes};
}

void epx_pieces_receive(epx_pieces_t *pieces, int32_t peer, int64_t local, int64_t bytes)
{
    epx_piece_t *last = pieces->receive + pieces->receives - 1;
    if (bytes <= 0)
        return;
    if (pieces->receives > pieces->first_receive && last->peer == peer &&
        last->local + last->bytes == local) {
        last->bytes += bytes;
        return;
    }
    pieces->receive[pieces->receives++] = (epx_piece_t){.peer = peer, .local = local, .bytes = bytes};
}

void epx_pieces_into(const epx_pieces_t *pieces, const epx_segment_t *segment, epx_post_t *post)
{
    post->segment = segment;
    post->sends = pieces->send;
    post->receives = pieces->receive;
    post->send_count = pieces->sends;
    post->receive_count = pieces->receives;
}

epx_status_t epx_staged_table(const epx_transport_env_t *env, void *table, void *base, void *other)
{
    epx_status_t status = EPX_OK;
    for (int32_t r = 0; r < env->shape->ranks && status == EPX_OK; r++) {
        void *const *entry = r == env->shape->rank ? &base : &other;
        status = env->device->copy((void **)table + r, entry, sizeof(*entry), NULL);
    }
    return status;
}
