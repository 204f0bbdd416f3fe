/* Lists of pieces: what becomes one, and that both sides come to the same. SPDX-License-Identifier:
 * Apache-2.0 */
#include <criterion/criterion.h>

#include "transport/pieces.h"

#include <string.h>

enum { ROOM = 8 };

typedef struct list {
    epx_piece_t send[ROOM], receive[ROOM];
    epx_pieces_t pieces;
} list_t;

static void begin(list_t *list) { list->pieces = epx_pieces_begin(list->send, list->receive); }

static void expect_piece(const epx_piece_t *piece, int32_t peer, int64_t local, int64_t remote, int64_t bytes)
{
    cr_expect_eq(piece->peer, peer);
    cr_expect_eq(piece->local, local);
    cr_expect_eq(piece->remote, remote);
    cr_expect_eq(piece->bytes, bytes);
}

Test(pieces, nothing_is_no_piece)
{
    list_t list;
    begin(&list);
    epx_pieces_send(&list.pieces, 1, 0, 0, 0);
    epx_pieces_receive(&list.pieces, 1, 0, 0);
    cr_expect(list.pieces.sends == 0 && list.pieces.receives == 0);
}

/* Runs of 10, 5 and 5 bytes for one peer: the first two meet at the receiver, the third stands 3 bytes
 * behind. */
Test(pieces, neighbours_at_the_receiver_become_one)
{
    list_t list;
    begin(&list);
    epx_pieces_send(&list.pieces, 1, 100, 1000, 10);
    epx_pieces_send(&list.pieces, 1, 110, 1010, 5);
    epx_pieces_send(&list.pieces, 1, 115, 1018, 5);
    epx_pieces_receive(&list.pieces, 0, 1000, 10);
    epx_pieces_receive(&list.pieces, 0, 1010, 5);
    epx_pieces_receive(&list.pieces, 0, 1018, 5);
    cr_assert(list.pieces.sends == 2 && list.pieces.receives == 2);
    expect_piece(&list.send[0], 1, 100, 1000, 15);
    expect_piece(&list.send[1], 1, 115, 1018, 5);
    expect_piece(&list.receive[0], 0, 1000, 0, 15);
    expect_piece(&list.receive[1], 0, 1018, 0, 5);
}

Test(pieces, what_is_empty_does_not_part_neighbours)
{
    list_t list;
    begin(&list);
    epx_pieces_receive(&list.pieces, 2, 0, 4);
    epx_pieces_receive(&list.pieces, 3, 4, 0);
    epx_pieces_receive(&list.pieces, 2, 4, 4);
    cr_assert_eq(list.pieces.receives, 1);
    expect_piece(&list.receive[0], 2, 0, 0, 8);
}

Test(pieces, other_peers_and_other_parts_are_other_pieces)
{
    list_t list;
    begin(&list);
    epx_pieces_send(&list.pieces, 1, 0, 0, 4);
    epx_pieces_send(&list.pieces, 2, 4, 4, 4);
    epx_pieces_part(&list.pieces);
    /* Where a part begins right behind another one at the receiver, it need not in staging. */
    epx_pieces_send(&list.pieces, 2, 64, 8, 4);
    epx_pieces_receive(&list.pieces, 1, 0, 4);
    epx_pieces_part(&list.pieces);
    epx_pieces_receive(&list.pieces, 1, 4, 4);
    cr_assert(list.pieces.sends == 3 && list.pieces.receives == 2);
    expect_piece(&list.send[2], 2, 64, 8, 4);
    expect_piece(&list.receive[1], 1, 4, 0, 4);
}

Test(pieces, a_post_gets_the_lists)
{
    list_t list;
    epx_segment_t segment = {.bytes = 4096};
    epx_post_t post = {.channel = 3};
    begin(&list);
    epx_pieces_send(&list.pieces, 1, 0, 0, 4);
    epx_pieces_into(&list.pieces, &segment, &post);
    cr_expect(post.channel == 3 && post.segment == &segment && post.sends == list.send &&
              post.receives == list.receive && post.send_count == 1 && post.receive_count == 0);
}

/* ---- rows in the caller's memory ------------------------------------------------------------------------------ */

/* Rows of 3 bytes, five bytes apart, each for two columns; the rows of runs 1 and 2 stand behind each other,
 * in another order than their entries. */
static const char rows[] = "aaa..bbb..ccc..ddd..";
static const int32_t row_index[] = {6, 3, -1, 4, 0};
static const epx_run_t row_runs[] = {{.first = 0, .row = 0, .peer = 0, .rows = 0},
                                     {.first = 3, .row = 2, .peer = 1, .rows = 2},
                                     {.first = 0, .row = 4, .peer = 1, .rows = 3}};

static epx_rows_source_t make_source(void)
{
    epx_rows_source_t source = {.base = {.local = 100, .bytes = 21, .unit = 3},
                                .rows = rows,
                                .stride = 5,
                                .divide = 2,
                                .index = row_index,
                                .runs = row_runs,
                                .run_count = 3};
    epx_rows_source_begin(&source);
    return source;
}

Test(pieces, a_source_reads_across_runs)
{
    epx_rows_source_t source = make_source();
    char to[] = "---------------";
    cr_assert_eq(source.base.read(&source.base, 106, 15, to), EPX_OK);
    cr_expect_str_eq(to, "cccaaadddbbb---"); /* entries 4 0 | 6 3 -1; the last is left as it is */
}

Test(pieces, a_source_reads_a_part_of_a_run)
{
    epx_rows_source_t source = make_source();
    char to[] = "------";
    cr_assert_eq(source.base.read(&source.base, 115, 3, to), EPX_OK);
    cr_expect_str_eq(to, "bbb---");
    cr_assert_eq(source.base.read(&source.base, 106, 6, to),
                 EPX_OK); /* another piece: runs are looked at again */
    cr_expect_str_eq(to, "cccaaa");
}

Test(pieces, a_source_without_an_index_reads_rows_as_they_stand)
{
    epx_rows_source_t source = make_source();
    source.index = NULL;
    source.divide = 1;
    source.stride = 3;
    char to[] = "---------";
    cr_assert_eq(source.base.read(&source.base, 112, 9, to), EPX_OK);
    cr_expect_str_eq(to, "aaa..bbb.");
}

Test(pieces, a_source_says_what_no_run_has)
{
    epx_rows_source_t source = make_source();
    char to[] = "---";
    cr_expect_eq(source.base.read(&source.base, 103, 3, to), EPX_ERR_FATAL);
    cr_expect_str_eq(to, "---");
}
