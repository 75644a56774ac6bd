/* What a layer does up to its MLP's norm, and a product behind that, as one chain on the GPU beside
 * the same operators one by one: QKV, rope and kv_append, attention, output projection, norm. Of 9
 * to 64 sequences behind any number of positions, in shapes that no model has; everything that is
 * left, caches too, is the same to the bit.
 */
#include "gpu_bench.h"
#include "gpu_test.h"
#include "op/kv_append/kv_append.h"
#include "op/linear/linear.h"
#include "op/paged_decode/paged_decode.h"
#include "op/rms_norm/rms_norm.h"
#include "op/rope/rope.h"
#include "vm/cuda_chain.h"
#include "vm/cuda_linear.h"

#include <math.h>

enum {
    WORKSPACE = 64 << 20,
    MOST = 64,
    DIM = 64,
    POSITIONS = 1536, /* of a sequence at most, in one kernel */
};

/* What differs from test to test. */
typedef struct layer {
    int n, hidden, n_q, n_kv, page_size;
    dtype cache;
    bool interleaved;
    int longest; /* positions; other sequences have fewer, from 1 on */
} layer;

/* Of sequence i behind its new token: short and long ones beside each other. */
static int length_of(const layer *l, int i)
{
    if (i == l->n / 2) return l->longest;
    return 1 + (int)((uint32_t)(i * i * 37 + i * 11) % (uint32_t)(i % 3 ? l->longest : 40));
}

static int pages_of(const layer *l, int i)
{
    return (length_of(l, i) + l->page_size - 1) / l->page_size;
}

/* ---- operands ------------------------------------------------------------------------------ */

enum { OF_X, OF_QKV, OF_OUTPUT, OF_NORM, OF_LAST, OF_K, OF_V };

/* What both ways read, on the GPU. */
typedef struct operands {
    tensor x, qkv, output, norm, last, table;
    tensor positions, qo_indptr, kv_indptr, kv_indices, kv_last_page_len;
    int n_pages;
} operands;

static tensor carry_ints(bench *b, const int32_t *data, int count)
{
    return tensor_1d(carry(b, data, (size_t)count * sizeof *data), DTYPE_I32, count);
}

static void carry_pages(bench *b, const layer *l, operands *o)
{
    int32_t positions[MOST], qo_indptr[MOST + 1] = {0}, kv_indptr[MOST + 1] = {0}, last[MOST];
    for (int i = 0; i < l->n; i++) {
        int length = length_of(l, i);
        positions[i] = length - 1;
        qo_indptr[i + 1] = i + 1;
        kv_indptr[i + 1] = kv_indptr[i] + pages_of(l, i);
        last[i] = (length - 1) % l->page_size + 1;
    }
    o->n_pages = kv_indptr[l->n];
    int32_t *indices = malloc((size_t)o->n_pages * sizeof *indices);
    assert_non_null(indices);
    for (int i = 0; i < o->n_pages; i++) /* every other one from both ends */
        indices[i] = i % 2 ? o->n_pages - 1 - i / 2 : i / 2;
    o->positions = carry_ints(b, positions, l->n);
    o->qo_indptr = carry_ints(b, qo_indptr, l->n + 1);
    o->kv_indptr = carry_ints(b, kv_indptr, l->n + 1);
    o->kv_indices = carry_ints(b, indices, o->n_pages);
    o->kv_last_page_len = carry_ints(b, last, l->n);
    free(indices);
}

static operands carry_operands(bench *b, const layer *l)
{
    static float table[POSITIONS * DIM];
    const int64_t heads = l->n_q * DIM, features = heads + 2 * l->n_kv * DIM;
    operands o = {.x = carry_matrix(b, OF_X, DTYPE_F32, l->n, l->hidden),
                  .qkv = carry_matrix(b, OF_QKV, DTYPE_BF16, features, l->hidden),
                  .output = carry_matrix(b, OF_OUTPUT, DTYPE_BF16, l->hidden, heads),
                  .last = carry_matrix(b, OF_LAST, DTYPE_BF16, l->hidden, l->hidden)};
    for (int i = 0; i < POSITIONS * DIM; i++)
        table[i] = sinf((float)(i % 1009));
    o.table = tensor_2d(carry(b, table, sizeof table), DTYPE_F32, POSITIONS, DIM);
    o.norm = tensor_1d(carry_numbers(b, OF_NORM, DTYPE_BF16, l->hidden), DTYPE_BF16, l->hidden);
    carry_pages(b, l, &o);
    return o;
}

/* ---- calls --------------------------------------------------------------------------------- */

/* One way's calls over memory of its own. */
typedef struct calls {
    op_call qkv, rope, append, attention, output, norm, last;
    tensor sum, k_cache, v_cache;
} calls;

static op_call product_of(tensor x, tensor weight, tensor out, const tensor *residual)
{
    op_call call = {.end = weight.shape[0]};
    call.tensors[LINEAR_X] = x;
    call.tensors[LINEAR_WEIGHT] = weight;
    call.tensors[LINEAR_OUT] = out;
    if (residual) call.tensors[LINEAR_RESIDUAL] = *residual;
    return call;
}

static tensor carry_output(bench *b, int64_t rows, int64_t columns)
{
    return tensor_2d(carry_guards(b, (size_t)(rows * columns) * sizeof(float)), DTYPE_F32, rows,
                     columns);
}

static tensor carry_cache(bench *b, int kind, const layer *l, int n_pages)
{
    const int64_t shape[] = {n_pages, l->page_size, l->n_kv, DIM};
    int64_t count = shape[0] * shape[1] * shape[2] * shape[3];
    return tensor_make(carry_numbers(b, kind, l->cache, count), l->cache, 4, shape);
}

static void make_rope(calls *c, const layer *l, const operands *o, tensor heads)
{
    tensor *r = c->rope.tensors, *a = c->append.tensors;
    c->rope.end = c->append.end = l->n;
    c->rope.params[ROPE_INTERLEAVED] = l->interleaved;
    r[ROPE_POSITIONS] = a[KV_APPEND_POSITIONS] = o->positions;
    r[ROPE_Q] = tensor_slice(heads, 1, 0, l->n_q);
    r[ROPE_K] = a[KV_APPEND_K] = tensor_slice(heads, 1, l->n_q, l->n_kv);
    r[ROPE_COS_SIN] = o->table;
    a[KV_APPEND_V] = tensor_slice(heads, 1, l->n_q + l->n_kv, l->n_kv);
    a[KV_APPEND_QO_INDPTR] = o->qo_indptr;
    a[KV_APPEND_KV_INDPTR] = o->kv_indptr;
    a[KV_APPEND_KV_INDICES] = o->kv_indices;
    a[KV_APPEND_KV_LAST_PAGE_LEN] = o->kv_last_page_len;
    a[KV_APPEND_K_CACHE] = c->k_cache;
    a[KV_APPEND_V_CACHE] = c->v_cache;
}

static void make_attention(calls *c, const layer *l, const operands *o, tensor out)
{
    tensor *t = c->attention.tensors;
    c->attention.end = (int64_t)l->n * l->n_q;
    c->attention.params[PAGED_DECODE_SM_SCALE] = 1e-3; /* so that all positions count */
    t[PAGED_DECODE_Q] = c->rope.tensors[ROPE_Q];
    t[PAGED_DECODE_K_CACHE] = c->k_cache;
    t[PAGED_DECODE_V_CACHE] = c->v_cache;
    t[PAGED_DECODE_KV_INDPTR] = o->kv_indptr;
    t[PAGED_DECODE_KV_INDICES] = o->kv_indices;
    t[PAGED_DECODE_KV_LAST_PAGE_LEN] = o->kv_last_page_len;
    t[PAGED_DECODE_OUT] = tensor_split(out, 1, l->n_q);
}

static calls make_calls(bench *b, const layer *l, const operands *o)
{
    calls c = {.sum = carry_matrix(b, OF_X, DTYPE_F32, l->n, l->hidden),
               .k_cache = carry_cache(b, OF_K, l, o->n_pages),
               .v_cache = carry_cache(b, OF_V, l, o->n_pages)};
    tensor qkv = carry_output(b, l->n, o->qkv.shape[0]);
    tensor attended = carry_output(b, l->n, (int64_t)l->n_q * DIM);
    tensor normed = carry_output(b, l->n, l->hidden);
    c.qkv = product_of(o->x, o->qkv, qkv, NULL);
    make_rope(&c, l, o, tensor_split(qkv, 1, l->n_q + 2 * l->n_kv));
    make_attention(&c, l, o, attended);
    c.output = product_of(attended, o->output, c.sum, &c.sum);
    c.norm.end = l->n;
    c.norm.params[RMS_NORM_EPS] = 1e-5;
    c.norm.tensors[RMS_NORM_X] = c.sum;
    c.norm.tensors[RMS_NORM_WEIGHT] = o->norm;
    c.norm.tensors[RMS_NORM_OUT] = normed;
    c.last = product_of(normed, o->last, c.sum, &c.sum);
    return c;
}

static void run_one_by_one(bench *b, const calls *c)
{
    run_plainly(b, OP_LINEAR, &c->qkv);
    run_plainly(b, OP_ROPE, &c->rope);
    run_plainly(b, OP_KV_APPEND, &c->append);
    run_plainly(b, OP_PAGED_DECODE, &c->attention);
    run_plainly(b, OP_LINEAR, &c->output);
    run_plainly(b, OP_RMS_NORM, &c->norm);
    run_plainly(b, OP_LINEAR, &c->last);
}

static void run_chain(bench *b, const layer *l, const operands *o, const calls *c)
{
    qp_error error;
    cuda_chain chain;
    cuda_address narrowed;
    b->ops.narrowed.rank = 0;
    assert_ok(cuda_linear_narrow_x(&b->ops, &o->x, &narrowed, &error));
    assert_true(cuda_chain_begin(&b->ops, l->n, &chain));
    assert_true(cuda_chain_product(&chain, &c->qkv));
    assert_true(cuda_chain_rope(&chain, &c->rope, &c->append));
    assert_true(cuda_chain_attention(&chain, &c->attention));
    assert_true(cuda_chain_product(&chain, &c->output));
    assert_true(cuda_chain_norm(&chain, &c->norm));
    assert_true(cuda_chain_product(&chain, &c->last));
    assert_true(cuda_chain_is_whole(&chain));
    assert_ok(cuda_chain_launch(&chain, &error));
    assert_ok(cuda_device_wait(&b->device, "a chain", &error));
}

/* ---- tests --------------------------------------------------------------------------------- */

static void check_same(const bench *b, const layer *l, const tensor *plain, const tensor *found,
                       const char *what)
{
    int64_t count = 1;
    for (int d = 0; d < plain->rank; d++)
        count *= plain->shape[d];
    const size_t size = plain->type == DTYPE_F32 ? 4 : 2;
    char *expected = fetch(b, plain->data, (size_t)count * size);
    char *is = fetch(b, found->data, (size_t)count * size);
    for (int64_t i = 0; i < count; i++)
        if (memcmp(is + (size_t)i * size, expected + (size_t)i * size, size) != 0)
            fail_msg("%d sequences of %d at most, %d and %d heads, pages of %d: element %lld of %s "
                     "is another one",
                     l->n, l->longest, l->n_q, l->n_kv, l->page_size, (long long)i, what);
    free(expected);
    free(is);
}

static void check_layer(bench *b, layer l)
{
    operands o = carry_operands(b, &l);
    calls plain = make_calls(b, &l, &o), all = make_calls(b, &l, &o);
    b->ops.longest = l.longest;
    run_one_by_one(b, &plain);
    run_chain(b, &l, &o, &all);
    check_same(b, &l, &plain.k_cache, &all.k_cache, "the keys");
    check_same(b, &l, &plain.v_cache, &all.v_cache, "the values");
    check_same(b, &l, &plain.sum, &all.sum, "x");
    clear_bench(b);
}

static bool small; /* those alone that compute-sanitizer is quick with */

static void test_layers(void **state)
{
    (void)state;
    static const layer layers[] = {
        {9, 200, 4, 2, 16, DTYPE_F16, false, 100},
        {64, 256, 8, 8, 16, DTYPE_BF16, false, 1536},
        {64, 2048, 32, 8, 16, DTYPE_BF16, false, 700},
        {17, 576, 9, 3, 48, DTYPE_F16, false, 1535},
        {33, 136, 8, 1, 64, DTYPE_BF16, true, 513},
        {48, 264, 16, 16, 32, DTYPE_F16, false, 1025},
        {16, 64, 24, 12, 128, DTYPE_BF16, true, 65},
        {33, 64, 8, 8, 16, DTYPE_F16, false, 300},
    };
    bench b;
    if (!gpu_is_here()) skip();
    open_bench(&b, WORKSPACE);
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        if (!small || layers[i].hidden == 64) check_layer(&b, layers[i]);
    close_bench(&b);
}

/* test_cuda_layers [small] */
int main(int argc, char **argv)
{
    small = argc > 1 && strcmp(argv[1], "small") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
