/* The vector kernels, each on its operator's cases and some additional ones, and their guarantees:
 * the same bits in every vector width, for every cut of a prompt, beside any other rows. */
#include "op/harness/case.h"
#include "op/harness/check.h"
#include "op/harness/compare.h"
#include "op/paged_decode/paged_decode.h"
#include "op/paged_prefill/paged_prefill.h"
#include "op/run.h"
#include "op/sampling/sampling.h"

#include "base/cpu.h"
#include "op_test.h"

#include <math.h>

/* Shapes that the operators' own cases leave out: full registers, tails of every kind of loop. */
static const struct {
    const op_info *op;
    const char *text;
} extra[] = {
    {&op_rms_norm, "n_tokens=3 hidden_size=2048"},
    {&op_rms_norm, "n_tokens=2 hidden_size=577 weight:F16 out:BF16"},
    {&op_add_rms_norm, "n_tokens=3 hidden_size=2048"},
    {&op_add_rms_norm, "n_tokens=3 hidden_size=83 x:F16 residual:BF16"},
    {&op_silu_and_mul, "n_tokens=3 intermediate_size=1536"},
    {&op_rope, "n_tokens=3 n_heads=9 n_kv_heads=3 head_dim=80 rotary_dim=44 max_positions=9 "
               "interleaved=1"},
    {&op_rope,
     "n_tokens=3 n_heads=9 n_kv_heads=3 head_dim=80 rotary_dim=44 max_positions=9 q:BF16"},
    {&op_paged_prefill, "n_tokens=150 n_sequences=2 n_heads=6 n_kv_heads=2 head_dim=64 n_pages=40 "
                        "page_size=16 n_kv_indices=36 k_cache:F16 v_cache:F16 k_cache@0213 "
                        "v_cache@0213"},
    {&op_paged_prefill, "n_tokens=70 n_sequences=1 n_heads=10 n_kv_heads=2 head_dim=80 n_pages=9 "
                        "page_size=16 n_kv_indices=9 k_cache:BF16"},
    {&op_paged_prefill, "n_tokens=3 n_sequences=1 n_heads=50 n_kv_heads=1 head_dim=20 n_pages=9 "
                        "page_size=16 n_kv_indices=9"},
    {&op_paged_decode, "n_sequences=2 n_heads=16 n_kv_heads=2 head_dim=128 n_pages=40 page_size=16 "
                       "n_kv_indices=36 k_cache:F16 v_cache:F16 k_cache@0213 v_cache@0213"},
    {&op_paged_decode, "n_sequences=1 n_heads=60 n_kv_heads=20 head_dim=64 n_pages=40 page_size=7 "
                       "n_kv_indices=36 k_cache:F16 v_cache:F16"},
    {&op_ragged_prefill, "n_tokens=130 n_kv_tokens=130 n_sequences=1 n_heads=4 n_kv_heads=4 "
                         "head_dim=24"},
};

static void check_case(const op_info *op, const op_variant *variant, const char *text)
{
    check_verdict verdict;
    check_variant(op, variant, text, 1, &verdict);
    if (verdict.status != CHECK_PASSED)
        fail_msg("%s %s: %s: %s", op->name, variant->name, check_status_name(verdict.status),
                 verdict.detail);
}

static void variants_pass_further_cases(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof extra / sizeof *extra; i++) {
        for (const op_variant *v = extra[i].op->variants; v->name; v++) {
            if ((v->needs & ~cpu_features(0)) == 0) check_case(extra[i].op, v, extra[i].text);
        }
    }
}

/* --- every width gives the same bits --------------------------------------------------------- */

/* SSE2 has no fused multiply-add: it rounds products, which the others do not. */
static bool rounds_products(const op_variant *v)
{
    return strcmp(v->name, "sse2") == 0;
}

static void compare_widths(const op_info *op, const char *text)
{
    op_case about;
    qp_error error;
    fixture f;
    snapshot first = {0};
    int runs = 0;
    assert_ok(op_case_parse(op, text, &about, &error));
    assert_ok(fixture_create(&f, op, &op->variants[0], &about, 0, &error));
    assert_ok(fixture_fill(&f, FILL_NORMAL, 3, &error));
    for (const op_variant *v = op->variants; v->name; v++) {
        if (v->needs & ~cpu_features(0) || !op_case_accepted(op, &about, v)) continue;
        if (rounds_products(v)) continue;
        char detail[256];
        fixture_arm(&f, POISON_NAN);
        op_run(op, v->kernel, &f.call, NULL, fixture_scratch(&f), f.scratch_stride);
        if (runs++ == 0)
            assert_ok(snapshot_create(&f, &first, &error));
        else if (!snapshot_equal(&f, &first, detail, sizeof detail))
            fail_msg("%s %s: %s: %s", op->name, v->name, text, detail);
    }
    if (runs > 0) snapshot_destroy(&first);
    fixture_destroy(&f);
}

static void widths_give_the_same_bits(void **state)
{
    (void)state;
    for (int code = 0; code < OP_COUNT; code++) {
        const op_info *op = op_get((op_code)code);
        if (!op->variants || op->variants[0].pack) continue; /* linear and what it is part of */
        for (const char *const *text = op->cases; *text; text++)
            compare_widths(op, *text);
        for (size_t i = 0; i < sizeof extra / sizeof *extra; i++) {
            if (extra[i].op == op) compare_widths(op, extra[i].text);
        }
    }
}

/* --- attention does not see how it is called ------------------------------------------------- */

enum { LENGTH = 150, HEADS = 6, KV_HEADS = 2, HEAD_DIM = 64, PAGE = 16, PAGES = 24 };

/* One sequence's queries and cache, its pages in no order. */
typedef struct conversation {
    tensor q, k_cache, v_cache, pages;
} conversation;

static conversation conversation_make(dtype kv_type)
{
    conversation c = {.q = random_tensor(DTYPE_F32, 1, SHAPE(LENGTH, HEADS, HEAD_DIM)),
                      .k_cache = random_tensor(kv_type, 2, SHAPE(PAGES, PAGE, KV_HEADS, HEAD_DIM)),
                      .v_cache = random_tensor(kv_type, 3, SHAPE(PAGES, PAGE, KV_HEADS, HEAD_DIM)),
                      .pages = zeros(DTYPE_I32, SHAPE(PAGES))};
    for (int i = 0; i < PAGES; i++)
        ((int32_t *)c.pages.data)[i] = i * 7 % PAGES;
    return c;
}

/* Runs `op` on units [begin, end), or on all where end is 0. */
static void run_kernel(const op_info *op, op_kernel *kernel, op_call call, int64_t begin,
                       int64_t end)
{
    assert_binds(op, &call);
    call.begin = begin;
    call.end = end ? end : op->units(&call);
    call.scratch = malloc(op->scratch_bytes(&call));
    kernel(&call);
    free(call.scratch);
}

/* Tokens [first, last) as one chunk of the conversation, behind a sequence of one token that reads
 * the same cache if there is to be a neighbour; in slices of `slice` units. */
static void attend(const conversation *c, op_kernel *kernel, int64_t first, int64_t last,
                   bool neighbour, int64_t slice, tensor *out)
{
    int before = neighbour, used = (int)((last + PAGE - 1) / PAGE), count = (int)(last - first);
    tensor q = zeros(DTYPE_F32, SHAPE(count + before, HEADS, HEAD_DIM)), own = q;
    size_t token_bytes = HEADS * HEAD_DIM * sizeof(float);
    own.data = tensor_row(&q, before);
    memcpy(own.data, tensor_row(&c->q, first), (size_t)count * token_bytes);
    tensor page_refs = zeros(DTYPE_I32, SHAPE(used + before));
    memcpy((int32_t *)page_refs.data + before, c->pages.data, (size_t)used * sizeof(int32_t));
    int32_t last_length = (int32_t)(last - (used - 1) * PAGE);
    op_call call = {.tensors = {[PAGED_PREFILL_Q] = q,
                                [PAGED_PREFILL_K_CACHE] = c->k_cache,
                                [PAGED_PREFILL_V_CACHE] = c->v_cache,
                                [PAGED_PREFILL_KV_INDICES] = page_refs,
                                [PAGED_PREFILL_OUT] = q},
                    .params = {[PAGED_PREFILL_CAUSAL] = 1}};
    if (neighbour) {
        call.tensors[PAGED_PREFILL_QO_INDPTR] = INDICES(0, 1, 1 + count);
        call.tensors[PAGED_PREFILL_KV_INDPTR] = INDICES(0, 1, 1 + used);
        call.tensors[PAGED_PREFILL_KV_LAST_PAGE_LEN] = INDICES(5, last_length);
    } else {
        call.tensors[PAGED_PREFILL_QO_INDPTR] = INDICES(0, count);
        call.tensors[PAGED_PREFILL_KV_INDPTR] = INDICES(0, used);
        call.tensors[PAGED_PREFILL_KV_LAST_PAGE_LEN] = INDICES(last_length);
    }
    for (int64_t unit = 0, end = (count + before) * HEADS; unit < end; unit += slice)
        run_kernel(&op_paged_prefill, kernel, call, unit, unit + slice < end ? unit + slice : end);
    memcpy(tensor_row(out, first), own.data, (size_t)count * token_bytes);
}

/* The same tokens one by one with paged_decode. */
static void attend_decode(const conversation *c, op_kernel *kernel, tensor *out)
{
    for (int t = 0; t < LENGTH; t++) {
        int used = (t + PAGE) / PAGE;
        tensor q = tensor_slice(c->q, 0, t, 1), to = tensor_slice(*out, 0, t, 1);
        op_call call = {
            .tensors = {[PAGED_DECODE_Q] = q,
                        [PAGED_DECODE_K_CACHE] = c->k_cache,
                        [PAGED_DECODE_V_CACHE] = c->v_cache,
                        [PAGED_DECODE_KV_INDPTR] = INDICES(0, used),
                        [PAGED_DECODE_KV_INDICES] = indices(used, c->pages.data),
                        [PAGED_DECODE_KV_LAST_PAGE_LEN] = INDICES(t + 1 - (used - 1) * PAGE),
                        [PAGED_DECODE_OUT] = to}};
        run_kernel(&op_paged_decode, kernel, call, 0, 0);
    }
}

static void attention_does_not_see_chunks_slices_or_neighbours(void **state)
{
    (void)state;
    static const dtype types[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32};
    for (int v = 0; op_paged_prefill.variants[v].name; v++) {
        if (op_paged_prefill.variants[v].needs & ~cpu_features(0)) continue;
        op_kernel *prefill = op_paged_prefill.variants[v].kernel;
        for (int type = 0; type < 3; type++) {
            conversation c = conversation_make(types[type]);
            tensor whole = zeros(DTYPE_F32, SHAPE(LENGTH, HEADS, HEAD_DIM)),
                   other = copy_of(&whole);
            attend(&c, prefill, 0, LENGTH, false, LENGTH * HEADS, &whole);
            static const int chunks[] = {1, 7, 64, 149};
            for (int i = 0; i < 4; i++) {
                for (int64_t t = 0; t < LENGTH; t += chunks[i]) {
                    int64_t end = t + chunks[i] < LENGTH ? t + chunks[i] : LENGTH;
                    attend(&c, prefill, t, end, i % 2, 1 + 37 * i, &other);
                }
                assert_same_bits(&other, &whole);
            }
            attend_decode(&c, op_paged_decode.variants[v].kernel, &other);
            assert_same_bits(&other, &whole);
        }
    }
}

/* --- the exponential ------------------------------------------------------------------------- */

static void exponentials_are_within_two_units(void **state)
{
    (void)state;
    enum { N = 40000 };
    tensor x = zeros(DTYPE_F32, SHAPE(1, N)), out = zeros(DTYPE_F32, SHAPE(1, N));
    float largest = 0, *from = x.data, *to = out.data;
    for (int i = 0; i < N; i++)
        from[i] = -(float)i * (87.0f / N);
    for (int i = 0; i < 8; i++)
        from[i * 999] = i % 2 ? -INFINITY : -200.0f - (float)i * 1e30f;
    op_call call = {
        .tensors = {x, tensor_1d(&largest, DTYPE_F32, 1), out}, .params = {1}, .end = 1};
    assert_binds(&op_exp, &call);
    for (const op_variant *v = op_exp.variants; v->name; v++) {
        if (v->needs & ~cpu_features(0)) continue;
        v->kernel(&call);
        for (int i = 0; i < N; i++) {
            double exact = exp((double)from[i]), unit = ldexp(1, ilogb(exact) - 23);
            if (from[i] < -150 ? to[i] != 0 : !(fabs(to[i] - exact) <= 2 * unit))
                fail_msg("%s: exp(%.9g) = %.9g, found %.9g", v->name, from[i], exact, to[i]);
        }
    }
}

/* --- sampling repeats the reference ---------------------------------------------------------- */

/* Logits from flat to peaked, with ties and odd values now and then. */
static float logit_of_round(int round, int64_t i)
{
    static const float spreads[] = {0.01f, 1, 3, 10, 1e-30f, 1e30f};
    float value = spreads[round % 6] * random_value((uint64_t)round, i);
    uint64_t odd = hash_random(17, (uint64_t)round, (uint64_t)i);
    if (round % 4 == 1) value = floorf(value);
    if (round % 7 == 2 && odd % 5 == 0) value = odd % 3 ? -INFINITY : NAN;
    if (round % 50 == 33 && odd % 900 == 0) value = INFINITY;
    return value;
}

static int32_t draw_with(op_kernel *kernel, op_call call)
{
    int32_t id = -1;
    call.tensors[SAMPLING_IDS] = tensor_1d(&id, DTYPE_I32, 1);
    assert_binds(&op_sampling, &call);
    size_t n = (size_t)call.tensors[SAMPLING_LOGITS].shape[1];
    call.end = 1;
    call.scratch = malloc(24 * (n + 16));
    kernel(&call);
    free(call.scratch);
    return id;
}

static void sampling_draws_what_the_reference_draws(void **state)
{
    (void)state;
    static const double temperatures[] = {1, 0.7, 0.2, 2, 1e-40, 1e-300, 1e300, 50};
    static const double top_ps[] = {1, 0.9, 0.5, 0.999, 0, 0.9999999};
    static const double min_ps[] = {0, 0, 0.05, 0.5};
    static const int top_ks[] = {0, 40, 1, 700, 0};
    static const int sizes[] = {1, 15, 100, 3000, 10000};
    for (int round = 0; round < 600; round++) {
        int n = sizes[round % 5] + (round % 3 ? 0 : round % 17);
        tensor logits = zeros(DTYPE_F32, SHAPE(1, n));
        for (int i = 0; i < n; i++)
            ((float *)logits.data)[i] = logit_of_round(round, i);
        int64_t seed = round * 77;
        uint64_t bits = hash_random(5, 0, (uint64_t)round);
        op_call call = {.tensors = {[SAMPLING_LOGITS] = logits,
                                    [SAMPLING_SEEDS] = tensor_1d(&seed, DTYPE_I64, 1),
                                    [SAMPLING_POSITIONS] = INDICES(round)}};
        call.params[SAMPLING_TEMPERATURE] = temperatures[bits % 8];
        call.params[SAMPLING_TOP_P] = top_ps[(bits >> 8) % 6];
        call.params[SAMPLING_MIN_P] = min_ps[(bits >> 16) % 4];
        call.params[SAMPLING_TOP_K] = top_ks[(bits >> 24) % 5];
        call.params[SAMPLING_TOP_K_FIRST] = (double)(bits >> 32 & 1);
        int32_t expected = draw_with(op_sampling.reference, call);
        for (const op_variant *v = op_sampling.variants; v->name; v++) {
            if (v->needs & ~cpu_features(0)) continue;
            int32_t found = draw_with(v->kernel, call);
            if (found != expected)
                fail_msg("%s, round %d: expected %d, found %d", v->name, round, expected, found);
        }
        op_test_teardown(state);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        op_test(variants_pass_further_cases),
        op_test(widths_give_the_same_bits),
        op_test(exponentials_are_within_two_units),
        op_test(sampling_draws_what_the_reference_draws),
        op_test(attention_does_not_see_chunks_slices_or_neighbours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
