/* Exchanges of GPUs that do not write to each other's memory: see carrier_cuda.h. */
#include "op/carrier_cuda.h"

#include "op/all_gather/all_gather.h"
#include "op/all_reduce/all_reduce.h"
#include "op/exchange.h"
#include "op/rows_cuda.h"

#include <stdio.h>
#include <string.h>

enum { TAG_NCCL = 0x6e63636c, WORDS_BYTES = 64 << 20 };
static const char copying[] = "copying rows that ranks exchange";

/* An exchange, as a record's parameter. */
typedef struct carried {
    device_rows part, out; /* F32 */
    int64_t n_rows, n_columns, first, n_own;
    int64_t gathers;
} carried;

size_t cuda_carrier_bytes(bool by_nccl)
{
    return by_nccl ? WORDS_BYTES : 0;
}

/* ---- opening ------------------------------------------------------------------------------- */

static bool others_failed(const void *group)
{
    return comm_check(group, NULL) != QP_OK;
}

/* The first rank makes the group's id. If it cannot, all end with its message. */
static qp_status open_nccl(cuda_carrier *c, qp_error *error)
{
    char *id = comm_stage(c->group, NCCL_ID_BYTES);
    if (!id) return comm_check(c->group, error);
    memset(id, 0, NCCL_ID_BYTES);
    if (comm_rank(c->group) == 0) TRY(nccl_make_id(id, error));
    const comm_part *parts =
        comm_exchange(c->group, TAG_NCCL, NCCL_ID_BYTES, NCCL_ID_BYTES, COMM_SLOW);
    if (!parts) return comm_check(c->group, error);
    qp_error why = {0};
    qp_status status = nccl_open(c->device, parts[0].data, comm_rank(c->group), comm_size(c->group),
                                 others_failed, c->group, &c->nccl, &why);
    TRY(comm_check(c->group, error)); /* what another rank says explains it better */
    if (status != QP_OK) return error_set(error, status, "%s", why.message);
    return cuda_buffer_alloc(c->device, WORDS_BYTES, "the exchange between ranks", &c->words,
                             error);
}

qp_status cuda_carrier_open(cuda_carrier *c, cuda_device *device, comm *group, bool by_nccl,
                            qp_error *error)
{
    *c = (cuda_carrier){.device = device, .group = group};
    return by_nccl ? open_nccl(c, error) : QP_OK;
}

void cuda_carrier_close(cuda_carrier *c)
{
    if (!c->device) return;
    nccl_close(c->nccl);
    c->device->driver->context_set(c->device->context);
    cuda_pinned_free(c->device, &c->rows);
    cuda_buffer_free(c->device, &c->words);
    *c = (cuda_carrier){0};
}

/* ---- through the host's memory ------------------------------------------------------------- */

static qp_status reserve(cuda_carrier *c, size_t bytes, qp_error *error)
{
    if (bytes <= c->rows_bytes) return QP_OK;
    TRY(cuda_device_wait(c->device, copying, error));
    cuda_pinned_free(c->device, &c->rows);
    c->rows_bytes = 0;
    TRY(cuda_pinned_alloc(c->device, bytes, "rows that ranks exchange", &c->rows, error));
    c->rows_bytes = bytes;
    return QP_OK;
}

/* Bytes of a row of the output, and where this rank's part of it begins. */
static size_t row_bytes(const carried *r)
{
    return (size_t)r->n_columns * sizeof(float);
}

static size_t first_byte(const carried *r)
{
    return (size_t)r->first * sizeof(float);
}

static qp_status copy_rows(const cuda_carrier *c, const cuda_copy_rows *copy, qp_error *error)
{
    if (copy->row_bytes == 0 || copy->n_rows == 0) return QP_OK;
    return cuda_check(c->device->driver->copy_rows(copy, c->device->stream), copying, error);
}

static cuda_copy_side on_gpu(cuda_address at, size_t pitch)
{
    return (cuda_copy_side){.kind = CUDA_MEMORY_GPU, .gpu = at, .pitch = pitch};
}

static cuda_copy_side on_host(void *at, size_t pitch)
{
    return (cuda_copy_side){.kind = CUDA_MEMORY_HOST, .host = at, .pitch = pitch};
}

static cuda_copy_side side_of(const device_rows *rows, int64_t first_row)
{
    return on_gpu(cuda_device_form(rows->data) + (size_t)(first_row * rows->stride),
                  (size_t)rows->stride);
}

/* The exchange of rows on the host as ranks on CPUs make it, in place. */
static void exchange_on_host(const cuda_carrier *c, const carried *r)
{
    op_call call = {.end = r->n_rows * r->n_columns, .packed = c->group};
    const tensor out = tensor_2d(c->rows.data, DTYPE_F32, r->n_rows, r->n_columns);
    if (r->gathers) {
        tensor part = out;
        part.data = (char *)part.data + first_byte(r);
        part.shape[1] = r->n_own;
        call.tensors[ALL_GATHER_PART] = part;
        call.tensors[ALL_GATHER_OUT] = out;
        call.params[ALL_GATHER_FIRST] = (double)r->first;
        exchange_columns(&call);
    } else {
        call.tensors[ALL_REDUCE_PARTS] =
            tensor_3d(c->rows.data, DTYPE_F32, 1, r->n_rows, r->n_columns);
        call.tensors[ALL_REDUCE_OUT] = out;
        exchange_sum(&call);
    }
}

static qp_status carry_by_host(cuda_carrier *c, const carried *r, qp_error *error)
{
    const size_t pitch = row_bytes(r);
    TRY(reserve(c, (size_t)r->n_rows * pitch, error));
    const cuda_copy_rows in = {.from = side_of(&r->part, 0),
                               .to = on_host((char *)c->rows.data + first_byte(r), pitch),
                               .row_bytes = (size_t)r->n_own * sizeof(float),
                               .n_rows = (size_t)r->n_rows};
    const cuda_copy_rows out = {.from = on_host(c->rows.data, pitch),
                                .to = side_of(&r->out, 0),
                                .row_bytes = pitch,
                                .n_rows = (size_t)r->n_rows};
    TRY(copy_rows(c, &in, error));
    TRY(cuda_device_wait(c->device, "a part of a forward pass", error));
    exchange_on_host(c, r);
    TRY(comm_check(c->group, error));
    return copy_rows(c, &out, error);
}

/* ---- by NCCL ------------------------------------------------------------------------------- */

static bool is_dense(const device_rows *rows, const carried *r)
{
    return r->n_rows == 1 || rows->stride == (int64_t)row_bytes(r);
}

/* Some rows, which lie in `words` meanwhile. */
static qp_status carry_some(cuda_carrier *c, const carried *r, int64_t row, int64_t n_rows,
                            qp_error *error)
{
    const size_t pitch = row_bytes(r), bytes = (size_t)n_rows * pitch;
    const cuda_address at = c->words.address;
    const bool direct = is_dense(&r->out, r);
    const cuda_copy_side out_side = side_of(&r->out, row);
    const cuda_copy_rows in = {.from = side_of(&r->part, row),
                               .to = on_gpu(at + first_byte(r), pitch),
                               .row_bytes = (size_t)r->n_own * sizeof(float),
                               .n_rows = (size_t)n_rows};
    const cuda_copy_rows out = {
        .from = on_gpu(at, pitch), .to = out_side, .row_bytes = pitch, .n_rows = (size_t)n_rows};
    if (r->gathers)
        TRY(cuda_check(c->device->driver->memory_set(at, 0, bytes, c->device->stream), copying,
                       error));
    TRY(copy_rows(c, &in, error));
    TRY(nccl_sum(c->nccl, at, direct ? out_side.gpu : at, bytes / sizeof(float),
                 r->gathers ? NCCL_WORDS : NCCL_FLOATS, error));
    return direct ? QP_OK : copy_rows(c, &out, error);
}

static qp_status carry_by_nccl(cuda_carrier *c, const carried *r, qp_error *error)
{
    if (!r->gathers && is_dense(&r->part, r) && is_dense(&r->out, r))
        return nccl_sum(c->nccl, cuda_device_form(r->part.data), cuda_device_form(r->out.data),
                        (size_t)(r->n_rows * r->n_columns), NCCL_FLOATS, error);
    const int64_t fit = (int64_t)(WORDS_BYTES / row_bytes(r));
    if (fit == 0)
        return error_set(error, QP_UNSUPPORTED, "rows of %lld elements are too long for NCCL here",
                         (long long)r->n_columns);
    for (int64_t row = 0; row < r->n_rows; row += fit)
        TRY(carry_some(c, r, row, r->n_rows - row < fit ? r->n_rows - row : fit, error));
    return QP_OK;
}

/* ---- records ------------------------------------------------------------------------------- */

/* After a failure the pass goes on without exchanges, and cuda_carrier_check() says why. */
static int carry(const void *context, const void *argument, cuda_stream stream)
{
    cuda_carrier *c = (cuda_carrier *)(uintptr_t)context;
    carried rows;
    (void)stream; /* the device's */
    memcpy(&rows, argument, sizeof rows);
    if (c->failure.status != QP_OK) return CUDA_SUCCESS;
    c->failure.status =
        c->nccl ? carry_by_nccl(c, &rows, &c->failure) : carry_by_host(c, &rows, &c->failure);
    return CUDA_SUCCESS;
}

qp_status cuda_carry(cuda_ops *ops, const tensor *part, const tensor *out, int64_t first,
                     bool gathers, qp_error *error)
{
    const carried rows = {.part = cuda_rows_of(part),
                          .out = cuda_rows_of(out),
                          .n_rows = out->shape[0],
                          .n_columns = out->shape[1],
                          .first = first,
                          .n_own = part->shape[1],
                          .gathers = gathers};
    char name[CUDA_KERNEL_NAME];
    snprintf(name, sizeof name, "%s by %s", gathers ? "all_gather" : "all_reduce",
             ops->carrier->nccl ? "nccl" : "host");
    return cuda_recording_add_host(ops->recording, name, carry, ops->carrier,
                                   (cuda_argument)CUDA_ARGUMENT(rows), error);
}

void cuda_carrier_begin(cuda_carrier *c)
{
    if (c->nccl) nccl_begin(c->nccl);
}

void cuda_carrier_end(cuda_carrier *c)
{
    if (c->nccl) nccl_end(c->nccl);
}

qp_status cuda_carrier_check(const cuda_carrier *c, qp_error *error)
{
    TRY(comm_check(c->group, error));
    if (c->nccl) TRY(nccl_check(c->nccl, error));
    if (c->failure.status == QP_OK) return QP_OK;
    return error_set(error, c->failure.status, "%s", c->failure.message);
}
