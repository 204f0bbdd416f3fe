/* A folder of a test's own. SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FOLDER_H
#define TESTS_FOLDER_H

enum { FOLDER_BYTES = 32 };

/* An empty one, its name into folder [FOLDER_BYTES]. where: the folder that it stands in. Fails the test
 * where there cannot be one. */
void folder_make(char *folder, const char *where);

/* The folder with all that is in it. 0: nothing is left of it. */
int folder_remove(const char *folder);

#endif
