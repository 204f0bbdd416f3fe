/* Files that come to be beside their names: written to PATH.partial, then renamed. SPDX-License-Identifier:
 * Apache-2.0 */
#ifndef EPX_TRAIN_OUTPUT_FILE_H
#define EPX_TRAIN_OUTPUT_FILE_H

/* Finds out before a run what would stop the file after it: no folder, no right to write there, or something
 * at `path` that is no plain file (renaming would put the file in the place of a device or a pipe, which
 * others may be using). `what` is its name in the sentence. Leaves nothing behind. EPX_TRAIN_USAGE. */
int epx_output_check(const char *what, const char *path);

/* The last of these alone, with `code`: what is there can change during a run. */
int epx_output_refuse_special(int code, const char *what, const char *path);

#endif
