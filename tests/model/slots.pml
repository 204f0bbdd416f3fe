/*
 * Put, signal, wait, reuse: how ranks share slots, as a model for spin. SPDX-License-Identifier: Apache-2.0
 *
 * N ranks make USES waves over DEPTH slots. A wave is a dispatch (data to every peer, then a word), a wait for the
 * words of all, a read of all that came; and a combine of the same kind back. With DEPTH 2 the next wave is dispatched
 * before this one is combined. No other credit travels: a slot is free to its sender when the sender's own combine of
 * the wave that used it has ended.
 *
 * The wire delivers data whenever it likes, and a word behind the data that was put before it. At any moment a rank may
 * end the group, once; then all ranks leave their waits, meet, and begin again with new memory and a new generation,
 * while the old wire still delivers.
 *
 * What must hold:
 *   A1  what is read is what this wave's sender has put         (no read before all data are visible)
 *   A2  nothing arrives in a slot that has not been read        (no slot overwritten while unread)
 *   A3  every rank comes to its end                             (no deadlock, also after a recovery)
 *
 * Mutants, one at a time: NO_FENCE (a word may overtake its data), NO_SIGNAL (a sender that has nothing for a peer does
 * not tell it), EARLY_REUSE (a slot is used again behind the sender's dispatch), OLD_MEMORY (a recovery keeps memory
 * and epochs), AT_LEAST_OLD (a wait takes the epoch before for this one). spin must refute each.
 */
#ifndef N
#define N 2
#endif
#ifndef DEPTH
#define DEPTH 2
#endif
#ifndef USES
#define USES 3
#endif

#define CELLS (2 * 2 * N * N * DEPTH)
#ifdef OLD_MEMORY
#define MEMORY(g) 0
#define EPOCH(g, u) ((u) + 1)
#else
#define MEMORY(g) (g)
#define EPOCH(g, u) ((g) * USES + (u) + 1)
#endif
/* Of generation g, leg k (0 dispatch, 1 combine), from s to d, slot b. */
#define AT(g, k, s, d, b) ((((MEMORY(g) * 2 + (k)) * N + (s)) * N + (d)) * DEPTH + (b))

byte data[CELLS];    /* in the receiver's slot */
bit unread[CELLS];
byte word[CELLS];    /* at the receiver */
byte put[CELLS];     /* on its way; 0: nothing is */
byte signal[CELLS];
bit ended[2];        /* this generation was ended by somebody */
byte finished[2];    /* ranks that are through with it */
byte met;            /* ranks that came to recover */

/* Everything for one leg of wave u goes on its way. */
inline start(k, u)
{
    p = 0;
    do
    :: p < N && p != me ->
        atomic {
            at = AT(g, k, me, p, (u) % DEPTH);
            assert(put[at] == 0);
            put[at] = EPOCH(g, u);
#ifdef NO_SIGNAL
            if
            :: signal[at] = EPOCH(g, u)
            :: put[at] = 0 /* nothing to send, so nothing is said */
            fi;
#else
            signal[at] = EPOCH(g, u);
#endif
            p++
        }
    :: p == me -> p++
    :: p == N -> break
    od
}

#ifdef AT_LEAST_OLD
#define HAS_COME(at, u) (word[at] + 1 >= EPOCH(g, u))
#else
#define HAS_COME(at, u) (word[at] == EPOCH(g, u))
#endif

/* Waits for each peer's word, then reads what each has put. */
inline finish(k, u)
{
    p = 0;
    do
    :: p < N && p != me ->
        at = AT(g, k, p, me, (u) % DEPTH);
        if
        :: atomic { HAS_COME(at, u) -> p++ }
        :: ended[g] -> goto recover
        fi
    :: p == me -> p++
    :: p == N -> break
    od;
    p = 0;
    do
    :: p < N && p != me ->
        atomic {
            at = AT(g, k, p, me, (u) % DEPTH);
            assert(data[at] == EPOCH(g, u)); /* A1 */
            unread[at] = 0;
            p++
        }
    :: p == me -> p++
    :: p == N -> break
    od
}

proctype rank(byte me)
{
    byte g, u, p, at;
again:
    u = 0;
    start(0, 0);
    finish(0, 0);
    do
    :: u < USES ->
#if DEPTH > 1
        if
        :: u + 1 < USES ->
            start(0, u + 1);
            finish(0, u + 1)
        :: else
        fi;
#endif
        start(1, u);
#ifndef EARLY_REUSE
        finish(1, u);
#endif
#if DEPTH == 1
        if
        :: u + 1 < USES ->
            start(0, u + 1);
            finish(0, u + 1)
        :: else
        fi;
#endif
#ifdef EARLY_REUSE
        finish(1, u);
#endif
        u++
    :: u == USES -> break
    od;
    atomic { u = 0; p = 0; at = 0; finished[g]++ }
    if
    :: finished[g] == N && !ended[g] -> goto end_rank
    :: ended[g] -> goto recover
    fi;
recover:
    atomic { met++; u = 0; p = 0; at = 0 }
    atomic {
        met == N -> g = 1;
#ifndef OLD_MEMORY
        /* Nobody looks there any more; one state for all of them is enough. */
        do
        :: at < CELLS / 2 -> data[at] = 0; unread[at] = 0; word[at] = 0; put[at] = 0; signal[at] = 0; at++
        :: else -> break
        od;
        at = 0
#endif
    }
    goto again;
end_rank:
    skip
}

#define DELIVER(g, k, b)                                                          \
    :: atomic {                                                                   \
        put[AT(g, k, s, d, b)] != 0 ->                                            \
            assert(!unread[AT(g, k, s, d, b)]); /* A2 */                          \
            data[AT(g, k, s, d, b)] = put[AT(g, k, s, d, b)];                     \
            unread[AT(g, k, s, d, b)] = 1;                                        \
            put[AT(g, k, s, d, b)] = 0                                            \
    }                                                                             \
    :: atomic {                                                                   \
        signal[AT(g, k, s, d, b)] != 0 && BEHIND(put[AT(g, k, s, d, b)]) ->       \
            word[AT(g, k, s, d, b)] = signal[AT(g, k, s, d, b)];                  \
            signal[AT(g, k, s, d, b)] = 0                                         \
    }
#ifdef NO_FENCE
#define BEHIND(waiting) true
#else
#define BEHIND(waiting) ((waiting) == 0)
#endif

/* From one rank to another. */
proctype wire(byte s; byte d)
{
end_wire:
    do
    DELIVER(0, 0, 0)
    DELIVER(0, 1, 0)
    DELIVER(1, 0, 0)
    DELIVER(1, 1, 0)
#if DEPTH > 1
    DELIVER(0, 0, 1)
    DELIVER(0, 1, 1)
    DELIVER(1, 0, 1)
    DELIVER(1, 1, 1)
#endif
    od
}

/* Somebody ends the first generation, or nobody does. */
proctype trouble()
{
    if
    :: atomic { finished[0] < N -> ended[0] = 1 }
    :: true
    fi
}

init
{
    byte s, d;
    atomic {
        s = 0;
        do
        :: s < N ->
            run rank(s);
            d = 0;
            do
            :: d < N && d != s -> run wire(s, d); d++
            :: d == s -> d++
            :: d == N -> break
            od;
            s++
        :: s == N -> break
        od;
#ifndef CALM
        run trouble();
#endif
        s = 0;
        d = 0
    }
}
