/* The megakernel: one launch runs passes of a whole model, a block a multiprocessor, each token fed
 * back to the next pass.
 *
 * Sixteen warps compute, one fetches. Between blocks there are three dependencies a layer: x of the
 * layer before to QKV, QKV to attention within a KV head, and x of attention to the MLP. Attention
 * and its output projection are cut by KV head, gate, up and down by features: both add their part
 * of x with integer reductions, so that nothing stands between them.
 */
#include "vm/mega/attention.cuh"
#include "vm/mega/product.cuh"
#include "vm/mega/stream.cuh"

/* ---- embedding: the token, its row of x, and clear sums for the next pass ---- */

MEGA_FN void run_embedding(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    const int begin = e.in.units.begin, n = e.in.units.end - begin;
    if (b.thread == 0) {
        wait_counter(a, b, e.in, 0, b.pass * gridDim.x);
        barrier_arrive(b.own + a.shared.begun);
    }
    b.sync();
    bool given = b.pass == a.first_pass;
    volatile uint64_t *keys = (volatile uint64_t *)a.key;
    int token = given ? a.token : a.vocab - 1 - (int)(uint32_t)keys[b.pass & 1];
    const __nv_bfloat16 *row = (const __nv_bfloat16 *)a.embedding + (int64_t)token * a.hidden;
    int64_t *x = residual(a, b.pass, 0), *next = residual(a, b.pass + 1, 0);
    for (int i = b.thread; i < n; i += MEGA_CONSUMERS)
        store_relaxed(x + begin + i, sum_part(__bfloat162float(row[begin + i])));
    for (int i = b.thread; i < n * (2 * a.n_layers + 1); i += MEGA_CONSUMERS)
        next[(int64_t)(i / n) * a.hidden + begin + i % n] = 0;
    b.sync();
    if (blockIdx.x == 0 && b.thread == 0) keys[(b.pass + 1) & 1] = 0;
}

/* The pass's token, for the host: by block 0 once the last block has ended its logits. */
MEGA_FN void tell_token(const mega_arguments &a, mega_block &b, const instruction &in, int index)
{
    if (blockIdx.x || b.thread) return;
    wait_counter(a, b, in, 0, (b.pass + 1) * gridDim.x);
    uint64_t key = ((volatile uint64_t *)a.key)[(b.pass + 1) & 1];
    ((volatile int32_t *)a.tokens_out)[index] = a.vocab - 1 - (int)(uint32_t)key;
}

/* ---- norm, QKV, RoPE, append ---- */

template <int DIM, bool HALF> MEGA_FN uint16_t cache_bits(float v)
{
    if (HALF) return __half_as_ushort(__float2half_rn(v));
    return __bfloat16_as_ushort(__float2bfloat16(v));
}
template <bool HALF> MEGA_FN float cache_float(uint16_t bits)
{
    if (HALF) return __half2float(__ushort_as_half(bits));
    return __bfloat162float(__ushort_as_bfloat16(bits));
}

/* One pair's sums to the KV head's list, and to the cache. */
template <int DIM, bool HALF>
MEGA_FN void finish_pair(const mega_arguments &a, mega_block &b, const instruction &in, int lane,
                         float inverse, float cosine, float sine, int position, int page)
{
    int unit = in.units.begin + lane, row = (lane >> 2) * MEGA_TILE + (lane & 3);
    qkv_pair p = qkv_pair_at<DIM>(a, unit);
    float v[2] = {row_sum(a, b, row, MEGA_WARPS) * inverse,
                  row_sum(a, b, row + 4, MEGA_WARPS) * inverse};
    if (p.kind != PAIR_VALUE) {
        float first = v[0] * cosine - v[1] * sine;
        v[1] = v[1] * cosine + v[0] * sine;
        v[0] = first;
    }
    int64_t *list =
        (int64_t *)a.qkv + (int64_t)(in.layer * a.n_kv_heads + p.kv_head) * (a.group + 2) * DIM;
    int64_t head = ((int64_t)in.layer * a.pages_per_layer + page) * a.n_kv_heads + p.kv_head;
    int64_t place = head * a.page_size + position % a.page_size;
    uint16_t *cache = (uint16_t *)(p.kind == PAIR_KEY ? a.k_cache : a.v_cache) + place * DIM;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (p.kind != PAIR_QUERY) {
            uint16_t bits = cache_bits<DIM, HALF>(v[i]);
            cache[p.features[i]] = bits;
            v[i] = cache_float<HALF>(bits);
        }
        store_relaxed(list + p.member * DIM + p.features[i],
                      (int64_t)((uint64_t)(b.pass + 1) << 32 | __float_as_uint(v[i])));
    }
}

/* What the first warp of QKV needs behind its sums, loaded before them. */
struct qkv_early {
    float cosine, sine;
    int position, page;
};
template <int DIM>
MEGA_FN qkv_early load_qkv_early(const mega_arguments &a, const mega_block &b,
                                 const instruction &in)
{
    qkv_early early = {0, 0, a.first_position + (int)(b.pass - a.first_pass), 0};
    if (in.opcode != OP_NORM_QKV_ROPE || b.warp) return early;
    const float *table = (const float *)a.rope_table + (int64_t)early.position * DIM;
    int pair = (in.units.begin + b.lane) % (DIM / 2);
    early.cosine = load_early(table + pair);
    early.sine = load_early(table + DIM / 2 + pair);
    early.page = __float_as_int(load_early((const float *)a.pages + early.position / a.page_size));
    return early;
}

template <int DIM, bool HALF>
MEGA_FN void finish_qkv(const mega_arguments &a, mega_block &b, const instruction &in,
                        const qkv_early &early)
{
    int n = in.units.end - in.units.begin;
    if (b.warp) return;
    const float *table = (const float *)a.rope_table + (int64_t)early.position * DIM;
    float inverse = inverse_rms(a, b), cosine = early.cosine, sine = early.sine;
#pragma unroll 1
    for (int i = b.lane; i < n; i += 32) {
        if (i >= 32) {
            int pair = (in.units.begin + i) % (DIM / 2);
            cosine = table[pair];
            sine = table[DIM / 2 + pair];
        }
        finish_pair<DIM, HALF>(a, b, in, i, inverse, cosine, sine, early.position, early.page);
    }
}

/* ---- attention and its output ---- */

/* The KV head's queries, newest key and value of this pass. */
template <int DIM>
MEGA_FN void wait_qkv(const mega_arguments &a, mega_block &b, const instruction &in, int kv_head)
{
    float *qkv = b.at<float>(a.shared.qkv);
    int n = (a.group + 2) * DIM;
    const int64_t *list = (const int64_t *)a.qkv + ((int64_t)in.layer * a.n_kv_heads + kv_head) * n;
    if (b.thread == 0) { /* one looks for what is likely to come last, then all do */
        patience patience = {0, 0};
        for (;;) {
            uint32_t made = (uint32_t)((uint64_t)load_relaxed(list + n - 1) >> 32);
            if (made == b.pass + 1) break;
            if (patience.over()) mega_stuck(a, in, b.entry, b.pass, -2, b.pass + 1, made);
        }
    }
    b.sync();
    for (int i = 2 * b.thread; i < n; i += 2 * MEGA_CONSUMERS) {
        patience patience = {0, 0};
        for (;;) {
            longlong2 v = load_relaxed_two(list + i);
            uint32_t passes[2] = {(uint32_t)((uint64_t)v.x >> 32), (uint32_t)((uint64_t)v.y >> 32)};
            qkv[i] = __uint_as_float((uint32_t)v.x);
            qkv[i + 1] = __uint_as_float((uint32_t)v.y);
            if (passes[0] == b.pass + 1 && passes[1] == b.pass + 1) break;
            if (patience.over()) mega_stuck(a, in, b.entry, b.pass, -2, b.pass + 1, passes[0]);
        }
    }
    b.sync();
}

/* A partition's states: of each head maximum, sum and outputs. */
template <int DIM> MEGA_FN float *partition_states(const mega_arguments &a, int kv_head, int part)
{
    return (float *)a.states +
           ((int64_t)kv_head * MEGA_MAX_PARTITIONS + part) * a.group * (DIM + 2);
}
MEGA_FN uint32_t partition_counter(const mega_arguments &a, const instruction &in, int kv_head)
{
    return 1 + in.layer * a.n_kv_heads + kv_head;
}

template <int DIM, bool HALF>
MEGA_FN void run_partial(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    int old = a.first_position + (int)(b.pass - a.first_pass), first;
    int kv_head = entry_kv_head(a, e.in);
    uint32_t *counter =
        (uint32_t *)a.counters + partition_counter(a, e.in, kv_head) * MEGA_COUNTER_WORDS;
    if (old + 1 <= a.recompute) {
        if (b.thread == 0) atomicAdd(counter, 1);
        return;
    }
    int chunks = attention_chunks<DIM>(a, e.in, old, &first);
    wait_qkv<DIM>(a, b, e.in, kv_head);
    attend<DIM, HALF>(a, b, old, first, chunks, e.in.part == 0);
    const float *outputs = b.at<float>(a.shared.planes), *states = b.at<float>(a.shared.states);
    float *to = partition_states<DIM>(a, kv_head, e.in.part);
    int heads = a.group;
    for (int i = b.thread; i < heads * DIM; i += MEGA_CONSUMERS) {
        float most, sum, out;
        merge_outputs(
            attention_shape_of(a).shares,
            [&](int s, int what) {
                int at = s * heads + i / DIM;
                return what == 2 ? outputs[at * DIM + i % DIM] : states[2 * at + what];
            },
            &most, &sum, &out);
        to[2 * heads + i] = out;
        if (i % DIM == 0) to[i / DIM] = most, to[heads + i / DIM] = sum;
    }
    b.sync();
    if (b.thread == 0) add_release(counter);
}

/* The heads' outputs as planes: of this block's own states, or of the partitions'. */
template <int DIM>
MEGA_FN void merge_heads(const mega_arguments &a, mega_block &b, int kv_head, int partitions)
{
    __nv_bfloat16 *planes = b.at<__nv_bfloat16>(a.shared.heads);
    const float *outputs = b.at<float>(a.shared.planes), *states = b.at<float>(a.shared.states);
    int heads = a.group;
    for (int i = b.thread; i < heads * DIM; i += MEGA_CONSUMERS) {
        float most, sum, out;
        if (partitions)
            merge_outputs(
                partitions,
                [&](int s, int what) {
                    const float *from = partition_states<DIM>(a, kv_head, s);
                    return __ldcg(from + (what == 2 ? 2 * heads + i : what * heads + i / DIM));
                },
                &most, &sum, &out);
        else
            merge_outputs(
                attention_shape_of(a).shares,
                [&](int s, int what) {
                    int at = s * heads + i / DIM;
                    return what == 2 ? outputs[at * DIM + i % DIM] : states[2 * at + what];
                },
                &most, &sum, &out);
        split_float(out / sum, planes + i, a.shared.head_plane);
    }
    b.sync();
}

template <int DIM, bool HALF>
MEGA_FN void run_attention_output(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    int old = a.first_position + (int)(b.pass - a.first_pass), first;
    int kv_head = entry_kv_head(a, e.in), row = e.in.units.begin % a.hidden;
    int n = e.in.units.end - e.in.units.begin;
    bool alone = old + 1 <= a.recompute;
    if (alone) {
        int chunks = attention_chunks<DIM>(a, e.in, old, &first);
        wait_qkv<DIM>(a, b, e.in, kv_head);
        attend<DIM, HALF>(a, b, old, first, chunks, true);
    } else {
        uint32_t target = (b.pass + 1) * e.in.parts;
        if (b.thread == 0) wait_counter(a, b, e.in, partition_counter(a, e.in, kv_head), target);
        b.sync();
    }
    merge_heads<DIM>(a, b, kv_head, alone ? 0 : e.in.parts);
    const int64_t *x = residual(a, b.pass, 2 * e.in.layer) + row;
    int64_t *next = residual(a, b.pass, 2 * e.in.layer + 1) + row;
    /* The first KV head brings the residual itself along. */
    int64_t carried = kv_head == 0 && b.thread < n ? sum_value(load_relaxed(x + b.thread)) : 0;
    int groups = a.group * DIM / 64;
    product_heads(a, b, n, groups);
    b.sync();
    for (int i = b.thread; i < n; i += MEGA_CONSUMERS) {
        if (i >= MEGA_CONSUMERS && kv_head == 0) carried = sum_value(load_relaxed(x + i));
        add_relaxed(next + i, sum_part(row_sum(a, b, i, groups)) + carried);
    }
    b.sync();
}

/* ---- norm, gate, up, SiLU, down ---- */

MEGA_FN void finish_mlp(const mega_arguments &a, mega_block &b, const instruction &in)
{
    int n = in.units.end - in.units.begin, step = 2 * in.layer + 1;
    int up = (n + MEGA_TILE - 1) / MEGA_TILE * MEGA_TILE; /* the first row of its sums */
    __nv_bfloat16 *planes = b.at<__nv_bfloat16>(a.shared.features);
    for (int i = b.thread; i < up; i += MEGA_CONSUMERS) {
        float v = 0;
        if (i < n) {
            float inverse = inverse_rms(a, b);
            float gate = row_sum(a, b, i, MEGA_WARPS) * inverse;
            v = gate / (1 + __expf(-gate)) * (row_sum(a, b, up + i, MEGA_WARPS) * inverse);
        }
        split_float(v, planes + i, a.shared.feature_plane);
    }
    b.sync();
    const int64_t *x = residual(a, b.pass, step);
    int64_t *next = residual(a, b.pass, step + 1);
    float *out = b.at<float>(a.shared.planes);
    /* A share of the residual itself comes along; each block begins adding elsewhere. */
    int share_begin = a.hidden * blockIdx.x / gridDim.x;
    int share_end = a.hidden * (blockIdx.x + 1) / gridDim.x;
#pragma unroll 1
    for (int c = 0; c < a.hidden; c += MEGA_BLOCK) {
        int64_t carried = 0; /* of the one output of this thread that is in the share, if any */
#pragma unroll
        for (int j = 0; j < MEGA_BLOCK / MEGA_CONSUMERS; j++) {
            int at = c + ((j * MEGA_CONSUMERS + b.thread + 16 * blockIdx.x) & (MEGA_BLOCK - 1));
            if (at >= share_begin && at < share_end) carried = sum_value(load_relaxed(x + at));
        }
        product_transposed(a, b, n, out);
        b.sync();
#pragma unroll
        for (int j = 0; j < MEGA_BLOCK / MEGA_CONSUMERS; j++) {
            int o = (j * MEGA_CONSUMERS + b.thread + 16 * blockIdx.x) & (MEGA_BLOCK - 1);
            int at = c + o;
            bool brings = at >= share_begin && at < share_end;
            if (at < a.hidden) add_relaxed(next + at, sum_part(out[o]) + (brings ? carried : 0));
        }
        b.sync();
    }
}

/* ---- the last norm, logits, the largest of them ---- */

MEGA_FN uint64_t logit_key(const mega_arguments &a, float v, int token)
{
    uint32_t bits = __float_as_uint(v);
    bits = bits >> 31 ? ~bits : bits | 0x80000000;
    return (uint64_t)bits << 32 | (uint32_t)(a.vocab - 1 - token); /* of equals, the lowest */
}

/* Logits of `rows` rows; the largest key of this thread's. */
MEGA_FN uint64_t finish_logits(const mega_arguments &a, mega_block &b, int begin, int rows,
                               uint64_t best)
{
    for (int i = b.thread; i < rows; i += MEGA_CONSUMERS) {
        float v = row_sum(a, b, i, MEGA_WARPS) * inverse_rms(a, b);
        ((float *)a.logits)[begin + i] = v;
        best = max(best, logit_key(a, v, begin + i));
    }
    b.sync();
    return best;
}

/* The largest key of all threads, and the end of the block's pass. */
MEGA_FN void finish_pass(const mega_arguments &a, mega_block &b, uint64_t best)
{
    uint64_t *keys = b.at<uint64_t>(a.shared.keys);
#pragma unroll
    for (int o = 16; o; o >>= 1)
        best = max(best, __shfl_xor_sync(~0u, best, o));
    if (b.lane == 0) keys[b.warp] = best;
    b.sync();
    if (b.thread) return;
    for (int w = 1; w < MEGA_WARPS; w++)
        best = max(best, keys[w]);
    atomicMax((unsigned long long *)a.key + ((b.pass + 1) & 1), (unsigned long long)best);
    add_release((uint32_t *)a.counters); /* everything of the pass is seen by the next */
}

/* ---- norm and rows of weights: QKV, the MLP and the logits begin alike ---- */

template <int DIM, bool HALF, int BLOCKS>
MEGA_FN void run_rows(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    const int op = e.in.opcode, n = e.in.units.end - e.in.units.begin;
    bool logits = op == OP_NORM_LINEAR, mlp = op == MEGA_MLP;
    int step = logits ? 2 * a.n_layers : 2 * e.in.layer + mlp;
    uint32_t parts = step == 0 ? 1 : mlp ? a.n_kv_heads : gridDim.x;
    int tiles = ((logits || mlp ? n : 2 * n) + MEGA_TILE - 1) / MEGA_TILE;
    int at_once = logits ? (int)(a.shared.sum_pitch - 4) / MEGA_TILE : tiles;
    qkv_early early = load_qkv_early<DIM>(a, b, e.in);
    uint64_t best = 0;
    read_residual(a, b, e, step, parts);
    int first = 0;
    do {
        /* The MLP's gate, then up. */
#pragma unroll 1
        for (int matrix = 0; matrix <= mlp; matrix++)
            multiply_rows<BLOCKS>(a, b, min(at_once, tiles - first), matrix * tiles * MEGA_TILE);
        b.sync();
        if (mlp)
            finish_mlp(a, b, e.in);
        else if (!logits)
            finish_qkv<DIM, HALF>(a, b, e.in, early);
        else
            best = finish_logits(a, b, e.in.units.begin + first * MEGA_TILE,
                                 min(at_once * MEGA_TILE, n - first * MEGA_TILE), best);
        first += at_once;
    } while (first < tiles);
    if (logits) finish_pass(a, b, best);
}

/* ---- the kernel ---- */

enum { ENTRIES_AHEAD = MEGA_SLOTS - 1 };

/* 16 bytes of an entry, on their way to shared memory. */
MEGA_FN void fetch_word(const mega_entry *from, mega_entry *to, int word)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared((uint4 *)to + word);
    if (word >= 0) copy_16(at, (const uint4 *)from + word);
    copies_commit();
}

template <int DIM, bool HALF, int BLOCKS, bool DAWDLES>
MEGA_FN void run_program(const mega_arguments &a, mega_block &b)
{
    int length = ((const int32_t *)a.lengths)[blockIdx.x];
    const mega_entry *queue = (const mega_entry *)a.program + (size_t)blockIdx.x * a.longest;
    mega_entry *slots = b.at<mega_entry>(a.shared.entries);
    int word = b.thread - MEGA_CONSUMERS + 16, slot = 0, ahead = 0; /* the last 16 threads fetch */
    for (; ahead < ENTRIES_AHEAD; ahead++)
        fetch_word(queue + ahead % length, slots + ahead, word);
    copies_arrived<ENTRIES_AHEAD - 1>();
    b.sync();
    ahead %= length;
    for (int pass = 0; pass < a.n_passes; pass++) {
        b.pass = a.first_pass + pass;
        for (b.entry = 0; b.entry < length; b.entry++) {
            const mega_entry &e = slots[slot];
            int free = (slot + ENTRIES_AHEAD) % MEGA_SLOTS;
            fetch_word(queue + ahead, slots + free, word);
            if (++ahead == length) ahead = 0;
            if (DAWDLES) dawdle(a, b.pass, b.entry);
            switch (e.in.opcode) {
            case OP_EMBEDDING:
                run_embedding(a, b, e);
                break;
            case OP_ATTENTION_PARTIAL:
                run_partial<DIM, HALF>(a, b, e);
                break;
            case MEGA_ATTENTION_OUTPUT:
                run_attention_output<DIM, HALF>(a, b, e);
                break;
            default:
                run_rows<DIM, HALF, BLOCKS>(a, b, e);
                if (e.in.opcode == OP_NORM_LINEAR) tell_token(a, b, e.in, pass);
            }
            copies_arrived<ENTRIES_AHEAD - 1>();
            b.sync(); /* the next entry is there, and nobody reads this one's memory any more */
            slot = (slot + 1) % MEGA_SLOTS;
        }
    }
}

template <int DIM, bool HALF, int BLOCKS, bool DAWDLES> MEGA_FN void mega(const mega_arguments &a)
{
    extern __shared__ __align__(1024) char dynamic[];
    uint32_t ring = (uint32_t)__cvta_generic_to_shared(dynamic);
    asm volatile("" : "+r"(ring)); /* so that it stays in a register */
    uint32_t own = ring + a.stages * MEGA_STAGE;
    char *memory = dynamic + a.stages * MEGA_STAGE;
    /* What was never copied must be numbers: it is multiplied by zero. */
    int bytes = a.stages * MEGA_STAGE + (int)a.shared.bytes;
    for (int i = threadIdx.x; i < bytes / 16; i += MEGA_THREADS)
        ((uint4 *)dynamic)[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    if (threadIdx.x == 0) barrier_init(own + a.shared.begun, 1);
    if (threadIdx.x == 0)
        for (int i = 0; i < a.stages; i++) {
            barrier_init(own + a.shared.full + 8 * i, 1);
            barrier_init(own + a.shared.empty + 8 * i, MEGA_WARPS);
        }
    fence_async();
    __syncthreads();
    if (threadIdx.x >= MEGA_CONSUMERS) {
        fetch_program<DIM, DAWDLES>(a, memory, ring, threadIdx.x & 31);
        return;
    }
    mega_block b = {memory,
                    ring,
                    own,
                    {0, 0},
                    a.stages,
                    (int)threadIdx.x,
                    (int)threadIdx.x >> 5,
                    (int)threadIdx.x & 31,
                    0,
                    0};
    run_program<DIM, HALF, BLOCKS, DAWDLES>(a, b);
}

/* out (columns, rows) = in (rows, columns) transposed: W_down, once. Blocks of 32 x 8 threads. */
extern "C" __global__ void mega_transpose(const uint16_t *in, uint16_t *out, int rows, int columns)
{
    __shared__ uint16_t tile[32][33];
    int column = blockIdx.x * 32, row = blockIdx.y * 32, x = threadIdx.x;
    for (int y = threadIdx.y; y < 32; y += 8)
        if (row + y < rows && column + x < columns)
            tile[y][x] = in[(int64_t)(row + y) * columns + column + x];
    __syncthreads();
    for (int y = threadIdx.y; y < 32; y += 8)
        if (column + y < columns && row + x < rows)
            out[(int64_t)(column + y) * rows + row + x] = tile[x][y];
}

#define MEGA_KERNEL(dim, name, half, blocks, suffix, dawdles)                                      \
    extern "C" __global__ void __launch_bounds__(MEGA_THREADS, 1)                                  \
        mega_##dim##_##name##_##blocks##suffix(const __grid_constant__ mega_arguments a)           \
    {                                                                                              \
        mega<dim, half, blocks, dawdles>(a);                                                       \
    }

#define MEGA(dim, name, half, blocks) MEGA_KERNEL(dim, name, half, blocks, , false)

MEGA(64, F16, true, 1)
MEGA(64, F16, true, 2)
MEGA(64, BF16, false, 1)
MEGA(64, BF16, false, 2)
MEGA(128, F16, true, 1)
MEGA(128, F16, true, 2)
MEGA(128, BF16, false, 1)
MEGA(128, BF16, false, 2)
MEGA_KERNEL(64, F16, true, 1, _dawdling, true) /* for tests: races show */
