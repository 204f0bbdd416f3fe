/* How the functions of the training loop fail: they return one of these, which is also the program's exit
 * code, and leave a sentence "what is wrong: what to do" for the calling thread. SPDX-License-Identifier:
 * Apache-2.0 */
#ifndef EPX_TRAIN_FAIL_H
#define EPX_TRAIN_FAIL_H

enum { EPX_TRAIN_OK = 0, EPX_TRAIN_FAILED = 1, EPX_TRAIN_USAGE = 2, EPX_TRAIN_NO_VERDICT = 3 };

/* Keeps the sentence for this thread and returns `code`, so that callers write `return epx_train_fail(...)`.
 */
int epx_train_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same where the cause lies with another rank, whose sentence is the one to show. */
int epx_train_follow(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* 1 if the last failure of this thread only followed another rank's. */
int epx_train_followed(void);

/* The last sentence of this thread; "" if there was none. Valid until the thread's next failure. */
const char *epx_train_error(void);

#endif
