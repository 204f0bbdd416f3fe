/* What verdicts come to in words. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_AB_VERDICT_TEXT_H
#define EPX_AB_VERDICT_TEXT_H

#include "bench/ab/measure.h"

/* Writes verdict->text from its numbers. */
void epx_ab_say_interval(const epx_ab_measure_t *measure, epx_ab_verdict_t *verdict);

/* The verdict on a pair's speed: by executed MFU, else MFU, else step time; of other programs' jobs by step
 * time first, because each process may have measured another peak for its MFU. NULL where nothing is known.
 */
const epx_ab_verdict_t *epx_ab_speed_verdict(const epx_ab_result_t *result, int32_t a, int32_t b);

/* EPX_EXIT_FAILED when an arm or the whole is void, EPX_EXIT_NO_VERDICT when the speed of a pair is
 * INCONCLUSIVE or not known, else EPX_EXIT_OK. */
int epx_ab_exit_code(const epx_ab_result_t *result);

/* The line above all others: "VALID: ...", "VOID: ...", "INCONCLUSIVE: ...". */
void epx_ab_headline(const epx_ab_result_t *result, char *text, size_t bytes);

/* Why an arm is void, by the first guard that failed. 0: it is not. */
int epx_ab_say_void(const epx_ab_result_t *result, int32_t arm, char *text, size_t bytes);

/* Pieces of a verdict in few characters, for tiles; "" where they have no meaning. needed: "about 6 pairs
 * would decide". range: "90%: -1.20 to +0.31", "140 and 12 of 4096". value: "+0.12 points", "2.71% : 0.02%".
 */
void epx_ab_say_needed(const epx_ab_verdict_t *verdict, char *text, size_t bytes);
void epx_ab_say_range(const epx_ab_result_t *result, const epx_ab_verdict_t *verdict, char *text,
                      size_t bytes);
void epx_ab_say_value(const epx_ab_result_t *result, const epx_ab_verdict_t *verdict, char *text,
                      size_t bytes);

/* The sign of a pair's speed as measured against that at equal drops or equal memory, as a sentence; "" where
 * there is nothing to say. */
void epx_ab_sign_remark(const epx_ab_result_t *result, int32_t a, int32_t b, char *text, size_t bytes);

#endif
