/* The producer warp walks the block's queue before the consumers and fills the ring, so that
 * weights are there, or in flight, when a wait for activations ends.
 *
 * While the ring is full a prefetch warp goes on: it walks the same queue and requests 16 bytes of
 * every 256, which brings all 256 into L2, one chunk at a time.
 */
#pragma once

#include "vm/mega/attention.cuh"
#include "vm/mega/weights.cuh"

enum {
    REQUESTED_AT = 64
    /* Bytes after mega_flow's begin: the number of chunks that the ring has requested; then a sink
     * for prefetched bytes. */
};
static_assert(sizeof(mega_flow) <= REQUESTED_AT, "in the same 128 bytes");

/* Forces the compiler to compute both addresses here, not later. */
MEGA_FN void computed_now(uint32_t to, const void *from)
{
    asm volatile("" ::"r"(to), "l"(from));
}

struct mega_fetch {
    ring_place place, arrived;
    uint32_t ring, full, empty;
    int stages, lane, in_flight;
    uint64_t policy;
    uint32_t begun; /* mbarrier: a phase for each pass that the block begins */
    int index;      /* of the pass in this launch */
    const mega_arguments &a;
    fetch_timing timing;
    /* Prefetches: this is the prefetch warp; wanted: it requests the current chunk. */
    bool prefetches, wanted;
    int chunk; /* number of the current chunk, from 1 */

    /* The block runs no further pass. */
    MEGA_FN bool stops() const
    {
        return load_shared(begun + (uint32_t)offsetof(mega_flow, stop)) != 0;
    }

    /* Ends the warp when the last `n` chunks have come: no copy may be in flight to a block that
     * has ended. */
    MEGA_FN void exit_warp(int n)
    {
        for (; n > 0; n--) {
            barrier_wait(full + 8 * arrived.stage, arrived.parity);
            arrived.advance(stages);
        }
        copies_arrived<0>();
        asm volatile("exit;");
    }

    MEGA_FN void wait_phase(int pass)
    {
        bool over = false;
        while (!over && !barrier_try(begun, pass & 1))
            over = MEGA_STOPPABLE && stops();
        if (MEGA_STOPPABLE && __any_sync(~0u, over)) exit_warp(in_flight);
    }
    /* An mbarrier distinguishes two phases. A block whose ring holds the weights of a whole pass is
     * therefore never more than one pass ahead. */
    MEGA_FN void begin_pass()
    {
        if (!prefetches && index > 0) wait_phase(index - 1);
    }
    /* The cache holds what other blocks stored in the pass before with ordinary stores. */
    MEGA_FN void wait_begun()
    {
        if (prefetches) return;
        wait_phase(index);
        __threadfence();
        fence_async();
    }

    /* Waits for a free stage and arms its barrier; then, if enough copies are in flight, waits for
     * the oldest, so that only the copy itself is left to do. Two copies per block keep the memory
     * system busy: one is always in flight when another ends. */
    MEGA_FN void begin(int bytes)
    {
        chunk++;
        if (prefetches) return begin_prefetch();
        timing.begin(a);
        uint32_t room = empty + 8 * place.stage;
        bool over = false;
        while (!over && !barrier_try(room, place.parity))
            over = MEGA_STOPPABLE && stops(); /* the consumer warps watch the time */
        if (lane == 0 && !over) barrier_expect(barrier(), bytes);
        if (MEGA_STOPPABLE && __any_sync(~0u, over)) exit_warp(in_flight);
        __syncwarp();
        timing.end(a, &timing.room);
        if (in_flight ==
            (stage_bytes(a) < MEGA_SMALL_STAGE ? MEGA_IN_FLIGHT_SMALL : MEGA_IN_FLIGHT)) {
            ring_place oldest = arrived;
            arrived.advance(stages);
            wait_chunk(full + 8 * oldest.stage, oldest.parity);
        } else {
            in_flight++;
        }
        timing.end(a, &timing.memory);
    }
    /* Waits for its own last requests, and until the ring is near enough. */
    MEGA_FN void begin_prefetch()
    {
        copies_arrived<0>();
        for (;;) {
            int ahead = chunk - (int)__shfl_sync(~0u, load_shared(begun + REQUESTED_AT), 0);
            wanted = ahead >= MEGA_PREFETCH_FROM;
            if (ahead <= MEGA_PREFETCH_TO) return;
            if (MEGA_STOPPABLE && __any_sync(~0u, stops())) exit_warp(0);
            __nanosleep(100);
        }
    }
    /* Copies a part of a chunk. Both addresses must be known before begin(). */
    MEGA_FN void copy(uint32_t to, const void *from, int bytes)
    {
        if (!prefetches)
            copy_bytes(to, from, bytes, barrier(), policy);
        else if (wanted)
            for (int i = 0; i < bytes; i += 256)
                copy_16_of_256(begun + REQUESTED_AT + 16, (const char *)from + i);
    }
    MEGA_FN uint32_t stage() const { return ring + place.stage * stage_bytes(a); }
    /* Where rows of weights begin in the stage: see multiply_batch(). */
    MEGA_FN uint32_t stage_of_rows() const
    {
        return stage() + (MEGA_SEVERAL ? (place.stage & 1) * MEGA_SHIFT : 0);
    }
    MEGA_FN uint32_t barrier() const { return full + 8 * place.stage; }
    MEGA_FN void end()
    {
        if (prefetches) return copies_commit();
        place.advance(stages);
        if (lane == 0) store_shared(begun + REQUESTED_AT, __int_as_float(chunk));
    }

    /* A chunk that is contiguous in memory. */
    MEGA_FN void piece(const void *from, int bytes)
    {
        begin(bytes);
        if (prefetches) {
            if (wanted)
                for (int i = lane * 256; i < bytes; i += 32 * 256)
                    copy_16_of_256(begun + REQUESTED_AT + 16, (const char *)from + i);
        } else if (lane == 0 && bytes > 0) {
            copy_bytes(stage_of_rows(), from, bytes, barrier(), policy);
        }
        end();
    }
    /* Twice four rows of so many bytes, each from a lane, in CHUNKS chunks. `together`: four rows
     * are contiguous and are one copy. */
    template <int CHUNKS> MEGA_FN void quads(const uint16_t *row, bool together, int bytes)
    {
        const int rows = MEGA_TILE / CHUNKS;
        const bool copies = lane < MEGA_TILE && (lane % 4 == 0 || !together);
#pragma unroll 1
        for (int i = 0; i < CHUNKS; i++) {
            uint32_t to = stage_of_rows() + lane % rows * bytes;
            computed_now(to, row);
            begin(rows * bytes);
            if (copies && lane / rows == i) copy(to, row, together ? 4 * bytes : bytes);
            end();
        }
    }
    /* A tile of rows of two halves, one from each lane: the first halves of all rows come before
     * the second ones. The last of the rows may be missing. */
    MEGA_FN void halves(const uint16_t *row, int rows)
    {
#pragma unroll 1
        for (int chunk = 0; chunk < 4; chunk++) {
            const int first = chunk % 2 * 4, here = max(min(4, rows - first), 0);
            const uint32_t to = stage() + lane % 4 * MEGA_HALF_ROW;
            const char *at = (const char *)row + chunk / 2 * MEGA_HALF_ROW;
            computed_now(to, at);
            begin(here * MEGA_HALF_ROW);
            if (lane >= first && lane < first + here) copy(to, at, MEGA_HALF_ROW);
            end();
        }
    }
    /* `n` rows of so many bytes from row `begin` on, in whole tiles, `each` rows per chunk. PITCH:
     * bytes from row to row in a stage; 0: as in memory. Contiguous rows are one copy, which memory
     * answers faster than one copy per row. */
    template <int PITCH>
    MEGA_FN void rows(uint64_t matrix, int64_t begin, int n, int bytes, int each)
    {
        const char *from = (const char *)matrix + (begin + (PITCH ? lane : 0)) * bytes;
        for (int row = 0; row < n || row % MEGA_TILE; row += each) {
            const char *at = from + (int64_t)row * bytes;
            int here = max(min(each, n - row), 0);
            if (!PITCH) {
                piece(at, here * bytes);
                continue;
            }
            uint32_t to = stage() + lane * PITCH;
            computed_now(to, at);
            this->begin(here * bytes);
            if (lane < here) copy(to, at, bytes);
            end();
        }
    }
};

#if MEGA_QUANT_TYPES

/* Tiles [first, first + tiles) of a matrix, or of a KV head's columns of one. */
MEGA_FN void fetch_tiles(mega_fetch &f, uint64_t matrix, int kind, int over, int64_t first,
                         int tiles)
{
    mega_tiles shape = tiles_of(f.a, over, kind);
    const char *at = (const char *)matrix + first * shape.across * fragment_bytes(kind);
    if (deals_fragments(shape, over, kind)) {
        shape.beside = MEGA_WARPS; /* as if tiles were one fragment wide */
        tiles *= shape.across;
        shape.across = 1;
    }
#pragma unroll 1
    for (int i = 0; i < tiles; i += shape.beside)
#pragma unroll 1
        for (int k = 0; k < shape.chunks; k++) {
            int n = shape.across - k * MEGA_WARPS;
            n = n > MEGA_WARPS ? (int)MEGA_WARPS : n * min(shape.beside, tiles - i);
            f.piece(at, n * fragment_bytes(kind));
            at += n * fragment_bytes(kind);
        }
}

/* `tiles` tiles of an entry's rows. */
template <int DIM>
MEGA_FN void fetch_rows(const mega_arguments &a, const mega_entry &e, mega_fetch &f, int matrix,
                        int tiles)
{
#pragma unroll 1
    for (int tile = 0; tile < tiles;) {
        tile_run run = tile_run_from<DIM>(a, e, matrix, tile, tiles);
        fetch_tiles(f, e.weights.matrix[run.matrix], e.weights.kinds[run.matrix], OVER_HIDDEN,
                    run.first, run.tiles);
        tile += run.tiles;
    }
}

template <int DIM, int BLOCKS>
MEGA_FN void fetch_qkv(const mega_arguments &a, const mega_entry &e, mega_fetch &f)
{
    fetch_rows<DIM>(a, e, f, 0, 2 * (e.in.units.end - e.in.units.begin) / FRAGMENT_ROWS);
}

template <int DIM>
MEGA_FN void fetch_output(const mega_arguments &a, const mega_entry &e, mega_fetch &f)
{
    int begin = e.in.units.begin, n = e.in.units.end - begin, head = e.weights.kv_head;
    int64_t first = (head * a.hidden + e.weights.row) / FRAGMENT_ROWS;
    fetch_tiles(f, e.weights.matrix[0], e.weights.kinds[0], OVER_HEAD, first, n / FRAGMENT_ROWS);
}

template <int DIM>
MEGA_FN void fetch_mlp(const mega_arguments &a, const mega_entry &e, mega_fetch &f)
{
    int begin = e.in.units.begin, n = e.in.units.end - begin, kind = e.weights.kinds[2];
    fetch_rows<DIM>(a, e, f, 0, n / FRAGMENT_ROWS);
    fetch_rows<DIM>(a, e, f, 1, n / FRAGMENT_ROWS);
    int below = fragments_below(a.hidden), bytes = fragment_bytes(kind);
#pragma unroll 1
    for (int i = 0; i < below; i += MEGA_WARPS)
#pragma unroll 1
        for (int group = begin / FRAGMENT_COLUMNS; group * FRAGMENT_COLUMNS < begin + n; group++)
            f.piece((const char *)e.weights.matrix[2] + ((int64_t)group * below + i) * bytes,
                    min((int)MEGA_WARPS, below - i) * bytes);
}

template <int DIM>
MEGA_FN void fetch_logits(const mega_arguments &a, const mega_entry &e, mega_fetch &f)
{
    int tiles = (e.in.units.end - e.in.units.begin + FRAGMENT_ROWS - 1) / FRAGMENT_ROWS;
    /* As many as are multiplied together. */
    int at_once = (int)(a.shared.sum_pitch - 4) / FRAGMENT_ROWS;
    int64_t first = e.in.units.begin / FRAGMENT_ROWS;
#pragma unroll 1
    for (int i = 0; i < tiles; i += at_once)
        fetch_tiles(f, e.weights.matrix[0], e.weights.kinds[0], OVER_HIDDEN, first + i,
                    min(at_once, tiles - i));
}

template <int DIM, int BLOCKS>
MEGA_FN void fetch_matrices(const mega_arguments &a, const mega_entry &e, mega_fetch &f)
{
    if (e.in.opcode == MEGA_MLP)
        fetch_mlp<DIM>(a, e, f);
    else
        fetch_logits<DIM>(a, e, f);
}

#else

/* Four pairs: their first features, then their second ones. */
template <int DIM, int BLOCKS>
MEGA_FN void fetch_qkv(const mega_arguments &a, const mega_entry &e, mega_fetch &f)
{
    for (int unit = e.in.units.begin; unit < e.in.units.end; unit += 4) {
        qkv_pair p = qkv_pair_at<DIM>(a, unit + (f.lane & 3));
        const uint16_t *row =
            (const uint16_t *)e.weights.matrix[p.kind] +
            (int64_t)(p.head * DIM + (f.lane & 4 ? p.features[1] : p.features[0])) * a.hidden;
        bool together = !a.interleaved && p.kind != PAIR_VALUE;
        if (BLOCKS > 2)
            f.halves(row, MEGA_TILE);
        else
            f.quads<BLOCKS>(row, together, 2 * a.hidden);
    }
}

template <int DIM>
MEGA_FN void fetch_output(const mega_arguments &a, const mega_entry &e, mega_fetch &f)
{
    int begin = e.in.units.begin, n = e.in.units.end - begin, groups = a.group * DIM / 64;
    for (int row = 0; row < n; row += a.box_rows) {
        f.begin(a.box_rows * groups * 128);
        if (f.lane == 0 && !f.prefetches)
            copy_box(f.stage(), a.maps + MEGA_MAP_BYTES * e.weights.map, 0, e.weights.row + row,
                     e.weights.kv_head * groups, f.barrier(), f.policy);
        f.end();
    }
}

/* Rows [begin, begin + n) of a matrix with x's columns. */
template <int BLOCKS>
MEGA_FN void fetch_rows(const mega_arguments &a, mega_fetch &f, uint64_t matrix, int begin, int n)
{
    if (BLOCKS <= 2) return f.rows<0>(matrix, begin, n, 2 * a.hidden, MEGA_TILE / BLOCKS);
    const uint16_t *row = (const uint16_t *)matrix + (int64_t)(begin + f.lane) * a.hidden;
#pragma unroll 1
    for (int i = 0; i < n; i += MEGA_TILE)
        f.halves(row + (int64_t)i * a.hidden, n - i);
}

/* Gate, up and W_down of an MLP, or rows of logits. Of rows longer than MEGA_COLUMNS a chunk is
 * half a tile; of W_down the next columns of all features come after the first ones. */
template <int DIM, int BLOCKS>
MEGA_FN void fetch_matrices(const mega_arguments &a, const mega_entry &e, mega_fetch &f)
{
    const int begin = e.in.units.begin, n = e.in.units.end - begin;
    const bool mlp = e.in.opcode == MEGA_MLP;
#pragma unroll 1
    for (int i = 0; i <= mlp; i++)
        fetch_rows<BLOCKS>(a, f, e.weights.matrix[i], begin, n);
#pragma unroll 1
    for (int c = 0; c < a.hidden && mlp; c += MEGA_COLUMNS)
        f.rows<(BLOCKS > 1 ? 0 : (int)MEGA_PITCH)>(
            e.weights.matrix[2] + (uint64_t)c * 2 * a.n_features, begin, n,
            2 * min(MEGA_COLUMNS, a.hidden - c), MEGA_TILE);
}

#endif

/* Keys and values of earlier positions, page by page. */
template <int DIM>
MEGA_FN void fetch_cache(const mega_arguments &a, const mega_entry &e, mega_fetch &f,
                         int first_page, int old, int first, int chunks)
{
    typedef attention_chunk<DIM> shape;
    const int each = shape::POSITIONS, at_once = min(a.page_size, (int)shape::PIECE);
    int copies = each / at_once, bytes = at_once * DIM * CACHE_BYTES;
    if (chunks <= 0) return;
    int cache = f.lane / copies, position = f.lane % copies * at_once;
    int page = position / a.page_size, inside = position % a.page_size;
    uint32_t to = (cache * 8 + position / shape::PIECE) * shape::PITCH +
                  position % shape::PIECE * DIM * CACHE_BYTES;
    const float *pages = (const float *)a.pages + first_page + page;
    const int end = first + chunks, pages_each = each / a.page_size;
    /* A chunk's page is looked up one chunk ahead, because the load waits as long as the chunk
     * itself in a full memory system. */
    auto page_of = [&](int c) {
        bool used = c < end && cache < 2 && position < old - c * each;
        return used ? __float_as_int(load_early(pages + c * pages_each)) : 0;
    };
    int next = page_of(first);
    f.wait_begun();
    for (int c = first; c < end; c++) {
        int here = min(each, old - c * each);
        int64_t at = next + (int64_t)e.in.layer * a.pages_per_layer;
        at = (at * a.n_kv_heads + e.weights.kv_head) * a.page_size + inside;
        const char *from = (const char *)(cache ? a.v_cache : a.k_cache) + at * (DIM * CACHE_BYTES);
        next = page_of(c + 1);
        computed_now(f.stage() + to, from);
        f.begin(2 * bytes * ((here + at_once - 1) / at_once));
        if (position < here && cache < 2) f.copy(f.stage() + to, from, bytes);
        f.end();
    }
}

/* BLOCKS: blocks of columns in a row. */
template <int DIM, int BLOCKS>
MEGA_FN void fetch_entry(const mega_arguments &a, const mega_entry &e, mega_fetch &f, int old)
{
    switch (e.in.opcode) {
    case MEGA_QKV:
        fetch_qkv<DIM, BLOCKS>(a, e, f);
        break;
    case MEGA_ATTENTION_PART:
    case MEGA_ATTENTION_OUTPUT: {
        int first, chunks = attention_chunks<DIM>(a, e.in, old, e.weights.window, &first);
        fetch_cache<DIM>(a, e, f, 0, old, first, chunks);
        if (e.in.opcode == MEGA_ATTENTION_OUTPUT) fetch_output<DIM>(a, e, f);
        break;
    }
    case MEGA_MLP:
    case MEGA_LOGITS:
        fetch_matrices<DIM, BLOCKS>(a, e, f);
        break;
    }
}

template <typename HANDLERS>
MEGA_FN void fetch_program(const mega_arguments &a, char *memory, uint32_t ring, int lane,
                           bool prefetches)
{
    uint32_t own = ring + a.stages * stage_bytes(a);
    mega_fetch f = {{0, 1},   {0, 0}, ring, own + a.shared.full,  own + a.shared.empty,
                    a.stages, lane,   0,    policy_evict_first(), own + a.shared.flow + FLOW_BEGUN,
                    0,        a,      {},   prefetches,           false,
                    0};
    const int length = ((const int32_t *)a.lengths)[blockIdx.x];
    mega_entry *slot =
        (mega_entry *)(memory + a.shared.entries) + MEGA_SLOTS + prefetches; /* a slot of its own */
    for (; f.index < a.n_passes; f.index++) {
        f.begin_pass();
        for (int i = 0; i < length; i++) {
            int place = (int)blockIdx.x * a.longest + i;
            asm volatile("" : "+r"(place)); /* so that no address stays in registers */
            __syncwarp();
            if (lane < 16)
                ((uint4 *)slot)[lane] =
                    __ldg((const uint4 *)a.program + 16 * (int64_t)place + lane);
            __syncwarp();
            if (MEGA_DELAYS) delay_warp(a, a.first_pass + f.index, i);
            HANDLERS::fetch(a, *slot, f, f.index);
            if (!prefetches) f.timing.keep(a, lane, a.first_pass + f.index, i);
        }
    }
    if (MEGA_STOPPABLE) f.exit_warp(f.in_flight); /* all copies, unless the launch ended early */
}
