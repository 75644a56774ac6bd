/* linear with BF16 weights, AMX: see linear_float.h.
 *
 * A float32 activation is cut into three BF16 parts of 8 bits each, x = high + middle + low,
 * exactly except for denormals. Tile products of the parts with the weights add products that are
 * exact in float32 to float32 sums, several times as fast as fused multiply-adds. An activation in
 * BF16, or one that is to be rounded to BF16 (OP_X_BF16), is one part.
 *
 * A tile product multiplies 16 rows of x with 16 features over 32 inputs, a step. Its result is
 * defined to the bit: the even inputs are summed by fused multiply-adds from zero, so are the odd
 * inputs, and sum = sum + (even + odd), denormals being zero. Vector instructions compute the same
 * result for one or two rows, for which tiles stream weights slowly. In a step the order is high,
 * middle, low; 16 steps are summed from zero, and these sums are added in rising order.
 */
#include "op/linear/linear_float.h"

#include "base/amx.h"
#include "base/checked.h"
#include "op/linear/linear.h"
#include "op/linear/linear_rows.h"

#include <assert.h>
#include <string.h>

enum {
    PANEL = LINEAR_FLOAT_PANEL,
    MOST_PARTS = 3,
    TILE = 1024,                   /* bytes of a full tile */
    STEP = 32,                     /* inputs of a tile product */
    BLOCK_STEPS = 16,              /* of which a block's sum consists */
    STEP_BYTES = STEP * PANEL * 2, /* of a panel */
    DENORMALS_ARE_ZERO = 0x8040,   /* of the control register: results, operands */
    CHUNK_ROWS = 256,              /* of x, cut into parts together */
    GROUP = 16,         /* panels that are multiplied with one block of a chunk: 512 KB of sums */
    ROWS_AHEAD = 2,     /* of x, prefetched when it is cut */
    VECTOR_ROWS = 2,    /* at most this many by vector instructions */
    VECTOR_AHEAD = 512, /* prefetch distance of their panel to L1, in bytes */
    VECTOR_L2_AHEAD = 2 * BLOCK_STEPS * STEP_BYTES, /* to L2: as far as two blocks */
    AHEAD = 2 * STEP_BYTES, /* prefetch distance of a streamed panel, in bytes */
};

#define INLINE static inline __attribute__((always_inline))

static int64_t minimum(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* The call, looked up once. */
typedef struct amx_job {
    const op_call *call;
    const tensor *x;
    int parts; /* into which x is cut: 1 or MOST_PARTS */
    int64_t n_rows, in_features, steps;
    size_t panel_bytes;
} amx_job;

/* Cuts up to 16 inputs of a row into three parts, in the upper halves of their words. Values that
 * are not finite have no middle and no low part. */
INLINE void cut_16(const float *x, int64_t n, __m512i parts[MOST_PARTS])
{
    __mmask16 present = (__mmask16)(n >= 16 ? 0xffff : (1 << n) - 1);
    __m512i upper = _mm512_set1_epi32(-65536), exponent = _mm512_set1_epi32(0x7f800000);
    __m512 value = _mm512_maskz_loadu_ps(present, x);
    __m512i bits = _mm512_castps_si512(value);
    __mmask16 finite = _mm512_cmpneq_epi32_mask(_mm512_and_si512(bits, exponent), exponent);
    __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    bits = _mm512_mask_or_epi32(bits, is_nan, bits, _mm512_set1_epi32(0x400000));

    parts[0] = _mm512_and_si512(bits, upper);
    __m512 rest = _mm512_maskz_sub_ps(finite, value, _mm512_castsi512_ps(parts[0]));
    parts[1] = _mm512_and_si512(_mm512_castps_si512(rest), upper);
    parts[2] = _mm512_castps_si512(_mm512_sub_ps(rest, _mm512_castsi512_ps(parts[1])));
}

/* Prefetches bytes of the row at this distance: parts of rows are too short for the hardware
 * prefetcher. */
static void prefetch_row(const char *row, int64_t distance, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += 64)
        _mm_prefetch(row + distance + at, _MM_HINT_T0);
}

/* Up to 32 inputs of a row in BF16, with zeros after the last: as they are, or rounded. */
INLINE __m512i one_part(dtype type, const char *x, int64_t n)
{
    if (n == 0) return _mm512_setzero_si512();
    const __mmask32 present = (__mmask32)(n >= STEP ? 0xffffffff : ((uint64_t)1 << n) - 1);
    if (type == DTYPE_BF16) return _mm512_maskz_loadu_epi16(present, x);
    const __m512 low = _mm512_maskz_loadu_ps((__mmask16)present, x);
    const __m512 high = _mm512_maskz_loadu_ps((__mmask16)(present >> 16), x + 64);
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

/* A step of a row in three parts; they are `apart` bytes from each other. */
INLINE void three_parts(const char *x, int64_t n, int64_t apart, char *out)
{
    for (int64_t at = 0; at < STEP; at += 16) {
        __m512i parts[MOST_PARTS];
        const int64_t left = n > at ? n - at : 0;
        cut_16(left ? (const float *)x + at : NULL, left, parts);
        for (int part = 0; part < MOST_PARTS; part++)
            _mm256_storeu_si256((__m256i *)(out + part * apart + at * 2),
                                _mm512_cvtepi32_epi16(_mm512_srli_epi32(parts[part], 16)));
    }
}

/* Inputs [i, i + n) of `rows` rows of x from `first`, as tiles of `tile_rows` rows, padded with
 * zeros: (groups, steps, parts, tile_rows, STEP). */
static void cut_x(const amx_job *job, int64_t first, int64_t rows, int64_t tile_rows, int64_t i,
                  int64_t n, char *out)
{
    const tensor *x = job->x;
    const int64_t steps = ceil_div(n, STEP), tile_bytes = tile_rows * 64;
    const int64_t step_bytes = job->parts * tile_bytes, element = x->type == DTYPE_F32 ? 4 : 2;
    for (int64_t row = 0; row < ceil_div(rows, tile_rows) * tile_rows; row++) {
        const char *from = row < rows ? linear_row_at(x, first + row, i) : NULL;
        if (row + ROWS_AHEAD < rows) prefetch_row(from, x->stride[0] * ROWS_AHEAD, n * element);
        char *to = out + row / tile_rows * steps * step_bytes + row % tile_rows * 64;
        for (int64_t at = 0; at < steps * STEP; at += STEP, to += step_bytes) {
            const int64_t left = from ? n - at : 0;
            const char *inputs = left ? from + at * element : NULL;
            if (job->parts == 1)
                _mm512_storeu_si512(to, one_part(x->type, inputs, left));
            else
                three_parts(inputs, left, tile_bytes, to);
        }
    }
}

/* A row of x as float32 parts, zeros to the end of the last step: (steps, parts, STEP). */
static void cut_row(const amx_job *job, int64_t row, float *out)
{
    const char *from = tensor_row(job->x, row);
    const int64_t n = job->in_features, element = job->x->type == DTYPE_F32 ? 4 : 2;
    for (int64_t i = 0; i < n; i += STEP, from += STEP * element, out += job->parts * STEP) {
        _Alignas(64) char parts[MOST_PARTS][2 * STEP];
        if (job->parts == 1)
            _mm512_store_si512(parts, one_part(job->x->type, from, n - i));
        else
            three_parts(from, n - i, sizeof *parts, *parts);
        for (int at = 0; at < job->parts * STEP; at += 16)
            _mm512_storeu_si512(out + at,
                                _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_load_si256(
                                                      (const __m256i *)(*parts + at * 2))),
                                                  16));
    }
}

/* The two halves of a panel's features. */
typedef struct halves {
    __m512 low, high;
} halves;

INLINE halves fma_halves(float x, halves w, halves sum)
{
    __m512 value = _mm512_set1_ps(x);
    return (halves){_mm512_fmadd_ps(value, w.low, sum.low),
                    _mm512_fmadd_ps(value, w.high, sum.high)};
}

/* Does what two tile products of each part do, for two pairs of a row and a panel: one row and two
 * panels, or two blocks of one, `apart` bytes from each other, or two rows and one panel. Two
 * streams are read faster than one. sums[j] += a step at panel j and x[j] + at, (parts, STEP). */
INLINE void meet_step(int rows, int parts, const char *panel, size_t apart, const float *const *x,
                      int64_t at, halves *sums)
{
    const int panels = 2 / rows;
    __m512i mask = _mm512_set1_epi32(-65536);
    halves even[2 * MOST_PARTS], odd[2 * MOST_PARTS];
#pragma GCC unroll 6
    for (int j = 0; j < 2 * parts; j++)
        even[j].low = even[j].high = odd[j].low = odd[j].high = _mm512_setzero_ps();
#pragma GCC unroll 1
    for (int64_t i = 0; i < STEP; i += 2, panel += 128) {
#pragma GCC unroll 2
        for (int p = 0; p < panels; p++) {
            const char *from = panel + (size_t)p * apart;
            __m512i low = _mm512_loadu_si512(from), high = _mm512_loadu_si512(from + 64);
            halves first = {_mm512_castsi512_ps(_mm512_slli_epi32(low, 16)),
                            _mm512_castsi512_ps(_mm512_slli_epi32(high, 16))};
            halves second = {_mm512_castsi512_ps(_mm512_and_si512(low, mask)),
                             _mm512_castsi512_ps(_mm512_and_si512(high, mask))};
            _mm_prefetch(from + VECTOR_AHEAD, _MM_HINT_T0);
            _mm_prefetch(from + VECTOR_AHEAD + 64, _MM_HINT_T0);
            _mm_prefetch(from + VECTOR_L2_AHEAD, _MM_HINT_T1);
            _mm_prefetch(from + VECTOR_L2_AHEAD + 64, _MM_HINT_T1);
#pragma GCC unroll 6
            for (int j = 0; j < rows * parts; j++) {
                const float *values = x[rows == 2 ? j / parts : p] + at + j % parts * STEP + i;
                int k = p * parts + j;
                even[k] = fma_halves(values[0], first, even[k]);
                odd[k] = fma_halves(values[1], second, odd[k]);
            }
        }
    }
#pragma GCC unroll 6
    for (int j = 0; j < 2 * parts; j++) {
        halves *sum = &sums[j / parts];
        sum->low = _mm512_add_ps(sum->low, _mm512_add_ps(even[j].low, odd[j].low));
        sum->high = _mm512_add_ps(sum->high, _mm512_add_ps(even[j].high, odd[j].high));
    }
}

/* out[0] and out[1] (PANEL) += a block from step `at` on; they may be the same. */
INLINE void meet_block(int rows, int parts, const char *panel, size_t apart, const float *const *x,
                       int64_t at, int64_t steps, float *const *out)
{
    halves sums[2];
    sums[0].low = sums[0].high = sums[1].low = sums[1].high = _mm512_setzero_ps();
    for (int64_t step = 0; step < steps; step++)
        meet_step(rows, parts, panel + step * STEP_BYTES, apart, x, (at + step) * parts * STEP,
                  sums);
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
        float *to = out[j];
        _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), sums[j].low));
        _mm512_storeu_ps(to + 16, _mm512_add_ps(_mm512_loadu_ps(to + 16), sums[j].high));
    }
}

/* sums (rows, PANEL) += tile of the panel's half */
static void add_tile(float *sums, int64_t rows, const float *tile)
{
    for (int64_t row = 0; row < rows; row++, sums += PANEL)
        _mm512_storeu_ps(sums,
                         _mm512_add_ps(_mm512_loadu_ps(sums), _mm512_load_ps(tile + row * 16)));
}

/* Lines [from, to) of a step that will be streamed. */
INLINE void prefetch_lines(const char *step, int from, int to)
{
    for (int line = from; line < to; line++)
        _mm_prefetch(step + line * 64, _MM_HINT_T0);
}

/* sums (rows, PANEL) += a block of a panel with one group of rows, while the same number of bytes
 * at `next` is prefetched: a few lines between the tile products, because all lines at once would
 * wait for each other. */
INLINE void meet_one(int parts, const char *panel, const char *x, int64_t tile_bytes, int64_t steps,
                     int64_t rows, const char *next, float *sums)
{
    _Alignas(64) float tiles[2][16][16];
    amx_barrier();
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t step = 0; step < steps; step++, panel += STEP_BYTES, x += parts * tile_bytes) {
        const char *ahead = next + step * STEP_BYTES;
        _tile_loadd(6, panel, 128);
        _tile_loadd(7, panel + 64, 128);
        _tile_loadd(4, x, 64);
        prefetch_lines(ahead, 0, 6);
        _tile_dpbf16ps(0, 4, 6);
        prefetch_lines(ahead, 6, 12);
        _tile_dpbf16ps(1, 4, 7);
        if (parts == 1) {
            prefetch_lines(ahead, 12, 32);
            continue;
        }
        _tile_loadd(5, x + tile_bytes, 64);
        prefetch_lines(ahead, 12, 18);
        _tile_dpbf16ps(0, 5, 6);
        prefetch_lines(ahead, 18, 24);
        _tile_dpbf16ps(1, 5, 7);
        _tile_loadd(4, x + 2 * tile_bytes, 64);
        prefetch_lines(ahead, 24, 28);
        _tile_dpbf16ps(0, 4, 6);
        prefetch_lines(ahead, 28, 32);
        _tile_dpbf16ps(1, 4, 7);
    }
    _tile_stored(0, tiles[0], 64);
    _tile_stored(1, tiles[1], 64);
    amx_barrier();
    add_tile(sums, rows, tiles[0][0]);
    add_tile(sums + 16, rows, tiles[1][0]);
}

/* The same with two groups of 16 rows; each step prefetches `lines` lines at `next`. */
INLINE void meet_two(int parts, const char *panel, const char *x, int64_t group_bytes,
                     int64_t steps, const char *next, int64_t lines, float *sums)
{
    _Alignas(64) float tiles[4][16][16];
    const char *other = x + group_bytes;
    amx_barrier();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t step = 0; step < steps; step++, panel += STEP_BYTES) {
        for (int64_t line = 0; line < lines; line++, next += 64)
            _mm_prefetch(next, _MM_HINT_T1);
        _tile_loadd(6, panel, 128);
        _tile_loadd(7, panel + 64, 128);
        for (int part = 0; part < parts; part++, x += TILE, other += TILE) {
            _tile_loadd(4, x, 64);
            _tile_loadd(5, other, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, tiles[0], 64);
    _tile_stored(1, tiles[1], 64);
    _tile_stored(2, tiles[2], 64);
    _tile_stored(3, tiles[3], 64);
    amx_barrier();
    add_tile(sums, 16, tiles[0][0]);
    add_tile(sums + 16, 16, tiles[1][0]);
    add_tile(sums + 16 * PANEL, 16, tiles[2][0]);
    add_tile(sums + 16 * PANEL + 16, 16, tiles[3][0]);
}

static const char *panel_at(const amx_job *job, int64_t panel, int64_t step)
{
    return (const char *)job->call->packed + (size_t)panel * job->panel_bytes +
           (size_t)(step * STEP_BYTES);
}

/* One panel, for one row: two of its blocks at a time, which is the order of memory, then the
 * rest. */
INLINE void run_panel(const amx_job *job, int parts, int64_t panel, const float *row)
{
    _Alignas(64) float sums[PANEL] = {0}, unused[PANEL];
    float *const both[2] = {sums, sums}, *const one[2] = {sums, unused};
    const float *x[2] = {row, row + BLOCK_STEPS * parts * STEP};
    int64_t step = 0;
    memset(unused, 0, sizeof unused);
    for (; step + 2 * BLOCK_STEPS <= job->steps; step += 2 * BLOCK_STEPS)
        meet_block(1, parts, panel_at(job, panel, step), BLOCK_STEPS * STEP_BYTES, x, step,
                   BLOCK_STEPS, both);
    x[1] = row;
    for (; step < job->steps; step += BLOCK_STEPS)
        meet_block(1, parts, panel_at(job, panel, step), 0, x, step,
                   minimum(BLOCK_STEPS, job->steps - step), one);
    linear_float_finish(job->call, panel, 0, 1, sums);
}

/* One or two rows. */
INLINE void run_vectors(const amx_job *job, int rows, int parts)
{
    const op_call *call = job->call;
    const int panels = 2 / rows;
    const float *x[2]; /* (steps, parts, STEP) */
    for (int row = 0; row < rows; row++) {
        float *cut = (float *)call->scratch + row * job->steps * parts * STEP;
        if (!call->scratch_kept) cut_row(job, row, cut);
        x[row] = cut;
    }
    if (rows == 1) x[1] = x[0];
    const bool pairs = rows == 2 || job->steps < 2 * BLOCK_STEPS;
    int64_t panel = call->begin / PANEL, end = ceil_div(call->end, PANEL);
    for (; pairs && panel + panels <= end; panel += panels) {
        _Alignas(64) float sums[2 * PANEL] = {0};
        float *const out[2] = {sums, sums + PANEL};
        for (int64_t step = 0; step < job->steps; step += BLOCK_STEPS)
            meet_block(rows, parts, panel_at(job, panel, step), job->panel_bytes, x, step,
                       minimum(BLOCK_STEPS, job->steps - step), out);
        linear_float_finish(call, panel, 0, rows, sums);
        if (panels == 2) linear_float_finish(call, panel + 1, 0, 1, sums + PANEL);
    }
    for (; panel < end; panel++)
        run_panel(job, parts, panel, x[0]);
}

/* Three to 16 rows: every panel is streamed once and multiplied with x in scratch. */
INLINE void run_few(const amx_job *job, int parts)
{
    const op_call *call = job->call;
    int64_t rows = job->n_rows, tile_bytes = rows * 64;
    char *x = call->scratch; /* (steps, parts, rows, STEP) */
    if (!call->scratch_kept) cut_x(job, 0, rows, rows, 0, job->in_features, x);
    amx_configure((int)rows);
    for (int64_t panel = call->begin / PANEL; panel * PANEL < call->end; panel++) {
        _Alignas(64) float sums[16 * PANEL];
        memset(sums, 0, (size_t)(rows * PANEL) * sizeof(float));
        for (int64_t step = 0; step < job->steps; step += BLOCK_STEPS) {
            const char *lines = panel_at(job, panel, step);
            meet_one(parts, lines, x + step * parts * tile_bytes, tile_bytes,
                     minimum(BLOCK_STEPS, job->steps - step), rows, lines + AHEAD, sums);
        }
        linear_float_finish(call, panel, 0, rows, sums);
    }
    _tile_release();
}

/* Multiplies one block of a panel with the groups of a chunk; x (groups, steps, parts, 16, STEP),
 * sums (groups * 16, PANEL). */
INLINE void chunk_block(int parts, const char *panel, const char *x, int64_t groups, int64_t steps,
                        const char *next, float *sums)
{
    int64_t group_bytes = steps * parts * TILE, pairs = groups / 2;
    int64_t lines = pairs ? ceil_div(STEP_BYTES / 64, pairs) : 0; /* to prefetch in a step */
    for (int64_t pair = 0; pair < pairs; pair++) {
        meet_two(parts, panel, x, group_bytes, steps, next, lines, sums);
        next += steps * lines * 64;
        x += 2 * group_bytes;
        sums += 2 * 16 * PANEL;
    }
    if (groups % 2) meet_one(parts, panel, x, TILE, steps, 16, panel, sums);
}

/* Panels [first, end), at most GROUP, for rows [row, row + rows). */
INLINE void run_group(const amx_job *job, int parts, int64_t row, int64_t rows, int64_t first,
                      int64_t end)
{
    int64_t groups = ceil_div(rows, 16);
    float *sums = job->call->scratch;                       /* (GROUP, groups * 16, PANEL) */
    char *x = (char *)(sums + GROUP * groups * 16 * PANEL); /* of a block, see chunk_block */
    memset(sums, 0, (size_t)((end - first) * groups * 16 * PANEL) * sizeof(float));
    for (int64_t step = 0; step < job->steps; step += BLOCK_STEPS) {
        int64_t steps = minimum(BLOCK_STEPS, job->steps - step), i = step * STEP;
        cut_x(job, row, rows, 16, i, minimum(steps * STEP, job->in_features - i), x);
        for (int64_t panel = first; panel < end; panel++)
            chunk_block(parts, panel_at(job, panel, step), x, groups, steps,
                        panel_at(job, panel + 1, step),
                        sums + (panel - first) * groups * 16 * PANEL);
    }
    for (int64_t panel = first; panel < end; panel++)
        linear_float_finish(job->call, panel, row, rows,
                            sums + (panel - first) * groups * 16 * PANEL);
}

INLINE void run_many(const amx_job *job, int parts)
{
    int64_t chunks = ceil_div(job->n_rows, CHUNK_ROWS);
    int64_t chunk = ceil_div(job->n_rows, chunks * 16) * 16;
    int64_t first = job->call->begin / PANEL, end = ceil_div(job->call->end, PANEL);
    amx_configure(16);
    for (int64_t row = 0; row < job->n_rows; row += chunk) {
        int64_t rows = minimum(chunk, job->n_rows - row);
        for (int64_t panel = first; panel < end; panel += GROUP)
            run_group(job, parts, row, rows, panel, minimum(panel + GROUP, end));
    }
    _tile_release();
}

/* Never less for fewer rows, so that the largest batch's scratch is enough for all. */
size_t linear_float_amx_scratch_bytes(const op_call *call)
{
    const tensor *x = &call->tensors[LINEAR_X];
    int64_t steps = ceil_div(x->shape[1], STEP);
    int64_t few_rows = minimum(x->shape[0], 16), vector_rows = minimum(x->shape[0], VECTOR_ROWS);
    size_t few = (size_t)(steps * MOST_PARTS * few_rows * 64);
    size_t vectors = (size_t)(steps * MOST_PARTS * vector_rows * STEP) * sizeof(float);
    if (vectors > few) few = vectors;
    int64_t rows = minimum(ceil_div(x->shape[0], 16) * 16, CHUNK_ROWS);
    size_t many = (size_t)rows * (GROUP * PANEL * sizeof(float) + BLOCK_STEPS * MOST_PARTS * 64);
    return round_up(few > many ? few : many, 64);
}

INLINE void run(const op_call *call, int parts)
{
    const tensor *weight = &call->tensors[LINEAR_WEIGHT];
    assert(call->packed);
    amx_job job = {
        .call = call,
        .x = &call->tensors[LINEAR_X],
        .parts = parts,
        .n_rows = call->tensors[LINEAR_X].shape[0],
        .in_features = weight->shape[1],
        .steps = ceil_div(weight->shape[1], STEP),
        .panel_bytes = linear_float_panel_bytes(weight, weight->shape[1]),
    };
    if (job.n_rows == 0 || call->begin == call->end) return;
    unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | DENORMALS_ARE_ZERO);
    if (job.n_rows == 1)
        run_vectors(&job, 1, parts);
    else if (job.n_rows == 2)
        run_vectors(&job, 2, parts);
    else if (job.n_rows <= 16)
        run_few(&job, parts);
    else
        run_many(&job, parts);
    _mm_setcsr(mode);
}

void linear_float_amx(const op_call *call)
{
    if (call->tensors[LINEAR_X].type == DTYPE_BF16)
        run(call, 1);
    else
        run(call, MOST_PARTS);
}

void linear_float_amx_rounded(const op_call *call)
{
    run(call, 1);
}
