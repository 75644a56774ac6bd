/* Launches of all_reduce and all_gather: see exchange_cuda.h. */
#include "op/exchange_cuda.h"

#include "op/rows_cuda.h"

#include <stdio.h>

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

qp_status cuda_exchange(cuda_ops *ops, const char *name, const tensor *part, const tensor *out,
                        int64_t first, qp_error *error)
{
    const bool chunks = out->shape[0] * out->shape[1] > MOST_WORDS;
    const int64_t own = EXCHANGE_THREADS * (chunks ? CHUNKS_FOURS : EXCHANGE_FOURS);
    const int64_t most = chunks ? CHUNKS_BLOCKS : EXCHANGE_BLOCKS;
    const int64_t blocks = (fours_of(out) + own - 1) / own;
    exchange_rows rows = {.part = cuda_rows_of(part),
                          .out = cuda_rows_of(out),
                          .n_rows = (uint32_t)out->shape[0],
                          .n_columns = (int32_t)out->shape[1],
                          .first = (int32_t)first,
                          .n_own = (int32_t)part->shape[1],
                          .vectors = in_fours(part, out, first),
                          .ranks = *ops->exchange};
    cuda_start start = {.image = "exchange",
                        .grid = {(unsigned)(blocks < most ? blocks : most), 1, 1},
                        .threads = EXCHANGE_THREADS,
                        .cluster = 1};
    snprintf(start.name, sizeof start.name, "run_%s_%s", name, chunks ? "chunks" : "words");
    return cuda_ops_start(ops, &start, CUDA_ARGUMENTS(CUDA_ARGUMENT(rows)), error);
}
