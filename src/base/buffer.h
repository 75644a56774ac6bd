/* Large aligned memory for tensors: anonymous pages, zeroed, huge where the system allows. */
#pragma once

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum { BUFFER_ALIGNMENT = 64 };

typedef struct buffer {
    void *data; /* page aligned; NULL when empty */
    size_t bytes;
} buffer;

/* `what` names the memory in the error message. */
qp_status buffer_alloc(buffer *buffer, size_t bytes, const char *what, qp_error *error);
void buffer_free(buffer *buffer);

/* Gives the buffer's memory back to the system but keeps its addresses: accessing them faults from
 * now on. buffer_free() it as usual. */
void buffer_discard(const buffer *buffer);

/* Maps the pages of a range of a mapped file that is read next: one call for what would otherwise
 * be a fault for every few pages. A hint. */
void buffer_populate(const void *data, size_t bytes);

/* Gives the whole pages inside [data, data + bytes) of a read-only file mapping back to the system;
 * they are read from the file again when touched. */
void buffer_release_pages(const void *data, size_t bytes);

/* Tells the system that only a few scattered places of a file mapping will be read, so that it
 * reads ahead less. */
void buffer_read_sparsely(const void *data, size_t bytes);
