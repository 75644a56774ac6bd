/* Statuses and messages.
 *
 * A function that can fail returns qp_status and takes the caller's qp_error last. The sentence
 * names what is wrong (file, tensor, key, flag), what was expected, what was found and what to do.
 * Messages quote files; control characters in them are written as \xNN.
 */
#pragma once

#include "quipu_status.h"

/* Writes the message (one over QP_ERROR_SIZE loses its middle) into `error`, which may be NULL, and
 * returns `status`, so that a failing function ends in `return error_set(error, QP_FORMAT, "...",
 * ...)`. */
qp_status error_set(qp_error *error, qp_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " in front of a message that a callee wrote; returns error->status. */
qp_status error_prefix(qp_error *error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* QP_NO_MEMORY with what was to be allocated and how large it is. */
qp_status error_no_memory(qp_error *error, const char *what, unsigned long long bytes);

/* Returns from the enclosing function when `call` fails; for functions with nothing to clean up. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        qp_status try_status_ = (call);                                                            \
        if (try_status_ != QP_OK) return try_status_;                                              \
    } while (0)
