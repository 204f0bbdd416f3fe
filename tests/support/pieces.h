/*
 * A fabric that cannot load and store peers' memory, for tests: `local`, with peers' addresses kept back and
 * the pieces of every post carried by copies. SPDX-License-Identifier: Apache-2.0
 *
 * TEST_FABRIC says how (one of these stands in for `local` then, so that programs and tests name no other):
 *
 * - put: a piece lands at its receiver in the sender's post, as with one-sided networks. Rows in the caller's
 *   memory are read in the post (EPX_FABRIC_READS_SOURCES); in the other two ways kernels write them first.
 *
 * - take: the receiver fetches it in its own wait, as late as may be: what a sender overwrites too early is
 *   seen to be wrong.
 *
 * - paired: as take, and there are no one-sided words, so that ranks agree at the end of each route.
 *
 * Whatever the way, a wait compares what the sender has listed for this rank with what this rank expects of
 * it: number, order, bytes and offsets of the pieces. Any difference, a piece outside of the segment, an
 * empty one or one of the rank itself ends the test's process with the two lists.
 */
#ifndef TESTS_PIECES_H
#define TESTS_PIECES_H

#include <epx/fabric.h>

/* Puts the fabric of TEST_FABRIC in local's place, once. */
void test_fabric_choose(void);

/* 1: a row lies at its receiver when the sender's start call has returned. */
int rows_land_at_start(void);

/* 0: there are no one-sided words, so all ranks know at the end of a route how it went everywhere. */
int words_are_one_sided(void);

/* Tests of transports that store into peers' memory themselves begin with it; ends the test with the reason.
 */
void only_with_stores(const char *why);

#endif
