/* Files as memory: model files are mapped, small files are read.
 *
 * A mapping shows the file as it is on the disk. If another program shortens the file while it is
 * mapped, touching the lost pages raises SIGBUS. A program's handler then learns from mapping_at()
 * which file it was. Replace model files by renaming, not by writing into them.
 */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mapping {
    const uint8_t *data; /* page aligned, read-only: writing to it faults */
    size_t size;         /* bytes, at least 1 */
    int fd;              /* of the file, for mapping_read() */
    char *path;          /* as given to mapping_open() */
    uint64_t stamp;      /* of its size and the time when it was last written */
} mapping;

/* Maps the whole of a regular file. QP_IO when it cannot be opened (the message says why: absent, a
 * directory, no permission), QP_FORMAT when it is empty. *out is untouched on failure. */
qp_status mapping_open(const char *path, mapping *out, qp_error *error);

/* Copies bytes that the mapping shows at `at`, in the file's memory or on the disk, without mapping
 * their pages, which for large parts costs more than the copy. False: they are no part of it. */
bool mapping_read(const mapping *map, const void *at, size_t bytes, void *dst);

/* The path of the mapping that contains an address; NULL: none. For handlers of signals. */
const char *mapping_at(const void *address);

/* Zeroes the mapping; does nothing to a zeroed one. */
void mapping_close(mapping *map);

/* Reads a whole file into memory that the caller frees; a NUL follows the last byte and is not
 * counted in *length. A file above `limit` bytes is refused before it is read. */
qp_status file_read_text(const char *path, size_t limit, char **text, size_t *length,
                         qp_error *error);

/* Whether anything has that name, be it a directory, a pipe or a dangling link. Then a file that
 * may be absent counts as present, and opening it gives the error. */
bool file_exists(const char *path);

bool file_is_directory(const char *path);
