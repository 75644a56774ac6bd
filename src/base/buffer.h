/* Large aligned memory for tensors: anonymous pages, zeroed, huge where the system allows. */
#ifndef QUIPU_BASE_BUFFER_H
#define QUIPU_BASE_BUFFER_H

#include "base/status.h"

#include <stddef.h>

enum { BUFFER_ALIGNMENT = 64 };

typedef struct buffer {
    void *data; /* page aligned; NULL when empty */
    size_t bytes;
} buffer;

/* `what` names the memory in the message when it cannot be had. */
qp_status buffer_alloc(buffer *buffer, size_t bytes, const char *what, qp_error *error);
void buffer_free(buffer *buffer);

#endif
