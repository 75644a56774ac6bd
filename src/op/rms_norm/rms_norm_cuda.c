/* rms_norm on the GPU, and what add_rms_norm shares with it: see rows_cuda.h. */
#include "op/linear/linear_f8.h"
#include "op/rms_norm/rms_norm.h"
#include "op/rms_norm/rms_norm_f8.h"
#include "op/route/route_cuda.h"
#include "op/rows_cuda.h"
#include "op/variants.h"

#include <stdio.h>

enum {
    SMALL_ROWS = 4,      /* rows per multiprocessor from which norms use small blocks, */
    SMALL_LONG_ROWS = 2, /* and of more elements than LONG_ROW */
    LONG_ROW = NORM_LONG_EIGHTS * CUDA_ROWS_EIGHT * NORM_SMALL_THREADS, /* of 128 threads */
};

norm_rows cuda_norm_rows(const op_call *call)
{
    const tensor *t = call->tensors;
    return (norm_rows){.x = cuda_rows_of(&t[RMS_NORM_X]),
                       .weight = cuda_rows_of(&t[RMS_NORM_WEIGHT]),
                       .out = cuda_rows_of(&t[RMS_NORM_OUT]),
                       .begin = call->begin,
                       .n = (int32_t)t[RMS_NORM_X].shape[1],
                       .eps = (float)call->params[RMS_NORM_EPS]};
}

bool cuda_norm_by_eights(const norm_rows *rows)
{
    return rows->n % CUDA_ROWS_EIGHT == 0 && cuda_rows_on_vectors(rows->x) &&
           cuda_rows_on_vectors(rows->residual) && cuda_rows_on_vectors(rows->out) &&
           cuda_rows_on_vectors(rows->weight);
}

bool cuda_norm_is_small(const norm_rows *rows, int64_t n_rows, int n_multiprocessors)
{
    return rows->n > CUDA_ROWS_EIGHT * NORM_SMALL_THREADS && rows->n <= 2 * LONG_ROW &&
           n_rows >=
               (int64_t)(rows->n > LONG_ROW ? SMALL_LONG_ROWS : SMALL_ROWS) * n_multiprocessors;
}

static bool is_bf16(const norm_rows *rows)
{
    return rows->x.type == DTYPE_BF16 && rows->weight.type == DTYPE_BF16 &&
           rows->out.type == DTYPE_BF16 &&
           (!rows->residual.data || rows->residual.type == DTYPE_BF16);
}

/* The kernel for a norm of this many rows, as the name's end, and its threads. */
static const char *norm_kernel(const norm_rows *rows, int64_t n_rows, int n_multiprocessors,
                               int64_t *threads)
{
    int64_t eights = (rows->n + CUDA_ROWS_EIGHT - 1) / CUDA_ROWS_EIGHT;
    bool small = cuda_norm_is_small(rows, n_rows, n_multiprocessors);
    bool short_row = rows->n <= NORM_SHORT_EIGHTS * CUDA_ROWS_EIGHT * NORM_SMALL_THREADS;
    int of_thread = !small ? 1 : short_row ? NORM_SHORT_EIGHTS : NORM_LONG_EIGHTS;
    *threads = cuda_warps_of(eights, NORM_THREADS);
    if (!cuda_norm_by_eights(rows)) return "";
    if (is_bf16(rows) && eights <= NORM_THREADS) {
        *threads = cuda_warps_of((eights + of_thread - 1) / of_thread, NORM_THREADS);
        return !small ? "_bf16_1" : short_row ? "_bf16_2" : "_bf16_4";
    }
    if (!small) return "_vectors";
    *threads = rows->n > LONG_ROW ? 2 * NORM_SMALL_THREADS : NORM_SMALL_THREADS;
    return short_row ? "_short" : "_long";
}

qp_status cuda_launch_norm(cuda_ops *ops, norm_rows rows, int64_t n_rows, const cuda_forms *forms,
                           qp_error *error)
{
    char name[CUDA_KERNEL_NAME];
    int64_t threads;
    const char *kind = norm_kernel(&rows, n_rows, ops->device->n_multiprocessors, &threads);
    snprintf(name, sizeof name, "run_%srms_norm%s", rows.residual.data ? "add_" : "", kind);
    rows.narrowed = cuda_narrowed_rows(forms->out, rows.n);
    if (forms->out_alone) rows.out.data = NULL;
    return cuda_ops_start_early(ops, name, n_rows, 1, threads, CUDA_ARGUMENTS(CUDA_ARGUMENT(rows)),
                                error);
}

/* ---- for products of x in FP8 --------------------------------------------------------------- */

static bool rounds(const op_call *call)
{
    const norm_rows rows = cuda_norm_rows(call);
    return rows.n % F8_COLUMNS == 0 && rows.n <= NORM_F8_MOST && call->begin == 0 &&
           cuda_norm_by_eights(&rows);
}

/* Many rows have four eights a thread. */
static qp_status launch_f8(cuda_ops *ops, const op_call *call, const cuda_forms *forms,
                           qp_error *error)
{
    const int64_t rows = call->end;
    norm_f8_rows run = {.of = cuda_norm_rows(call), .out = cuda_host_form(forms->out)};
    run.scales = cuda_host_form(forms->out + (cuda_address)F8_X_NUMBERS(rows, run.of.n));
    run.group = F8_GROUP(rows);
    run.pitch = (int32_t)F8_X_PITCH(rows);
    const int eights = rows >= SMALL_LONG_ROWS * ops->device->n_multiprocessors ? 4 : 1;
    const int64_t each = CUDA_ROWS_EIGHT * eights;
    cuda_start start = {.image = "rms_norm_f8",
                        .grid = {(unsigned)rows, 1, 1},
                        .threads =
                            (unsigned)cuda_warps_of((run.of.n + each - 1) / each, NORM_THREADS),
                        .cluster = 1};
    snprintf(start.name, sizeof start.name, "run_rms_norm_f8_%s%d",
             forms->out_by_rows ? "rows_" : "", eights);
    return cuda_ops_start(ops, &start, CUDA_ARGUMENTS(CUDA_ARGUMENT(run)), error);
}

/* ---- the table ----------------------------------------------------------------------------- */

/* Without a rounding before the weight. */
static bool accepts(const op_call *call)
{
    return op_call_has_no_f64(call) && call->params[RMS_NORM_ROUND_FIRST] == 0;
}

static qp_status launch(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                        const cuda_forms *forms, qp_error *error)
{
    (void)kernel;
    if (forms->out_in_f8) return launch_f8(ops, call, forms, error);
    return cuda_launch_norm(ops, cuda_norm_rows(call), call->end - call->begin, forms, error);
}

static const cuda_fusion fusions[] = {
    {.name = "linear, route",
     .with = {OP_LINEAR, OP_ROUTE},
     .n_with = 2,
     .accepts = cuda_norm_route_accepts,
     .launch = cuda_norm_route},
    {0},
};

const cuda_kernel rms_norm_cuda[] = {
    {CUDA_ROW(RMS_NORM, "cuda"), .narrows = cuda_narrows_always, .rounds = rounds,
     .narrow_form = CUDA_NARROWS_EITHER, .accepts = accepts, .launch = launch, .fusions = fusions},
    {0},
};
