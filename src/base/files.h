/* Small things with files that several commands need. */
#ifndef QUIPU_BASE_FILES_H
#define QUIPU_BASE_FILES_H

#include "base/status.h"
#include "base/strbuf.h"

/* Writes a file whole, making the folders above it. */
qp_status files_write(const char *path, const void *bytes, size_t length, qp_error *error);

/* Reads a file of at most `most` bytes, appended to `out`. */
qp_status files_read(const char *path, size_t most, strbuf *out, qp_error *error);

#endif
