/* Quantised weights times vectors, on the tensor cores: tiles of rows from the ring, and W_down.
 * fragment_kinds.cuh has the product of one fragment.
 */
#pragma once

#include "vm/mega/fragment_kinds.cuh"

/* ---- tiles of 16 rows ------------------------------------------------------------------------ */

enum { OVER_HIDDEN, OVER_HEAD };

MEGA_FN mega_tiles tiles_of(const mega_arguments &a, int over, int kind)
{
    mega_tiles shape = a.tiles[over];
    if (!(MEGA_QUANT_TYPES >> FRAGMENT_BF16 & 1) || kind != FRAGMENT_BF16) return shape;
    shape.across *= 2; /* fragments are half as wide */
    shape.chunks = (shape.across + MEGA_WARPS - 1) / MEGA_WARPS;
    shape.beside = max(shape.beside / 2, 1);
    shape.inverse = (shape.inverse + 1) / 2;
    return shape;
}
/* Whether fragments of rows are dealt to warps one after the other, where chunks of whole tiles
 * would leave warps idle. Not those that are loaded early, or two at once. */
MEGA_FN bool deals_fragments(const mega_tiles &shape, int over, int kind)
{
    return !MEGA_SEVERAL && !(MEGA_QUANT_TYPES >> FRAGMENT_F8 & 1) && over == OVER_HIDDEN &&
           kind != FRAGMENT_Q4_0 && shape.across * shape.beside < MEGA_WARPS;
}
MEGA_FN int tile_slices(const mega_tiles &shape)
{
    return min(shape.across, (int)MEGA_WARPS);
}

/* A fragment's columns of the vector, or W_down's 32 features, as a lane has them. */
template <int KIND, bool OWN_UNITS> struct fragment_vector {
    enum { BLOCKS = fragment<KIND>::BLOCKS };
    uint32_t v[2 * BLOCKS];
    float unit, units[OWN_UNITS ? BLOCKS : 1];
    typename fragment<KIND>::sum_type sums[BLOCKS];

    MEGA_FN void load(const fragment_digits &x, int slice)
    {
#pragma unroll
        for (int j = 0; j < BLOCKS; j += 2)
            load_shared_words(v + 2 * j, x.at + BLOCKS * FRAGMENT_COLUMNS * slice + 32 * j);
        unit = fragment<KIND>::unit() * x.weight;
        if (OWN_UNITS) {
            uint32_t w[4];
            load_shared_words(w, x.units + 16 * slice);
#pragma unroll
            for (int j = 0; j < BLOCKS; j++)
                units[j] = __uint_as_float(w[j]);
        } else {
            unit *= __uint_as_float(load_shared(x.units + 4 * (slice * BLOCKS / FRAGMENT_BLOCKS)));
        }
#pragma unroll
        for (int j = 0; j < BLOCKS; j++)
            sums[j] = fragment<KIND>::sum(v + 2 * j);
    }
};

/* Whether all columns of a fragment are added up as whole numbers: K-quants' rows of the hidden
 * size, where a row's blocks share their factor and x's its unit. */
template <int KIND, bool OWN_UNITS> MEGA_FN constexpr bool adds_blocks()
{
    return !OWN_UNITS && (KIND == FRAGMENT_Q4_K || KIND == FRAGMENT_Q6_K);
}

/* Fragments of a kind that a warp multiplies together, one from each of the next chunks; if there
 * are fewer chunks the last is there more than once. */
template <int KIND, int N> struct fragment_set {
    fragment<KIND> of[N];

    template <bool ADDS_BLOCKS = false>
    MEGA_FN void take(const mega_arguments &a, mega_block &b, int there, int warp)
    {
        ring_place places[N];
#pragma unroll
        for (int n = 0; n < N; n++) {
            places[n] = n ? places[n - 1] : b.place;
            if (n && n < there) places[n].advance(a.stages);
            if (n < there)
                wait_chunk(b.own + a.shared.full + 8 * places[n].stage, places[n].parity);
        }
#pragma unroll
        for (int n = 0; n < N; n++) {
            const uint32_t at =
                b.ring + places[n].stage * stage_bytes(a) + warp * fragment_bytes(KIND);
            if constexpr (ADDS_BLOCKS)
                of[n].load_for_blocks(at, b.lane);
            else
                of[n].load(at, b.lane);
        }
        __syncwarp();
#pragma unroll
        for (int n = 0; n < N; n++)
            if (signals(b) && n < there)
                barrier_arrive(b.own + a.shared.empty + 8 * places[n].stage);
        b.place = places[N - 1];
        b.place.advance(a.stages);
    }
};

/* Sums each of `r` over a group's four lanes; lane t gets r[t % N]. */
template <int N> MEGA_FN float sum_lanes(const float *r, int t)
{
    float s[N / 2];
#pragma unroll
    for (int n = 0; n < N / 2; n++)
        s[n] = (t & 1 ? r[2 * n + 1] : r[2 * n]) +
               __shfl_xor_sync(~0u, t & 1 ? r[2 * n] : r[2 * n + 1], 1);
    if (N == 2) return s[0] + __shfl_xor_sync(~0u, s[0], 2);
    return (t & 2 ? s[N / 2 - 1] : s[0]) + __shfl_xor_sync(~0u, t & 2 ? s[0] : s[N / 2 - 1], 2);
}

/* r += fragments times the vector. */
template <int KIND, bool OWN_UNITS, int N>
MEGA_FN void add_fragments(const fragment_set<KIND, N> &w,
                           const fragment_vector<KIND, OWN_UNITS> &x, float (*r)[2])
{
    float s[N][2];
    if constexpr (adds_blocks<KIND, OWN_UNITS>()) {
#pragma unroll
        for (int n = 0; n < N; n++)
            w.of[n].add_blocks(x.v, x.sums, s[n]);
    } else {
#pragma unroll
        for (int n = 0; n < N; n++)
            s[n][0] = s[n][1] = 0;
#pragma unroll
        for (int j = 0; j < fragment<KIND>::BLOCKS; j++)
#pragma unroll
            for (int n = 0; n < N; n++)
                w.of[n].add(j, x.v + 2 * j, OWN_UNITS ? x.units[OWN_UNITS * j] : 1.0f, x.sums[j],
                            s[n]);
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        r[n][0] = fmaf(s[n][0], x.unit, r[n][0]);
        r[n][1] = fmaf(s[n][1], x.unit * fragment<KIND>::high_unit(), r[n][1]);
    }
}

/* Fragments that are loaded into registers before the vector has come, so that as many more fit
 * into the ring. Only where all matrices of rows have one kind; kernels that sample have no
 * registers left for it. */
template <int KIND, int OVER> MEGA_FN constexpr bool loads_early()
{
    return KIND == FRAGMENT_F8 && OVER == OVER_HIDDEN && !MEGA_CHOOSES;
}
enum { EARLY_FRAGMENTS = MEGA_QUANT_TYPES >> FRAGMENT_F8 & 1 && !MEGA_CHOOSES };
template <bool EARLY> struct early_fragments {
};
template <> struct early_fragments<true> : fragment_set<FRAGMENT_F8, 1> {
};
template <int BLOCKS> struct row_fragments : early_fragments<EARLY_FRAGMENTS> {
};

/* `tiles` tiles of a kind from the ring times the planes at `planes`: sums[slice][first + row].
 * ONE: a tile is no wider than a chunk, so a warp's columns are the same in all tiles. `w`: with
 * loads_early() it has the first fragments, and after the call those that follow, if any do. */
template <int KIND, int OVER, bool ONE, int N>
MEGA_FN void multiply_tiles(const mega_arguments &a, mega_block &b, const mega_tiles &shape,
                            int tiles, uint32_t planes, uint32_t pitch, int first, bool follow,
                            fragment_set<KIND, N> &w)
{
    const bool own_units = OVER == OVER_HEAD, early = loads_early<KIND, OVER>();
    const int at_once = N;
    b.reload();
    int g = b.lane >> 2, t = b.lane & 3, warp = __shfl_sync(~0u, b.warp, 0);
    int tile = warp * shape.inverse >> 8, slice = warp - tile * shape.across;
    bool works = tile < shape.beside;
    /* Which of the tiles multiplied together. */
    int mine = tile + (at_once == 2 ? t >> 1 : 0) * shape.beside;
    int row = first + mine * FRAGMENT_ROWS + g + 8 * (t & 1);
    uint32_t sums = b.own + a.shared.sums + 4 * (slice * a.shared.sum_pitch + row);
    fragment_digits digits = fragment_digits_at(planes, pitch, b.lane);
    fragment_vector<KIND, own_units> x;
    /* Unconditionally: a conditional value would occupy registers everywhere. */
    x.load(digits, slice);
    bool leaves = works && (at_once == 2 || t < 2);
#pragma unroll 1
    for (int i = 0; i < tiles; i += at_once * shape.beside) {
        float r[at_once][2];
#pragma unroll
        for (int n = 0; n < at_once; n++)
            r[n][0] = r[n][1] = 0;
        float scale = 1;
#pragma unroll 1
        for (int k = 0; k < (ONE ? 1 : shape.chunks); k++) {
            if (!ONE) x.load(digits, k * MEGA_WARPS + slice);
            if (!early)
                w.template take<adds_blocks<KIND, own_units>()>(
                    a, b, at_once == 2 && i + shape.beside >= tiles ? 1 : at_once, warp);
            if (works && (ONE || k * MEGA_WARPS + slice < shape.across))
                add_fragments<KIND, own_units>(w, x, r);
            scale = w.of[0].row_scale();
            if (early && (follow || i + shape.beside < tiles || (!ONE && k + 1 < shape.chunks)))
                w.take(a, b, 1, warp);
        }
        float sum = sum_lanes<2 * at_once>(r[0], t) * scale;
        if (leaves && i + mine < tiles) store_shared(sums + 4 * FRAGMENT_ROWS * i, sum);
    }
}

/* The same for fragments that are dealt: a warp's tile and slice change from chunk to chunk. */
template <int KIND>
MEGA_FN void multiply_dealt(const mega_arguments &a, mega_block &b, const mega_tiles &shape,
                            int tiles, uint32_t planes, uint32_t pitch, int first)
{
    b.reload();
    const int g = b.lane >> 2, t = b.lane & 3, warp = __shfl_sync(~0u, b.warp, 0);
    const int further = MEGA_WARPS - shape.beside * shape.across;
    const fragment_digits digits = fragment_digits_at(planes, pitch, b.lane);
    int tile = warp * shape.inverse >> 8, slice = warp - tile * shape.across;
    fragment_vector<KIND, false> x;
    fragment_set<KIND, 1> w;
#pragma unroll 1
    for (int left = tiles * shape.across; left > 0; left -= MEGA_WARPS) {
        float r[1][2] = {{0, 0}};
        x.load(digits, slice);
        w.template take<adds_blocks<KIND, false>()>(a, b, 1, warp);
        add_fragments<KIND, false>(w, x, r);
        const int row = first + tile * FRAGMENT_ROWS + g + 8 * (t & 1);
        const float sum = sum_lanes<2>(r[0], t);
        if (t < 2 && tile < tiles)
            store_shared(b.own + a.shared.sums + 4 * (slice * a.shared.sum_pitch + row), sum);
        tile += shape.beside, slice += further;
        if (slice >= shape.across) tile++, slice -= shape.across;
    }
}

template <int KIND, int OVER>
MEGA_FN void multiply_tiles_of_kind(const mega_arguments &a, mega_block &b, int tiles,
                                    uint32_t planes, uint32_t pitch, int first, bool follow,
                                    fragment_set<KIND, 1> &one)
{
    mega_tiles shape = tiles_of(a, OVER, KIND);
    if (deals_fragments(shape, OVER, KIND))
        return multiply_dealt<KIND>(a, b, shape, tiles, planes, pitch, first);
    fragment_set<KIND, fragment<KIND>::AT_ONCE> several;
    if (OVER == OVER_HEAD || (shape.chunks == 1 && fragment<KIND>::AT_ONCE == 1))
        multiply_tiles<KIND, OVER, true>(a, b, shape, tiles, planes, pitch, first, follow, one);
    else if (shape.chunks == 1)
        multiply_tiles<KIND, OVER, true>(a, b, shape, tiles, planes, pitch, first, follow, several);
    else
        multiply_tiles<KIND, OVER, false>(a, b, shape, tiles, planes, pitch, first, follow, one);
}

template <int KIND, int OVER>
MEGA_FN void multiply_tiles_of_kind(const mega_arguments &a, mega_block &b, int tiles,
                                    uint32_t planes, uint32_t pitch, int first)
{
    fragment_set<KIND, 1> one;
    multiply_tiles_of_kind<KIND, OVER>(a, b, tiles, planes, pitch, first, false, one);
}

/* But for kinds that load early. */
template <int OVER>
MEGA_FN void multiply_tiles_of(const mega_arguments &a, mega_block &b, int kind, int tiles,
                               uint32_t planes, uint32_t pitch, int first)
{
    if (is_kind<FRAGMENT_Q8_0>(kind))
        multiply_tiles_of_kind<FRAGMENT_Q8_0, OVER>(a, b, tiles, planes, pitch, first);
    else if (is_kind<FRAGMENT_Q4_0>(kind))
        multiply_tiles_of_kind<FRAGMENT_Q4_0, OVER>(a, b, tiles, planes, pitch, first);
    else if (is_kind<FRAGMENT_Q4_1>(kind))
        multiply_tiles_of_kind<FRAGMENT_Q4_1, OVER>(a, b, tiles, planes, pitch, first);
    else if (is_kind<FRAGMENT_Q4_K>(kind))
        multiply_tiles_of_kind<FRAGMENT_Q4_K, OVER>(a, b, tiles, planes, pitch, first);
    else if (is_kind<FRAGMENT_Q6_K>(kind))
        multiply_tiles_of_kind<FRAGMENT_Q6_K, OVER>(a, b, tiles, planes, pitch, first);
    else if (!loads_early<FRAGMENT_F8, OVER>() && is_kind<FRAGMENT_F8>(kind))
        multiply_tiles_of_kind<FRAGMENT_F8, OVER>(a, b, tiles, planes, pitch, first);
    else if (OVER == OVER_HIDDEN && is_kind<FRAGMENT_BF16>(kind))
        multiply_tiles_of_kind<FRAGMENT_BF16, OVER_HIDDEN>(a, b, tiles, planes, pitch, first);
}

/* Tiles of an entry that are contiguous in one matrix. */
struct tile_run {
    int matrix, first, tiles;
};

/* The run that begins at tile `tile` of `tiles`: all of them, or for QKV those of q, k or v. */
template <int DIM>
MEGA_FN tile_run tile_run_from(const mega_arguments &a, const mega_entry &e, int matrix, int tile,
                               int tiles)
{
    int begin = e.in.units.begin;
    if (e.in.opcode != MEGA_QKV) return {matrix, begin / FRAGMENT_ROWS + tile, tiles - tile};
    qkv_pair p = qkv_pair_at<DIM>(a, begin + tile * (FRAGMENT_ROWS / 2));
    int heads = p.kind == PAIR_QUERY ? a.group - p.member : 1;
    int left = heads * (DIM / FRAGMENT_ROWS) - p.pair / (FRAGMENT_ROWS / 2);
    return {p.kind, p.head * (DIM / FRAGMENT_ROWS) + p.pair / (FRAGMENT_ROWS / 2),
            min(left, tiles - tile)};
}

/* The first fragments of `tiles` tiles of 8 rows of the entry's first matrix, if such fragments are
 * loaded early. */
template <int BLOCKS>
MEGA_FN void take_early(const mega_arguments &a, mega_block &b, int tiles, row_fragments<BLOCKS> &w)
{
    if constexpr (EARLY_FRAGMENTS)
        if (tiles > 0 && b.current().weights.kinds[0] == FRAGMENT_F8)
            w.take(a, b, 1, __shfl_sync(~0u, b.warp, 0));
}

/* `tiles` tiles of 8 rows of an entry's matrix, as in product.cuh. */
template <int DIM, int BLOCKS>
MEGA_FN void multiply_rows(const mega_arguments &a, mega_block &b, const mega_entry &e, int matrix,
                           int tiles, int first, int next, row_fragments<BLOCKS> &w)
{
    tiles = (tiles + 1) / 2;
#pragma unroll 1
    for (int tile = 0; tile < tiles;) {
        tile_run run = tile_run_from<DIM>(a, e, matrix, tile, tiles);
        const int kind = e.weights.kinds[run.matrix], row = first + tile * FRAGMENT_ROWS;
        const uint32_t planes = b.own + a.shared.planes;
        tile += run.tiles;
        if constexpr (EARLY_FRAGMENTS) {
            if (kind == FRAGMENT_F8) {
                multiply_tiles_of_kind<FRAGMENT_F8, OVER_HIDDEN>(
                    a, b, run.tiles, planes, a.shared.plane, row, tile < tiles || next > 0, w);
                continue;
            }
        }
        multiply_tiles_of<OVER_HIDDEN>(a, b, kind, run.tiles, planes, a.shared.plane, row);
    }
}

/* Parts of a row's sum. */
MEGA_FN int row_slices(const mega_arguments &a, const mega_entry &e, int matrix)
{
    return tile_slices(tiles_of(a, OVER_HIDDEN, e.weights.kinds[matrix]));
}

/* A KV head's columns of W_o times the outputs of its heads: sums[slice of columns][row]. */
template <int DIM>
MEGA_FN int product_heads(const mega_arguments &a, mega_block &b, const mega_entry &e, int rows)
{
    multiply_tiles_of<OVER_HEAD>(a, b, e.weights.kinds[0],
                                 (rows + FRAGMENT_ROWS - 1) / FRAGMENT_ROWS, b.own + a.shared.heads,
                                 a.shared.head_plane, 0);
    return tile_slices(tiles_of(a, OVER_HEAD, e.weights.kinds[0]));
}

/* ---- W_down ---------------------------------------------------------------------------------- */

/* The scales of rows `row` and 32 further, which lie before the fragments at `matrix`: 1 where each
 * fragment has its own. They are loaded while the fragments are on their way. */
template <int KIND> MEGA_FN float2 scales_before(const mega_arguments &a, uint64_t matrix, int row)
{
    if (KIND != FRAGMENT_F8_DOWN) return make_float2(1, 1);
    const float *scales = (const float *)matrix - a.hidden;
    return make_float2(row < a.hidden ? load_early(scales + row) : 0,
                       row + 32 < a.hidden ? load_early(scales + row + 32) : 0);
}

/* Outputs [first, first + 2048) of the features, 32 features at a time, to out[2048]. */
template <int KIND>
MEGA_FN void add_features(const mega_arguments &a, mega_block &b, uint64_t matrix, int groups,
                          int first, float *out)
{
    const int each = FRAGMENT_ROWS * FRAGMENT_BLOCKS, at_once = fragment<KIND>::AT_ONCE;
    b.reload();
    int g = b.lane >> 2, t = b.lane & 3, warp = __shfl_sync(~0u, b.warp, 0);
    fragment_digits digits =
        fragment_digits_at(b.own + a.shared.features, a.shared.feature_plane, b.lane);
    float unit_of_lane = fragment<KIND>::unit() * digits.weight;
#pragma unroll 1
    for (int from = first; from < min(a.hidden, first + MEGA_COLUMNS); from += MEGA_WARPS * each) {
        const int row = from + warp * each + (t >> 1) * FRAGMENT_ROWS + g + 8 * (t & 1);
        const float2 scales = scales_before<KIND>(a, matrix, row);
        float r[FRAGMENT_BLOCKS][2];
#pragma unroll
        for (int j = 0; j < FRAGMENT_BLOCKS; j++)
            r[j][0] = r[j][1] = 0;
#pragma unroll 1
        for (int group = 0; group < groups; group += at_once) {
            int there = min(at_once, groups - group);
            uint32_t v[at_once][2];
            float unit[at_once];
#pragma unroll
            for (int n = 0; n < at_once; n++) {
                int which = group + min(n, there - 1);
                load_shared_8(v[n], digits.at + (which >> 1) * 64 + (which & 1) * 8);
                unit[n] = unit_of_lane * __uint_as_float(load_shared(digits.units + 4 * which));
                if (n >= there) unit[n] = 0;
            }
            fragment_set<KIND, at_once> w;
            w.take(a, b, there, warp);
#pragma unroll
            for (int n = 0; n < at_once; n++) {
                auto sum = fragment<KIND>::sum(v[n]);
#pragma unroll
                for (int j = 0; j < FRAGMENT_BLOCKS; j++)
                    w.of[n].add(j, v[n], unit[n], sum, r[j]);
            }
        }
#pragma unroll
        for (int j = 0; j < FRAGMENT_BLOCKS; j += 2) {
            r[j][1] *= fragment<KIND>::high_unit();
            r[j + 1][1] *= fragment<KIND>::high_unit();
            float sum = sum_lanes<4>(r[j], t) * (j ? scales.y : scales.x);
            int o = row + j * FRAGMENT_ROWS;
            if (o < a.hidden) out[o - first] = sum;
        }
    }
}

/* What `rows` features add to the outputs from `first` on, as in product.cuh. */
template <int BLOCKS>
MEGA_FN void product_transposed(const mega_arguments &a, mega_block &b, const mega_entry &e,
                                int rows, int first, float *out)
{
    const int places = features_lead(e.in.units.begin) + rows, kind = e.weights.kinds[2];
    const int groups = (places + FRAGMENT_COLUMNS - 1) / FRAGMENT_COLUMNS;
    if (is_kind<FRAGMENT_Q8_0>(kind))
        add_features<FRAGMENT_Q8_0>(a, b, e.weights.matrix[2], groups, first, out);
    else if (is_kind<FRAGMENT_Q4_0>(kind))
        add_features<FRAGMENT_Q4_0>(a, b, e.weights.matrix[2], groups, first, out);
    else if (is_kind<FRAGMENT_Q4_1>(kind))
        add_features<FRAGMENT_Q4_1>(a, b, e.weights.matrix[2], groups, first, out);
    else if (is_kind<FRAGMENT_Q4_K>(kind))
        add_features<FRAGMENT_Q4_K>(a, b, e.weights.matrix[2], groups, first, out);
    else if (is_kind<FRAGMENT_Q6_K>(kind))
        add_features<FRAGMENT_Q6_K>(a, b, e.weights.matrix[2], groups, first, out);
    else if (is_kind<FRAGMENT_F8_DOWN>(kind))
        add_features<FRAGMENT_F8_DOWN>(a, b, e.weights.matrix[2], groups, first, out);
    __syncwarp();
}
