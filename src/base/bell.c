/* A bell on a futex. SPDX-License-Identifier: Apache-2.0 */
#include "base/bell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

uint32_t epx_bell_count(epx_bell_t *bell) { return atomic_load_explicit(&bell->count, memory_order_acquire); }

static void ring(epx_bell_t *bell, int wake)
{
    /* seq_cst on count and sleepers, here and in sleep: either the ringer sees the sleeper, or the sleeper
     * the ring. */
    atomic_fetch_add_explicit(&bell->count, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&bell->sleepers, memory_order_seq_cst) != 0)
        syscall(SYS_futex, &bell->count, wake, INT32_MAX, NULL, NULL, 0);
}

void epx_bell_ring(epx_bell_t *bell) { ring(bell, FUTEX_WAKE_PRIVATE); }

void epx_bell_ring_shared(epx_bell_t *bell) { ring(bell, FUTEX_WAKE); }

static void sleep_on(epx_bell_t *bell, uint32_t count, int64_t deadline_ns, int wait)
{
    int64_t left = deadline_ns - epx_clock_ns();
    if (left <= 0)
        return;
    struct timespec timeout = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
    atomic_fetch_add_explicit(&bell->sleepers, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&bell->count, memory_order_seq_cst) == count)
        syscall(SYS_futex, &bell->count, wait, count, &timeout, NULL, 0);
    atomic_fetch_sub_explicit(&bell->sleepers, 1, memory_order_seq_cst);
}

void epx_bell_sleep(epx_bell_t *bell, uint32_t count, int64_t deadline_ns)
{
    const epx_clock_ops_t *ops = epx_clock_stands_in();
    if (ops != NULL)
        ops->bell_sleep(bell, count, deadline_ns);
    else
        sleep_on(bell, count, deadline_ns, FUTEX_WAIT_PRIVATE);
}

void epx_bell_sleep_shared(epx_bell_t *bell, uint32_t count, int64_t deadline_ns)
{
    sleep_on(bell, count, deadline_ns, FUTEX_WAIT);
}

int32_t epx_bell_spins(int32_t ranks)
{
    if (epx_clock_stands_in() != NULL)
        return 2;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return ranks <= cores ? 4000 : 50;
}

void epx_spin_pause(void)
{
    const epx_clock_ops_t *ops = epx_clock_stands_in();
    if (ops != NULL) {
        ops->spin_pause();
        return;
    }
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield" ::: "memory");
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}
