/* Attention of a KV head with what stands around it: its queries as they come from QKV, the states
 * of a long context's parts, and its columns of the output projection. */
#ifndef QUIPU_VM_MEGA_HEADS_CUH
#define QUIPU_VM_MEGA_HEADS_CUH

#include "vm/mega/attention.cuh"
#include "vm/mega/weights.cuh"

/* A KV head's q, k and v of a sequence. */
template <int DIM>
MEGA_FN int64_t *qkv_list(const mega_arguments &a, const instruction &in, int kv_head, int sequence)
{
    int64_t layer = (int64_t)sequence * a.n_layers + in.layer;
    return (int64_t *)a.qkv + (layer * a.n_kv_heads + kv_head) * (a.group + 2) * DIM;
}

/* The KV head's queries, newest key and value of this pass. */
template <int DIM>
MEGA_FN void wait_qkv(const mega_arguments &a, mega_block &b, const instruction &in, int kv_head,
                      int sequence = 0)
{
    float *qkv = b.at<float>(a.shared.qkv);
    int n = (a.group + 2) * DIM;
    uint32_t made = b.pass() + 1;
    const int64_t *list = qkv_list<DIM>(a, in, kv_head, sequence);
    for (int i = 2 * b.thread; i < n; i += 2 * MEGA_CONSUMERS) {
        patience patience = {0, 0};
        for (;;) {
            longlong2 v = load_relaxed_two(list + i);
            uint32_t passes[2] = {(uint32_t)((uint64_t)v.x >> 32), (uint32_t)((uint64_t)v.y >> 32)};
            qkv[i] = __uint_as_float((uint32_t)v.x);
            qkv[i + 1] = __uint_as_float((uint32_t)v.y);
            if (passes[0] == made && passes[1] == made) break;
            if (patience.over()) mega_stuck(a, in, b.entry(), b.pass(), -2, made, passes[0]);
        }
    }
    b.sync();
    b.stamp(a, MEGA_WORKS);
}

/* ---- parts of a long context ---- */

enum { MERGED_AT_ONCE = 5 }; /* parts, by a thread */

/* A part's states, each a pair of a value and a number of this pass and layer, so that whoever
 * reads them sees whether they have come: maximum and sum of each head, then its outputs. */
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

/* Output `i` of the KV head's from this block's own states, not divided by the sum yet. */
template <int DIM>
MEGA_FN float merge_shares(const mega_arguments &a, const mega_block &b, int i, float *most,
                           float *sum)
{
    const float *outputs = b.at<float>(a.shared.planes), *states = b.at<float>(a.shared.states);
    int heads = a.group;
    float out;
    merge_outputs(
        attention_shape_of(a).shares,
        [&](int s, int what) {
            int at = s * heads + i / DIM;
            return what == 2 ? outputs[at * DIM + i % DIM] : states[2 * at + what];
        },
        most, sum, &out);
    return out;
}

/* This block's part, for all blocks of the KV head. */
template <int DIM>
MEGA_FN void leave_part(const mega_arguments &a, mega_block &b, const instruction &in, int kv_head)
{
    int64_t *to = part_states<DIM>(a, kv_head, in.part);
    uint32_t tag = part_tag(a, b, in);
    b.stamp(a, MEGA_SIGNALS);
#pragma unroll 1
    for (int i = b.thread; i < a.group * DIM; i += MEGA_CONSUMERS) {
        float most, sum, out = merge_shares<DIM>(a, b, i, &most, &sum);
        store_relaxed(to + 2 * a.group + i, part_state(out, tag));
        if (i % DIM) continue;
        store_relaxed(to + 2 * (i / DIM), part_state(most, tag));
        store_relaxed(to + 2 * (i / DIM) + 1, part_state(sum, tag));
    }
}

/* Two neighbouring states once they have come; `v` is what a first look has seen. */
MEGA_FN float2 wait_states(const mega_arguments &a, const mega_block &b, const instruction &in,
                           const int64_t *from, longlong2 v, uint32_t tag)
{
    patience patience = {0, 0};
    for (;;) {
        uint32_t found = (uint32_t)((uint64_t)v.x >> 32);
        if (found == tag && (uint32_t)((uint64_t)v.y >> 32) == tag)
            return make_float2(__uint_as_float((uint32_t)v.x), __uint_as_float((uint32_t)v.y));
        if (patience.over()) mega_stuck(a, in, b.entry(), b.pass(), -3, tag, found);
        v = load_relaxed_two(from);
    }
}

/* The heads' outputs of all parts of a context of `chunks` chunks, to leave(i, outputs i and i +
 * 1). Threads have two neighbouring outputs and a share of the parts. */
template <int DIM, typename LEAVE>
MEGA_FN void merge_parts(const mega_arguments &a, mega_block &b, const instruction &in, int kv_head,
                         int chunks, LEAVE leave)
{
    const int heads = a.group, used = min(chunks, (int)in.parts), each = heads * DIM / 2;
    const int groups = MEGA_CONSUMERS / each, group = b.thread / each, o = b.thread % each;
    uint32_t tag = part_tag(a, b, in);
    float2 *states = b.at<float2>(a.shared.planes); /* [used][heads] */
    float2 *outputs = states + used * heads;        /* [groups][each] */
    for (int i = b.thread; i < used * heads; i += MEGA_CONSUMERS) {
        const int64_t *from =
            part_states<DIM>(a, kv_head, used_part(i / heads, chunks, in.parts)) + 2 * (i % heads);
        states[i] = wait_states(a, b, in, from, load_relaxed_two(from), tag);
    }
    b.sync();
    b.stamp(a, MEGA_WORKS);
    int head = 2 * o / DIM;
    float most = -INFINITY, sum = 0;
    float2 out = {0, 0};
    if (group < groups) {
#pragma unroll 4
        for (int j = 0; j < used; j++)
            most = fmaxf(most, states[j * heads + head].x);
#pragma unroll 1
        for (int j = group; j < used; j += MERGED_AT_ONCE * groups) {
            longlong2 v[MERGED_AT_ONCE];
            const int64_t *from[MERGED_AT_ONCE];
#pragma unroll
            for (int k = 0; k < MERGED_AT_ONCE; k++) {
                int part = used_part(min(j + k * groups, used - 1), chunks, in.parts);
                from[k] = part_states<DIM>(a, kv_head, part) + 2 * (heads + o);
                v[k] = load_relaxed_two(from[k]);
            }
#pragma unroll
            for (int k = 0; k < MERGED_AT_ONCE; k++) {
                if (j + k * groups >= used) continue;
                float2 w = wait_states(a, b, in, from[k], v[k], tag);
                float f = exp2_fast(states[(j + k * groups) * heads + head].x - most);
                out.x = fmaf(f, w.x, out.x);
                out.y = fmaf(f, w.y, out.y);
            }
        }
        outputs[group * each + o] = out;
    }
    b.sync();
    if (group == 0) {
        out = make_float2(0, 0);
        for (int j = 0; j < used; j++)
            sum =
                fmaf(exp2_fast(states[j * heads + head].x - most), states[j * heads + head].y, sum);
        for (int g = 0; g < groups; g++)
            out.x += outputs[g * each + o].x, out.y += outputs[g * each + o].y;
        const float merged[2] = {out.x / sum, out.y / sum};
        leave(2 * o, merged);
    }
    b.sync();
}

/* ---- a KV head ---- */

/* The heads' outputs as planes: of this block's own states, or of all parts. */
template <int DIM>
MEGA_FN void make_planes(const mega_arguments &a, mega_block &b, const instruction &in, int kv_head,
                         bool alone, int chunks)
{
    uint32_t planes = a.shared.heads, pitch = a.shared.head_plane;
    if (!alone)
        return merge_parts<DIM>(a, b, in, kv_head, chunks, [&](int i, const float *out) {
            leave_features<2>(b, planes, pitch, i, out);
        });
#pragma unroll 1
    for (int i = b.thread; i < a.group * DIM; i += MEGA_CONSUMERS) {
        float most, sum, out = merge_shares<DIM>(a, b, i, &most, &sum);
        out /= sum;
        leave_features<1>(b, planes, pitch, i, &out);
    }
    b.sync();
}

/* A part of a long context, or the KV head's attention (of a short context all of it, of a long one
 * from the parts) and its columns of W_o: one function, so that attention is there once. */
template <int DIM, bool HALF>
MEGA_FN void run_attention(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    int old = a.first_position + (int)(b.pass() - a.first_pass);
    int kv_head = entry_kv_head(a, e.in), row = e.in.units.begin % a.hidden;
    int n = e.in.units.end - e.in.units.begin;
    bool alone = old + 1 <= a.recompute, partial = e.in.opcode == OP_ATTENTION_PARTIAL;
    int first = 0, chunks = attention_chunks<DIM>(a, e.in, old, &first);
    if (partial && !chunks) return;
    if (partial || alone) {
        wait_qkv<DIM>(a, b, e.in, kv_head);
        attend<DIM, HALF>(a, b, old, first, chunks, alone || e.in.part == e.in.parts - 1);
        if (partial) return leave_part<DIM>(a, b, e.in, kv_head);
    }
    make_planes<DIM>(a, b, e.in, kv_head, alone, context_chunks<DIM>(old));
    const int64_t *x = residual(a, b.pass(), 2 * e.in.layer) + row;
    int64_t *next = residual(a, b.pass(), 2 * e.in.layer + 1) + row;
    /* The first KV head brings the residual itself along. */
    int64_t carried = kv_head == 0 && b.thread < n ? wait_element(a, b, e, x + b.thread) : 0;
    int groups = product_heads<DIM>(a, b, e, n);
    b.sync();
    b.stamp(a, MEGA_SIGNALS);
    for (int i = b.thread; i < n; i += MEGA_CONSUMERS) {
        if (i >= MEGA_CONSUMERS && kv_head == 0) carried = wait_element(a, b, e, x + i);
        add_relaxed(next + i, fixed_part(row_sum(a, b, i, groups)) + carried);
    }
    b.sync();
}

#endif
