/* Attention of a KV head with what stands around it: its queries as they come from QKV, the states
 * of a long context's parts, and its columns of the output projection. */
#ifndef QUIPU_VM_MEGA_HEADS_CUH
#define QUIPU_VM_MEGA_HEADS_CUH

#include "vm/mega/attention.cuh"
#include "vm/mega/weights.cuh"

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
    b.stamp(a, MEGA_WORKS);
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
    b.stamp(a, MEGA_SIGNALS);
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
        split_float(out / sum * column_factor(i), planes + i, a.shared.head_plane);
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
        b.stamp(a, MEGA_WORKS);
    }
    merge_heads<DIM>(a, b, kv_head, alone ? 0 : e.in.parts);
    const int64_t *x = residual(a, b.pass, 2 * e.in.layer) + row;
    int64_t *next = residual(a, b.pass, 2 * e.in.layer + 1) + row;
    /* The first KV head brings the residual itself along. */
    int64_t carried = kv_head == 0 && b.thread < n ? sum_value(load_relaxed(x + b.thread)) : 0;
    int groups = product_heads<DIM>(a, b, e, n);
    b.sync();
    b.stamp(a, MEGA_SIGNALS);
    for (int i = b.thread; i < n; i += MEGA_CONSUMERS) {
        if (i >= MEGA_CONSUMERS && kv_head == 0) carried = sum_value(load_relaxed(x + i));
        add_relaxed(next + i, sum_part(row_sum(a, b, i, groups)) + carried);
    }
    b.sync();
}

#endif
