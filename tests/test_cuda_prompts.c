/* Products of many rows on the GPU, fused with the operators that follow them, compared with the
 * same operators one by one. The shapes occur in no model: rows and features that fill no tile,
 * rows of x that end within a step, several sequences with pages at any place. Sums are whole
 * numbers over a power of two, so that the results must have the same bits.
 */
#include "gpu_bench.h"
#include "gpu_test.h"
#include "op/kv_append/kv_append.h"
#include "op/linear/linear.h"
#include "op/rope/rope.h"
#include "op/silu_and_mul/silu_and_mul.h"
#include "op/linear/linear_stream_cuda.h"
#include "op/linear/linear_wide_cuda.h"

#include <math.h>
#include <stdlib.h>

enum {
    WORKSPACE = 16 << 20,
    SEQUENCES = 3,
    POSITIONS = 512, /* of the RoPE table */
    PAGE = 16,
    PAGES = 40,
};

/* ---- the product --------------------------------------------------------------------------- */

static int x_of(int64_t row, int64_t column)
{
    return (int)((uint32_t)(row * 131 + column * 31 + row * column) % 9) - 4;
}
static int weight_of(int64_t feature, int64_t column)
{
    return (int)((uint32_t)(feature * 57 + column * 17 + feature * column * 3) % 7) - 3;
}

/* A product whose output is full of guards on the GPU, and what it is. */
typedef struct product {
    int64_t n, depth, features;
    op_call call;
    float *sums; /* [n][features] */
} product;

static product make_product(bench *b, int64_t n, int64_t depth, int64_t features)
{
    product p = {.n = n, .depth = depth, .features = features, .call = {.end = features}};
    float *x = malloc((size_t)(n * depth) * sizeof *x);
    uint16_t *weight = malloc((size_t)(features * depth) * sizeof *weight);
    p.sums = malloc((size_t)(n * features) * sizeof *p.sums);
    for (int64_t i = 0; i < n * depth; i++)
        x[i] = (float)x_of(i / depth, i % depth);
    for (int64_t i = 0; i < features * depth; i++)
        weight[i] = f32_to_bf16((float)weight_of(i / depth, i % depth) / 32);
    for (int64_t row = 0; row < n; row++)
        for (int64_t feature = 0; feature < features; feature++) {
            int sum = 0;
            for (int64_t c = 0; c < depth; c++)
                sum += x_of(row, c) * weight_of(feature, c);
            p.sums[row * features + feature] = (float)sum / 32;
        }
    tensor *t = p.call.tensors;
    t[LINEAR_X] = tensor_2d(carry(b, x, (size_t)(n * depth) * sizeof *x), DTYPE_F32, n, depth);
    t[LINEAR_WEIGHT] = tensor_2d(carry(b, weight, (size_t)(features * depth) * sizeof *weight),
                                 DTYPE_BF16, features, depth);
    t[LINEAR_OUT] =
        tensor_2d(carry_guards(b, (size_t)(n * features) * sizeof(float)), DTYPE_F32, n, features);
    free(x);
    free(weight);
    return p;
}

/* The call as it stands where its product has been made elsewhere: its output holds the sums. */
static tensor sums_on_gpu(bench *b, const product *p)
{
    void *at = carry(b, p->sums, (size_t)(p->n * p->features) * sizeof(float));
    return tensor_2d(at, DTYPE_F32, p->n, p->features);
}

static uint16_t narrow(dtype type, float value)
{
    return type == DTYPE_F16 ? f32_to_f16(value) : f32_to_bf16(value);
}

/* ---- silu_and_mul -------------------------------------------------------------------------- */

static op_call silu_of(const tensor *x)
{
    int64_t n = x->shape[0], features = x->shape[1] / 2;
    op_call silu = {.end = n * features, .params = {[SILU_AND_MUL_ALPHA] = 1}};
    silu.tensors[SILU_AND_MUL_X] = *x;
    silu.tensors[SILU_AND_MUL_OUT] = tensor_slice(*x, 1, 0, features);
    return silu;
}

static void check_silu(bench *b, int64_t n, int64_t depth, int64_t features)
{
    qp_error error;
    product p = make_product(b, n, depth, 2 * features);
    tensor plain = sums_on_gpu(b, &p);
    op_call silu = silu_of(&plain), both = silu_of(&p.call.tensors[LINEAR_OUT]);
    run_plainly(b, OP_SILU_AND_MUL, &silu);
    const op_call calls[] = {p.call, both};
    assert_ok(cuda_linear_wide_silu(&b->ops, calls, &(cuda_forms){0}, &error));
    size_t bytes = (size_t)(n * 2 * features) * sizeof(float);
    float *expected = fetch(b, plain.data, bytes);
    uint16_t *found = fetch(b, p.call.tensors[LINEAR_OUT].data, bytes);
    for (int64_t i = 0; i < n * features; i++) {
        uint16_t wanted = f32_to_bf16(expected[i / features * 2 * features + i % features]);
        if (found[i] != wanted)
            fail_msg("%d rows of %d by %d: feature %d of row %d is %x, not %x", (int)n, (int)depth,
                     (int)features, (int)(i % features), (int)(i / features), found[i], wanted);
    }
    for (int64_t i = n * features; i < (int64_t)(bytes / 2); i++)
        assert_int_equal(found[i], GUARD << 8 | GUARD);
    free(expected);
    free(found);
    free(p.sums);
    clear_bench(b);
}

static void test_silu(void **state)
{
    (void)state;
    bench b;
    require_gpu();
    open_bench(&b, WORKSPACE);
    check_silu(&b, 256, 64, 128);
    check_silu(&b, 100, 200, 136);
    check_silu(&b, 300, 64, 8);
    check_silu(&b, 129, 328, 1000);
    check_silu(&b, 1000, 128, 3000); /* several tiles a cluster */
    close_bench(&b);
}

/* ---- rope and kv_append -------------------------------------------------------------------- */

/* Three sequences, one without tokens before, one after 5 others, one after 37. */
typedef struct pages {
    int32_t qo_indptr[SEQUENCES + 1], kv_indptr[SEQUENCES + 1], kv_indices[PAGES];
    int32_t positions[POSITIONS];
} pages;

static pages make_pages(int n)
{
    static const int old[SEQUENCES] = {5, 9, 37};
    const int lengths[SEQUENCES] = {n / 3, 0, n - n / 3};
    pages p;
    p.qo_indptr[0] = p.kv_indptr[0] = 0;
    for (int s = 0, token = 0; s < SEQUENCES; s++) {
        for (int i = 0; i < lengths[s]; i++)
            p.positions[token++] = old[s] + i;
        p.qo_indptr[s + 1] = token;
        p.kv_indptr[s + 1] = p.kv_indptr[s] + (old[s] + lengths[s] + PAGE - 1) / PAGE;
    }
    assert_true(p.kv_indptr[SEQUENCES] <= PAGES);
    for (int i = 0; i < PAGES; i++)
        p.kv_indices[i] = (i * 7 + 3) % PAGES;
    return p;
}

typedef struct heads {
    int dim, n_q, n_kv;
    dtype cache;
    bool interleaved;
} heads;

typedef struct turned {
    op_call rope, append;
} turned;

/* The calls after a product whose output is `out`; the caches are full of guards. */
static turned calls_of(bench *b, const heads *h, tensor out, const pages *p, const float *table)
{
    const int64_t n = out.shape[0], shape[] = {PAGES, PAGE, h->n_kv, h->dim};
    const size_t cache_bytes = (size_t)(PAGES * PAGE * h->n_kv * h->dim) * 2;
    turned c = {.rope = {.end = n}, .append = {.end = n}};
    tensor all = tensor_split(out, 1, h->n_q + 2 * h->n_kv), *t = c.append.tensors;
    c.rope.params[ROPE_INTERLEAVED] = h->interleaved;
    c.rope.tensors[ROPE_Q] = tensor_slice(all, 1, 0, h->n_q);
    c.rope.tensors[ROPE_K] = t[KV_APPEND_K] = tensor_slice(all, 1, h->n_q, h->n_kv);
    t[KV_APPEND_V] = tensor_slice(all, 1, h->n_q + h->n_kv, h->n_kv);
    c.rope.tensors[ROPE_POSITIONS] = t[KV_APPEND_POSITIONS] =
        tensor_1d(carry(b, p->positions, (size_t)n * 4), DTYPE_I32, n);
    c.rope.tensors[ROPE_COS_SIN] =
        tensor_2d(carry(b, table, (size_t)(POSITIONS * h->dim) * 4), DTYPE_F32, POSITIONS, h->dim);
    t[KV_APPEND_QO_INDPTR] =
        tensor_1d(carry(b, p->qo_indptr, sizeof p->qo_indptr), DTYPE_I32, SEQUENCES + 1);
    t[KV_APPEND_KV_INDPTR] =
        tensor_1d(carry(b, p->kv_indptr, sizeof p->kv_indptr), DTYPE_I32, SEQUENCES + 1);
    t[KV_APPEND_KV_INDICES] =
        tensor_1d(carry(b, p->kv_indices, sizeof p->kv_indices), DTYPE_I32, PAGES);
    t[KV_APPEND_K_CACHE] = tensor_make(carry_guards(b, cache_bytes), h->cache, 4, shape);
    t[KV_APPEND_V_CACHE] = tensor_make(carry_guards(b, cache_bytes), h->cache, 4, shape);
    return c;
}

static void check_caches(const bench *b, const heads *h, const tensor *plain, const tensor *found)
{
    const size_t bytes = (size_t)(PAGES * PAGE * h->n_kv * h->dim) * 2;
    char *expected = fetch(b, plain->data, bytes), *is = fetch(b, found->data, bytes);
    assert_memory_equal(is, expected, bytes);
    free(expected);
    free(is);
}

static void check_rope(bench *b, int64_t n, int64_t depth, heads h)
{
    qp_error error;
    static float table[POSITIONS * 128];
    const int64_t features = (h.n_q + 2 * h.n_kv) * h.dim, n_q = h.n_q * h.dim;
    for (int i = 0; i < POSITIONS * h.dim; i++)
        table[i] = sinf((float)(i % 1009));
    product p = make_product(b, n, depth, features);
    const pages of = make_pages((int)n);
    tensor plain = sums_on_gpu(b, &p);
    turned one_by_one = calls_of(b, &h, plain, &of, table);
    turned all = calls_of(b, &h, p.call.tensors[LINEAR_OUT], &of, table);
    run_plainly(b, OP_ROPE, &one_by_one.rope);
    run_plainly(b, OP_KV_APPEND, &one_by_one.append);
    const op_call calls[] = {p.call, all.rope, all.append};
    assert_ok(cuda_linear_wide_rope(&b->ops, calls, &(cuda_forms){0}, &error));
    size_t bytes = (size_t)(n * features) * sizeof(float);
    float *expected = fetch(b, plain.data, bytes);
    uint16_t *found = fetch(b, p.call.tensors[LINEAR_OUT].data, bytes);
    for (int64_t i = 0; i < n * n_q; i++) {
        uint16_t wanted = narrow(h.cache, expected[i / n_q * features + i % n_q]);
        if (found[i] != wanted)
            fail_msg("%d tokens, heads of %d: element %d of token %d's q is %x, not %x", (int)n,
                     h.dim, (int)(i % n_q), (int)(i / n_q), found[i], wanted);
    }
    for (int64_t i = n * n_q; i < (int64_t)(bytes / 2); i++)
        assert_int_equal(found[i], GUARD << 8 | GUARD);
    for (int t = KV_APPEND_K_CACHE; t <= KV_APPEND_V_CACHE; t++)
        check_caches(b, &h, &one_by_one.append.tensors[t], &all.append.tensors[t]);
    free(expected);
    free(found);
    free(p.sums);
    clear_bench(b);
}

static void test_rope(void **state)
{
    (void)state;
    bench b;
    require_gpu();
    open_bench(&b, WORKSPACE);
    check_rope(&b, 300, 200, (heads){64, 6, 2, DTYPE_F16, false}); /* 10 heads: 2.5 tiles */
    check_rope(&b, 129, 64, (heads){64, 3, 1, DTYPE_BF16, true});
    check_rope(&b, 260, 128, (heads){128, 4, 2, DTYPE_BF16, false});
    check_rope(&b, 100, 72, (heads){128, 3, 1, DTYPE_F16, true}); /* 5 heads */
    check_rope(&b, 450, 64, (heads){64, 32, 8, DTYPE_BF16, false});
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_silu),
        cmocka_unit_test(test_rope),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
