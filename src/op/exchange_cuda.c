/* Launches of all_reduce and all_gather: see exchange_cuda.h. */
#include "op/exchange_cuda.h"

#include "op/carrier_cuda.h"
#include "op/rms_norm/rms_norm.h"
#include "op/rows_cuda.h"

#include <stdio.h>
#include <string.h>

enum {
    MOST_WORDS = 256 << 10, /* elements; from more on chunks take less time */
};

static int64_t fours_of(const tensor *out)
{
    return out->shape[0] * ((out->shape[1] + 3) / 4);
}

bool cuda_exchange_accepts(const tensor *part, const tensor *out)
{
    return part->type == DTYPE_F32 && out->type == DTYPE_F32 && fours_of(out) < INT32_MAX / 2;
}

static bool in_fours(const tensor *part, const tensor *out, int64_t first)
{
    return (part->shape[1] | out->shape[1] | first) % 4 == 0 &&
           cuda_rows_on_vectors(cuda_rows_of(part)) && cuda_rows_on_vectors(cuda_rows_of(out));
}

static exchange_rows rows_of(const cuda_ops *ops, const tensor *part, const tensor *out,
                             int64_t first)
{
    return (exchange_rows){.part = cuda_rows_of(part),
                           .out = cuda_rows_of(out),
                           .n_rows = (uint32_t)out->shape[0],
                           .n_columns = (int32_t)out->shape[1],
                           .first = (int32_t)first,
                           .n_own = (int32_t)part->shape[1],
                           .n_own_rows = (uint32_t)out->shape[0],
                           .vectors = in_fours(part, out, first),
                           .ranks = *ops->exchange};
}

static qp_status start_exchange(cuda_ops *ops, const char *name, const tensor *out,
                                const exchange_rows *rows, qp_error *error)
{
    const bool chunks = out->shape[0] * out->shape[1] > MOST_WORDS;
    const int64_t own = EXCHANGE_THREADS * (chunks ? CHUNKS_FOURS : EXCHANGE_FOURS);
    const int64_t most =
        (chunks ? CHUNKS_BLOCKS : EXCHANGE_BLOCKS) / (ops->beside ? ops->beside : 1);
    const int64_t blocks = (fours_of(out) + own - 1) / own;
    cuda_start start = {.image = "exchange",
                        .grid = {(unsigned)(blocks < most ? blocks : most), 1, 1},
                        .threads = EXCHANGE_THREADS,
                        .cluster = 1};
    snprintf(start.name, sizeof start.name, "run_%s_%s", name, chunks ? "chunks" : "words");
    return cuda_ops_start(ops, &start, CUDA_ARGUMENTS(CUDA_ARGUMENT(*rows)), error);
}

qp_status cuda_exchange(cuda_ops *ops, const char *name, const tensor *part, const tensor *out,
                        int64_t first, qp_error *error)
{
    if (ops->carrier)
        return cuda_carry(ops, part, out, first, strcmp(name, "all_gather") == 0, error);
    const exchange_rows rows = rows_of(ops, part, out, first);
    return start_exchange(ops, name, out, &rows, error);
}

qp_status cuda_exchange_own_rows(cuda_ops *ops, const tensor *x, int64_t first, int64_t count,
                                 const tensor *ids, const tensor *out, qp_error *error)
{
    exchange_rows rows = rows_of(ops, x, out, 0);
    rows.first_row = (uint32_t)first;
    rows.n_own_rows = (uint32_t)count;
    rows.ids = ids ? ids->data : NULL;
    return start_exchange(ops, "all_gather", out, &rows, error);
}

/* The launch of a norm of so few rows has a block of the same threads for each. */
bool cuda_exchange_norm_accepts(const tensor *part, const op_call *norm)
{
    const norm_rows rows = cuda_norm_rows(norm);
    const tensor *x = &norm->tensors[RMS_NORM_X];
    return norm->begin == 0 && norm->end == x->shape[0] && x->shape[0] <= ROWS_BLOCKS &&
           x->type == DTYPE_F32 && x->shape[1] <= 8 * ROWS_THREADS && in_fours(part, x, 0) &&
           cuda_norm_by_eights(&rows) && norm->params[RMS_NORM_ROUND_FIRST] == 0;
}

qp_status cuda_exchange_norm(cuda_ops *ops, const tensor *part, const tensor *out,
                             const op_call *norm, qp_error *error)
{
    const exchange_rows rows = rows_of(ops, part, out, 0);
    const norm_rows normed = cuda_norm_rows(norm);
    const cuda_start start = {.image = "exchange",
                              .name = "run_all_reduce_norm",
                              .grid = {(unsigned)out->shape[0], 1, 1},
                              .threads =
                                  (unsigned)cuda_warps_of((out->shape[1] + 7) / 8, ROWS_THREADS),
                              .cluster = 1};
    return cuda_ops_start(ops, &start, CUDA_ARGUMENTS(CUDA_ARGUMENT(rows), CUDA_ARGUMENT(normed)),
                          error);
}

qp_status cuda_exchange_likeliest(cuda_ops *ops, const tensor *part, int64_t first,
                                  const tensor *ids, qp_error *error)
{
    const int64_t rows = part->shape[0];
    const exchange_likeliest call = {.part = cuda_rows_of(part),
                                     .first = (int32_t)first,
                                     .n_own = (int32_t)part->shape[1],
                                     .n_rows = (int32_t)rows,
                                     .ids = cuda_device_form(ids->data),
                                     .ranks = *ops->exchange};
    const cuda_start start = {
        .image = "exchange",
        .name = "run_likeliest_of_ranks",
        .grid = {(unsigned)(rows < EXCHANGE_BLOCKS ? rows : EXCHANGE_BLOCKS), 1, 1},
        .threads = LIKELIEST_THREADS,
        .cluster = 1};
    return cuda_ops_start(ops, &start, CUDA_ARGUMENTS(CUDA_ARGUMENT(call)), error);
}
