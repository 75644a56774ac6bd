/* linear with float weights: the repacked form and the loops around the kernels, see
 * linear_float.h.
 *
 * Few rows: every panel is streamed once (two at a time for one row) and multiplied with rows that
 * stay in the cache. Many rows: a block of up to 264 rows by 256 inputs of x is copied to
 * contiguous memory, and each group of 16 panels is multiplied with it; each panel is decoded to
 * float32 once for all rows, and the sums of the group stay in scratch. A block of x (280 KB) and
 * the group's sums (528 KB) stay in L2, a decoded panel (32 KB) in L1.
 */
#include "op/linear/linear_float.h"

#include "base/buffer.h"
#include "base/checked.h"
#include "op/linear/linear.h"
#include "op/linear/linear_rows.h"
#include "op/linear/transpose.h"
#include "tensor/codec.h"
#include "tensor/codec_blocks.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum {
    PANEL = LINEAR_FLOAT_PANEL,
    BLOCK = LINEAR_FLOAT_BLOCK,
    X_STRIDE = LINEAR_FLOAT_X_STRIDE,
    STEP = 32,        /* inputs packed at a time; BF16 is padded to a multiple */
    ROWS_AHEAD = 4,   /* prefetched when x is copied */
    FEW_ROWS = 12,    /* at least any kernel's max_rows */
    CHUNK_ROWS = 264, /* a multiple of any kernel's max_rows */
    GROUP = 16,       /* panels */
    MOST_FOLDED = 64, /* features of a matrix whose last panel may be folded */
    F8_BLOCK = LINEAR_FLOAT_F8_BLOCK,
    DECODED = (BLOCK + BLOCK / F8_BLOCK) * PANEL, /* floats of a decoded block and its scales */
};

static int64_t minimum(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Inputs of a folded panel. */
static int64_t folded_inputs(int64_t in_features)
{
    return ceil_div(in_features, 2 * BLOCK) * BLOCK;
}

static bool is_float_weight(dtype type)
{
    return type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16 || type == DTYPE_F8_128;
}

/* Of the values in a panel: quantised weights are decoded when they are packed. */
static dtype panel_type(const tensor *weight)
{
    return is_float_weight(weight->type) ? weight->type : DTYPE_F32;
}

static linear_float_type float_type(dtype type)
{
    return type == DTYPE_F32    ? LINEAR_FLOAT_F32
           : type == DTYPE_F16  ? LINEAR_FLOAT_F16
           : type == DTYPE_BF16 ? LINEAR_FLOAT_BF16
                                : LINEAR_FLOAT_F8;
}

bool linear_float_accepts(const op_call *call)
{
    return is_float_weight(call->tensors[LINEAR_WEIGHT].type) && linear_takes_rows(call);
}

bool linear_float_accepts_quantised(const op_call *call)
{
    const tensor *weight = &call->tensors[LINEAR_WEIGHT];
    return !is_float_weight(weight->type) && weight->type != DTYPE_F64 && weight->shape[1] > 0 &&
           linear_takes_rows(call);
}

bool linear_float_bf16_accepts(const op_call *call)
{
    const tensor *weight = &call->tensors[LINEAR_WEIGHT];
    return weight->type == DTYPE_BF16 && !linear_float_is_narrow(weight) &&
           linear_float_accepts(call);
}

/* Of x rounded to BF16. */
const op_tolerance linear_float_bf16_tolerances[] = {
    {DTYPE_F32, 4e-3, 2e-2}, {DTYPE_BF16, 1e-2, 3e-2}, {0}};

/* Of one input of a panel; in F8_128 with its share of the scales. */
static size_t input_bytes(const tensor *weight)
{
    const dtype type = panel_type(weight);
    return PANEL * dtype_block_bytes(type) / (size_t)dtype_block_elements(type);
}

/* Inputs of BF16 are padded to a multiple of it. */
static int64_t padding(const tensor *weight)
{
    return weight->shape[1] <= STEP / 2 ? STEP / 2 : STEP;
}

size_t linear_float_panel_bytes(const tensor *weight, int64_t inputs)
{
    if (weight->type == DTYPE_BF16) inputs = ceil_div(inputs, padding(weight)) * padding(weight);
    return (size_t)inputs * input_bytes(weight);
}

/* Whether the last panel is folded: not in large matrices, where it would not pay. */
static bool is_folded(const tensor *weight)
{
    const int64_t rest = weight->shape[0] % PANEL;
    return weight->shape[0] <= MOST_FOLDED && rest > 0 && rest <= PANEL / 2 &&
           weight->shape[1] > BLOCK && weight->shape[1] % STEP == 0 &&
           is_float_weight(weight->type) && weight->type != DTYPE_F8_128;
}

bool linear_float_is_narrow(const tensor *weight)
{
    return is_folded(weight) || (weight->type == DTYPE_BF16 && weight->shape[1] <= STEP / 2);
}

size_t linear_float_packed_bytes(const op_call *call)
{
    const tensor *weight = &call->tensors[LINEAR_WEIGHT];
    const int64_t panels = ceil_div(weight->shape[0], PANEL), folded = is_folded(weight);
    return (size_t)(panels - folded) * linear_float_panel_bytes(weight, weight->shape[1]) +
           (size_t)folded * linear_float_panel_bytes(weight, folded_inputs(weight->shape[1]));
}

/* Units of 2 or 4 bytes (a pair of BF16 is one): `n` of each row to out[i][row]; NULL is zeros. */
static void pack_2(const char *const *rows, int64_t n, uint16_t *out)
{
    for (int64_t row = 0; row < PANEL; row++) {
        for (int64_t i = 0; i < n; i++) {
            uint16_t value = 0;
            if (rows[row]) memcpy(&value, rows[row] + i * 2, 2);
            out[i * PANEL + row] = value;
        }
    }
}

static void pack_4(const char *const *rows, int64_t n, uint32_t *out)
{
    static const char zeros[STEP * 4];
    const int64_t squares = n / 4;
    for (int64_t row = 0; row < PANEL; row += 4) {
        const char *four[4];
        for (int i = 0; i < 4; i++)
            four[i] = rows[row + i] ? rows[row + i] : zeros;
        for (int64_t i = 0; i < squares; i++)
            transpose_square(four, (size_t)i * 16, out + i * 4 * PANEL + row, PANEL);
    }
    for (int64_t row = 0; row < PANEL; row++) {
        for (int64_t i = squares * 4; i < n; i++) {
            uint32_t value = 0;
            if (rows[row]) memcpy(&value, rows[row] + i * 4, 4);
            out[i * PANEL + row] = value;
        }
    }
}

/* The last n inputs of BF16 rows, with zeros to the number `padded_inputs`. */
static void pack_pairs_tail(const char *const *rows, int64_t n, int64_t padded_inputs,
                            uint32_t *out)
{
    uint16_t padded[PANEL][STEP] = {{0}};
    const char *pointers[PANEL];
    for (int64_t row = 0; row < PANEL; row++) {
        if (rows[row]) memcpy(padded[row], rows[row], (size_t)n * 2);
        pointers[row] = (const char *)padded[row];
    }
    pack_4(pointers, padded_inputs / 2, out);
}

/* Up to 32 inputs of a panel's rows. */
static void pack_plain(const tensor *weight, const char *const *rows, int64_t n, void *out)
{
    const dtype type = weight->type;
    if (type == DTYPE_F32)
        pack_4(rows, n, out);
    else if (type == DTYPE_F16)
        pack_2(rows, n, out);
    else if (n == STEP)
        pack_4(rows, STEP / 2, out);
    else
        pack_pairs_tail(rows, n, padding(weight), out);
}

/* A panel's rows from `first` on, of quantised weights: blocks of 256 inputs at most. */
static void pack_decoded(const tensor *weight, int64_t first, int64_t end, float *out)
{
    float decoded[BLOCK];
    int64_t in_features = weight->shape[1];
    for (int64_t row = 0; row < PANEL; row++) {
        for (int64_t i = 0; i < in_features; i += BLOCK) {
            int64_t n = minimum(BLOCK, in_features - i);
            if (first + row < end)
                dtype_decode(weight->type,
                             (const char *)tensor_row(weight, first + row) +
                                 dtype_row_bytes(weight->type, i),
                             decoded, n);
            else
                memset(decoded, 0, sizeof decoded);
            for (int64_t j = 0; j < n; j++)
                out[(i + j) * PANEL + row] = decoded[j];
        }
    }
}

void linear_float_pack_quantised(const op_call *call, void *packed)
{
    const tensor *weight = &call->tensors[LINEAR_WEIGHT];
    size_t panel_bytes = linear_float_panel_bytes(weight, weight->shape[1]);
    for (int64_t first = call->begin; first < call->end; first += PANEL)
        pack_decoded(weight, first, call->end,
                     (float *)((char *)packed + (size_t)(first / PANEL) * panel_bytes));
}

/* Prefetches what the next panel needs of as many inputs: rows are often a page long, so that the
 * hardware's prefetcher finds no streams. */
static void fetch_next(const char *const *rows, int64_t panel_rows, size_t row_bytes)
{
    for (int64_t row = 0; row < panel_rows; row++)
        __builtin_prefetch(rows[row] + PANEL * row_bytes, 0, 2);
}

static bool has_nan(const uint8_t *bytes)
{
    bool any = false;
    for (int i = 0; i < F8_BLOCK; i++)
        any |= (bytes[i] & 0x7f) == 0x7f;
    return any;
}

/* Blocks of four rows to bytes [row, row + 4) of 128 inputs. */
static void pack_bytes(const block_f8_128 blocks[4], uint8_t *out)
{
    for (int i = 0; i < F8_BLOCK; i++) {
        const uint8_t four[4] = {blocks[0].qs[i], blocks[1].qs[i], blocks[2].qs[i],
                                 blocks[3].qs[i]};
        memcpy(out + i * PANEL, four, sizeof four);
    }
}

/* 128 inputs of a panel's rows in F8_128. */
static void pack_f8_block(const char *const *rows, char *out)
{
    float scales[PANEL];
    for (int row = 0; row < PANEL; row += 4) {
        block_f8_128 blocks[4] = {0};
        for (int i = 0; i < 4; i++) {
            if (rows[row + i]) memcpy(&blocks[i], rows[row + i], sizeof *blocks);
            scales[row + i] = has_nan(blocks[i].qs) ? NAN : blocks[i].d;
        }
        pack_bytes(blocks, (uint8_t *)out + sizeof scales + row);
    }
    memcpy(out, scales, sizeof scales);
}

/* `n` inputs of a panel's rows, 32 at most, in F8_128 128. */
static void pack_step(const tensor *weight, const char *const *rows, int64_t n, void *out)
{
    if (weight->type == DTYPE_F8_128)
        pack_f8_block(rows, out);
    else
        pack_plain(weight, rows, n, out);
}

/* The last panel, folded, from row `first` on. */
static void pack_folded(const tensor *weight, int64_t first, char *out)
{
    const int64_t in_features = weight->shape[1], present = weight->shape[0] - first;
    for (int64_t i = 0; i < folded_inputs(in_features); i += STEP) {
        const char *rows[PANEL] = {0};
        for (int64_t row = 0; row < PANEL; row++) {
            const int64_t block = i / BLOCK * 2 + row / (PANEL / 2), r = row % (PANEL / 2);
            const int64_t at = block * BLOCK + i % BLOCK;
            if (r >= present || at >= in_features) continue;
            rows[row] =
                (const char *)tensor_row(weight, first + r) + dtype_row_bytes(weight->type, at);
        }
        pack_plain(weight, rows, STEP, out);
        out += linear_float_panel_bytes(weight, STEP);
    }
}

void linear_float_pack(const op_call *call, void *packed)
{
    const tensor *weight = &call->tensors[LINEAR_WEIGHT];
    const int64_t step = weight->type == DTYPE_F8_128 ? F8_BLOCK : STEP;
    const size_t row_bytes = (size_t)weight->stride[0];
    int64_t in_features = weight->shape[1];
    buffer_populate(tensor_row(weight, call->begin), (size_t)(call->end - call->begin) * row_bytes);
    char *out = (char *)packed +
                (size_t)(call->begin / PANEL) * linear_float_panel_bytes(weight, in_features);
    for (int64_t first = call->begin; first < call->end; first += PANEL) {
        if (is_folded(weight) && first + PANEL > weight->shape[0]) {
            pack_folded(weight, first, out);
            return;
        }
        for (int64_t i = 0; i < in_features; i += step) {
            const char *rows[PANEL] = {0};
            int64_t n = minimum(step, in_features - i);
            for (int64_t row = 0; row < PANEL && first + row < call->end; row++)
                rows[row] = (const char *)tensor_row(weight, first + row) +
                            dtype_row_bytes(weight->type, i);
            fetch_next(rows, minimum(PANEL, call->end - first - PANEL), row_bytes);
            pack_step(weight, rows, n, out);
            out += linear_float_panel_bytes(weight, n);
        }
    }
}

/* Rows of the chunks into which n_rows are cut; all chunks but the last are equal. */
static int64_t chunk_rows(int64_t n_rows)
{
    int64_t chunks = ceil_div(n_rows, CHUNK_ROWS);
    return chunks ? ceil_div(n_rows, chunks * FEW_ROWS) * FEW_ROWS : 0;
}

static size_t few_rows_bytes(int64_t n_rows, int64_t in_features)
{
    return (size_t)(ceil_div(in_features, BLOCK) * n_rows * X_STRIDE) * sizeof(float);
}

/* Never less for fewer rows, so that the largest batch's scratch is enough for all. */
size_t linear_float_scratch_bytes(const op_call *call)
{
    const tensor *x = &call->tensors[LINEAR_X];
    size_t few = few_rows_bytes(minimum(x->shape[0], FEW_ROWS), x->shape[1]);
    int64_t rows = minimum(x->shape[0], CHUNK_ROWS);
    size_t many = (size_t)(rows * (X_STRIDE + GROUP * PANEL) + DECODED) * sizeof(float);
    return round_up(few > many ? few : many, 64);
}

void linear_float_finish(const op_call *call, int64_t panel, int64_t first_row, int64_t n_rows,
                         const float *sums)
{
    const tensor *residual = &call->tensors[LINEAR_RESIDUAL], *out = &call->tensors[LINEAR_OUT];
    const float *bias = call->tensors[LINEAR_BIAS].rank ? call->tensors[LINEAR_BIAS].data : NULL;
    int64_t base = panel * PANEL;
    int64_t begin = call->begin > base ? call->begin : base;
    int64_t end = minimum(call->end, base + PANEL);

    for (int64_t row = 0; row < n_rows; row++, sums += PANEL) {
        float room[PANEL], values[PANEL];
        const bool wide = out->type == DTYPE_F32;
        float *to = wide ? (float *)linear_row_at(out, first_row + row, begin) : values;
        if (wide && !bias && !residual->rank) {
            memcpy(to, sums + begin - base, (size_t)(end - begin) * sizeof *to);
            continue;
        }
        const float *add =
            residual->rank ? linear_row_floats(residual, first_row + row, begin, end - begin, room)
                           : NULL;
        for (int64_t f = begin; f < end; f++) {
            float value = sums[f - base];
            if (bias) value += bias[f];
            if (add) value += add[f - begin];
            to[f - begin] = value;
        }
        if (!wide) linear_row_store(out, first_row + row, begin, end - begin, values);
    }
}

/* The call, looked up once. */
typedef struct float_job {
    const op_call *call;
    const linear_float_kernels *kernels;
    linear_float_type type;
    const tensor *x;
    const float *row; /* x, if it is one row */
    int64_t n_rows, in_features;
    int64_t folded; /* the panel that is folded; -1: none */
    size_t input_bytes, panel_bytes;
} float_job;

/* Input `i` of the panel. */
static const char *panel_at(const float_job *job, int64_t panel, int64_t i)
{
    return (const char *)job->call->packed + (size_t)panel * job->panel_bytes +
           (size_t)i * job->input_bytes;
}

/* The block from input `i` on; of the folded panel the two blocks that lie side by side. */
static const char *block_at(const float_job *job, int64_t panel, int64_t i)
{
    return panel_at(job, panel, panel == job->folded ? i / (2 * BLOCK) * BLOCK : i);
}

/* Before and after a second block of the folded panel its sums (rows, PANEL) change their half. */
static void move_half(const float_job *job, int64_t panel, int64_t i, int64_t rows, float *sums,
                      int64_t from, int64_t to)
{
    if (panel != job->folded || i / BLOCK % 2 == 0) return;
    for (int64_t row = 0; row < rows; row++, sums += PANEL)
        memcpy(sums + to, sums + from, PANEL / 2 * sizeof *sums);
}

/* Copies rows [first, first + n_rows) of x, inputs [i, i + n), to (n_rows, X_STRIDE), with software
 * prefetches: the parts of rows are too short for the hardware prefetcher. */
static void gather_x(const float_job *job, int64_t first, int64_t n_rows, int64_t i, int64_t n,
                     float *out)
{
    const tensor *x = job->x;
    for (int64_t row = 0; row < n_rows; row++) {
        if (row + ROWS_AHEAD < n_rows) {
            const char *ahead = linear_row_at(x, first + row + ROWS_AHEAD, i);
            for (int64_t at = 0; at < n; at += 16)
                __builtin_prefetch(ahead + at * (int64_t)sizeof(float));
        }
        linear_row_load(x, first + row, i, n, out + row * X_STRIDE);
        if (job->kernels->round) job->kernels->round(out + row * X_STRIDE, n);
    }
}

/* One panel, for one row: two of its blocks at a time, then the last. */
static void run_panel(const float_job *job, int64_t panel)
{
    const float *row = job->row;
    _Alignas(64) float sums[PANEL] = {0};
    int64_t i = 0;
    for (; i + 2 * BLOCK <= job->in_features; i += 2 * BLOCK) {
        _Alignas(64) float both[2 * PANEL] = {0};
        const float *const x[2] = {row + i, row + i + BLOCK};
        job->kernels->pair[job->type](panel_at(job, panel, i), BLOCK * job->input_bytes, x, BLOCK,
                                      both);
        for (int f = 0; f < PANEL; f++)
            sums[f] = sums[f] + both[f] + both[PANEL + f];
    }
    for (; i < job->in_features; i += BLOCK)
        job->kernels->stream[job->type][0](panel_at(job, panel, i), row + i,
                                           minimum(BLOCK, job->in_features - i), sums);
    linear_float_finish(job->call, panel, 0, 1, sums);
}

/* The folded panel for one row. */
static void run_folded(const float_job *job)
{
    const float *row = job->row;
    _Alignas(64) float sums[PANEL] = {0};
    linear_float_tile *tile = job->kernels->stream[job->type][0];
    for (int64_t i = 0; i < job->in_features; i += 2 * BLOCK) {
        _Alignas(64) float both[2 * PANEL] = {0};
        const float *const x[2] = {row + i, row + i + BLOCK};
        const int64_t left = job->in_features - i;
        const char *panel = block_at(job, job->folded, i);
        if (left >= 2 * BLOCK)
            job->kernels->pair[job->type](panel, 0, x, BLOCK, both);
        else
            tile(panel, x[0], minimum(BLOCK, left), both);
        if (left > BLOCK && left < 2 * BLOCK) tile(panel, x[1], left - BLOCK, both + PANEL);
        for (int f = 0; f < PANEL / 2; f++)
            sums[f] = sums[f] + both[f] + both[PANEL + PANEL / 2 + f];
    }
    linear_float_finish(job->call, job->folded, 0, 1, sums);
}

/* Panels [first, end) for one row, two at a time. */
static void run_row(const float_job *job, int64_t first, int64_t end)
{
    const float *row = job->row;
    int64_t panel = first;
    if (end > first && job->folded == end - 1) {
        run_folded(job);
        end--;
    }
    for (; panel + 1 < end; panel += 2) {
        _Alignas(64) float sums[2 * PANEL] = {0};
        for (int64_t i = 0; i < job->in_features; i += BLOCK) {
            const float *const x[2] = {row + i, row + i};
            job->kernels->pair[job->type](panel_at(job, panel, i), job->panel_bytes, x,
                                          minimum(BLOCK, job->in_features - i), sums);
        }
        linear_float_finish(job->call, panel, 0, 1, sums);
        linear_float_finish(job->call, panel + 1, 0, 1, sums + PANEL);
    }
    if (panel < end) run_panel(job, panel);
}

/* Panels [first, end) for at most max_rows rows. */
static void run_few(const float_job *job, int64_t first, int64_t end)
{
    int64_t rows = job->n_rows, in_features = job->in_features, x_block = rows * X_STRIDE;
    float *x = job->call->scratch; /* (blocks, rows, X_STRIDE) */
    for (int64_t i = 0; i < in_features && !job->call->scratch_kept; i += BLOCK)
        gather_x(job, 0, rows, i, minimum(BLOCK, in_features - i), x + i / BLOCK * x_block);
    linear_float_tile *tile = job->kernels->stream[job->type][rows - 1];
    for (int64_t panel = first; panel < end; panel++) {
        _Alignas(64) float sums[FEW_ROWS * PANEL];
        memset(sums, 0, (size_t)(rows * PANEL) * sizeof(float));
        for (int64_t i = 0; i < in_features; i += BLOCK) {
            move_half(job, panel, i, rows, sums, 0, PANEL / 2);
            tile(block_at(job, panel, i), x + i / BLOCK * x_block, minimum(BLOCK, in_features - i),
                 sums);
            move_half(job, panel, i, rows, sums, PANEL / 2, 0);
        }
        linear_float_finish(job->call, panel, 0, rows, sums);
    }
}

/* Multiplies one block of a panel with the rows of a chunk, while as much at `next` is prefetched;
 * x (rows, X_STRIDE), sums (rows, PANEL). */
static void chunk_block(const float_job *job, const float *panel, const float *x, int64_t rows,
                        int64_t n, const char *next, float *sums)
{
    const linear_float_kernels *kernels = job->kernels;
    linear_float_tile *const *tile =
        job->type == LINEAR_FLOAT_F8 ? kernels->cached_f8 : kernels->cached;
    const int64_t bytes = n * (int64_t)job->input_bytes;
    int64_t tiles = ceil_div(rows, kernels->max_rows), share = ceil_div(bytes, tiles * 64) * 64;
    for (int64_t row = 0; row < rows; row += kernels->max_rows, next += share) {
        int64_t count = minimum(kernels->max_rows, rows - row);
        for (int64_t at = 0; at < share; at += 64)
            __builtin_prefetch(next + at, 0, 2);
        tile[count - 1](panel, x + row * X_STRIDE, n, sums + row * PANEL);
    }
}

/* Panels [first, end), at most GROUP, for rows [row, row + rows). */
static void run_group(const float_job *job, int64_t row, int64_t rows, int64_t first, int64_t end)
{
    linear_float_decode *decode = job->kernels->decode[job->type];
    float *sums = job->call->scratch;             /* (GROUP, rows, PANEL) */
    float *decoded = sums + GROUP * rows * PANEL; /* [DECODED] */
    float *x = decoded + DECODED;                 /* (rows, X_STRIDE) */
    memset(sums, 0, (size_t)((end - first) * rows * PANEL) * sizeof(float));
    for (int64_t i = 0; i < job->in_features; i += BLOCK) {
        int64_t n = minimum(BLOCK, job->in_features - i);
        gather_x(job, row, rows, i, n, x);
        for (int64_t panel = first; panel < end; panel++) {
            float *of_panel = sums + (panel - first) * rows * PANEL;
            const void *weights = block_at(job, panel, i);
            const char *next =
                panel + 1 < end ? block_at(job, panel + 1, i) : block_at(job, first, i + BLOCK);
            if (decode) {
                decode(weights, n, decoded);
                weights = decoded;
            }
            move_half(job, panel, i, rows, of_panel, 0, PANEL / 2);
            chunk_block(job, weights, x, rows, n, next, of_panel);
            move_half(job, panel, i, rows, of_panel, PANEL / 2, 0);
        }
    }
    for (int64_t panel = first; panel < end; panel++)
        linear_float_finish(job->call, panel, row, rows, sums + (panel - first) * rows * PANEL);
}

static void run_many(const float_job *job, int64_t first, int64_t end)
{
    int64_t chunk = chunk_rows(job->n_rows);
    for (int64_t row = 0; row < job->n_rows; row += chunk) {
        int64_t rows = minimum(chunk, job->n_rows - row);
        for (int64_t panel = first; panel < end; panel += GROUP)
            run_group(job, row, rows, panel, minimum(panel + GROUP, end));
    }
}

/* The only row of x, in float32 or in rounded blocks. */
static const float *single_row(const float_job *job)
{
    linear_float_round *round = job->kernels->round;
    float *row = job->call->scratch;
    if (job->x->type == DTYPE_F32 && !round) return job->x->data;
    for (int64_t i = 0; i < job->in_features && !job->call->scratch_kept; i += BLOCK) {
        const int64_t n = minimum(BLOCK, job->in_features - i);
        linear_row_load(job->x, 0, i, n, row + i);
        if (round) round(row + i, n);
    }
    return row;
}

void linear_float_run(const op_call *call, const linear_float_kernels *kernels)
{
    const tensor *weight = &call->tensors[LINEAR_WEIGHT];
    assert(call->packed && kernels->max_rows <= FEW_ROWS);
    float_job job = {
        .call = call,
        .kernels = kernels,
        .type = float_type(panel_type(weight)),
        .x = &call->tensors[LINEAR_X],
        .n_rows = call->tensors[LINEAR_X].shape[0],
        .in_features = weight->shape[1],
        .input_bytes = input_bytes(weight),
        .panel_bytes = linear_float_panel_bytes(weight, weight->shape[1]),
        .folded = is_folded(weight) ? weight->shape[0] / PANEL : -1,
    };
    int64_t first = call->begin / PANEL, end = ceil_div(call->end, PANEL);
    if (job.n_rows == 0 || call->begin == call->end) return;
    if (job.n_rows == 1) job.row = single_row(&job);
    if (job.n_rows == 1)
        run_row(&job, first, end);
    else if (job.n_rows <= kernels->max_rows)
        run_few(&job, first, end);
    else
        run_many(&job, first, end);
}
