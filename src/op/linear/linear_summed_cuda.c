/* Products of many rows whose sums ranks share: see linear_summed_cuda.h.
 *
 * Rows are cut among the ranks. A rank first multiplies the rows of the others, and sends each rank
 * its part of them while it multiplies its own. Then it adds all parts of its own rows, and sends
 * their norm to all. So x stays cut, where the next such product adds to it.
 *
 *     rank 0   rows of 1 | own rows | sum, norm -> all
 *                        | copy ->  |
 */
#include "op/linear/linear_summed_cuda.h"

#include "cuda/exchange_sums.h"
#include "op/all_reduce/all_reduce.h"
#include "op/exchange_cuda.h"
#include "op/exchange_push_cuda.h"
#include "op/linear/linear.h"
#include "op/linear/linear_cuda.h"
#include "op/rms_norm/rms_norm.h"
#include "op/rows_cuda.h"

/* Of a rank. With fewer rows its products have too few tiles. */
enum { LEAST_ROWS = 512 };
_Static_assert((int)EXCHANGE_SUMS_COLUMNS == CUDA_ROWS_EIGHT * SUMS_EIGHTS * SUMS_THREADS,
               "a block has a row");

/* The rows that a rank sums. */
typedef struct row_span {
    int64_t per, first, count;
} row_span;

static row_span rows_of_rank(const exchange *e, int rank, int64_t rows)
{
    const int64_t per = (rows + e->n_ranks - 1) / e->n_ranks, first = rank * per;
    return (row_span){per, first, rows - first < per ? rows - first : per};
}

static bool is_dense(const tensor *t)
{
    return t->type == DTYPE_F32 && t->rank == 2 && t->stride[1] == 4 &&
           t->stride[0] == 4 * t->shape[1];
}

bool cuda_linear_summed_accepts(const cuda_ops *ops, const op_call *calls)
{
    const tensor *t = calls[0].tensors, *x = &t[LINEAR_OUT], *weight = &t[LINEAR_WEIGHT];
    const tensor *parts = &calls[1].tensors[ALL_REDUCE_PARTS];
    const norm_rows norm = cuda_norm_rows(&calls[2]);
    if (!ops->exchange || ops->carrier || !is_dense(x)) return false;

    return x->shape[0] >= LEAST_ROWS * ops->exchange->n_ranks &&
           x->shape[0] * x->shape[1] <= EXCHANGE_SUMS_MOST &&
           x->shape[1] <= EXCHANGE_SUMS_COLUMNS && weight->type == DTYPE_BF16 &&
           weight->stride[0] % 16 == 0 && !t[LINEAR_BIAS].rank &&
           (!t[LINEAR_RESIDUAL].rank || t[LINEAR_RESIDUAL].data == x->data) &&
           t[LINEAR_X].shape[1] % 8 == 0 && calls[0].begin == 0 &&
           calls[0].end == weight->shape[0] && parts->data == x->data &&
           calls[1].tensors[ALL_REDUCE_OUT].data == x->data &&
           calls[2].tensors[RMS_NORM_X].data == x->data &&
           calls[2].tensors[RMS_NORM_X].shape[0] == x->shape[0] && calls[2].begin == 0 &&
           calls[2].end == x->shape[0] && cuda_norm_by_eights(&norm) &&
           calls[2].params[RMS_NORM_ROUND_FIRST] == 0;
}

cuda_left cuda_linear_summed_leaves(const cuda_ops *ops, const op_call *calls, cuda_address x)
{
    const exchange *e = ops->exchange;
    (void)calls, (void)x;
    return (cuda_left){.narrowed = e->receive[e->rank] + exchange_normed_offset(e->n_ranks)};
}

/* The product of some rows. */
static qp_status multiply(cuda_ops *ops, const op_call *call, cuda_address x, row_span rows,
                          cuda_address out, qp_error *error)
{
    const tensor *weight = &call->tensors[LINEAR_WEIGHT];
    const int64_t k = call->tensors[LINEAR_X].shape[1], n = weight->shape[0];
    const cuda_product product = {.m = rows.count,
                                  .n = n,
                                  .k = k,
                                  .x = x + (cuda_address)(rows.first * k * 2),
                                  .weight = cuda_device_form(weight->data),
                                  .out = out,
                                  .x_pitch = k,
                                  .weight_pitch = weight->stride[0] / 2,
                                  .out_pitch = n};
    return cuda_ops_multiply(ops, &product, error);
}

/* Where the rank `to` takes the part of the rank `from`. */
static cuda_address part_address(const exchange *e, int to, int from, row_span rows, int64_t n)
{
    return e->receive[to] + exchange_parts_offset(e->n_ranks) +
           (cuda_address)(from * rows.per * n * 4);
}

static qp_status add_parts(cuda_ops *ops, const op_call *norm, row_span own, qp_error *error)
{
    const exchange_sums sums = {.norm = cuda_norm_rows(norm),
                                .first = (uint32_t)own.first,
                                .n_own = (uint32_t)own.count,
                                .per = (uint32_t)own.per,
                                .ranks = *ops->exchange};
    const int64_t threads =
        (sums.norm.n + CUDA_ROWS_EIGHT * SUMS_EIGHTS - 1) / (CUDA_ROWS_EIGHT * SUMS_EIGHTS);
    const cuda_start start = {
        .image = "exchange",
        .name = "run_all_reduce_rows",
        .grid = {(unsigned)(own.per < CHUNKS_BLOCKS ? own.per : CHUNKS_BLOCKS), 1, 1},
        .threads = (unsigned)cuda_warps_of(threads, SUMS_THREADS)};
    return cuda_ops_start(ops, &start, CUDA_ARGUMENTS(CUDA_ARGUMENT(sums)), error);
}

/* Multiplies the rows of the ranks [from, to), and sends them. */
static qp_status send_parts(cuda_ops *ops, const op_call *call, cuda_address x, int from, int to,
                            qp_error *error)
{
    const exchange *e = ops->exchange;
    const tensor *out = &call->tensors[LINEAR_OUT];
    const int64_t row_bytes = out->stride[0];
    if (from == to) return QP_OK;
    row_span all = rows_of_rank(e, from, out->shape[0]);
    const row_span last = rows_of_rank(e, to - 1, out->shape[0]);
    all.count = last.first + last.count - all.first;
    /* x of other ranks' rows is not needed here: the parts lie there */
    const cuda_address at = cuda_device_form(out->data);
    TRY(multiply(ops, call, x, all, at + (cuda_address)(all.first * row_bytes), error));
    for (int rank = from; rank < to; rank++) {
        const row_span rows = rows_of_rank(e, rank, out->shape[0]);
        TRY(cuda_push(ops, at + (cuda_address)(rows.first * row_bytes),
                      part_address(e, rank, e->rank, rows, out->shape[1]),
                      (size_t)(rows.count * row_bytes), error));
    }
    return QP_OK;
}

qp_status cuda_linear_summed(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                             qp_error *error)
{
    const exchange *e = ops->exchange;
    const tensor *out = &calls[0].tensors[LINEAR_OUT];
    const row_span own = rows_of_rank(e, e->rank, out->shape[0]);
    cuda_address x;
    TRY(cuda_linear_narrowed_x(ops, &calls[0], forms, &x, error));
    TRY(send_parts(ops, &calls[0], x, e->rank + 1, e->n_ranks, error));
    TRY(send_parts(ops, &calls[0], x, 0, e->rank, error));
    TRY(multiply(ops, &calls[0], x, own, part_address(e, e->rank, e->rank, own, out->shape[1]),
                 error));
    TRY(cuda_push_wait(ops, error));
    return add_parts(ops, &calls[2], own, error);
}

qp_status cuda_linear_summed_rows(cuda_ops *ops, const tensor *x, const tensor *ids,
                                  const tensor *out, qp_error *error)
{
    const row_span own = rows_of_rank(ops->exchange, ops->exchange->rank, x->shape[0]);
    return cuda_exchange_own_rows(ops, x, own.first, own.count, ids, out, error);
}
