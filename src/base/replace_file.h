/* Writes a file under another name and then renames it, so a process that is killed at any moment
 * leaves the old file or the new one. */
#pragma once

#include "base/status.h"

#include <stdio.h>

typedef struct file_replacement {
    const char *path; /* outlives the replacement */
    char name[4096];  /* PATH.new, until it is renamed */
    FILE *stream;     /* write here */
} file_replacement;

/* Opens the temporary file, which gets `mode` less the umask, and which one process at a time may
 * write. A file that a killed process left is used again. QP_IO says why it cannot be written. */
qp_status file_replacement_begin(const char *path, unsigned mode, file_replacement *out,
                                 qp_error *error);

/* QP_OK: everything reached the disk and the file has its name. Otherwise the old file stays. */
qp_status file_replacement_end(file_replacement *replacement, qp_error *error);

/* Renames a file that is on the disk by then: a loss of power leaves no name of a part of it. */
qp_status file_rename(const char *from, const char *to, qp_error *error);

/* Gives up, also after file_replacement_begin() failed; does nothing after file_replacement_end().
 */
void file_replacement_drop(file_replacement *replacement);

/* Removes the temporary files of this process, which then ends: for handlers of signals. */
void file_replacement_drop_all(void);

/* Removes a temporary file of this user that no process writes any more. */
void file_replacement_remove_left(const char *name);

/* Says that `path` cannot be written, by errno. */
qp_status file_replacement_failed(const file_replacement *replacement, qp_error *error);
