/* qp_step() for programs built with any version of quipu.h. If the caller's qp_sequence has another
 * size than this library's, sequences are copied before the call and results are copied back.
 * Otherwise the caller's array is used directly.
 */
#include "base/sized.h"
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

/* The caller's sequences; `stride` is their size. */
typedef struct sequence_array {
    unsigned char *data;
    size_t stride, count;
} sequence_array;

static void *at(const sequence_array *given, size_t i)
{
    return given->data + i * given->stride;
}

static qp_status check_sizes(const sequence_array *given, qp_error *error)
{
    for (size_t i = 1; i < given->count; i++) {
        size_t size;
        memcpy(&size, at(given, i), sizeof size);
        if (size == given->stride) continue;
        return error_set(error, QP_INVALID,
                         "the size of sequence %zu is %zu, that of sequence 0 is %zu: set both to "
                         "sizeof(qp_sequence)",
                         i, size, given->stride);
    }
    return QP_OK;
}

/* The copy of the sequence that `like` points to. A pointer that is not to a sequence of the call
 * stays unchanged, and the call is then refused. */
static const qp_sequence *like_of(const sequence_array *given, qp_sequence *copies,
                                  const qp_sequence *like)
{
    const uintptr_t offset = (uintptr_t)like - (uintptr_t)given->data;
    const size_t i = offset / given->stride;
    return like && i < given->count && offset % given->stride == 0 ? &copies[i] : like;
}

/* The members that the call writes: from `read` to the end. */
static void copy_results(const sequence_array *given, const qp_sequence *copies)
{
    const size_t first = offsetof(qp_sequence, read);
    const size_t end = given->stride < sizeof *copies ? given->stride : sizeof *copies;
    for (size_t i = 0; i < given->count && end > first; i++)
        memcpy((unsigned char *)at(given, i) + first, (const unsigned char *)&copies[i] + first,
               end - first);
}

static qp_status step_copies(qp_engine *e, const sequence_array *given, qp_sequence *copies,
                             qp_error *error)
{
    for (size_t i = 0; i < given->count; i++) {
        TRY(SIZED_READ(qp_sequence, at(given, i), &copies[i], error));
        copies[i].like = like_of(given, copies, copies[i].like);
    }
    qp_status status = step_sequences(e, copies, given->count, error);
    copy_results(given, copies);
    return status;
}

qp_status engine_step(qp_engine *e, qp_sequence *sequences, size_t n, qp_error *error)
{
    qp_sequence first;
    if (n == 0) return step_sequences(e, sequences, 0, error);
    TRY(SIZED_READ(qp_sequence, sequences, &first, error));
    sequence_array given = {.data = (unsigned char *)sequences, .count = n};
    memcpy(&given.stride, sequences, sizeof given.stride);
    TRY(check_sizes(&given, error));
    if (given.stride == sizeof *sequences) return step_sequences(e, sequences, n, error);
    qp_sequence *copies = calloc(n, sizeof *copies);
    if (!copies) return error_no_memory(error, "the sequences", n * sizeof *copies);
    qp_status status = step_copies(e, &given, copies, error);
    free(copies);
    return status;
}

qp_status qp_step(qp_engine *e, qp_sequence *sequences, size_t n, qp_error *error)
{
    TRY(engine_enter(e, error));
    const qp_status status = engine_step(e, sequences, n, error);
    engine_leave(e);
    return status;
}
