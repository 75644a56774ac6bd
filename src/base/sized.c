/* Public structs that begin with their size: see sized.h. */
#include "base/sized.h"

#include "base/version.h"

#include <string.h>

/* No struct comes near this: a larger size is memory that was not initialised. */
enum { LARGEST = 4096 };

static qp_status read_size(const char *name, const void *given, size_t known, size_t *size,
                           qp_error *error)
{
    if (!given) return error_set(error, QP_INVALID, "%s is NULL", name);
    memcpy(size, given, sizeof *size);
    if (*size >= sizeof *size && *size <= LARGEST) return QP_OK;
    return error_set(error, QP_INVALID,
                     "the member size of %s is %zu: set it to sizeof(%s), which is %zu in quipu %s",
                     name, *size, name, known, version_text);
}

qp_status sized_read(const char *name, const void *from, void *to, size_t size, qp_error *error)
{
    const unsigned char *bytes = from;
    size_t given = 0;
    TRY(read_size(name, from, size, &given, error));
    for (size_t i = size; i < given; i++) {
        if (bytes[i] == 0) continue;
        return error_set(error, QP_INVALID,
                         "a member of %s at byte %zu is set, but quipu %s knows only %zu bytes of "
                         "it: leave the member zero or use a newer library",
                         name, i, version_text, size);
    }
    memset(to, 0, size);
    memcpy(to, from, given < size ? given : size);
    memcpy(to, &size, sizeof size);
    return QP_OK;
}

qp_status sized_write(const char *name, const void *from, size_t size, void *to, qp_error *error)
{
    size_t given = 0;
    TRY(read_size(name, to, size, &given, error));
    memset(to, 0, given);
    memcpy(to, from, given < size ? given : size);
    memcpy(to, &given, sizeof given);
    return QP_OK;
}
