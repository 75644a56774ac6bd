/* Reading and writing whole files. */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"

#include <stdio.h>

/* "folder/name" in path[size]; QP_INVALID where it has no room. */
qp_status files_join(const char *folder, const char *name, char *path, size_t size,
                     qp_error *error);

/* The last component of a path; all of it, if it ends in a slash or has none. */
const char *files_last(const char *path);

/* Refuses a path for its length: the sentence has its beginning only. */
qp_status files_path_too_long(const char *path, qp_error *error);

/* Makes the folders above a file. */
qp_status files_make_folders(const char *path, qp_error *error);

/* Writes a file whole, making the folders above it. */
qp_status files_write(const char *path, const void *bytes, size_t length, qp_error *error);

/* Writes to the end of a file, in one piece. */
qp_status files_append(const char *path, const void *bytes, size_t length, qp_error *error);

/* QP_OK if files_write() could write there, else QP_IO with the reason. For callers that work for
 * long before they write. */
qp_status files_check_writable(const char *path, qp_error *error);

/* Reads a file of at most `most` bytes, appended to `out`. It may be a pipe or a device; reading
 * stops at `most`, and QP_FORMAT says that there was more. */
qp_status files_read(const char *path, size_t most, strbuf *out, qp_error *error);

/* The same for an open file, which messages call `name`. */
qp_status files_read_stream(FILE *file, const char *name, size_t most, strbuf *out,
                            qp_error *error);
