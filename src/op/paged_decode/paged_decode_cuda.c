/* paged_decode on the GPU: see attention_cuda.h. */
#include "base/checked.h"
#include "op/attention/attention_cuda.h"
#include "op/attention/paged_sizes.h"
#include "op/paged_decode/paged_decode.h"
#include "op/paged_prefill/paged_prefill.h"

#include <stdio.h>

static bool by_heads_accepts(const op_call *call)
{
    attention_limits limits = CUDA_ATTENTION_LIMITS(call, PAGED_DECODE);
    return !cuda_is_limited(&limits) && cuda_attention_by_heads_accepts(call);
}

static bool limited_accepts(const op_call *call)
{
    attention_limits limits = CUDA_ATTENTION_LIMITS(call, PAGED_DECODE);
    return cuda_is_limited(&limits) && cuda_attention_by_heads_accepts(call);
}

static qp_status launch_limited(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                                const cuda_forms *forms, qp_error *error)
{
    attention_limits limits = CUDA_ATTENTION_LIMITS(call, PAGED_DECODE);
    (void)forms;
    return cuda_launch_limited(ops, kernel, call, &limits, error);
}

bool cuda_decode_accepts(const op_call *call)
{
    const tensor *t = call->tensors, *q = &t[PAGED_DECODE_Q], *k = &t[PAGED_DECODE_K_CACHE];
    return cuda_paged_accepts(q, k, &t[PAGED_DECODE_V_CACHE], &t[PAGED_DECODE_OUT],
                              &t[PAGED_DECODE_LSE]) &&
           q->shape[1] / k->shape[2] <= PAGED_DECODE_MAX_GROUP &&
           q->shape[0] * k->shape[2] <= CUDA_COUNTERS - CUDA_PREFILL_COUNTERS &&
           q->shape[0] < 65536;
}

bool cuda_decode_pays(const cuda_ops *ops, const op_call *call)
{
    return call->tensors[PAGED_DECODE_Q].shape[0] > ops->few_rows;
}

bool cuda_decode_few_pays(const cuda_ops *ops, const op_call *call)
{
    return !cuda_decode_pays(ops, call);
}

op_call cuda_decode_of_prefill(const op_call *prefill)
{
    static const int from[] = {
        [PAGED_DECODE_Q] = PAGED_PREFILL_Q,
        [PAGED_DECODE_K_CACHE] = PAGED_PREFILL_K_CACHE,
        [PAGED_DECODE_V_CACHE] = PAGED_PREFILL_V_CACHE,
        [PAGED_DECODE_KV_INDPTR] = PAGED_PREFILL_KV_INDPTR,
        [PAGED_DECODE_KV_INDICES] = PAGED_PREFILL_KV_INDICES,
        [PAGED_DECODE_KV_LAST_PAGE_LEN] = PAGED_PREFILL_KV_LAST_PAGE_LEN,
        [PAGED_DECODE_OUT] = PAGED_PREFILL_OUT,
        [PAGED_DECODE_LSE] = PAGED_PREFILL_LSE,
    };
    op_call call = {.begin = prefill->begin, .end = prefill->end};
    for (int i = 0; i <= PAGED_DECODE_LSE; i++)
        call.tensors[i] = prefill->tensors[from[i]];
    call.params[PAGED_DECODE_SM_SCALE] = prefill->params[PAGED_PREFILL_SM_SCALE];
    call.params[PAGED_DECODE_WINDOW] = prefill->params[PAGED_PREFILL_WINDOW];
    call.params[PAGED_DECODE_SOFT_CAP] = prefill->params[PAGED_PREFILL_SOFT_CAP];
    return call;
}

op_code cuda_take_decoding(const cuda_ops *ops, op_call *call)
{
    const op_call decode = cuda_decode_of_prefill(call);
    if (!cuda_decode_accepts(&decode) || !cuda_decode_pays(ops, &decode)) return OP_PAGED_PREFILL;
    *call = decode;
    return OP_PAGED_DECODE;
}

op_code cuda_take_single(const cuda_ops *ops, op_call *call)
{
    const op_call decode = cuda_decode_of_prefill(call);
    if (!cuda_decode_accepts(&decode) || !cuda_decode_few_pays(ops, &decode))
        return OP_PAGED_PREFILL;
    *call = decode;
    return OP_PAGED_DECODE;
}

/* The sequences of a page table from the n-th on. */
static void drop_sequences(tensor *indptr, tensor *last_page_len, int64_t n)
{
    indptr->data = (char *)indptr->data + n * indptr->stride[0];
    indptr->shape[0] -= n;
    last_page_len->data = (char *)last_page_len->data + n * last_page_len->stride[0];
    last_page_len->shape[0] -= n;
}

void cuda_split_prefill(const op_call *prefill, int64_t n, op_call *decode, op_call *others)
{
    *decode = cuda_decode_of_prefill(prefill);
    tensor *t = decode->tensors;
    t[PAGED_DECODE_Q].shape[0] = t[PAGED_DECODE_OUT].shape[0] = n;
    t[PAGED_DECODE_KV_INDPTR].shape[0] = n + 1;
    t[PAGED_DECODE_KV_LAST_PAGE_LEN].shape[0] = n;
    if (t[PAGED_DECODE_LSE].rank) t[PAGED_DECODE_LSE].shape[0] = n;
    decode->begin = 0;
    decode->end = n * t[PAGED_DECODE_Q].shape[1];
    *others = *prefill; /* qo_indptr has the numbers of rows, which stay */
    t = others->tensors;
    t[PAGED_PREFILL_QO_INDPTR].data =
        (char *)t[PAGED_PREFILL_QO_INDPTR].data + n * t[PAGED_PREFILL_QO_INDPTR].stride[0];
    t[PAGED_PREFILL_QO_INDPTR].shape[0] -= n;
    drop_sequences(&t[PAGED_PREFILL_KV_INDPTR], &t[PAGED_PREFILL_KV_LAST_PAGE_LEN], n);
}

/* Bytes of `rows` rows of output in BF16, where a product may read it; the parts follow. */
static size_t narrowed_bytes(const op_call *call, int64_t rows)
{
    const int64_t *shape = call->tensors[PAGED_DECODE_Q].shape;
    return round_up((size_t)(rows * shape[1] * shape[2]) * 2, CUDA_ALIGNMENT);
}

int64_t cuda_decode_chunks(int64_t longest)
{
    return PAGED_DECODE_CHUNKS(longest, PAGED_CHUNK);
}

static size_t workspace_of(const op_call *call, int64_t out_rows, int64_t parts)
{
    const int64_t *shape = call->tensors[PAGED_DECODE_Q].shape;
    return narrowed_bytes(call, out_rows) +
           (size_t)(parts * shape[1] * (shape[2] + 2)) * sizeof(float);
}

size_t cuda_decode_workspace_of(const op_call *call, int64_t out_rows, int64_t longest)
{
    int64_t chunks = cuda_decode_chunks(longest);
    return workspace_of(call, out_rows,
                        chunks > 1 ? call->tensors[PAGED_DECODE_Q].shape[0] * chunks : 0);
}

/* An upper bound of the number of parts, for sequences of any lengths that share the pages: only a
 * sequence's last part is smaller than the others, and a remainder of less than half a part belongs
 * to the last part. */
static int64_t most_parts(const op_call *call, bool few)
{
    int64_t n = call->tensors[PAGED_DECODE_Q].shape[0],
            positions = call->tensors[PAGED_DECODE_KV_INDICES].shape[0] *
                        call->tensors[PAGED_DECODE_K_CACHE].shape[1],
            parts = n + positions / PAGED_CHUNK;
    return few ? parts + n * PAGED_FEW_PARTS : parts;
}

size_t cuda_decode_workspace(const op_call *call)
{
    return workspace_of(call, call->tensors[PAGED_DECODE_Q].shape[0], most_parts(call, false));
}

size_t cuda_decode_few_workspace(const op_call *call)
{
    return workspace_of(call, call->tensors[PAGED_DECODE_Q].shape[0], most_parts(call, true));
}

static paged_attention arguments_of(const cuda_ops *ops, const op_call *call,
                                    const cuda_forms *forms)
{
    paged_attention a = cuda_paged_arguments(call, PAGED_TENSORS(call, PAGED_DECODE),
                                             call->params[PAGED_DECODE_SM_SCALE]);
    const int64_t *shape = call->tensors[PAGED_DECODE_Q].shape;
    const int64_t out_rows = forms->out_rows ? forms->out_rows : shape[0];
    a.n_sequences = (int32_t)shape[0];
    if (forms->out_rows && forms->out) {
        a.out = cuda_host_form(forms->out);
        a.out_type = DTYPE_BF16;
        a.out_strides = (row_strides){shape[1] * shape[2] * 2, shape[2] * 2};
    } else {
        a.narrowed = cuda_host_form(forms->out);
    }
    a.partial = cuda_host_form(cuda_narrow_place(ops) + narrowed_bytes(call, out_rows));
    a.arrived = cuda_host_form(cuda_ops_counters(ops));
    return a;
}

/* The cache's type in kernels' names. */
static const char *type_name(const tensor *cache)
{
    return cache->type == DTYPE_BF16 ? "BF16" : cache->type == DTYPE_F8 ? "F8" : "F16";
}

/* `parts`: of a sequence; of all sequences if blocks search. */
static qp_status start_decode(cuda_ops *ops, const op_call *call, paged_attention arguments,
                              int64_t parts, qp_error *error)
{
    const tensor *k = &call->tensors[PAGED_DECODE_K_CACHE];
    cuda_start start = {
        .image = "attention_paged",
        .grid = {(unsigned)arguments.n_kv_heads, (unsigned)arguments.n_sequences, (unsigned)parts},
        .threads = PAGED_DECODE_WARPS * 32};
    snprintf(start.name, sizeof start.name, "run_paged_decode_batch_%s_%d", type_name(k),
             k->shape[3] == 128 ? 128 : 64);
    if (arguments.n_sequences == 0) return QP_OK;
    if (arguments.search) start.grid[1] = (unsigned)parts, start.grid[2] = 1;
    int64_t blocks = (int64_t)start.grid[0] * start.grid[1] * start.grid[2];
    start.cluster = blocks >= CUDA_ATTENTION_EARLY_BLOCKS * (int64_t)ops->device->n_multiprocessors;
    attention_limits limits = CUDA_ATTENTION_LIMITS(call, PAGED_DECODE);
    return cuda_attention_start(ops, &start, &arguments, &limits, error);
}

static qp_status launch(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                        const cuda_forms *forms, qp_error *error)
{
    (void)kernel;
    paged_attention arguments = arguments_of(ops, call, forms);
    arguments.search = forms->n_chunks == 0;
    arguments.beside = forms->beside;
    int64_t parts = forms->n_chunks ? forms->n_chunks : most_parts(call, false);
    return start_decode(ops, call, arguments, parts, error);
}

/* By blocks with a ring in shared memory, which take parts one after another. */
static qp_status launch_few(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                            const cuda_forms *forms, qp_error *error)
{
    const tensor *k = &call->tensors[PAGED_DECODE_K_CACHE];
    paged_attention arguments = arguments_of(ops, call, forms);
    attention_limits limits = CUDA_ATTENTION_LIMITS(call, PAGED_DECODE);
    const bool limited = cuda_is_limited(&limits);
    const int head_dim = (int)k->shape[3];
    const int shared = PAGED_RING_SHARED(head_dim * (k->type == DTYPE_F8 ? 1 : 2));
    const int64_t blocks = most_parts(call, true) * arguments.n_kv_heads;
    const int64_t resident = PAGED_RING_BLOCKS * (int64_t)ops->device->n_multiprocessors;
    cuda_start start = {.image = "attention_ring",
                        .shared_most = (size_t)shared,
                        .grid = {(unsigned)(blocks < resident ? blocks : resident), 1, 1},
                        .threads = PAGED_RING_THREADS,
                        .shared_bytes = (unsigned)shared,
                        .cluster = 1};
    (void)kernel;
    if (arguments.n_sequences == 0) return QP_OK;
    snprintf(start.name, sizeof start.name, "run_paged_decode_ring_%s_%d%s", type_name(k), head_dim,
             limited ? "_limited" : "");
    if (!limited)
        return cuda_ops_start(ops, &start, CUDA_ARGUMENTS(CUDA_ARGUMENT(arguments)), error);
    return cuda_ops_start(ops, &start,
                          CUDA_ARGUMENTS(CUDA_ARGUMENT(arguments), CUDA_ARGUMENT(limits)), error);
}

const cuda_kernel paged_decode_cuda[] = {
    {CUDA_UNITS(PAGED_DECODE, "cuda_ops", paged_decode, CUDA_ATTENTION_THREADS, 1,
                by_heads_accepts),
     .early = true},
    {CUDA_LIMITED_UNITS(PAGED_DECODE, paged_decode, limited_accepts, launch_limited)},
    {CUDA_ROW(PAGED_DECODE, "cuda_batch"), .narrows = cuda_narrows_always,
     .accepts = cuda_decode_accepts, .pays = cuda_decode_pays, .workspace = cuda_decode_workspace,
     .launch = launch, .aligned = true, .tolerances = cuda_attention_tolerances},
    {CUDA_ROW(PAGED_DECODE, "cuda_few"), .accepts = cuda_decode_accepts,
     .pays = cuda_decode_few_pays, .workspace = cuda_decode_few_workspace, .launch = launch_few,
     .aligned = true, .tolerances = cuda_attention_tolerances},
    {0},
};
