/* Which kernel the GPU's attention on tensor cores launches for a call, and with which parameters.
 * This needs no GPU. */
#include "op/paged_decode/paged_decode.h"
#include "op/paged_prefill/paged_prefill.h"
#include "op/ragged_prefill/ragged_prefill.h"
#include "op/attention/attention_cuda.h"
#include "op/attention/paged_sizes.h"

#include <math.h>

#include "test.h"

enum { N_TOKENS = 2048, N_SEQUENCES = 3, N_PAGES = 200, PAGE = 16, N_KV_HEADS = 8, GROUP = 4 };

/* A call over made-up addresses: nothing is read. */
static op_call make_call(dtype cache, int64_t head_dim)
{
    op_call call = {.end = N_TOKENS * N_KV_HEADS * GROUP};
    tensor *t = call.tensors;
    int64_t pages[] = {N_PAGES, PAGE, N_KV_HEADS, head_dim};
    char *at = (char *)0x1000;
    t[PAGED_PREFILL_Q] = tensor_3d(at, DTYPE_F32, N_TOKENS, N_KV_HEADS * GROUP, head_dim);
    t[PAGED_PREFILL_K_CACHE] = tensor_make(at + 0x1000, cache, 4, pages);
    t[PAGED_PREFILL_V_CACHE] = tensor_make(at + 0x2000, cache, 4, pages);
    t[PAGED_PREFILL_QO_INDPTR] = tensor_1d(at + 0x3000, DTYPE_I32, N_SEQUENCES + 1);
    t[PAGED_PREFILL_KV_INDPTR] = tensor_1d(at + 0x4000, DTYPE_I32, N_SEQUENCES + 1);
    t[PAGED_PREFILL_KV_INDICES] = tensor_1d(at + 0x5000, DTYPE_I32, N_PAGES);
    t[PAGED_PREFILL_KV_LAST_PAGE_LEN] = tensor_1d(at + 0x6000, DTYPE_I32, N_SEQUENCES);
    t[PAGED_PREFILL_OUT] =
        tensor_3d(at + 0x7000, DTYPE_F32, N_TOKENS, N_KV_HEADS * GROUP, head_dim);
    call.params[PAGED_PREFILL_CAUSAL] = 1;
    return call;
}

static void test_arguments(void **state)
{
    (void)state;
    op_call call = make_call(DTYPE_F16, 64);
    call.begin = 7;
    paged_attention a = cuda_prefill_arguments(&call);
    assert_ptr_equal(a.q, call.tensors[PAGED_PREFILL_Q].data);
    assert_ptr_equal(a.v, call.tensors[PAGED_PREFILL_V_CACHE].data);
    assert_ptr_equal(a.kv_last_page_len, call.tensors[PAGED_PREFILL_KV_LAST_PAGE_LEN].data);
    assert_null(a.lse);
    assert_int_equal(a.q_strides.token, N_KV_HEADS * GROUP * 64 * 4);
    assert_int_equal(a.q_strides.head, 64 * 4);
    assert_int_equal(a.k_strides.page, PAGE * N_KV_HEADS * 64 * 2);
    assert_int_equal(a.k_strides.position, N_KV_HEADS * 64 * 2);
    assert_int_equal(a.k_strides.head, 64 * 2);
    assert_int_equal(a.n_sequences, N_SEQUENCES);
    assert_int_equal(a.n_kv_heads, N_KV_HEADS);
    assert_int_equal(a.group, GROUP);
    assert_int_equal((uint64_t)a.group_inverse * 1003 >> 32, 1003 / GROUP);
    assert_int_equal(a.page_size, PAGE);
    assert_int_equal(a.q_type, DTYPE_F32);
    assert_int_equal(a.begin, 7);
    assert_int_equal(a.end, call.end);
    assert_true(a.causal == 1 && fabsf(a.sm_scale - 0.125f) < 1e-7f);
    call.params[PAGED_PREFILL_SM_SCALE] = -2;
    assert_true(cuda_prefill_arguments(&call).sm_scale == -2);
}

static void assert_plan(const op_call *call, bool has_wgmma, const char *function, int rows,
                        int threads, unsigned blocks)
{
    cuda_prefill_launch launch = cuda_prefill_plan(call, has_wgmma, 132);
    assert_string_equal(launch.function, function);
    assert_int_equal(launch.rows, rows);
    assert_int_equal(launch.threads, threads);
    assert_int_equal(launch.blocks, blocks);
    assert_in_range(launch.shared_bytes, 1, 227 * 1024);
}

static void test_plan(void **state)
{
    (void)state;
    const int64_t rows = N_TOKENS * GROUP;
    op_call call = make_call(DTYPE_BF16, 64);
    const unsigned tiles = N_KV_HEADS * (rows / 128 + N_SEQUENCES);
    assert_plan(&call, false, "run_paged_prefill_mma_BF16_64", 128, 128, tiles);
    /* Blocks that are resident take tile after tile, where there are more. */
    assert_true(tiles > 132);
    assert_plan(&call, true, "run_paged_prefill_wgmma2_BF16_64", 128, 384, 132);
    /* With head_dim 64 larger tiles, where there are many. */
    call.tensors[PAGED_PREFILL_Q].shape[0] = 8192;
    assert_plan(&call, true, "run_paged_prefill_wgmma3_BF16_64", 192, 512, 132);
    call.tensors[PAGED_PREFILL_Q].shape[0] = 128;
    assert_plan(&call, true, "run_paged_prefill_wgmma2_BF16_64", 128, 384,
                N_KV_HEADS * (128 * GROUP / 128 + N_SEQUENCES));
    call = make_call(DTYPE_F16, 128);
    assert_plan(&call, true, "run_paged_prefill_wgmma2_F16_128", 128, 384, 132);
    call.tensors[PAGED_PREFILL_Q].shape[0] = 128;
    assert_plan(&call, true, "run_paged_prefill_wgmma2_F16_128", 128, 384,
                N_KV_HEADS * (128 * GROUP / 128 + N_SEQUENCES));
    /* Of fewer tokens than sequences no more tiles than tokens. */
    call.tensors[PAGED_PREFILL_Q].shape[0] = 1;
    assert_plan(&call, true, "run_paged_prefill_wgmma2_F16_128", 128, 384, N_KV_HEADS);
    call.tensors[PAGED_PREFILL_Q].shape[0] = 0;
    assert_int_equal(cuda_prefill_plan(&call, true, 132).blocks, 0);
}

/* Tensor maps describe queries and outputs of 16 bits whose tiles are whole tokens. */
static void test_carried(void **state)
{
    (void)state;
    op_call good = make_call(DTYPE_F16, 64);
    good.tensors[PAGED_PREFILL_Q].type = DTYPE_F16;
    paged_attention a = cuda_prefill_arguments(&good);
    assert_false(cuda_prefill_is_carried(&good, &a)); /* float32 out */
    a.out_type = DTYPE_BF16;
    assert_true(cuda_prefill_is_carried(&good, &a));
    const paged_attention carried = a;
    a.q_type = DTYPE_F32;
    assert_false(cuda_prefill_is_carried(&good, &a));
    a = carried;
    a.sm_scale = -1;
    assert_false(cuda_prefill_is_carried(&good, &a));
    a = carried;
    a.group = 3;
    assert_false(cuda_prefill_is_carried(&good, &a));
    a = carried;
    a.begin = 1;
    assert_false(cuda_prefill_is_carried(&good, &a));
    a = carried;
    a.out_strides.head += 8;
    assert_false(cuda_prefill_is_carried(&good, &a));
    a = carried;
    a.q_strides.token = -a.q_strides.token;
    assert_false(cuda_prefill_is_carried(&good, &a));
}

/* Calls with limits have kernels of their own. */
static void test_limits(void **state)
{
    (void)state;
    cuda_device h200;
    assert_true(cuda_device_describe("sm_90", &h200));
    const cuda_ops ops = {.device = &h200};
    op_call call = make_call(DTYPE_BF16, 128);
    attention_limits limits = CUDA_PREFILL_LIMITS(&call, PAGED_PREFILL);
    assert_false(cuda_is_limited(&limits));
    call.params[PAGED_PREFILL_WINDOW] = 4096;
    limits = CUDA_PREFILL_LIMITS(&call, PAGED_PREFILL);
    assert_true(cuda_is_limited(&limits) && limits.window == 4096 && limits.cap == 0);
    assert_string_equal(cuda_ops_choose(&ops, OP_PAGED_PREFILL, &call)->name, "cuda_tiles");
    assert_string_equal(cuda_prefill_plan(&call, true, 132).function,
                        "run_paged_prefill_wgmma2_BF16_128");
    assert_int_equal(cuda_prefill_arguments(&call).causal, 1);
    call.params[PAGED_PREFILL_WINDOW] = 0x1p50;
    limits = CUDA_PREFILL_LIMITS(&call, PAGED_PREFILL);
    assert_int_equal(limits.window, INT32_MAX);
    /* By units: a head_dim that tensor cores do not take. */
    call = make_call(DTYPE_BF16, 96);
    assert_string_equal(cuda_ops_choose(&ops, OP_PAGED_PREFILL, &call)->name, "cuda");
    call.params[PAGED_PREFILL_SOFT_CAP] = 30;
    assert_string_equal(cuda_ops_choose(&ops, OP_PAGED_PREFILL, &call)->name, "cuda_limited");
    /* A mask replaces causal. */
    call = make_call(DTYPE_F16, 64);
    call.tensors[PAGED_PREFILL_MASK] = tensor_1d((char *)0x8000, DTYPE_I32, 100);
    limits = CUDA_PREFILL_LIMITS(&call, PAGED_PREFILL);
    assert_ptr_equal(limits.mask, (char *)0x8000);
    assert_int_equal(cuda_prefill_arguments(&call).causal, 0);
}

static const cuda_ops single = {.few_rows = CUDA_FEW_ROWS};

static void test_accepts(void **state)
{
    (void)state;
    const op_call good = make_call(DTYPE_BF16, 128);
    assert_true(cuda_prefill_accepts(&good));
    assert_true(cuda_prefill_pays(&single, &good));

    op_call call = make_call(DTYPE_F32, 128);
    assert_false(cuda_prefill_accepts(&call));
    call = make_call(DTYPE_BF16, 96);
    assert_false(cuda_prefill_accepts(&call));
    call = good, call.tensors[PAGED_PREFILL_V_CACHE].type = DTYPE_F16;
    assert_false(cuda_prefill_accepts(&call));
    call = good, call.tensors[PAGED_PREFILL_Q].type = DTYPE_F16;
    assert_false(cuda_prefill_accepts(&call));
    call = good, call.tensors[PAGED_PREFILL_K_CACHE].shape[1] = 24;
    assert_false(cuda_prefill_accepts(&call));
    call = good, call.tensors[PAGED_PREFILL_K_CACHE].data = (char *)0x1008;
    assert_false(cuda_prefill_accepts(&call));
    call = good, call.tensors[PAGED_PREFILL_V_CACHE].stride[2] += 8;
    assert_false(cuda_prefill_accepts(&call));
    call = good, call.tensors[PAGED_PREFILL_K_CACHE].stride[1] = (int64_t)1 << 29;
    assert_false(cuda_prefill_accepts(&call));
    call = good, call.tensors[PAGED_PREFILL_OUT].data = (char *)0x1004;
    assert_false(cuda_prefill_accepts(&call));
    call = good, call.tensors[PAGED_PREFILL_Q].shape[0] = 8;
    assert_false(cuda_prefill_pays(&single, &call));
}

/* A cache in FP8 is widened on its way, by kernels with wgmma alone. */
static void test_f8(void **state)
{
    (void)state;
    cuda_device h200, a100 = {.major = 8, .features = cuda_features_of(8, 0)};
    assert_true(cuda_device_describe("sm_90", &h200));
    const cuda_ops ops = {.device = &h200}, older = {.device = &a100};
    op_call call = make_call(DTYPE_F8, 64);
    assert_false(cuda_prefill_accepts(&call));
    assert_string_equal(cuda_ops_choose(&ops, OP_PAGED_PREFILL, &call)->name, "cuda_f8");
    assert_string_equal(cuda_ops_choose(&older, OP_PAGED_PREFILL, &call)->name, "cuda");
    assert_int_equal(cuda_prefill_arguments(&call).k_strides.position, N_KV_HEADS * 64);
    call.tensors[PAGED_PREFILL_Q].shape[0] = 8192;
    assert_plan(&call, true, "run_paged_prefill_f8_64", 128, 512, 132);
    call = make_call(DTYPE_F8, 128);
    assert_plan(&call, true, "run_paged_prefill_f8_128", 128, 512, 132);
    call.tensors[PAGED_PREFILL_Q].type = DTYPE_BF16;
    assert_string_equal(cuda_ops_choose(&ops, OP_PAGED_PREFILL, &call)->name, "cuda_f8");
    call.tensors[PAGED_PREFILL_Q].shape[0] = 64;
    op_call decode = cuda_decode_of_prefill(&call);
    assert_true(cuda_decode_accepts(&decode));
    decode.tensors[PAGED_DECODE_V_CACHE].type = DTYPE_F16;
    assert_false(cuda_decode_accepts(&decode));
}

/* Keys and values side by side are a cache in which every sequence is one page. */
static void test_ragged(void **state)
{
    (void)state;
    const int64_t head_dim = 64, n_kv = 1001;
    const op_call paged = make_call(DTYPE_BF16, head_dim);
    op_call ragged = {.end = paged.end, .params = {[RAGGED_PREFILL_CAUSAL] = 1}};
    tensor *t = ragged.tensors;
    t[RAGGED_PREFILL_Q] = paged.tensors[PAGED_PREFILL_Q];
    t[RAGGED_PREFILL_K] = t[RAGGED_PREFILL_V] = tensor_3d(paged.tensors[PAGED_PREFILL_K_CACHE].data,
                                                          DTYPE_BF16, n_kv, N_KV_HEADS, head_dim);
    t[RAGGED_PREFILL_QO_INDPTR] = paged.tensors[PAGED_PREFILL_QO_INDPTR];
    t[RAGGED_PREFILL_KV_INDPTR] = paged.tensors[PAGED_PREFILL_KV_INDPTR];
    t[RAGGED_PREFILL_OUT] = paged.tensors[PAGED_PREFILL_OUT];
    cuda_device h200;
    assert_true(cuda_device_describe("sm_90", &h200));
    const cuda_ops ops = {.device = &h200};
    const cuda_kernel *chosen = cuda_ops_choose(&ops, OP_RAGGED_PREFILL, &ragged);
    assert_non_null(chosen);
    assert_string_equal(chosen->name, "cuda_tiles");
    op_call call = cuda_prefill_of_ragged(&ragged);
    paged_attention a = cuda_prefill_arguments(&call);
    assert_null(a.kv_last_page_len);
    assert_ptr_equal(a.kv_indices, a.kv_indptr);
    assert_ptr_equal(a.kv_indptr, t[RAGGED_PREFILL_KV_INDPTR].data);
    assert_int_equal(a.k_strides.page, N_KV_HEADS * head_dim * 2);
    assert_int_equal(a.k_strides.position, N_KV_HEADS * head_dim * 2);
    assert_int_equal(a.k_strides.head, head_dim * 2);
    assert_int_equal(a.page_size, 1008);
    assert_int_equal(a.n_kv_heads, N_KV_HEADS);
    assert_int_equal(a.n_sequences, N_SEQUENCES);
    assert_int_equal(a.causal, 1);
    t[RAGGED_PREFILL_K].shape[0] = t[RAGGED_PREFILL_V].shape[0] = 0;
    assert_string_equal(cuda_ops_choose(&ops, OP_RAGGED_PREFILL, &ragged)->name, "cuda");
}

/* A pass in which every sequence has one token is one of paged_decode. */
static void test_decode(void **state)
{
    (void)state;
    op_call prefill = make_call(DTYPE_BF16, 64);
    prefill.tensors[PAGED_PREFILL_Q].shape[0] = 64;
    prefill.tensors[PAGED_PREFILL_KV_INDPTR].shape[0] = 65;
    prefill.params[PAGED_PREFILL_SM_SCALE] = 0.5;
    op_call call = cuda_decode_of_prefill(&prefill);
    const tensor *t = call.tensors, *p = prefill.tensors;
    assert_ptr_equal(t[PAGED_DECODE_Q].data, p[PAGED_PREFILL_Q].data);
    assert_ptr_equal(t[PAGED_DECODE_V_CACHE].data, p[PAGED_PREFILL_V_CACHE].data);
    assert_ptr_equal(t[PAGED_DECODE_KV_INDPTR].data, p[PAGED_PREFILL_KV_INDPTR].data);
    assert_ptr_equal(t[PAGED_DECODE_KV_INDICES].data, p[PAGED_PREFILL_KV_INDICES].data);
    assert_ptr_equal(t[PAGED_DECODE_KV_LAST_PAGE_LEN].data, p[PAGED_PREFILL_KV_LAST_PAGE_LEN].data);
    assert_ptr_equal(t[PAGED_DECODE_OUT].data, p[PAGED_PREFILL_OUT].data);
    assert_int_equal(t[PAGED_DECODE_LSE].rank, 0);
    assert_true(call.params[PAGED_DECODE_SM_SCALE] == 0.5);
    assert_int_equal(call.end, prefill.end);
    assert_true(cuda_decode_accepts(&call));
    assert_true(cuda_decode_pays(&single, &call));
    call.tensors[PAGED_DECODE_Q].shape[0] = 8;
    assert_false(cuda_decode_pays(&single, &call));
    call.tensors[PAGED_DECODE_Q].shape[0] = CUDA_COUNTERS / N_KV_HEADS + 1;
    assert_false(cuda_decode_accepts(&call));
    call.tensors[PAGED_DECODE_Q].shape[0] = 64;
    call.tensors[PAGED_DECODE_K_CACHE].shape[2] = call.tensors[PAGED_DECODE_V_CACHE].shape[2] = 2;
    assert_false(cuda_decode_accepts(&call)); /* groups of 16 */
}

/* A remainder of less than half a chunk is the last chunk's; parts need room behind the output in
 * BF16 where there are several. */
static void test_decode_chunks(void **state)
{
    (void)state;
    static const int64_t lengths[][2] = {{0, 1},    {1, 1},    {1024, 1}, {1536, 1},
                                         {1537, 2}, {2560, 2}, {2561, 3}, {8192, 8}};
    op_call prefill = make_call(DTYPE_BF16, 64), call = cuda_decode_of_prefill(&prefill);
    const size_t row = N_KV_HEADS * GROUP, narrowed = N_TOKENS * row * 64 * 2;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        int64_t length = lengths[i][0], chunks = lengths[i][1];
        size_t parts = chunks > 1 ? N_TOKENS * row * (size_t)chunks * (64 + 2) * 4 : 0;
        assert_int_equal(cuda_decode_chunks(length), chunks);
        assert_int_equal(cuda_decode_workspace_of(&call, N_TOKENS, length), narrowed + parts);
    }
    /* Of any lengths there are no more parts than sequences and whole chunks. */
    size_t parts = (N_TOKENS + N_PAGES * PAGE / PAGED_CHUNK) * row * (64 + 2) * 4;
    assert_int_equal(cuda_decode_workspace(&call), narrowed + parts);
}

/* Few sequences are cut finer, by their length alone. */
static void test_decode_few(void **state)
{
    (void)state;
    static const int lengths[][3] = {{0, 128, 1},       {128, 128, 1},    {193, 128, 2},
                                     {2048, 128, 16},   {2049, 144, 14},  {8192, 512, 16},
                                     {16384, 1024, 16}, {65536, 1024, 64}};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        int chunk = PAGED_FEW_CHUNK(lengths[i][0]);
        assert_int_equal(chunk, lengths[i][1]);
        assert_int_equal(PAGED_DECODE_CHUNKS(lengths[i][0], chunk), lengths[i][2]);
    }
    op_call prefill = make_call(DTYPE_BF16, 64), call = cuda_decode_of_prefill(&prefill);
    assert_false(cuda_decode_few_pays(&single, &call));
    call.tensors[PAGED_DECODE_Q].shape[0] = 8;
    assert_true(cuda_decode_few_pays(&single, &call));
    assert_true(cuda_decode_few_workspace(&call) >=
                (size_t)8 * PAGED_FEW_PARTS * N_KV_HEADS * GROUP * (64 + 2) * 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arguments),  cmocka_unit_test(test_plan),
        cmocka_unit_test(test_accepts),    cmocka_unit_test(test_ragged),
        cmocka_unit_test(test_decode),     cmocka_unit_test(test_decode_chunks),
        cmocka_unit_test(test_decode_few), cmocka_unit_test(test_carried),
        cmocka_unit_test(test_limits),     cmocka_unit_test(test_f8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
