/* A folder of a test's own. SPDX-License-Identifier: Apache-2.0 */
#include "support/folder.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

void folder_make(char *folder, const char *where)
{
    snprintf(folder, FOLDER_BYTES, "%s/epx-test-XXXXXX", where);
    cr_assert_not_null(mkdtemp(folder), "no folder can be made in %s", where);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info, (void)kind, (void)at;
    return remove(path);
}

int folder_remove(const char *folder)
{
    enum { OPEN_FOLDERS = 8 };
    struct stat info;
    int none = lstat(folder, &info) != 0 && errno == ENOENT; /* a recorder's goes with it */
    return none ? 0 : nftw(folder, remove_one, OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS);
}
