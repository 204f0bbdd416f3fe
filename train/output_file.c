/* SPDX-License-Identifier: Apache-2.0 */
#include "output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fail.h"

int epx_output_refuse_special(int code, const char *what, const char *path)
{
    struct stat there;
    if (stat(path, &there) != 0 || S_ISREG(there.st_mode))
        return EPX_TRAIN_OK;
    return epx_train_fail(code, "the %s %s would replace what is no plain file: give another path", what,
                          path);
}

int epx_output_check(const char *what, const char *path)
{
    char partial[PATH_MAX];
    if (epx_output_refuse_special(EPX_TRAIN_USAGE, what, path) != EPX_TRAIN_OK)
        return EPX_TRAIN_USAGE;
    int length = snprintf(partial, sizeof partial, "%s.partial", path), file = -1, made = 0;
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    errno = length >= (int)sizeof partial ? ENAMETOOLONG : *name == '\0' ? EISDIR : 0;
    if (errno == 0) {
        file = open(partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        made = file >= 0;
        if (!made && errno == EEXIST) /* of a run that was killed, or of another one: it stays */
            file = open(partial, O_WRONLY | O_CLOEXEC);
    }
    if (file < 0)
        return epx_train_fail(EPX_TRAIN_USAGE,
                              "cannot write the %s %s (%s): check folder and rights, or give "
                              "another path",
                              what, path, strerror(errno));
    close(file);
    if (made)
        unlink(partial);
    return EPX_TRAIN_OK;
}
