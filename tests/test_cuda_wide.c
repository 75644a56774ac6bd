/* Which products of many rows one kernel computes together with the operators that follow. This
 * needs no GPU. `./dev cuda-test` compares the bits with those of single operators, by `quipu
 * diff`. */
#include "op/kv_append/kv_append.h"
#include "op/linear/linear.h"
#include "op/rope/rope.h"
#include "op/silu_and_mul/silu_and_mul.h"
#include "test.h"
#include "op/linear/linear_wide_cuda.h"

enum { ROWS = 2048, K = 4096, HEADS = 32, KV_HEADS = 8, DIM = 128, QKV = 48 * DIM, FFN = 14336 };

static cuda_device h200 = {.n_multiprocessors = 132, .features = CUDA_WIDE_NEEDS};
static cuda_ops ops = {.device = &h200};

/* Places that are looked at, not read. */
static char *const at = (char *)0x10000;

static op_call product(int64_t rows, int64_t features)
{
    op_call call = {.end = features};
    call.tensors[LINEAR_X] = tensor_2d(at, DTYPE_F32, rows, K);
    call.tensors[LINEAR_WEIGHT] = tensor_2d(at + 0x1000, DTYPE_BF16, features, K);
    call.tensors[LINEAR_OUT] = tensor_2d(at + 0x2000, DTYPE_F32, rows, features);
    return call;
}

static op_call silu_of(const op_call *call)
{
    const tensor *out = &call->tensors[LINEAR_OUT];
    op_call silu = {.end = out->shape[0] * out->shape[1] / 2};
    silu.tensors[SILU_AND_MUL_X] = *out;
    silu.tensors[SILU_AND_MUL_OUT] = tensor_slice(*out, 1, 0, out->shape[1] / 2);
    return silu;
}

static void test_full_turns(void **state)
{
    (void)state;
    assert_true(
        cuda_linear_wide_fills(2048, 2 * FFN, 132));       /* 896 tiles of 66 clusters: 14 turns */
    assert_true(cuda_linear_wide_fills(2048, QKV, 132));   /* 192: 3 */
    assert_true(cuda_linear_wide_fills(2048, 3072, 132));  /* 96 in 2: 0.73 */
    assert_true(cuda_linear_wide_fills(256, 16384, 132));  /* 64: 1 */
    assert_false(cuda_linear_wide_fills(256, QKV, 132));   /* 24 */
    assert_false(cuda_linear_wide_fills(130, 16384, 132)); /* 126 rows of each tile are empty */
    assert_false(cuda_linear_wide_fills(300, 2 * FFN, 132));
}

static bool activates(const op_call *call, const op_call *silu)
{
    const cuda_kernel *chosen = cuda_ops_choose(&ops, OP_LINEAR, call);
    const cuda_kernel *fusing = cuda_ops_fusing(&ops, chosen, call);
    assert_true(!fusing || strcmp(fusing->name, "cuda_wide") == 0);
    return fusing && cuda_linear_wide_activates(&ops, (op_call[]){*call, *silu});
}

static void test_silu(void **state)
{
    (void)state;
    op_call call = product(ROWS, 2 * FFN), silu = silu_of(&call);
    assert_true(activates(&call, &silu));
    h200.features = CUDA_COPY_ENGINE;
    assert_false(activates(&call, &silu));
    h200.features = CUDA_WIDE_NEEDS;
    silu.tensors[SILU_AND_MUL_OUT].data = at; /* memory that is used after the activation */
    assert_false(activates(&call, &silu));
    silu = silu_of(&call);
    silu.end -= 1;
    assert_false(activates(&call, &silu));
    silu.end += 1;
    call.tensors[LINEAR_BIAS] = tensor_1d(at, DTYPE_F32, 2 * FFN);
    assert_false(activates(&call, &silu));
    call = product(ROWS, 2 * FFN);
    call.tensors[LINEAR_WEIGHT].type = DTYPE_F16;
    assert_false(activates(&call, &silu));
}

typedef struct qkv_calls {
    op_call product, rope, append;
} qkv_calls;

static qkv_calls qkv(dtype cache)
{
    qkv_calls c = {.product = product(ROWS, QKV), .rope = {.end = ROWS}, .append = {.end = ROWS}};
    const tensor out = c.product.tensors[LINEAR_OUT];
    const int64_t pages[] = {200, 16, KV_HEADS, DIM};
    tensor heads = tensor_split(out, 1, QKV / DIM), *t = c.append.tensors;
    c.rope.tensors[ROPE_Q] = tensor_slice(heads, 1, 0, HEADS);
    c.rope.tensors[ROPE_K] = t[KV_APPEND_K] = tensor_slice(heads, 1, HEADS, KV_HEADS);
    c.rope.tensors[ROPE_POSITIONS] = tensor_1d(at, DTYPE_I32, ROWS);
    c.rope.tensors[ROPE_COS_SIN] = tensor_2d(at, DTYPE_F32, 8192, DIM);
    t[KV_APPEND_V] = tensor_slice(heads, 1, HEADS + KV_HEADS, KV_HEADS);
    t[KV_APPEND_POSITIONS] = tensor_1d(at, DTYPE_I32, ROWS);
    t[KV_APPEND_QO_INDPTR] = t[KV_APPEND_KV_INDPTR] = tensor_1d(at, DTYPE_I32, 2);
    t[KV_APPEND_KV_INDICES] = tensor_1d(at, DTYPE_I32, 200);
    t[KV_APPEND_K_CACHE] = tensor_make(at + 0x3000, cache, 4, pages);
    t[KV_APPEND_V_CACHE] = tensor_make(at + 0x4000, cache, 4, pages);
    return c;
}

static bool turns(const qkv_calls *c)
{
    return cuda_linear_wide_turns(&ops, (op_call[]){c->product, c->rope, c->append});
}

static void test_rope(void **state)
{
    (void)state;
    qkv_calls c = qkv(DTYPE_F16);
    assert_true(turns(&c));
    c = qkv(DTYPE_BF16);
    assert_true(turns(&c));
    c.rope.tensors[ROPE_COS_SIN] = tensor_2d(at, DTYPE_F32, 8192, DIM / 2); /* half a head turns */
    assert_false(turns(&c));
    c = qkv(DTYPE_BF16);
    c.append.tensors[KV_APPEND_V].data = at; /* v from elsewhere */
    assert_false(turns(&c));
    c = qkv(DTYPE_BF16);
    c.append.tensors[KV_APPEND_K_CACHE].stride[2] += 2;
    assert_false(turns(&c));
    c = qkv(DTYPE_F32);
    assert_false(turns(&c));
    c = qkv(DTYPE_BF16);
    c.rope.end = 5;
    assert_false(turns(&c));
}

/* q is left in the type of the cache, contiguous. */
static void test_q_elsewhere(void **state)
{
    (void)state;
    const qkv_calls c = qkv(DTYPE_BF16);
    const tensor q = c.rope.tensors[ROPE_Q];
    const op_call calls[] = {c.product, c.rope, c.append};
    const cuda_left left = cuda_linear_wide_rope_leaves(&ops, calls, 0);
    assert_ptr_equal(left.q.data, q.data);
    assert_int_equal(left.q.type, DTYPE_BF16);
    assert_int_equal(left.q.shape[1], HEADS);
    assert_int_equal(left.q.stride[1], DIM * 2);
    assert_int_equal(left.q.stride[0], HEADS * DIM * 2);
    assert_int_equal(left.narrowed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_turns),
        cmocka_unit_test(test_silu),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_q_elsewhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
