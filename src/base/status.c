/* Statuses and messages: see status.h. */
#include "base/status.h"

#include "base/printable.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { WHOLE = 8 * QP_ERROR_SIZE };

/* Takes the middle out of a sentence that has no room, such as one with a path of 4,000 bytes: what
 * it is about stands at its beginning, and what is wrong with it at its end. */
static void shorten(char text[WHOLE])
{
    static const char gap[] = " ... ";
    enum { HALF = QP_ERROR_SIZE / 2 - sizeof gap };
    const size_t length = strlen(text);
    if (length < QP_ERROR_SIZE) return;
    memcpy(text + HALF, gap, sizeof gap - 1);
    memmove(text + HALF + sizeof gap - 1, text + length - HALF, HALF + 1);
}

qp_status error_set(qp_error *error, qp_status status, const char *format, ...)
{
    if (!error) return status;
    error->status = status;
    char text[WHOLE];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    shorten(text);
    printable_copy(text, error->message, sizeof error->message);
    return status;
}

qp_status error_prefix(qp_error *error, const char *format, ...)
{
    if (!error) return QP_INVALID;
    char text[QP_ERROR_SIZE];
    va_list args;
    va_start(args, format);
    int used = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (used >= 0 && (size_t)used < sizeof text)
        snprintf(text + used, sizeof text - (size_t)used, ": %.*s", QP_ERROR_SIZE - used,
                 error->message);
    printable_copy(text, error->message, sizeof error->message);
    return error->status;
}

qp_status error_no_memory(qp_error *error, const char *what, unsigned long long bytes)
{
    return error_set(error, QP_NO_MEMORY, "cannot allocate %llu bytes for %s", bytes, what);
}
