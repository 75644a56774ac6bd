/* Builds with tests keep every message of a refusal in refusals.log of the build folder, if that
 * file is there: scripts/refusals looks for sentences that no test provoked. The linker puts this
 * in place of error_set().
 */
#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

qp_status __real_error_set(qp_error *error, qp_status status, const char *format, ...);
qp_status __wrap_error_set(qp_error *error, qp_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

enum { KEPT = 1 << 12 };

/* Whether this process has not kept the message yet. */
static bool is_new(const char *text, size_t length)
{
    static _Atomic uint64_t seen[KEPT];
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)text[i]) * 1099511628211u;
    return atomic_exchange(&seen[hash % KEPT], hash) != hash;
}

static void keep(const char *text, size_t length)
{
    const int file =
        is_new(text, length) ? open(QUIPU_REFUSALS_LOG, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;
    if (file < 0) return;
    char line[8 * QP_ERROR_SIZE + 1];
    for (size_t i = 0; i < length; i++)
        line[i] = text[i] == '\n' ? ' ' : text[i];
    line[length] = '\n';
    const ssize_t written = write(file, line, length + 1); /* one write, so that lines stay whole */
    (void)written;
    close(file);
}

qp_status __wrap_error_set(qp_error *error, qp_status status, const char *format, ...)
{
    char text[8 * QP_ERROR_SIZE];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const int saved = errno;
    keep(text, strlen(text));
    errno = saved;
    return __real_error_set(error, status, "%s", text);
}
