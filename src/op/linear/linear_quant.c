/* linear for quantised weights: packing, and the order of the work; see linear_quant.h.
 *
 * With few rows of x a group of 16 weight rows streams from memory through the registers once, and
 * each block meets all rows. With more rows, x is divided into panels that stay in L2; for every
 * group a chunk is unpacked to bytes once and multiplied with all tiles of the panel. The chunks'
 * sums stay in memory as float32, so that both ways add in the same order.
 */
#include "op/linear/linear_quant.h"

#include "base/buffer.h"
#include "base/checked.h"
#include "op/linear/linear.h"
#include "op/linear/linear_quant_part.h"
#include "op/linear/linear_rows.h"
#include "op/linear/transpose.h"

#include <assert.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { PANEL_BYTES = 1 << 20 }; /* of rounded x: half of a usual L2 */

/* Twice the norm's error for normally distributed x, and six of its standard deviations for the
 * worst element. */
const op_tolerance linear_quant_tolerances_8[] = {
    {DTYPE_F32, 1e-2, 3e-2}, {DTYPE_BF16, 1.3e-2, 4e-2}, {0}};
const op_tolerance linear_quant_tolerances_16[] = {
    {DTYPE_F32, 5e-5, 2e-4}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

static const quant_format *format_of(dtype type)
{
    for (int i = 0; i < QUANT_N_FORMATS; i++) {
        if (quant_formats[i].type == type) return &quant_formats[i];
    }
    return NULL;
}

bool linear_quant_accepts(const op_call *call)
{
    const tensor *weight = &call->tensors[LINEAR_WEIGHT];
    if (!format_of(weight->type) || weight->shape[1] == 0) return false;
    return linear_takes_rows(call);
}

/* ---- Packing ------------------------------------------------------------------------------- */

size_t linear_quant_packed_bytes(const op_call *call)
{
    const tensor *weight = &call->tensors[LINEAR_WEIGHT];
    int64_t n_groups = (weight->shape[0] + QUANT_ROWS - 1) / QUANT_ROWS;
    return (size_t)n_groups *
           quant_group_bytes(format_of(weight->type), weight->shape[1] / QUANT_BLOCK);
}

/* Bit i of `bits` to bit 8 * (i % 4) + i / 4. */
static uint32_t spread_high_bits(uint32_t bits)
{
    uint32_t out = 0;
    for (int s = 0; s < 8; s++) /* the multiplication makes copies of a nibble 7 bits apart */
        out |= ((bits >> (4 * s) & 15) * 0x204081u & 0x01010101u) << s;
    return out;
}

/* Copies a stored block of four rows, from row r of a group on, to their lanes. */
INLINE void pack_blocks(const quant_format *f, const char *const blocks[4], int r, uint16_t *halves,
                        uint32_t *words)
{
    const size_t from = f->halves_at ? 0 : (size_t)(f->bytes - 4 * f->words);
    const int squares = f->words / 4;
    for (int i = 0; i < 4; i++) {
        for (int h = 0; h < f->halves; h++)
            memcpy(&halves[h * QUANT_ROWS + r + i], blocks[i] + f->halves_at + 2 * h,
                   sizeof *halves);
        for (int w = squares * 4; w < f->words; w++)
            memcpy(&words[w * QUANT_ROWS + r + i], blocks[i] + from + 4 * (size_t)w, sizeof *words);
    }
    for (int w = 0; w < squares; w++)
        transpose_square(blocks, from + 16 * (size_t)w, words + w * 4 * QUANT_ROWS + r, QUANT_ROWS);
    for (int i = r; i < r + 4 && f->words == 5; i++) /* Q5_0, Q5_1 */
        words[i] = spread_high_bits(words[i]);
}

INLINE void pack_group(const quant_format *f, const tensor *weight, int64_t first, uint8_t *group)
{
    int64_t n_blocks = weight->shape[1] / QUANT_BLOCK, n_stored = n_blocks / f->blocks;
    int64_t rows = weight->shape[0] - first < QUANT_ROWS ? weight->shape[0] - first : QUANT_ROWS;
    static const char zeros[256]; /* a stored block of a row that is not there */
    uint16_t *halves = (uint16_t *)group;
    uint32_t *words = (uint32_t *)(group + quant_halves_bytes(f, n_blocks));
    const char *from[QUANT_ROWS];
    for (int r = 0; r < QUANT_ROWS; r++)
        from[r] = r < rows ? tensor_row(weight, first + r) : zeros;
    for (int64_t b = 0; b < n_stored; b++) {
        for (int r = 0; r < QUANT_ROWS; r += 4)
            pack_blocks(f, from + r, r, halves, words);
        for (int r = 0; r < rows; r++)
            from[r] += f->bytes;
        halves += f->halves * QUANT_ROWS;
        words += f->words * QUANT_ROWS;
    }
    memset(halves, 0, (size_t)((char *)(group + quant_halves_bytes(f, n_blocks)) - (char *)halves));
}

/* A function for each format, so that its numbers are constants there. */
#define X(NAME, name, ...)                                                                         \
    static void pack_##name(const tensor *weight, int64_t first, uint8_t *group)                   \
    {                                                                                              \
        pack_group(&quant_formats[QUANT_##NAME], weight, first, group);                            \
    }
QUANT_FORMATS(X)
#undef X

typedef void group_packing(const tensor *weight, int64_t first, uint8_t *group);

static group_packing *const packings[QUANT_N_FORMATS] = {
#define X(NAME, name, ...) pack_##name,
    QUANT_FORMATS(X)
#undef X
};

void linear_quant_pack(const op_call *call, void *packed)
{
    const tensor *weight = &call->tensors[LINEAR_WEIGHT];
    const quant_format *f = format_of(weight->type);
    group_packing *pack_group_of = packings[f - quant_formats];
    size_t group_bytes = quant_group_bytes(f, weight->shape[1] / QUANT_BLOCK);
    assert(call->begin % QUANT_ROWS == 0 || call->begin == call->end);
    buffer_populate(tensor_row(weight, call->begin),
                    (size_t)(call->end - call->begin) * (size_t)weight->stride[0]);
    for (int64_t first = call->begin; first < call->end; first += QUANT_ROWS)
        pack_group_of(weight, first,
                      (uint8_t *)packed + (size_t)(first / QUANT_ROWS) * group_bytes);
}

/* ---- Running ------------------------------------------------------------------------------- */

/* A slice's scratch, for panels of `rows` rows in tiles of `height`; few rows are one tile. */
typedef struct work {
    const quant_format *format;
    int digits;         /* of x: see quant_x */
    int64_t n_blocks;   /* of 32, in a row */
    size_t group_bytes; /* of packed weights */
    int64_t rows;       /* of a whole panel: a multiple of `height` */
    bool is_few;
    int height;
    quant_x x;
    float *sums;    /* (rows, 2, 16) */
    uint8_t *bytes; /* (2, QUANT_CHUNK, 8, 16, 4) */
    float *scales;  /* (2, QUANT_CHUNK, quant_scale_floats) */
    float *row;     /* (in_features): of x, if it is not float32 */
} work;

/* The next `bytes` of the memory at `base`; NULL while they are only counted. */
static void *take(char *base, size_t *used, size_t bytes)
{
    void *taken = base ? base + *used : NULL;
    *used += round_up(bytes, 64);
    return taken;
}

/* Lays out the scratch at `base`, which may be NULL, and returns its bytes. Up to `few` rows are a
 * tile of their own height, if they are no more than a panel of the largest batch has. */
static size_t work_lay_out(work *work, const op_call *call, int digits, int few, void *base)
{
    const tensor *weight = &call->tensors[LINEAR_WEIGHT];
    int64_t n_rows = call->tensors[LINEAR_X].shape[0], in_features = weight->shape[1];
    int64_t fit = PANEL_BYTES / digits / in_features / QUANT_TILE * QUANT_TILE;
    int64_t tiles = (n_rows + QUANT_TILE - 1) / QUANT_TILE * QUANT_TILE;
    if (fit < QUANT_TILE) fit = QUANT_TILE;
    work->format = format_of(weight->type);
    work->digits = digits;
    work->n_blocks = in_features / QUANT_BLOCK;
    work->group_bytes = quant_group_bytes(work->format, work->n_blocks);
    work->is_few = n_rows <= few && n_rows <= fit;
    work->height = work->is_few ? (int)n_rows : QUANT_TILE;
    work->rows = work->is_few ? n_rows : fit < tiles ? fit : tiles;

    size_t used = 0, blocks = (size_t)(work->rows * work->n_blocks);
    size_t groups = (size_t)work->format->groups, rows = (size_t)work->rows;
    size_t scale_floats = (size_t)quant_scale_floats(work->format);
    work->x.q = take(base, &used, blocks * QUANT_BLOCK * (size_t)digits);
    work->x.d = take(base, &used, blocks * sizeof(float));
    work->x.c = take(base, &used, blocks * groups * sizeof(float));
    work->sums = take(base, &used, rows * QUANT_SUMS * sizeof(float));
    work->bytes = take(base, &used, QUANT_PAIR * QUANT_CHUNK_BYTES);
    work->scales = take(base, &used, QUANT_PAIR * QUANT_CHUNK * scale_floats * sizeof(float));
    const bool wide = call->tensors[LINEAR_X].type == DTYPE_F32;
    work->row = take(base, &used, wide ? 0 : (size_t)in_features * sizeof(float));
    return used;
}

size_t linear_quant_scratch_bytes_8(const op_call *call)
{
    work work;
    return work_lay_out(&work, call, 1, 0, NULL);
}

size_t linear_quant_scratch_bytes_16(const op_call *call)
{
    work work;
    return work_lay_out(&work, call, 2, 0, NULL);
}

/* The rounded x of a panel's rows from `row` (its tile's first, or any during rounding) and `block`
 * on. */
static quant_x x_at(const work *work, int64_t row, int64_t block)
{
    int64_t groups = work->format->groups, height = work->height, r = row % height;
    int64_t at = (row - r) * work->n_blocks + block * height;
    return (quant_x){.q = work->x.q + (at * work->digits + r) * QUANT_BLOCK,
                     .d = work->x.d + at + r,
                     .c = (float *)work->x.c + at * groups + r};
}

/* A slice at work: rows [first, first + rows) of x, features [from, to) of one or two groups. */
typedef struct part {
    const op_call *call;
    const quant_kernels *kernels;
    int64_t first, rows, from, to;
    const uint8_t *group;
    int n_groups;
} part;

/* Writes `rows` rows of out from `row` of the panel on. */
static void store(const work *work, const part *part, int64_t row, int rows)
{
    const op_call *call = part->call;
    const float *bias = call->tensors[LINEAR_BIAS].rank ? call->tensors[LINEAR_BIAS].data : NULL;
    const tensor *residual = &call->tensors[LINEAR_RESIDUAL];
    int64_t n = part->to - part->from, at = row * QUANT_SUMS + part->from % QUANT_ROWS;
    for (int64_t r = part->first + row; rows > 0; rows--, r++, at += QUANT_SUMS) {
        float *sums = work->sums + at;
        for (int64_t i = 0; bias && i < n; i++)
            sums[i] += bias[part->from + i];
        if (residual->rank) {
            float room[QUANT_SUMS];
            const float *add = linear_row_floats(residual, r, part->from, n, room);
            for (int64_t i = 0; i < n; i++)
                sums[i] += add[i];
        }
        linear_row_store(&call->tensors[LINEAR_OUT], r, part->from, n, sums);
    }
}

/* Prefetches the lines of out that store() will write: rows of out are often a power of two apart,
 * and without the prefetch each write waits for its line. */
static void fetch_out(const part *part, int64_t row, int rows)
{
    const tensor *out = &part->call->tensors[LINEAR_OUT];
    for (int64_t r = part->first + row; rows > 0; rows--, r++) {
        __builtin_prefetch(linear_row_at(out, r, part->from), 1);
        __builtin_prefetch(linear_row_at(out, r, part->to - 1), 1);
    }
}

static void run_few(const work *work, const part *part)
{
    int format = (int)(work->format - quant_formats), digits = work->digits;
    int rows = (int)part->rows;
    for (int g = 0; g < part->n_groups; g++) {
        const uint8_t *group = part->group + (size_t)g * work->group_bytes;
        float *sums = work->sums + g * QUANT_ROWS;
        if (rows == 1)
            part->kernels->of[format].vector[digits - 1](group, work->n_blocks, work->x, sums);
        else
            part->kernels->of[format].few[digits - 1](group, work->n_blocks, work->x, rows, sums);
    }
    store(work, part, 0, rows);
}

static void run_panel(const work *work, const part *part)
{
    int format = (int)(work->format - quant_formats), shape = quant_shape_of(work->format);
    int scale_floats = QUANT_CHUNK * quant_scale_floats(work->format);
    for (int64_t block = 0, end; block < work->n_blocks; block = end) {
        end = block + QUANT_CHUNK < work->n_blocks ? block + QUANT_CHUNK : work->n_blocks;
        for (int g = 0; g < part->n_groups; g++)
            part->kernels->of[format].unpack(part->group + (size_t)g * work->group_bytes,
                                             work->n_blocks, block, (int)(end - block),
                                             work->bytes + g * QUANT_CHUNK_BYTES,
                                             work->scales + g * scale_floats);
        for (int64_t row = 0; row < part->rows; row += QUANT_TILE) {
            int rows = part->rows - row < QUANT_TILE ? (int)(part->rows - row) : QUANT_TILE;
            float *sums = work->sums + row * QUANT_SUMS;
            if (block == 0) memset(sums, 0, (size_t)rows * QUANT_SUMS * sizeof *sums);
            if (end == work->n_blocks) fetch_out(part, row, rows);
            part->kernels->tile[shape][work->digits - 1](
                work->format->offset, work->bytes, work->scales, (int)(end - block),
                x_at(work, row, block), rows, part->n_groups, sums);
            /* Tile by tile, so that the writes of one tile overlap the arithmetic of the next. */
            if (end == work->n_blocks) store(work, part, row, rows);
        }
    }
}

static void run(const op_call *call, const quant_kernels *kernels, int digits)
{
    const tensor *x = &call->tensors[LINEAR_X];
    work work;
    work_lay_out(&work, call, digits, kernels->few_rows, call->scratch);

    const bool tiles = !work.is_few; /* few rows need no tile registers */
    if (kernels->begin && tiles) kernels->begin(work.format);
    for (int64_t first = 0; first < x->shape[0]; first += work.rows) {
        part part = {.call = call, .kernels = kernels, .first = first};
        part.rows = x->shape[0] - first < work.rows ? x->shape[0] - first : work.rows;
        const bool kept = call->scratch_kept && part.rows == x->shape[0];
        for (int64_t row = 0; row < part.rows && !kept; row++)
            kernels->round[digits - 1](work.format,
                                       linear_row_floats(x, first + row, 0, x->shape[1], work.row),
                                       work.n_blocks, work.height, x_at(&work, row, 0));
        for (part.from = call->begin; part.from < call->end; part.from = part.to) {
            int64_t group = part.from / QUANT_ROWS;
            part.to = (group + QUANT_PAIR) * QUANT_ROWS;
            if (part.to > call->end) part.to = call->end;
            part.group = (const uint8_t *)call->packed + (size_t)group * work.group_bytes;
            part.n_groups = part.to - group * QUANT_ROWS > QUANT_ROWS ? 2 : 1;
            if (work.is_few)
                run_few(&work, &part);
            else
                run_panel(&work, &part);
        }
    }
    if (kernels->end && tiles) kernels->end();
}

#define KERNELS(name, ...)                                                                         \
    void linear_quant_##name##_8(const op_call *call)                                              \
    {                                                                                              \
        run(call, &quant_kernels_##name, 1);                                                       \
    }                                                                                              \
    void linear_quant_##name##_16(const op_call *call)                                             \
    {                                                                                              \
        run(call, &quant_kernels_##name, 2);                                                       \
    }
LINEAR_QUANT_LEVELS(KERNELS)
