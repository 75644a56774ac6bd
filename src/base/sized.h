/* Public structs that begin with their size.
 *
 * Such a struct may get further members in a later version of quipu.h. The library then meets three
 * kinds of programs: those built with the same header, with an older one (the struct is shorter,
 * and what is missing has its default, zero), and with a newer one (it is longer, and what this
 * library does not know must be zero). A new member goes to the end, and no struct may end in
 * padding, because a member that takes its place would not change the size.
 */
#pragma once

#include "base/status.h"

#include <stddef.h>

/* Copies a caller's struct of any size to `to`, `size` bytes as this library knows it. QP_INVALID
 * names the struct, if it is NULL, its size is not one, or a member that is not known is set. */
qp_status sized_read(const char *name, const void *from, void *to, size_t size, qp_error *error);

/* Copies `from` to a caller's struct, whose size stays; members that are not known become zero. */
qp_status sized_write(const char *name, const void *from, size_t size, void *to, qp_error *error);

#define SIZED_READ(type, from, to, error)  sized_read(#type, from, to, sizeof(type), error)
#define SIZED_WRITE(type, from, to, error) sized_write(#type, from, sizeof(type), to, error)
