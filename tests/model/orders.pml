/*
 * Orders of memory, as a model for spin: what each pair of a store and a load relies on. SPDX-License-Identifier:
 * Apache-2.0
 *
 * A machine as weak as 64-bit ARM may be: a thread makes its accesses in any order, except where one is NEEDed before
 * another: by a release (all before it come first), an acquire (all after it come later), a fence, an exchange, or
 * because both are of one address. Every access is seen by all at once when it is made, as on ARMv8. No dependency is
 * relied on. Tables of accesses stand for straight code; a loop's rounds follow one another.
 *
 * litmus and mutant come from the environment, so that one verifier is built for all. Mutant 0 is the code as it is;
 * each other number of a litmus leaves one order out, and spin must find the harm: a broken assertion, or somebody who
 * sleeps for ever (an end that is none). docs/memory-order.md says which code each stands for.
 */
byte litmus, mutant;
byte a = 1, b = 1, number = 1; /* a row of a ring, and its number */
byte data, word, back;
byte count, sleepers, queued, awaits;

#define DONE(i) (1 << (i))
/* Access i of this thread, not before those in `needs`. */
#define ACCESS(i, needs, effect) \
    :: atomic { (done & DONE(i)) == 0 && (done & (needs)) == (needs) -> effect; done = done | DONE(i) }
#define UNTIL(n) :: done == DONE(n) - 1 -> break
/* An order that mutant m leaves out. */
#define BUT(m, needs) (mutant == m -> 0 : (needs))

/* ---- 1: a word behind what it announces ---------------------------------------------------------------------- */

proctype word_writer()
{
    byte done;
    do
    ACCESS(0, 0, data = 1)
    ACCESS(1, BUT(1, DONE(0)), word = 1) /* release */
    UNTIL(2)
    od
}

proctype word_reader()
{
    byte done, seen, got;
    do
    ACCESS(0, 0, seen = word) /* acquire */
    ACCESS(1, BUT(2, DONE(0)), got = data)
    UNTIL(2)
    od;
    assert(seen == 0 || got == 1)
}

/* ---- 2: a bell ----------------------------------------------------------------------------------------------- */

proctype ringer()
{
    byte done, seen;
    do
    ACCESS(0, 0, word = 1)
    ACCESS(1, BUT(1, DONE(0)), count++)          /* it releases what was stored before */
    ACCESS(2, BUT(2, DONE(1)), seen = sleepers)  /* the exchange first, then this load */
    ACCESS(3, DONE(2), if :: seen != 0 -> queued = 0 :: else fi)
    UNTIL(4)
    od
}

proctype sleeper()
{
    byte done, noted, seen, now;
    do
    :: done = 0;
       do
       ACCESS(0, 0, noted = count)                /* acquire */
       ACCESS(1, BUT(3, DONE(0)), seen = word)    /* looked at behind the note */
       ACCESS(2, DONE(1), if :: seen == 0 -> sleepers++ :: else fi)
       ACCESS(3, DONE(1), now = count)
       /* The kernel compares and queues in one; that this thread is counted before it is what matters. */
       ACCESS(4, BUT(4, DONE(2)) | DONE(3), if :: seen == 0 && now == noted && count == noted -> queued = 1 :: else fi)
       UNTIL(5)
       od;
       if
       :: seen != 0 -> break
       :: else
       fi;
       queued == 0; /* asleep until it is woken: no end, if nobody does */
       sleepers--
    od
}

/* ---- 3: who sleeps for which word (fabric local) ---------------------------------------------------------------- */

proctype teller()
{
    byte done, seen;
    do
    ACCESS(0, 0, word = 1)
    ACCESS(1, BUT(1, DONE(0)), seen = awaits) /* an exchange, then a load: no store-release, see the document */
    ACCESS(2, DONE(0) | DONE(1), if :: seen != 0 -> count++; queued = 0 :: else fi)
    UNTIL(3)
    od
}

proctype awaiter()
{
    byte done, noted, seen;
    do
    :: done = 0;
       do
       ACCESS(0, 0, awaits = 1)
       ACCESS(1, BUT(2, DONE(0)), noted = count)
       ACCESS(2, DONE(1), seen = word)
       ACCESS(3, DONE(0) | DONE(2), if :: seen == 0 && noted == count -> queued = 1 :: else fi)
       UNTIL(4)
       od;
       if
       :: seen != 0 -> break
       :: else
       fi;
       queued == 0
    od
}

/* ---- 4: a row of a ring (F1 of record/format.h) ------------------------------------------------------------------- */

proctype row_writer()
{
    byte done;
    do
    ACCESS(0, 0, number = 0)
    ACCESS(1, BUT(1, DONE(0)), a = 2) /* fence */
    ACCESS(2, BUT(1, DONE(0)), b = 2)
    ACCESS(3, DONE(0) | BUT(2, DONE(1) | DONE(2)), number = 2) /* release */
    UNTIL(4)
    od
}

proctype row_reader()
{
    byte done, before, after, x, y;
    do
    ACCESS(0, 0, before = number) /* acquire */
    ACCESS(1, BUT(3, DONE(0)), x = a)
    ACCESS(2, BUT(3, DONE(0)), y = b)
    ACCESS(3, DONE(0) | BUT(4, DONE(1) | DONE(2)), after = number) /* fence */
    UNTIL(4)
    od;
    assert(before == 0 || before != after || (x == before && y == before))
}

/* ---- 5: a box that is used again (I1 of fabric/gather.h) ---------------------------------------------------------- */

proctype box_writer()
{
    byte done, seen;
    do
    ACCESS(0, 0, data = 1)
    ACCESS(1, BUT(1, DONE(0)), word = 1) /* release */
    UNTIL(2)
    od;
    do
    :: seen = back; /* acquire */
       if
       :: seen != 0 -> break
       :: else
       fi
    od;
    data = 2
}

proctype box_reader()
{
    byte done, seen, got;
    do
    :: seen = word;
       if
       :: seen != 0 -> break
       :: else
       fi
    od;
    do
    ACCESS(0, 0, got = data)
    ACCESS(1, BUT(2, DONE(0)), back = 1) /* release: what was read before was read before */
    UNTIL(2)
    od;
    assert(got == 1)
}

/* ---- 6: figures that change together, with a count that is odd meanwhile (phases, errors of a record) ------------- */

proctype figures_writer()
{
    byte done;
    do
    ACCESS(0, 0, count = 1)
    ACCESS(1, BUT(1, DONE(0)), a = 2) /* fence */
    ACCESS(2, BUT(1, DONE(0)), b = 2)
    ACCESS(3, DONE(0) | BUT(2, DONE(1) | DONE(2)), count = 2) /* release */
    UNTIL(4)
    od
}

proctype figures_reader()
{
    byte done, before, after, x, y;
    do
    ACCESS(0, 0, before = count) /* acquire */
    ACCESS(1, BUT(3, DONE(0)), x = a)
    ACCESS(2, BUT(3, DONE(0)), y = b)
    ACCESS(3, DONE(0) | BUT(4, DONE(1) | DONE(2)), after = count) /* fence */
    UNTIL(4)
    od;
    assert((before & 1) != 0 || before != after || x == y)
}

init
{
    c_code {
        now.litmus = atoi(getenv("LITMUS"));
        now.mutant = atoi(getenv("MUTANT"));
    };
    atomic {
        if
        :: litmus == 1 -> run word_writer(); run word_reader()
        :: litmus == 2 -> run ringer(); run sleeper()
        :: litmus == 3 -> run teller(); run awaiter()
        :: litmus == 4 -> run row_writer(); run row_reader()
        :: litmus == 5 -> run box_writer(); run box_reader()
        :: litmus == 6 -> run figures_writer(); run figures_reader()
        fi
    }
}
