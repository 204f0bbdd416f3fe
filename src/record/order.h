/* Fences for rows of rings, F1 of format.h. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_RECORD_ORDER_H
#define EPX_RECORD_ORDER_H

/* ThreadSanitizer knows no fences, and readers look through another mapping than the writer's: it sees
 * nothing of either. Its builds keep the compiler's order alone. */
#if defined(__SANITIZE_THREAD__)
#define EPX_ORDER_FENCE(order) __asm__ __volatile__("" ::: "memory")
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define EPX_ORDER_FENCE(order) __asm__ __volatile__("" ::: "memory")
#endif
#endif
#ifndef EPX_ORDER_FENCE
#define EPX_ORDER_FENCE(order) __atomic_thread_fence(order)
#endif

static inline void epx_order_writes(void) { EPX_ORDER_FENCE(__ATOMIC_RELEASE); }
static inline void epx_order_reads(void) { EPX_ORDER_FENCE(__ATOMIC_ACQUIRE); }

#endif
