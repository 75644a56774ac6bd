/* What blocks do for two to eight rows, each a token of a sequence.
 *
 * It differs from one sequence in two ways. One block computes a row's attention within a KV head
 * and stores its outputs tagged, as q, k and v are; if every block repeated it, each would read
 * eight caches. And two warps of each block publish a share of the residual to all blocks
 * (batch_x.cuh).
 *
 * Neighbouring rows may be tokens of one sequence at consecutive positions. The cache then lacks
 * the positions of the rows before, which this pass makes. A row's attention takes those from the
 * lists of q, k and v, and writes them to their places in the chunks that came from the cache, so
 * that it adds in the same order as a pass of this row alone.
 */
#ifndef QUIPU_VM_MEGA_BATCH_CUH
#define QUIPU_VM_MEGA_BATCH_CUH

#include "vm/mega/batch_product.cuh"
#include "vm/mega/rows.cuh"

MEGA_FN int row_position(const mega_arguments &a, uint32_t pass, int row)
{
    return a.rows[row].position + (int)(pass - a.first_pass);
}

/* ---- attention of a KV head ---- */

/* A long row's attention is in parts, one for each block of the KV head. Of the other rows one
 * block computes the whole: block in.part has rows in.part, in.part + in.parts and so on. */
MEGA_FN bool in_parts(const mega_arguments &a, int row, int pass_here)
{
    return a.rows[row].position + pass_here >= a.recompute;
}
MEGA_FN bool any_in_parts(const mega_arguments &a, int pass_here)
{
    bool any = false;
#pragma unroll
    for (int row = 0; row < MEGA_ROWS; row++)
        any = any || (row < a.n_rows && in_parts(a, row, pass_here));
    return any;
}

/* Rows that attend to parts of a context together: two of a sequence, if their heads are not more
 * than the tensor cores multiply at once, and if both contexts have the same chunks. */
struct row_group {
    int first, count; /* rows */
    int number;       /* groups before this one */
    bool parts;       /* in parts; else one row, of which this block computes the whole */
};
template <int DIM> MEGA_FN int rows_joined(const mega_arguments &a, int row, int pass_here)
{
    int old = a.rows[row].position + pass_here;
    bool alike = a.joins && row + 1 < a.n_rows &&
                 a.rows[row + 1].first_page == a.rows[row].first_page &&
                 context_chunks<DIM>(old) == context_chunks<DIM>(old + 1);
    return alike ? 2 : 1;
}

/* Calls work(group) for the rows that this block may work on, first those that are its own.
 * pass_here counts from the launch's first pass. One function, so that the code of attention is
 * there once. */
template <int DIM, typename WORK>
MEGA_FN void for_rows(const mega_arguments &a, const instruction &in, int pass_here, WORK work)
{
    row_group group = {in.part, 1, 0, false};
    for (;; group.first += group.parts ? group.count : in.parts) {
        if (group.first >= a.n_rows) {
            if (group.parts || !any_in_parts(a, pass_here)) return;
            group = {0, 1, -1, true};
        }
        bool mine = in_parts(a, group.first, pass_here) == group.parts;
        group.count = group.parts && mine ? rows_joined<DIM>(a, group.first, pass_here) : 1;
        group.number++;
        if (mine) work(group);
    }
}

/* The block's part of a group's context. If a context has fewer chunks than the KV head has blocks,
 * each group's parts begin at the block after the last group's, so that all blocks have work. */
template <int DIM>
MEGA_FN int group_part(const mega_arguments &a, const instruction &in, int number, int old)
{
    const int n = context_chunks<DIM>(old);
    int part = in.part;
    if (n >= in.parts) return part;
#pragma unroll 1
    for (int i = 0; i < number; i++) {
        part -= n;
        if (part < 0) part += in.parts;
    }
    return part;
}

/* The chunks of a row's cache that this block reads, from *first. */
template <int DIM>
MEGA_FN int row_chunks(const mega_arguments &a, const instruction &in, bool parts, int old,
                       int *first)
{
    if (parts) return attention_chunks<DIM>(a, in, old, first);
    *first = 0;
    return context_chunks<DIM>(old);
}

MEGA_FN int64_t *head_list(const mega_arguments &a, const instruction &in, int row, int kv_head,
                           int n)
{
    int64_t layer = (int64_t)row * a.n_layers + in.layer;
    return (int64_t *)a.heads + (layer * a.n_kv_heads + kv_head) * n;
}
/* Stores a value for all blocks of the KV head, tagged with the pass. */
MEGA_FN void store_tagged(const mega_block &b, int64_t *list, int i, float v)
{
    store_relaxed(list + i, (int64_t)((uint64_t)(b.pass() + 1) << 32 | __float_as_uint(v)));
}

/* The rows just before a row that read earlier tokens of the same sequence: no two sequences have
 * the same list of pages. */
MEGA_FN int rows_before(const mega_arguments &a, int row)
{
    int n = 0;
    while (n < row && a.rows[row - n - 1].first_page == a.rows[row].first_page)
        n++;
    return n;
}

/* Keys and values that this pass makes for positions before a row's, in shared memory after
 * attention's outputs: [position][2][DIM] in the cache's type. A chunk takes 16 bytes a thread. */
template <int DIM> struct new_positions {
    enum { EACH = 2 * DIM, UNITS = EACH / 8 };
    static_assert((MEGA_ROWS - 1) * UNITS <= MEGA_CONSUMERS, "one unit a thread");
    static MEGA_FN uint32_t at(const mega_arguments &a)
    {
        return a.shared.planes + 4 * attention_chunk<DIM>::PIECE * share_pitch<DIM>(a);
    }
};

/* Waits for the queries of the group's rows, for the newest key and value of the last one, and for
 * the new positions before that row. */
template <int DIM, bool HALF>
MEGA_FN void wait_group(const mega_arguments &a, mega_block &b, const instruction &in, int kv_head,
                        const row_group &group)
{
    typedef new_positions<DIM> made;
    const int last = group.first + group.count - 1, before = rows_before(a, last);
    const int each = a.group * DIM, n = group.count * each + 2 * DIM, n_new = before * made::EACH;
    if (b.thread == 0) *b.at<int>(a.shared.qkv + attention_inputs<DIM>::NEW) = before;
#pragma unroll 1
    for (int i = 2 * b.thread; i < max(n, n_new); i += 2 * MEGA_CONSUMERS) {
        const int slot = min(i / each, group.count - 1), row = last - before + i / made::EACH;
        const int64_t *input = qkv_list<DIM>(a, in, kv_head, group.first + slot) + i - slot * each;
        const int64_t *newer = qkv_list<DIM>(a, in, kv_head, row) + a.group * DIM + i % made::EACH;
        const two_pairs v =
            wait_pairs(a, b, in, i < n ? input : newer, i < n_new ? newer : input, b.pass() + 1);
        if (i < n) store_input<DIM, HALF>(a, b, group.count * a.group, i, v.of[0].x, v.of[0].y);
        if (i < n_new)
            *b.at<uint32_t>(made::at(a) + 2 * i) = cache_words<HALF>(v.of[1].x, v.of[1].y);
    }
    b.sync();
    b.stamp(a, MEGA_WORKS);
}

/* Writes those of a chunk to their places in the stage that holds it. The fence is for the copy
 * that will fill the stage again. */
template <int DIM>
MEGA_FN void add_new_positions(const mega_arguments &a, const mega_block &b, int old, int chunk)
{
    typedef attention_chunk<DIM> shape;
    typedef new_positions<DIM> made;
    const int n = *b.at<int>(a.shared.qkv + attention_inputs<DIM>::NEW);
    const int first = old - n - chunk * shape::POSITIONS; /* place of the first of them */
    if (n == 0 || first + n <= 0 || first >= shape::POSITIONS) return;
    const int position = first + b.thread / made::UNITS, unit = b.thread % made::UNITS;
    if (b.thread < n * made::UNITS && position >= 0 && position < shape::POSITIONS) {
        const int value = unit / (made::UNITS / 2), column = unit % (made::UNITS / 2);
        char *to = b.memory - (b.own - b.ring) + b.place.stage * MEGA_STAGE +
                   (value * 8 + position / shape::PIECE) * shape::PITCH +
                   position % shape::PIECE * DIM * 2 + column * 16;
        *(uint4 *)to = *b.at<uint4>(made::at(a) + 16 * b.thread);
        fence_async_shared();
    }
    b.sync();
}

/* The attention of a group's rows, or this block's part of it. */
template <int DIM, bool HALF>
MEGA_FN void attend_group(const mega_arguments &a, mega_block &b, instruction in,
                          const row_group &group, int kv_head)
{
    const int last = group.first + group.count - 1;
    int old = row_position(a, b.pass(), last), first;
    if (group.parts) in.part = group_part<DIM>(a, in, group.number, old);
    int chunks = row_chunks<DIM>(a, in, group.parts, old, &first);
    if (group.parts && !chunks) return;
    wait_group<DIM, HALF>(a, b, in, kv_head, group);
    /* The newest of the row before the last one is the last of the new positions. */
    uint32_t others = b.own + new_positions<DIM>::at(a) +
                      2 * new_positions<DIM>::EACH * (rows_before(a, last) - 1);
    head_states<DIM> s;
    attend<DIM, HALF>(a, b, old, first, chunks, s, group.count, others);
#pragma unroll 1
    for (int slot = 0; slot < group.count; slot++) {
        const int row = group.first + slot;
        int64_t *list = head_list(a, in, row, kv_head, a.group * DIM);
        store_state<DIM>(a, b, s, slot * a.group);
        b.sync();
        if (group.parts) store_part<DIM>(a, b, in, row * a.n_kv_heads + kv_head);
        if (!group.parts)
            merge_shares<DIM>(a, b, [&](int i, float2 out, float, float sum) {
                store_tagged(b, list, i + b.lane % 2, (b.lane % 2 ? out.y : out.x) / sum);
            });
        b.sync();
    }
}

template <int DIM, bool HALF>
MEGA_FN void run_batch_attention(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    int kv_head = entry_kv_head(a, e.in), pass_here = (int)(b.pass() - a.first_pass);
    for_rows<DIM>(a, e.in, pass_here, [&](const row_group &group) {
        attend_group<DIM, HALF>(a, b, e.in, group, kv_head);
    });
    if (!any_in_parts(a, pass_here)) return;
#pragma unroll 1
    for (int row = e.in.part; row < a.n_rows; row += e.in.parts) {
        if (!in_parts(a, row, pass_here)) continue;
        int64_t *list = head_list(a, e.in, row, kv_head, a.group * DIM);
        merge_parts<DIM>(a, b, e.in, row * a.n_kv_heads + kv_head,
                         context_chunks<DIM>(row_position(a, b.pass(), row)),
                         [&](int i, const float *out) {
                             store_tagged(b, list, i, out[0]);
                             store_tagged(b, list, i + 1, out[1]);
                         });
    }
}

/* Waits for all rows' outputs of the KV head's attention and stores them as planes. */
template <int DIM>
MEGA_FN void wait_heads(const mega_arguments &a, mega_block &b, const instruction &in, int kv_head)
{
    int n = a.group * DIM;
#pragma unroll 1
    for (int i = 4 * b.thread; i < a.n_rows * n; i += 4 * MEGA_CONSUMERS) {
        int row = i / n, at = i % n;
        const int64_t *list = head_list(a, in, row, kv_head, n) + at;
        watchdog watchdog = {0, 0};
        longlong2 v[2];
        for (;;) {
            uint32_t wrong = 0;
#pragma unroll
            for (int j = 0; j < 2; j++)
                v[j] = load_relaxed_two(list + 2 * j);
#pragma unroll
            for (int j = 0; j < 2; j++)
                wrong |= ((uint32_t)((uint64_t)v[j].x >> 32) ^ (b.pass() + 1)) |
                         ((uint32_t)((uint64_t)v[j].y >> 32) ^ (b.pass() + 1));
            if (!wrong) break;
            __nanosleep(50);
            if (watchdog.expired())
                mega_stuck(a, in, b.entry(), b.pass(), MEGA_WAIT_QKV, b.pass() + 1,
                           (uint32_t)((uint64_t)v[0].x >> 32));
        }
        uint32_t *planes = b.at<uint32_t>(a.shared.heads) + (row * a.shared.head_row + at) / 2;
#pragma unroll
        for (int j = 0; j < 2; j++)
            split_pair(__uint_as_float((uint32_t)v[j].x), __uint_as_float((uint32_t)v[j].y),
                       planes + j, (int)a.shared.head_plane / 2);
    }
    b.sync();
}

template <int DIM, int BLOCKS>
MEGA_FN void run_batch_output(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    const int rows = batch_shape<BLOCKS>::ROWS;
    int kv_head = entry_kv_head(a, e.in), begin = e.in.units.begin % a.hidden;
    int n = e.in.units.end - e.in.units.begin, groups = a.group * DIM / 64;
    wait_heads<DIM>(a, b, e.in, kv_head);
    b.stamp(a, MEGA_WORKS);
    batch_heads<rows>(a, b, n, groups);
    b.stamp(a, MEGA_SIGNALS);
    const float *sums = b.at<float>(a.shared.sums);
    int first = begin & ~1, end = (begin + n - first + 1) / 2 * 2 * MEGA_ROWS;
#pragma unroll 1
    for (int i = b.thread; i < end; i += 2 * MEGA_CONSUMERS) {
        bool there[2];
        int places[2];
        int64_t parts[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int j = i + k * MEGA_CONSUMERS, row = j / 2 % MEGA_ROWS;
            int column = first + j / (2 * MEGA_ROWS) * 2 + (j & 1);
            there[k] = j < end && column >= begin && column < begin + n && row < a.n_rows;
            const float *of = sums + (there[k] ? (column - begin) * rows + row : 0);
            float sum = 0;
#pragma unroll
            /* All loads before the first addition. */
            for (int s = 0; s < MEGA_MAX_GROUP * DIM / 64; s++)
                if (s < groups) sum += of[s * a.shared.sum_pitch * rows];
            places[k] = residual_place(column, row);
            parts[k] = fixed_part(sum);
        }
        int64_t *next = batch_sums(a, b.pass(), 2 * e.in.layer + 1);
#pragma unroll
        for (int k = 0; k < 2; k++)
            add_relaxed_if(there[k], next + places[k], parts[k]);
    }
    signal_added(a, b);
    b.sync();
}

/* ---- norm, QKV, RoPE, append ---- */

/* What pair i / MEGA_ROWS of row i % MEGA_ROWS needs when its sums are complete. */
struct pair_inputs {
    const float *cosine, *sine, *page;
    int position;
};
template <int DIM>
MEGA_FN pair_inputs pair_inputs_at(const mega_arguments &a, const mega_block &b,
                                   const instruction &in, int i)
{
    int row = i % MEGA_ROWS, position = row_position(a, b.pass(), row);
    int pair = (in.units.begin + i / MEGA_ROWS) % (DIM / 2);
    const float *table = (const float *)a.rope_table + (int64_t)position * DIM + pair;
    const float *pages = (const float *)a.pages + a.rows[row].first_page;
    return {table, table + DIM / 2, pages + position / a.page_size, position};
}

/* Copies those of the pairs that threads finish first to where features will be. */
template <int DIM>
MEGA_FN void fetch_pair_inputs(const mega_arguments &a, const mega_block &b, const instruction &in)
{
    int i = b.thread, n = (in.units.end - in.units.begin) * MEGA_ROWS;
    if (in.opcode != MEGA_QKV || i >= min(n, (int)MEGA_EARLY_PAIRS) || i % MEGA_ROWS >= a.n_rows)
        return;
    pair_inputs from = pair_inputs_at<DIM>(a, b, in, i);
    uint32_t to = b.own + a.shared.features + 12 * i;
    copy_4(to, from.cosine);
    copy_4(to + 4, from.sine);
    copy_4(to + 8, from.page);
}

/* One pair's values, after RoPE for q and k, to the KV head's list and to the cache. */
template <int DIM, bool HALF>
MEGA_FN void store_pair(const mega_arguments &a, const mega_block &b, const instruction &in,
                        int unit, int row, float *v, float cosine, float sine, int position,
                        int page)
{
    qkv_pair p = qkv_pair_at<DIM>(a, unit);
    if (p.kind != PAIR_VALUE) {
        float first = __fmaf_rn(v[0], cosine, -__fmul_rn(v[1], sine));
        v[1] = __fmaf_rn(v[1], cosine, __fmul_rn(v[0], sine));
        v[0] = first;
    }
    int64_t head = ((int64_t)in.layer * a.pages_per_layer + page) * a.n_kv_heads + p.kv_head;
    int64_t place = head * a.page_size + position % a.page_size;
    uint16_t *cache = (uint16_t *)(p.kind == PAIR_KEY ? a.k_cache : a.v_cache) + place * DIM;
    int64_t *list = qkv_list<DIM>(a, in, p.kv_head, row) + p.member * DIM;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (p.kind != PAIR_QUERY) {
            uint16_t bits = cache_bits<DIM, HALF>(v[i]);
            cache[p.features[i]] = bits;
            v[i] = cache_float<HALF>(bits);
        }
        store_tagged(b, list, p.features[i], v[i]);
    }
}

template <int DIM, bool HALF>
MEGA_FN void finish_batch_qkv(const mega_arguments &a, mega_block &b, const instruction &in)
{
    int n = in.units.end - in.units.begin;
    const float *results = b.at<float>(a.shared.results), *early = b.at<float>(a.shared.features);
#pragma unroll 1
    for (int i = b.thread; i < n * MEGA_ROWS; i += MEGA_CONSUMERS) {
        int row = i % MEGA_ROWS, unit = i / MEGA_ROWS;
        if (row >= a.n_rows) continue;
        pair_inputs inputs = pair_inputs_at<DIM>(a, b, in, i);
        bool here = i < MEGA_EARLY_PAIRS;
        float cosine = here ? early[3 * i] : *inputs.cosine;
        float sine = here ? early[3 * i + 1] : *inputs.sine;
        int page = __float_as_int(here ? early[3 * i + 2] : *inputs.page);
        const float *at =
            results + row * a.shared.result_pitch + (unit >> 2) * MEGA_TILE + (unit & 3);
        float inverse = batch_inverse_rms(a, b, row, false);
        float v[2] = {at[0] * inverse, at[4] * inverse};
        store_pair<DIM, HALF>(a, b, in, in.units.begin + unit, row, v, cosine, sine,
                              inputs.position, page);
    }
}

/* ---- norm, gate, up, SiLU, down ---- */

template <int BLOCKS>
MEGA_FN void finish_batch_mlp(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    int n = e.in.units.end - e.in.units.begin;
    uint32_t tag = part_tag(a, b, e.in);
    int up = (n + MEGA_TILE - 1) / MEGA_TILE * MEGA_TILE; /* row of the first result of W_up */
    uint16_t *planes = b.at<uint16_t>(a.shared.features);
    const float *results = b.at<float>(a.shared.results);
    int padded = (int)a.shared.feature_row - MEGA_TILE;
    static_assert(MEGA_WARPS == 2 * MEGA_ROWS, "two warps a row");
    int row = b.warp / 2;
    bool there = row < a.n_rows;
    float inverse = batch_inverse_rms(a, b, row, false);
    if (there) results += row * a.shared.result_pitch;
    planes += row * a.shared.feature_row;
#pragma unroll 1
    for (int i = b.thread & 63; i < padded; i += 64) {
        float v = there && i < n ? gated(results[i] * inverse, results[up + i] * inverse) : 0;
        uint16_t parts[MEGA_PARTS];
        split_float(v, parts, 1);
#pragma unroll
        for (int p = 0; p < MEGA_PARTS; p++)
            planes[i + p * a.shared.feature_plane] = parts[p];
        if (i < n && a.peers > 1)
            store_relaxed(feature_list(a, row) + e.in.units.begin + i, tagged_feature(parts, tag));
    }
    b.sync();
    batch_transposed<BLOCKS>(a, b, e, tag);
}

/* ---- logits ---- */

/* Logits of `rows` rows of weights, and the largest key so far for each warp; two warps have a row
 * of x. */
MEGA_FN void finish_batch_logits(const mega_arguments &a, mega_block &b, int begin, int rows,
                                 bool first)
{
    int row = b.warp / 2;
    uint64_t *keys = b.at<uint64_t>(a.shared.keys), best = 0;
    if (row < a.n_rows) {
        float inverse = batch_inverse_rms(a, b, row, true);
        const float *results = b.at<float>(a.shared.results) + row * a.shared.result_pitch;
#pragma unroll 1
        for (int i = b.thread & 63; i < rows; i += 64) {
            float v = results[i] * inverse;
            ((float *)a.logits)[(int64_t)row * a.vocab + begin + i] = v;
            best = max(best, logit_key(a, v, begin + i));
        }
    }
#pragma unroll
    for (int o = 16; o; o >>= 1)
        best = max(best, __shfl_xor_sync(~0u, best, o));
    if (b.lane == 0) keys[b.warp] = first ? best : max(best, keys[b.warp]);
    b.sync();
}

MEGA_FN void finish_batch_pass(const mega_arguments &a, mega_block &b)
{
    const uint64_t *keys = b.at<uint64_t>(a.shared.keys);
    if (b.thread < a.n_rows)
        atomicMax((unsigned long long *)a.key + ((b.pass() + 1) & 1) * MEGA_ROWS + b.thread,
                  (unsigned long long)max(keys[2 * b.thread], keys[2 * b.thread + 1]));
    b.sync();
    if (b.thread == 0) add_release((uint32_t *)a.counters);
}

/* ---- norm and rows of weights ---- */

template <int DIM, bool HALF, int BLOCKS>
MEGA_FN void run_batch_rows(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    const int op = e.in.opcode, n = e.in.units.end - e.in.units.begin;
    bool logits = op == MEGA_LOGITS, mlp = op == MEGA_MLP;
    int step = logits ? 2 * a.n_layers : 2 * e.in.layer + mlp;
    int tiles = ((logits || mlp ? n : 2 * n) + MEGA_TILE - 1) / MEGA_TILE;
    int at_once = logits ? (int)(a.shared.result_pitch - 4) / MEGA_TILE : tiles;
    fetch_pair_inputs<DIM>(a, b, e.in);
    uint32_t x[8][MEGA_PARTS][2];
    read_batch<BLOCKS>(a, b, e, step, x);
    int turn = 0;
    for (int first = 0;;) {
#pragma unroll 1
        for (int matrix = 0; matrix <= mlp; matrix++)
            multiply_batch<BLOCKS>(a, b, x, min(at_once, tiles - first), matrix * tiles * MEGA_TILE,
                                   logits, turn);
        b.sync();
        if (!logits) break;
        finish_batch_logits(a, b, e.in.units.begin + first * MEGA_TILE,
                            min(at_once * MEGA_TILE, n - first * MEGA_TILE), first == 0);
        if ((first += at_once) >= tiles) break;
    }
    b.reload();
    asm volatile("" : "+r"(b.slot));
    const mega_entry &again = *b.at<mega_entry>(b.slot);
    b.stamp(a, MEGA_SIGNALS);
    if (again.in.opcode == MEGA_LOGITS)
        finish_batch_pass(a, b);
    else if (again.in.opcode == MEGA_MLP)
        finish_batch_mlp<BLOCKS>(a, b, again);
    else
        finish_batch_qkv<DIM, HALF>(a, b, again.in);
}

/* ---- a pass's two ends ---- */

MEGA_FN void run_batch_embedding(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    const int begin = e.in.units.begin, n = e.in.units.end - begin;
    if (b.thread == 0) {
        wait_counter(a, b, e.in, 0, b.pass() * gridDim.x);
        barrier_arrive(b.own + a.shared.flow + FLOW_BEGUN);
    }
    b.sync();
    bool given = b.pass() == a.first_pass;
    volatile uint64_t *keys = (volatile uint64_t *)a.key;
    int64_t *sums = batch_sums(a, b.pass() + 1, 0);
    uint32_t *published = batch_published(a, b.pass() + 1, 0);
#pragma unroll 1
    for (int i = b.thread; i < n * MEGA_ROWS; i += MEGA_CONSUMERS) {
        int row = i / n, column = begin + i % n;
        if (row >= a.n_rows) break;
        int token = given ? a.rows[row].token
                          : a.vocab - 1 - (int)(uint32_t)keys[(b.pass() & 1) * MEGA_ROWS + row];
        float v = wide_float(((const uint16_t *)a.embedding)[(int64_t)token * a.hidden + column]);
        store_relaxed(batch_sums(a, b.pass(), 0) + residual_place(column, row), fixed_part(v));
    }
    int share = n * MEGA_ROWS;
#pragma unroll 1
    for (int i = b.thread; i < share * (2 * a.n_layers + 1); i += MEGA_CONSUMERS) {
        size_t at = residual_step(a, i / share) + begin * MEGA_ROWS + i % share;
        sums[at] = 0;
        published[at] = NOT_PUBLISHED;
    }
    signal_added(a, b);
    b.sync();
    if (blockIdx.x == 0 && b.thread < MEGA_ROWS)
        keys[((b.pass() + 1) & 1) * MEGA_ROWS + b.thread] = 0;
}

/* The pass's tokens, for the host. */
MEGA_FN void report_tokens(const mega_arguments &a, mega_block &b, const instruction &in)
{
    if (blockIdx.x) return;
    if (b.thread == 0) wait_counter(a, b, in, 0, (b.pass() + 1) * gridDim.x);
    b.sync();
    if (b.thread >= a.n_rows) return;
    uint64_t key = ((volatile uint64_t *)a.key)[((b.pass() + 1) & 1) * MEGA_ROWS + b.thread];
    ((volatile int32_t *)a.tokens_out)[(b.pass() - a.first_pass) * a.n_rows + b.thread] =
        a.vocab - 1 - (int)(uint32_t)key;
}

#endif
