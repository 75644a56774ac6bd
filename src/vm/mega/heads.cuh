/* Attention of a KV head and what surrounds it: its queries as QKV stored them, the states of a
 * long context's parts, and its columns of the output projection. */
#pragma once

#if MEGA_CACHE_F8
#include "vm/mega/attention_f8.cuh"
#else
#include "vm/mega/attention_16.cuh"
#endif
#include "vm/mega/weights.cuh"

/* A KV head's q, k and v of a sequence. */
template <int DIM>
MEGA_FN int64_t *qkv_list(const mega_arguments &a, const instruction &in, int kv_head, int sequence)
{
    int64_t layer = (int64_t)sequence * a.n_layers + in.layer;
    return (int64_t *)a.qkv + (layer * a.n_kv_heads + kv_head) * (a.group + 2) * DIM;
}

/* Waits until this pass has made two neighbouring elements of a list; `made`: 1 + the pass. */
MEGA_FN float2 wait_pair(const mega_arguments &a, const mega_block &b, const instruction &in,
                         const int64_t *from, uint32_t made)
{
    watchdog watchdog = {0, 0};
    longlong2 v;
    for (;;) {
        v = load_relaxed_two(from);
        uint32_t passes[2] = {(uint32_t)((uint64_t)v.x >> 32), (uint32_t)((uint64_t)v.y >> 32)};
        if ((passes[0] == made && passes[1] == made) || !MEGA_WAITS) break;
        if (watchdog.expired())
            mega_stuck(a, in, b.entry(), b.pass(), MEGA_WAIT_QKV, made, passes[0]);
    }
    return make_float2(__uint_as_float((uint32_t)v.x), __uint_as_float((uint32_t)v.y));
}

/* The same of two lists at once; the loads are in flight together. */
struct two_pairs {
    float2 of[2];
};
MEGA_FN two_pairs wait_pairs(const mega_arguments &a, const mega_block &b, const instruction &in,
                             const int64_t *one, const int64_t *two, uint32_t made)
{
    watchdog watchdog = {0, 0};
    longlong2 v, w;
    for (;;) {
        v = load_relaxed_two(one), w = load_relaxed_two(two);
        uint32_t wrong =
            ((uint32_t)((uint64_t)v.x >> 32) ^ made) | ((uint32_t)((uint64_t)v.y >> 32) ^ made) |
            ((uint32_t)((uint64_t)w.x >> 32) ^ made) | ((uint32_t)((uint64_t)w.y >> 32) ^ made);
        if (!wrong || !MEGA_WAITS) break;
        if (watchdog.expired())
            mega_stuck(a, in, b.entry(), b.pass(), MEGA_WAIT_QKV, made,
                       (uint32_t)((uint64_t)v.x >> 32));
    }
    return {{make_float2(__uint_as_float((uint32_t)v.x), __uint_as_float((uint32_t)v.y)),
             make_float2(__uint_as_float((uint32_t)w.x), __uint_as_float((uint32_t)w.y))}};
}

/* ---- heads with norms ---- */

/* A head of q or k, or a value, as a warp has it: elements 2 lane and 2 lane + 1 of each 64. */
template <int DIM> struct head_vector {
    enum { SETS = DIM / 64 };
    float2 of[SETS];

    /* Waits until they are made. */
    MEGA_FN void wait(const mega_arguments &a, const mega_block &b, const instruction &in,
                      const int64_t *list)
    {
        const int64_t *at = list + 2 * b.lane;
        const two_pairs v = wait_pairs(a, b, in, at, at + 64 * (SETS - 1), b.pass() + 1);
#pragma unroll
        for (int i = 0; i < SETS; i++)
            of[i] = v.of[i];
    }
};

/* What a head's norm and turn need: the norm's weights, and for each element the cosine of its
 * angle and the sine by which its partner is multiplied. Loaded before the head is there. */
template <int DIM> struct head_turn {
    enum { SETS = DIM / 64 };
    float2 weight[SETS], cosine[SETS], sine[SETS];

    MEGA_FN void load(const mega_arguments &a, const mega_entry &e, int kind, int position,
                      int lane)
    {
        const int angles = turning_of(e) & MEGA_UNTURNED ? 0 : position;
        const float *row = (const float *)a.rope_table + (int64_t)angles * DIM;
        const char *norm = (const char *)e.weights.matrix[1 + kind];
#pragma unroll
        for (int i = 0; i < SETS; i++) {
            const int at = 2 * lane + 64 * i;
            if (e.weights.norm_is_f32) {
                const uint2 v = load_early_8(norm + 4 * at);
                weight[i] = make_float2(__uint_as_float(v.x), __uint_as_float(v.y));
            } else {
                const uint32_t v = __float_as_uint(load_early((const float *)(norm + 2 * at)));
                weight[i] = make_float2(wide_float((uint16_t)v), wide_float((uint16_t)(v >> 16)));
            }
            const int angle = a.interleaved ? at / 2 : at % (DIM / 2);
            const int next = a.interleaved ? 0 : 1; /* neighbours turn together, or apart */
            const bool first = a.interleaved || at < DIM / 2;
            cosine[i] = make_float2(load_early(row + angle), load_early(row + angle + next));
            const float *sines = row + DIM / 2 + angle;
            const float s = load_early(sines), t = load_early(sines + next);
            sine[i] = make_float2(first ? -s : s, first && !a.interleaved ? -t : t);
        }
    }
    MEGA_FN void apply(const mega_arguments &a, head_vector<DIM> &x, int lane) const
    {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < SETS; i++)
            sum = fmaf(x.of[i].y, x.of[i].y, fmaf(x.of[i].x, x.of[i].x, sum));
#pragma unroll
        for (int o = 16; o; o >>= 1)
            sum += __shfl_xor_sync(~0u, sum, o);
        const float scale = rsqrtf(sum / (float)DIM + a.eps);
        float2 v[SETS];
#pragma unroll
        for (int i = 0; i < SETS; i++)
            v[i] = make_float2(x.of[i].x * scale * weight[i].x, x.of[i].y * scale * weight[i].y);
#pragma unroll
        for (int i = 0; i < SETS; i++) {
            float2 other = v[SETS - 1 - i];
            if (SETS == 1) {
                other.x = __shfl_xor_sync(~0u, v[i].x, 16);
                other.y = __shfl_xor_sync(~0u, v[i].y, 16);
            }
            if (a.interleaved) other = make_float2(v[i].y, v[i].x);
            x.of[i] = make_float2(__fmaf_rn(v[i].x, cosine[i].x, __fmul_rn(other.x, sine[i].x)),
                                  __fmaf_rn(v[i].y, cosine[i].y, __fmul_rn(other.y, sine[i].y)));
        }
    }
};

/* A warp's place for a position of a KV head in the cache of keys. */
template <int DIM>
MEGA_FN char *key_place(const mega_arguments &a, const mega_entry &e, int first_page, int position)
{
    const int page = ((const int32_t *)a.pages)[first_page + position / a.page_size];
    const int64_t at = ((int64_t)e.in.layer * a.pages_per_layer + page) * a.n_kv_heads;
    return (char *)a.k_cache +
           ((at + e.weights.kv_head) * a.page_size + position % a.page_size) * DIM * CACHE_BYTES;
}
/* Appends a key. */
template <int DIM, bool HALF> MEGA_FN void append_key(const head_vector<DIM> &x, char *to, int lane)
{
#pragma unroll
    for (int i = 0; i < x.SETS; i++) {
        const int at = 2 * lane + 64 * i;
        if (MEGA_CACHE_F8)
            *(uint16_t *)(to + at) = f8_pair(x.of[i].x, x.of[i].y);
        else
            *(uint32_t *)(to + 2 * at) = cache_words<HALF>(x.of[i].x, x.of[i].y);
    }
}

/* wait_qkv() where heads have norms: a warp has a head. One block of the KV head appends the key,
 * and stores the queries, which comparisons read. */
template <int DIM, bool HALF>
MEGA_FN void wait_normed(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    const int position = a.first_position + (int)(b.pass() - a.first_pass);
    const bool part = e.in.opcode == MEGA_ATTENTION_PART;
    const bool keeps = part ? e.in.part == 0 : e.weights.row == 0;
    const int64_t *list = qkv_list<DIM>(a, e.in, e.weights.kv_head, 0);
#pragma unroll 1
    for (int v = b.warp; v < a.group + 2; v += MEGA_WARPS) {
        head_vector<DIM> x;
        head_turn<DIM> turn;
        turn.load(a, e, v >= a.group, position, b.lane);
        x.wait(a, b, e.in, list + v * DIM);
        if (v <= a.group) turn.apply(a, x, b.lane);
#pragma unroll
        for (int i = 0; i < x.SETS; i++)
            store_input<DIM, HALF>(a, b, a.group, v * DIM + 64 * i + 2 * b.lane, x.of[i].x,
                                   x.of[i].y);
        if (keeps && v == a.group)
            append_key<DIM, HALF>(x, key_place<DIM>(a, e, 0, position), b.lane);
        if (!keeps || v >= a.group) continue;
        const int64_t head = ((int64_t)e.in.layer * a.n_kv_heads + e.weights.kv_head) * a.group + v;
#pragma unroll
        for (int i = 0; i < x.SETS; i++)
            *(float2 *)((float *)a.queries + head * DIM + 64 * i + 2 * b.lane) = x.of[i];
    }
    b.sync();
    b.stamp(a, MEGA_WORKS);
}

/* Waits for the KV head's queries and newest key and value of this pass. */
template <int DIM, bool HALF>
MEGA_FN void wait_qkv(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    const instruction &in = e.in;
    int n = (a.group + 2) * DIM;
    uint32_t made = b.pass() + 1;
    if (turning_of(e) & MEGA_NORMED) return wait_normed<DIM, HALF>(a, b, e);
    const int64_t *list = qkv_list<DIM>(a, in, e.weights.kv_head, 0);
    for (int i = 2 * b.thread; i < n; i += 2 * MEGA_CONSUMERS) {
        float2 v = wait_pair(a, b, in, list + i, made);
        store_input<DIM, HALF>(a, b, a.group, i, v.x, v.y);
    }
    b.sync();
    b.stamp(a, MEGA_WORKS);
}

/* ---- parts of a long context ---- */

enum { MERGED_AT_ONCE = 4 }; /* parts that a thread merges together */

/* A part's states: maximum and sum of each head, then its outputs. Each is a pair of a value and a
 * number of this pass and layer, so that readers see whether it has come. */
template <int DIM> MEGA_FN int64_t *part_states(const mega_arguments &a, int kv_head, int part)
{
    return (int64_t *)a.states +
           ((int64_t)kv_head * MEGA_MAX_PARTITIONS + part) * a.group * (DIM + 2);
}
MEGA_FN uint32_t part_tag(const mega_arguments &a, const mega_block &b, const instruction &in)
{
    return b.pass() * a.n_layers + in.layer + 1;
}
MEGA_FN int64_t part_state(float v, uint32_t tag)
{
    return (int64_t)((uint64_t)tag << 32 | __float_as_uint(v));
}

/* Stores this block's part for all blocks of the KV head. */
template <int DIM>
MEGA_FN void store_part(const mega_arguments &a, mega_block &b, const instruction &in, int kv_head)
{
    int64_t *to = part_states<DIM>(a, kv_head, in.part);
    uint32_t tag = part_tag(a, b, in);
    b.stamp(a, MEGA_SIGNALS);
    merge_shares<DIM>(a, b, [&](int i, float2 out, float most, float sum) {
        if (b.lane % 2 == 0)
            store_relaxed_two(to + 2 * a.group + i, part_state(out.x, tag), part_state(out.y, tag));
        else if (i % DIM == 0)
            store_relaxed_two(to + 2 * (i / DIM), part_state(most, tag), part_state(sum, tag));
    });
}

/* Waits for two neighbouring states; `v`: what a first load returned. */
MEGA_FN float2 wait_states(const mega_arguments &a, const mega_block &b, const instruction &in,
                           const int64_t *from, longlong2 v, uint32_t tag)
{
    watchdog watchdog = {0, 0};
    for (;;) {
        uint32_t found = (uint32_t)((uint64_t)v.x >> 32);
        if ((found == tag && (uint32_t)((uint64_t)v.y >> 32) == tag) || !MEGA_WAITS)
            return make_float2(__uint_as_float((uint32_t)v.x), __uint_as_float((uint32_t)v.y));
        if (watchdog.expired())
            mega_stuck(a, in, b.entry(), b.pass(), MEGA_WAIT_STATES, tag, found);
        v = load_relaxed_two(from);
    }
}

/* Merges all parts of a context of `chunks` chunks and calls store(i, outputs i and i + 1). A
 * thread has two neighbouring outputs and a share of the parts. */
template <int DIM, typename STORE>
MEGA_FN void merge_parts(const mega_arguments &a, mega_block &b, const instruction &in, int kv_head,
                         int chunks, STORE store)
{
    const int heads = a.group, used = min(chunks, (int)in.parts), each = heads * DIM / 2;
    /* Warps for a head's outputs; heads that all warps cover together. */
    const int warps = DIM / 64, per_head = MEGA_WARPS / warps;
    const int groups = per_head * a.group_inverse / 256;
    const int group = b.warp / warps * a.group_inverse / 256, o = b.thread - group * each;
    uint32_t tag = part_tag(a, b, in);
    float4 *merged = b.at<float4>(a.shared.planes); /* [groups][each]: maximum, sum, outputs */
    float most = -INFINITY, sum = 0;
    float2 out = {0, 0};
    if (group < groups) {
        const int64_t *from = part_states<DIM>(a, kv_head, 0);
        const int pitch = a.group * (DIM + 2), state = 2 * (2 * o / DIM), output = 2 * (heads + o);
#pragma unroll 1
        for (int j = group; j < used; j += MERGED_AT_ONCE * groups) {
            longlong2 v[MERGED_AT_ONCE], w[MERGED_AT_ONCE];
#pragma unroll
            for (int k = 0; k < MERGED_AT_ONCE; k++) {
                const int64_t *part = from + min(j + k * groups, used - 1) * pitch;
                v[k] = load_relaxed_two(part + state);
                w[k] = load_relaxed_two(part + output);
            }
            asm volatile("" : "+r"(j)); /* recomputes addresses, so that they need no registers */
#pragma unroll
            for (int k = 0; k < MERGED_AT_ONCE; k++) {
                if (j + k * groups >= used) continue;
                const int64_t *part = from + (j + k * groups) * pitch;
                float2 s = wait_states(a, b, in, part + state, v[k], tag);
                float2 t = wait_states(a, b, in, part + output, w[k], tag);
                float larger = fmaxf(most, s.x), f = exp2_fast(most - larger),
                      g = exp2_fast(s.x - larger);
                most = larger;
                sum = fmaf(g, s.y, sum * f);
                out.x = fmaf(g, t.x, out.x * f);
                out.y = fmaf(g, t.y, out.y * f);
            }
        }
        merged[group * each + o] = make_float4(most, sum, out.x, out.y);
    }
    b.sync();
    b.stamp(a, MEGA_WORKS);
    if (group == 0) {
        int n = min(groups, used);
#pragma unroll 4
        for (int g = 1; g < n; g++)
            most = fmaxf(most, merged[g * each + o].x);
        sum = 0;
        out = make_float2(0, 0);
#pragma unroll 4
        for (int g = 0; g < n; g++) {
            float4 m = merged[g * each + o];
            float f = exp2_fast(m.x - most);
            sum = fmaf(f, m.y, sum);
            out.x = fmaf(f, m.z, out.x);
            out.y = fmaf(f, m.w, out.y);
        }
        const float both[2] = {out.x / sum, out.y / sum};
        store(2 * o, both);
    }
    b.sync();
}

/* ---- a KV head ---- */

/* The newest position, which is the number of positions before it. */
MEGA_FN int position_of(const mega_arguments &a, const mega_block &b)
{
    return a.first_position + (int)(b.pass() - a.first_pass);
}

/* Stores the heads' outputs as planes, merged from this block's own states or from all parts. */
template <int DIM>
MEGA_FN void make_planes(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    int old = position_of(a, b);
    uint32_t planes = a.shared.heads, pitch = a.shared.head_plane;
    if (old + 1 > a.recompute)
        return merge_parts<DIM>(
            a, b, e.in, e.weights.kv_head, seen_chunks<DIM>(old, e.weights.window),
            [&](int i, const float *out) { store_features<2>(b, planes, pitch, i, out); });
    merge_shares<DIM>(a, b, [&](int i, float2 out, float, float sum) {
        float own = (b.lane % 2 ? out.y : out.x) / sum;
        store_features<1>(b, planes, pitch, i + b.lane % 2, &own);
    });
    b.sync();
}

/* Either a part of a long context; or the KV head's attention (of a short context all of it, of a
 * long one merged from the parts) and its columns of W_o. One function, so that the code of
 * attention is there once. */
template <int DIM, bool HALF>
MEGA_FN void run_attention(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    int old = position_of(a, b);
    const int n = e.in.units.end - e.in.units.begin;
    bool alone = old + 1 <= a.recompute, partial = e.in.opcode == MEGA_ATTENTION_PART;
    int first = 0, chunks = attention_chunks<DIM>(a, e.in, old, e.weights.window, &first);
    if (partial && !chunks) return;
    if (partial || alone) {
        head_states<DIM> s;
        wait_qkv<DIM, HALF>(a, b, e);
        attend<DIM, HALF>(a, b, old, first_seen(old, e.weights.window), first, chunks, s);
        store_state<DIM>(a, b, s, 0);
        b.sync();
        if (e.in.opcode == MEGA_ATTENTION_PART)
            return store_part<DIM>(a, b, e.in, e.weights.kv_head);
    }
    make_planes<DIM>(a, b, e);
    const int64_t *x = residual(a, b.pass(), 2 * e.in.layer) + e.weights.row;
    /* The blocks of the first KV head also add the residual itself to the sums; of several ranks
     * each adds its own part, and the embedding is rank 0's. */
    const bool carries =
        e.weights.kv_head == 0 && (!MEGA_RANKS || a.ranks.rank == 0 || e.in.layer > 0);
    auto carry = [&](int i) {
        const int64_t value = wait_element(a, b, e, x + i);
        return biases_of(e) ? value + bias_part(biases_of(e), e.weights.row + i) : value;
    };
    int64_t carried = carries && b.thread < n ? carry(b.thread) : 0;
    int groups = product_heads<DIM>(a, b, e, n);
    b.sync();
    b.stamp(a, MEGA_SIGNALS);
    int64_t *next = residual(a, b.pass(), 2 * e.in.layer + 1) + e.weights.row;
    for (int i = b.thread; i < n; i += MEGA_CONSUMERS) {
        if (i >= MEGA_CONSUMERS && carries) carried = carry(i);
        add_relaxed(next + i, fixed_part(row_sum(a, b, i, groups)) + carried);
    }
    b.sync();
}
