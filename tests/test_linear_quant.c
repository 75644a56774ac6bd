/* linear for quantised weights in integer arithmetic, with every variant that this CPU can run.
 *
 * Results are compared with the reference by norm, and bit for bit with a model of the same
 * arithmetic that reads the stored blocks one value at a time.
 */
#include "test.h"

#include "op/linear/linear.h"
#include "op/linear/linear_quant.h"
#include "op/table.h"
#include "tensor/codec.h"
#include "tensor/codec_blocks.h"
#include "tensor/float16.h"
#include "tensor/float8.h"

#include <float.h>
#include <math.h>

static const op_variant variants[] = {LINEAR_QUANT_VARIANTS{0}};

static const dtype types[] = {DTYPE_Q8_0,    DTYPE_Q4_0,   DTYPE_Q4_1,    DTYPE_Q5_0,   DTYPE_Q5_1,
                              DTYPE_Q2_K,    DTYPE_Q3_K,   DTYPE_Q4_K,    DTYPE_Q5_K,   DTYPE_Q6_K,
                              DTYPE_IQ4_NL,  DTYPE_IQ4_XS, DTYPE_NVFP4,   DTYPE_TQ1_0,  DTYPE_TQ2_0,
                              DTYPE_IQ3_XXS, DTYPE_IQ3_S,  DTYPE_IQ2_XXS, DTYPE_IQ2_XS, DTYPE_IQ2_S,
                              DTYPE_IQ1_S,   DTYPE_IQ1_M,  DTYPE_MXFP4};
enum { N_TYPES = sizeof types / sizeof *types, BLOCK = 32 };
enum { NEXT_TYPE = SANITIZED ? 3 : 1 }; /* every kind of blocks; test_op_check has all types */

/* ---- A problem ----------------------------------------------------------------------------- */

typedef struct problem {
    dtype type;
    int64_t rows, in, out;
    uint8_t *weight;
    float *x, *bias, *residual; /* bias, residual: NULL unless asked for */
} problem;

static uint64_t random_state = 1;

static uint32_t random_bits(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

/* About normally distributed, variance 1. */
static float random_normal(void)
{
    float sum = 0;
    for (int i = 0; i < 12; i++)
        sum += (float)random_bits() * 0x1p-32f;
    return sum - 6;
}

static void *allocate(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    assert_non_null(memory);
    return memory;
}

static float *random_floats(int64_t n)
{
    float *values = allocate((size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; i++)
        values[i] = random_normal();
    return values;
}

/* Where in a stored block its F16 scales are, and how many. */
static int scales_at(dtype type, int *count)
{
    static const struct {
        int at, count;
    } scales[DTYPE_COUNT] = {
        [DTYPE_Q8_0] = {0, 1},    [DTYPE_Q4_0] = {0, 1},   [DTYPE_Q4_1] = {0, 2},
        [DTYPE_Q5_0] = {0, 1},    [DTYPE_Q5_1] = {0, 2},   [DTYPE_Q2_K] = {80, 2},
        [DTYPE_Q3_K] = {108, 1},  [DTYPE_Q4_K] = {0, 2},   [DTYPE_Q5_K] = {0, 2},
        [DTYPE_Q6_K] = {208, 1},  [DTYPE_IQ4_NL] = {0, 1}, [DTYPE_IQ4_XS] = {0, 1},
        [DTYPE_NVFP4] = {0, 0},   [DTYPE_TQ1_0] = {52, 1}, [DTYPE_TQ2_0] = {64, 1},
        [DTYPE_IQ3_XXS] = {0, 1}, [DTYPE_IQ3_S] = {0, 1},  [DTYPE_IQ2_XXS] = {0, 1},
        [DTYPE_IQ2_XS] = {0, 1},  [DTYPE_IQ2_S] = {0, 1},  [DTYPE_IQ1_S] = {0, 1},
        [DTYPE_IQ1_M] = {0, 0},   [DTYPE_MXFP4] = {0, 0},
    };
    *count = scales[type].count;
    return scales[type].at;
}

/* The scale of IQ1_M, in four high nibbles. */
static void scatter_half(uint16_t half, uint8_t *block)
{
    for (int i = 0; i < 4; i++)
        block[49 + 2 * i] = (uint8_t)((block[49 + 2 * i] & 15) | (half >> 4 * i & 15) << 4);
}

/* Random bits are valid blocks: every level and sub-scale occurs. The F16 scales are sensible. */
static problem problem_make(dtype type, int64_t rows, int64_t in, int64_t out, bool added)
{
    problem p = {.type = type, .rows = rows, .in = in, .out = out};
    size_t block = dtype_block_bytes(type);
    size_t bytes = (size_t)(out * in / dtype_block_elements(type)) * block;
    p.weight = allocate(bytes);
    for (size_t i = 0; i < bytes; i++)
        p.weight[i] = (uint8_t)random_bits();
    int count, at = scales_at(type, &count);
    for (size_t i = 0; i < bytes; i += block) {
        for (int s = 0; s < count; s++) {
            uint16_t half = f32_to_f16(random_normal() * 0.01f);
            memcpy(p.weight + i + at + 2 * s, &half, sizeof half);
        }
        if (type == DTYPE_MXFP4) p.weight[i] = (uint8_t)(p.weight[i] % 16 + 112);
        if (type == DTYPE_IQ1_M) scatter_half(f32_to_f16(random_normal() * 0.01f), p.weight + i);
    }
    p.x = random_floats(rows * in);
    if (added) p.bias = random_floats(out), p.residual = random_floats(rows * out);
    return p;
}

static void problem_free(problem *p)
{
    free(p->weight);
    free(p->x);
    free(p->bias);
    free(p->residual);
}

static op_call problem_call(const problem *p, void *out, dtype out_type)
{
    op_call call = {.end = p->out};
    call.tensors[LINEAR_X] = tensor_2d(p->x, DTYPE_F32, p->rows, p->in);
    call.tensors[LINEAR_WEIGHT] = tensor_2d(p->weight, p->type, p->out, p->in);
    if (p->bias) call.tensors[LINEAR_BIAS] = tensor_1d(p->bias, DTYPE_F32, p->out);
    if (p->residual)
        call.tensors[LINEAR_RESIDUAL] = tensor_2d(p->residual, DTYPE_F32, p->rows, p->out);
    call.tensors[LINEAR_OUT] = tensor_2d(out, out_type, p->rows, p->out);
    return call;
}

/* What x is rounded to: 0 is 8 bits, 1 is 16. */
static int finer(const op_variant *v)
{
    return v->rounded == linear_rounded_16;
}

static bool usable(const op_variant *v)
{
    return (v->needs & ~(cpu_features(0) | OP_X_BITS)) == 0;
}

static void *pack(const op_variant *v, op_call *call)
{
    size_t bytes = v->packed_bytes(call);
    uint8_t *packed = allocate(bytes + 64);
    memset(packed, 0xa5, bytes + 64);
    /* In two parts, as threads would. */
    int64_t half = (call->end / 2 + 15) / v->pack_units * v->pack_units;
    op_call part = *call;
    part.end = half < call->end ? half : call->end;
    v->pack(&part, packed);
    part.begin = part.end;
    part.end = call->end;
    v->pack(&part, packed);
    for (int i = 0; i < 64; i++)
        assert_int_equal(packed[bytes + (size_t)i], 0xa5);
    return packed;
}

/* out[rows * out]: the units in slices of `step`. */
static void run(const op_variant *v, const problem *p, int64_t step, float *out)
{
    op_call call = problem_call(p, out, DTYPE_F32);
    assert_true(v->accepts(&call));
    void *packed = pack(v, &call);
    call.packed = packed;
    call.scratch = allocate(v->scratch_bytes(&call));
    for (int64_t i = 0; i < p->rows * p->out; i++)
        out[i] = -12345;
    for (int64_t begin = 0; begin < p->out; begin += step) {
        call.begin = begin;
        call.end = begin + step < p->out ? begin + step : p->out;
        v->kernel(&call);
    }
    free(packed);
    free(call.scratch);
}

/* ---- The model ----------------------------------------------------------------------------- */

/* A block of 32 weights: whole numbers, a scale for each half, and what is added for each half. */
typedef struct levels {
    int w[BLOCK];
    float scale[2], minimum[2];
    int groups;
    bool has_minimum;
} levels;

static void set_scales(levels *l, int groups, float s0, float s1, bool has, float m0, float m1)
{
    l->groups = groups;
    l->scale[0] = s0, l->scale[1] = s1;
    l->has_minimum = has;
    l->minimum[0] = m0, l->minimum[1] = m1;
}

static void k4_scales(const uint8_t *s, int j, int *scale, int *minimum)
{
    *scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
    *minimum = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
}

static float half(const void *block, size_t at)
{
    uint16_t bits;
    memcpy(&bits, (const char *)block + at, sizeof bits);
    return f16_to_f32(bits);
}

static void levels_of_32(dtype type, const uint8_t *b, levels *l)
{
    float d = half(b, 0), m = half(b, 2);
    uint32_t high = 0;
    if (type == DTYPE_Q5_0) memcpy(&high, b + 2, 4);
    if (type == DTYPE_Q5_1) memcpy(&high, b + 4, 4);
    int at = type == DTYPE_Q8_0 || type == DTYPE_Q4_0 ? 2
             : type == DTYPE_Q4_1                     ? 4
             : type == DTYPE_Q5_0                     ? 6
                                                      : 8;
    int offset = type == DTYPE_Q4_0 ? 8 : type == DTYPE_Q5_0 ? 16 : 0;
    for (int i = 0; i < BLOCK; i++) {
        l->w[i] = type == DTYPE_Q8_0 ? (int8_t)b[at + i] : b[at + i % 16] >> i / 16 * 4 & 15;
        l->w[i] += (int)(high >> i & 1) * 16 - offset;
    }
    set_scales(l, 1, d, 0, type == DTYPE_Q4_1 || type == DTYPE_Q5_1, m, 0);
}

static void levels_of_k(dtype type, const uint8_t *b, int sub, levels *l)
{
    int count, at = scales_at(type, &count);
    float d = half(b, (size_t)at), dmin = half(b, (size_t)at + 2);
    int s[2] = {0}, m[2] = {0};
    for (int g = 0; g < 2; g++) {
        int j = 2 * sub + g;
        if (type == DTYPE_Q2_K) s[g] = b[j] & 15, m[g] = b[j] >> 4;
        if (type == DTYPE_Q3_K)
            s[g] =
                ((b[96 + j % 8] >> j / 8 * 4 & 15) | (b[104 + j % 4] >> j / 4 * 2 & 3) << 4) - 32;
        if (type == DTYPE_Q6_K) s[g] = (int8_t)b[192 + j];
    }
    if (type == DTYPE_Q4_K || type == DTYPE_Q5_K) k4_scales(b + 4, sub, &s[0], &m[0]);
    for (int i = 0; i < BLOCK; i++) {
        int k = 32 * sub + i, byte = k / 128 * 32 + i, shift = sub % 4 * 2;
        if (type == DTYPE_Q2_K) l->w[i] = b[16 + byte] >> shift & 3;
        if (type == DTYPE_Q3_K)
            l->w[i] = ((b[32 + byte] >> shift & 3) | (b[i] >> sub & 1) << 2) - 4;
        if (type == DTYPE_Q4_K) l->w[i] = b[16 + k / 64 * 32 + i] >> sub % 2 * 4 & 15;
        if (type == DTYPE_Q5_K)
            l->w[i] = (b[48 + k / 64 * 32 + i] >> sub % 2 * 4 & 15) | (b[16 + i] >> sub & 1) << 4;
        if (type == DTYPE_Q6_K) {
            int low = b[k / 128 * 64 + k % 64] >> k % 128 / 64 * 4 & 15;
            l->w[i] = (low | (b[128 + byte] >> shift & 3) << 4) - 32;
        }
    }
    bool two = type == DTYPE_Q2_K || type == DTYPE_Q3_K || type == DTYPE_Q6_K;
    bool has = type == DTYPE_Q2_K || type == DTYPE_Q4_K || type == DTYPE_Q5_K;
    set_scales(l, two ? 2 : 1, d * (float)s[0], d * (float)s[1], has, -(dmin * (float)m[0]),
               -(dmin * (float)m[1]));
}

/* The 16 bits at `at`. */
static int pair(const uint8_t *b, int at)
{
    return b[at] | b[at + 1] << 8;
}

/* What the levels of values 16 j on are multiplied with, of a format of levels or grids. */
static float scale_of_16(dtype type, const uint8_t *b, int j)
{
    int count, at = scales_at(type, &count), sub = j / 2;
    float d = half(b, (size_t)at);
    switch (type) {
    case DTYPE_IQ4_XS:
        return d *
               (float)(((b[4 + sub / 2] >> sub % 2 * 4 & 15) | (pair(b, 2) >> 2 * sub & 3) << 4) -
                       32);
    case DTYPE_MXFP4:
        return ldexpf(1, b[0] - 128);
    case DTYPE_NVFP4:
        return (b[j] & 127) == 127 ? 0 : f8_to_f32(b[j] & 127) / 2;
    case DTYPE_IQ3_XXS:
        return d * (float)(2 * (b[69 + 4 * sub] >> 4) + 1) / 4;
    case DTYPE_IQ3_S:
        return d * (float)(2 * (b[106 + sub / 2] >> sub % 2 * 4 & 15) + 1);
    case DTYPE_IQ2_XXS:
        return d * (float)(2 * (b[9 + 8 * sub] >> 4) + 1) / 8;
    case DTYPE_IQ2_XS:
        return d * (float)(2 * (b[66 + sub] >> j % 2 * 4 & 15) + 1) / 8;
    case DTYPE_IQ2_S:
        return d * (float)(2 * (b[74 + sub] >> j % 2 * 4 & 15) + 1) / 8;
    case DTYPE_IQ1_S:
        return d * (float)(2 * (pair(b, 34 + 2 * sub) >> 12 & 7) + 1) / 8;
    case DTYPE_IQ1_M: {
        uint16_t bits = 0;
        for (int i = 0; i < 4; i++)
            bits |= (uint16_t)(b[49 + 2 * i] >> 4 << 4 * i);
        return f16_to_f32(bits) * (float)(2 * (pair(b, 48 + j / 4 * 2) >> j % 4 * 3 & 7) + 1) / 8;
    }
    default:
        return d;
    }
}

/* The codec's values, which test_codec compares with ggml's, over their scales. */
static void levels_of_grid(dtype type, const uint8_t *b, int sub, levels *l)
{
    float values[256], s[2] = {scale_of_16(type, b, 2 * sub), scale_of_16(type, b, 2 * sub + 1)};
    bool two =
        type == DTYPE_NVFP4 || type == DTYPE_IQ2_XS || type == DTYPE_IQ2_S || type == DTYPE_IQ1_M;
    dtype_decode(type, b, values, dtype_block_elements(type));
    if (type == DTYPE_IQ4_NL || type == DTYPE_MXFP4) s[1] = s[0];
    for (int i = 0; i < BLOCK; i++)
        l->w[i] = s[i / 16] != 0 ? (int)lrintf(values[BLOCK * sub + i] / s[i / 16]) : 0;
    set_scales(l, two ? 2 : 1, s[0], s[1], false, 0, 0);
}

static void levels_at(dtype type, const uint8_t *row, int64_t block, levels *l)
{
    int64_t blocks = dtype_block_elements(type) / BLOCK;
    const uint8_t *stored = row + block / blocks * (int64_t)dtype_block_bytes(type);
    if (type >= DTYPE_IQ4_NL)
        levels_of_grid(type, stored, (int)(block % blocks), l);
    else if (blocks == 1)
        levels_of_32(type, stored, l);
    else
        levels_of_k(type, stored, (int)(block % blocks), l);
}

/* What a variant does: rounds x to 16 bits; multiplies and adds with two roundings. */
enum { FINE = 1, TWO_ROUNDINGS = 2, FORMS = 4 };

static float multiply_add(int form, float a, float b, float c)
{
    if (!(form & TWO_ROUNDINGS)) return fmaf(a, b, c);
    const float product = a * b;
    return product + c;
}

static float model_block(const levels *l, int form, const float *x, float out)
{
    const bool fine = form & FINE;
    const float least = fine ? 0x1p-110f : 0x1p-120f, most = fine ? 32512 : 127;
    float a = 0;
    for (int i = 0; i < BLOCK; i++)
        a = fmaxf(a, fabsf(x[i]));
    float inverse = a < least ? 0 : most / a, d = a < least ? 0 : a / most;
    int dots[2] = {0}, sums[2] = {0};
    for (int i = 0; i < BLOCK; i++) {
        int q = (int)rintf(x[i] * inverse), g = l->groups == 2 ? i / 16 : 0;
        dots[g] += q * l->w[i];
        sums[g] += q;
    }
    float t = (float)dots[0] * l->scale[0];
    if (l->groups == 2) t = multiply_add(form, (float)dots[1], l->scale[1], t);
    out = multiply_add(form, t, d, out);
    for (int g = 0; l->has_minimum && g < l->groups; g++)
        out = multiply_add(form, l->minimum[g], d * (float)sums[g], out);
    return out;
}

static int form_of(const op_variant *v)
{
    const bool two = strncmp(v->name, "sse2", 4) == 0 || strncmp(v->name, "portable", 8) == 0;
    return (finer(v) ? FINE : 0) | (two ? TWO_ROUNDINGS : 0);
}

static void model_run(const problem *p, int form, float *out)
{
    size_t row_bytes = (size_t)(p->in / dtype_block_elements(p->type)) * dtype_block_bytes(p->type);
    for (int64_t r = 0; r < p->rows; r++) {
        for (int64_t o = 0; o < p->out; o++) {
            float sum = 0;
            for (int64_t b = 0; b < p->in / BLOCK; b++) {
                levels l;
                levels_at(p->type, p->weight + (size_t)o * row_bytes, b, &l);
                sum = model_block(&l, form, p->x + r * p->in + b * BLOCK, sum);
            }
            if (p->bias) sum += p->bias[o];
            if (p->residual) sum += p->residual[r * p->out + o];
            out[r * p->out + o] = sum;
        }
    }
}

/* ---- Tests --------------------------------------------------------------------------------- */

static void assert_same(const float *a, const float *b, int64_t n, const op_variant *v, dtype type)
{
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(a + i, b + i, sizeof *a) != 0)
            fail_msg("%s %s: element %lld of %lld is %a, not %a", v->name, dtype_name(type),
                     (long long)i, (long long)n, (double)a[i], (double)b[i]);
    }
}

/* The model's levels are the codec's values. */
static void test_model_decodes_as_the_codec(void **state)
{
    (void)state;
    for (int t = 0; t < N_TYPES; t += NEXT_TYPE) {
        problem p = problem_make(types[t], 1, 512, 3, false);
        float decoded[512 * 3];
        dtype_decode(types[t], p.weight, decoded, 512 * 3);
        for (int64_t b = 0; b < 3 * 512 / BLOCK; b++) {
            levels l;
            levels_at(types[t], p.weight, b, &l);
            for (int i = 0; i < BLOCK; i++) {
                int g = l.groups == 2 ? i / 16 : 0;
                float minimum = l.has_minimum ? l.minimum[g] : 0;
                float value = l.scale[g] * (float)l.w[i] + minimum;
                assert_true(value == decoded[b * BLOCK + i]);
            }
        }
        problem_free(&p);
    }
}

static void test_bits_of_the_model(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{1, 256, 16},  {1, 2304, 19}, {2, 512, 33},
                                        {9, 1280, 16}, {37, 256, 5},  {21, 2304, 48}};
    for (int t = 0; t < N_TYPES; t += NEXT_TYPE) {
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            problem p = problem_make(types[t], shapes[s][0], shapes[s][1], shapes[s][2], s % 2);
            int64_t n = p.rows * p.out;
            float *models = allocate((size_t)(FORMS * n) * sizeof *models); /* (rows, out) each */
            float *out = allocate((size_t)n * sizeof *out);
            for (int form = 0; form < FORMS; form++)
                model_run(&p, form, models + form * n);
            for (const op_variant *v = variants; v->name; v++) {
                if (!usable(v)) continue;
                run(v, &p, p.out, out);
                assert_same(out, models + form_of(v) * n, n, v, types[t]);
            }
            free(models);
            free(out);
            problem_free(&p);
        }
    }
}

/* One row alone, in other company, in several panels, and features cut anywhere. */
static void test_rows_and_slices_do_not_matter(void **state)
{
    (void)state;
    enum { ROWS = 83, IN = 16384, OUT = 21 }; /* panels of 64 rows */
    for (int t = 0; t < N_TYPES; t += NEXT_TYPE) {
        problem p = problem_make(types[t], ROWS, IN, OUT, true);
        float *all = allocate(ROWS * OUT * sizeof *all), *some = allocate(ROWS * OUT * sizeof *all);
        for (const op_variant *v = variants; v->name; v++) {
            if (!usable(v)) continue;
            run(v, &p, OUT, all);
            for (int64_t step = 1; step < 16; step += 6) {
                run(v, &p, step, some);
                assert_same(some, all, ROWS * OUT, v, types[t]);
            }
            static const int64_t parts[][2] = {{0, 1}, {82, 1}, {40, 3}, {31, 18}};
            for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
                problem part = p;
                part.rows = parts[i][1];
                part.x += parts[i][0] * IN;
                part.residual += parts[i][0] * OUT;
                run(v, &part, OUT, some);
                assert_same(some, all + parts[i][0] * OUT, part.rows * OUT, v, types[t]);
            }
        }
        free(all);
        free(some);
        problem_free(&p);
    }
}

/* Relative norm of the error against the oracle. */
static double error_of(const op_variant *v, const problem *p)
{
    int64_t n = p->rows * p->out;
    float *out = allocate((size_t)n * sizeof *out);
    double *oracle = allocate((size_t)n * sizeof *oracle);
    run(v, p, p->out, out);
    op_call call = problem_call(p, oracle, DTYPE_F64);
    call.scratch = allocate(op_linear.scratch_bytes(&call));
    linear_reference(&call);
    double error = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        error += (out[i] - oracle[i]) * (out[i] - oracle[i]);
        norm += oracle[i] * oracle[i];
    }
    free(call.scratch);
    free(out);
    free(oracle);
    return sqrt(error / norm);
}

static void test_close_to_the_reference(void **state)
{
    (void)state;
    for (int t = 0; t < N_TYPES; t += NEXT_TYPE) {
        problem p = problem_make(types[t], 6, 2048, 64, true);
        for (const op_variant *v = variants; v->name; v++) {
            if (!usable(v)) continue;
            double error = error_of(v, &p);
            if (!(error < (finer(v) ? 4e-5 : 8e-3)))
                fail_msg("%s %s: error %g", v->name, dtype_name(types[t]), error);
        }
        problem_free(&p);
    }
}

/* Weights at the ends of their range and x at its greatest: no sum may saturate. */
static void test_extremes(void **state)
{
    (void)state;
    static const uint8_t fills[] = {0x00, 0xff, 0x80, 0x7f};
    for (int t = 0; t < N_TYPES; t += NEXT_TYPE) {
        for (size_t f = 0; f < sizeof fills; f++) {
            problem p = problem_make(types[t], 5, 512, 16, false);
            size_t block = dtype_block_bytes(types[t]);
            int count, at = scales_at(types[t], &count);
            for (size_t i = 0; i < 16 * 512 / (size_t)dtype_block_elements(types[t]); i++) {
                uint8_t halves[4];
                memcpy(halves, p.weight + i * block + at, (size_t)count * 2);
                const uint8_t e = p.weight[i * block]; /* of MXFP4 */
                memset(p.weight + i * block, fills[f], block);
                if (types[t] == DTYPE_MXFP4) p.weight[i * block] = e;
                memcpy(p.weight + i * block + at, halves, (size_t)count * 2);
            }
            for (int i = 0; i < 5 * 512; i++)
                p.x[i] = i % 512 < 256 ? 1.5f : i & 2 ? -1.5f : 1.5f;
            float models[FORMS][5 * 16], out[5 * 16];
            for (int form = 0; form < FORMS; form++)
                model_run(&p, form, models[form]);
            for (const op_variant *v = variants; v->name; v++) {
                if (!usable(v)) continue;
                run(v, &p, p.out, out);
                assert_same(out, models[form_of(v)], 5 * 16, v, types[t]);
            }
            problem_free(&p);
        }
    }
}

/* NaN and infinity spoil their own row and no other; zeros and denormals give zeros. */
static void test_unusual_x(void **state)
{
    (void)state;
    for (int t = 0; t < N_TYPES; t += NEXT_TYPE) {
        problem p = problem_make(types[t], 20, 512, 16, false);
        p.x[3 * 512 + 70] = NAN;
        p.x[7 * 512 + 511] = INFINITY;
        for (int i = 0; i < 512; i++)
            p.x[11 * 512 + i] = 0, p.x[12 * 512 + i] = i & 1 ? 1e-41f : -FLT_MIN / 2;
        float out[20 * 16];
        for (const op_variant *v = variants; v->name; v++) {
            if (!usable(v)) continue;
            run(v, &p, p.out, out);
            for (int r = 0; r < 20; r++) {
                for (int o = 0; o < 16; o++) {
                    float value = out[r * 16 + o];
                    if (r == 3) assert_true(isnan(value));
                    if (r == 7) assert_false(isfinite(value));
                    if (r == 11 || r == 12) assert_true(value == 0);
                    if (r != 3 && r != 7) assert_true(isfinite(value));
                }
            }
        }
        problem_free(&p);
    }
}

static void test_strides_and_in_place(void **state)
{
    (void)state;
    enum { ROWS = 19, IN = 288, OUT = 23, X_STRIDE = 300, OUT_STRIDE = 31 };
    problem p = problem_make(DTYPE_Q4_1, ROWS, IN, OUT, true);
    float expected[FORMS][ROWS * OUT], wide_x[ROWS * X_STRIDE], wide_out[ROWS * OUT_STRIDE];
    for (int form = 0; form < FORMS; form++)
        model_run(&p, form, expected[form]);
    for (int i = 0; i < ROWS * X_STRIDE; i++)
        wide_x[i] = NAN;
    for (int r = 0; r < ROWS; r++)
        memcpy(wide_x + r * X_STRIDE, p.x + r * IN, IN * sizeof(float));
    for (const op_variant *v = variants; v->name; v++) {
        if (!usable(v)) continue;
        for (int i = 0; i < ROWS * OUT_STRIDE; i++)
            wide_out[i] =
                i % OUT_STRIDE < OUT ? p.residual[i / OUT_STRIDE * OUT + i % OUT_STRIDE] : 77;
        op_call call = problem_call(&p, wide_out, DTYPE_F32);
        call.tensors[LINEAR_X].data = wide_x;
        call.tensors[LINEAR_X].stride[0] = X_STRIDE * sizeof(float);
        call.tensors[LINEAR_OUT].stride[0] = OUT_STRIDE * sizeof(float);
        call.tensors[LINEAR_RESIDUAL] = call.tensors[LINEAR_OUT];
        void *packed = pack(v, &call);
        call.packed = packed;
        call.scratch = allocate(v->scratch_bytes(&call));
        v->kernel(&call);
        for (int r = 0; r < ROWS; r++) {
            assert_same(wide_out + r * OUT_STRIDE, expected[form_of(v)] + r * OUT, OUT, v, p.type);
            for (int i = OUT; i < OUT_STRIDE; i++)
                assert_true(wide_out[r * OUT_STRIDE + i] == 77);
        }
        free(packed);
        free(call.scratch);
    }
    problem_free(&p);
}

/* What the integer path does not do is left to others. */
static void test_accepts(void **state)
{
    (void)state;
    problem p = problem_make(DTYPE_Q8_0, 2, 64, 8, true);
    float out[16];
    op_call call = problem_call(&p, out, DTYPE_F32);
    assert_true(linear_quant_accepts(&call));
    call.tensors[LINEAR_OUT].type = DTYPE_F64;
    assert_false(linear_quant_accepts(&call));
    call.tensors[LINEAR_OUT].type = DTYPE_F32;
    call.tensors[LINEAR_X].type = DTYPE_F16;
    assert_false(linear_quant_accepts(&call));
    call.tensors[LINEAR_X].type = DTYPE_F32;
    call.tensors[LINEAR_BIAS].type = DTYPE_F16;
    assert_false(linear_quant_accepts(&call));
    call.tensors[LINEAR_BIAS].rank = 0;
    call.tensors[LINEAR_WEIGHT].type = DTYPE_BF16;
    assert_false(linear_quant_accepts(&call));
    call.tensors[LINEAR_WEIGHT].type = DTYPE_Q8_0;
    call.tensors[LINEAR_X].shape[0] = 0;
    assert_true(linear_quant_accepts(&call));
    problem_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_decodes_as_the_codec),
        cmocka_unit_test(test_bits_of_the_model),
        cmocka_unit_test(test_rows_and_slices_do_not_matter),
        cmocka_unit_test(test_close_to_the_reference),
        cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_unusual_x),
        cmocka_unit_test(test_strides_and_in_place),
        cmocka_unit_test(test_accepts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
