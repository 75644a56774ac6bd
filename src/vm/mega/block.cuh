/* A block's state: shared memory, both ends of the ring, the residual. */
#pragma once

#include "op/fixed.h"
#include "op/norm_qkv_rope/pairs.h"
#include "vm/mega/async.cuh"
#include "vm/mega/digits.cuh"
#include "vm/mega/mega.h"
#include "vm/mega/timing.cuh"

/* The defines of an image: see kernels.cu. */
#ifndef MEGA_SEVERAL
#define MEGA_SEVERAL 0
#endif
#ifndef MEGA_QUANT_TYPES
#define MEGA_QUANT_TYPES 0
#endif
#ifndef MEGA_FAMILIES
#define MEGA_FAMILIES 1
#endif
#ifndef MEGA_HALF
#define MEGA_HALF 0
#endif
#ifndef MEGA_CACHE_F8
#define MEGA_CACHE_F8 0
#endif
#ifndef MEGA_CHOOSES
#define MEGA_CHOOSES 0
#endif
#ifndef MEGA_STOPPABLE
#define MEGA_STOPPABLE 0 /* 1: a launch may end before its last pass */
#endif
#ifndef MEGA_DELAYS
#define MEGA_DELAYS 0
#endif
#ifndef MEGA_WAITS
#define MEGA_WAITS 1
#endif
#ifndef MEGA_RANKS
#define MEGA_RANKS 0
#endif

enum : uint64_t { WATCHDOG_NS = MEGA_DELAYS ? 100000000000 : MEGA_RANKS ? 2000000000 : 1000000000 };

/* The mbarriers of mega_flow. */
enum : uint32_t {
    FLOW_BEGUN = offsetof(mega_flow, begun),
    FLOW_TO_CHOOSE = offsetof(mega_flow, to_choose),
    FLOW_CHOSEN = offsetof(mega_flow, chosen),
    FLOW_ADDED = offsetof(mega_flow, added),
};

/* Bytes of a stage: a constant for 16-bit weights. */
MEGA_FN int stage_bytes(const mega_arguments &a)
{
    return MEGA_QUANT_TYPES ? a.stage_bytes : (int)MEGA_STAGE;
}

/* A place in the ring: the stage, and the parity of its round. */
struct ring_place {
    int stage;
    uint32_t parity;
    MEGA_FN void advance(int stages)
    {
        if (++stage < stages) return;
        stage = 0;
        parity ^= 1;
    }
};

/* Several rows of x by weights of 16 bits take nearly all registers of a thread. */
enum { MEGA_PACKS = MEGA_SEVERAL && !MEGA_QUANT_TYPES };

/* The state of a consumer thread. All functions that use it are inlined, so that it stays in
 * registers: local memory would wait for the stream of weights. */
struct mega_block {
    char *memory;       /* shared memory after the ring */
    uint32_t ring, own; /* addresses in shared memory: of the ring, and of what follows it */
    ring_place place;
    int thread, warp, lane;
    /* The offset of the current entry; where x leaves few registers times MEGA_CONSUMERS, plus the
     * thread. */
    uint32_t packed;

    MEGA_FN uint32_t slot() const { return packed / (MEGA_PACKS ? MEGA_CONSUMERS : 1); }
    MEGA_FN void set_slot(uint32_t offset)
    {
        packed = MEGA_PACKS ? MEGA_CONSUMERS * offset + thread : offset;
    }
    MEGA_FN const mega_entry &current() const { return *at<mega_entry>(slot()); }
    template <typename T> MEGA_FN T *at(uint32_t offset) const { return (T *)(memory + offset); }
    MEGA_FN volatile mega_flow *flow(const mega_arguments &a) const
    {
        return at<volatile mega_flow>(a.shared.flow);
    }
    /* In shared memory, because they are needed seldom. */
    MEGA_FN uint32_t pass() const { return current().place.pass; }
    MEGA_FN int entry() const { return current().place.entry; }
    /* Makes the compiler forget what it computed from these, so that nothing stays in registers
     * from entry to entry. */
    MEGA_FN void reload()
    {
        if (MEGA_PACKS) {
            asm volatile("" : "+r"(ring), "+r"(own), "+r"(packed)::"memory");
            thread = packed % MEGA_CONSUMERS;
        } else {
            asm volatile("" : "+r"(ring), "+r"(own), "+r"(thread)::"memory");
        }
        warp = thread >> 5;
        lane = thread & 31;
    }
    MEGA_FN void sync() const
    {
        asm volatile("bar.sync 1, %0;" ::"r"((int)MEGA_CONSUMERS) : "memory");
    }
    MEGA_FN void stamp(const mega_arguments &a, mega_moment moment) const
    {
        if (a.timings) timing_stamp(a, thread, pass(), entry(), moment);
    }
};

/* Inlined, because a call leaves its callers fewer registers; kernels of fragments have room for
 * it.
 */
#if MEGA_QUANT_TYPES
static __device__ __noinline__
#else
MEGA_FN
#endif
    void
    report_stuck(const mega_arguments &a, int opcode, int layer, int entry, uint32_t pass,
                 int waits_for, uint32_t expected, uint32_t found)
{
    mega_report *report = (mega_report *)a.report;
    if (atomicCAS(&report->state, 0, 1) == 0) {
        report->block = blockIdx.x;
        report->entry = entry;
        report->opcode = opcode;
        report->layer = layer;
        report->waits_for = waits_for;
        report->expected = expected;
        report->found = found;
        report->pass = pass;
        __threadfence_system();
        *(volatile int32_t *)&report->state = 2;
    }
    __threadfence_system();
    for (uint64_t start = global_ns(); global_ns() - start < 10000000;) {
    } /* time for other blocks' reports */
}

/* Ends the launch by a store to address 0. With a trap the assembler would keep what lives across
 * it in the registers that a thread has at launch, and would not use those that setmaxnreg adds.
 * The exit tells it that nothing follows. */
MEGA_FN void end_launch(void)
{
    asm volatile("st.global.u32 [%0], %1;\n exit;" ::"l"(0ull), "r"(0) : "memory");
}
MEGA_FN void mega_stuck(const mega_arguments &a, const instruction &in, int entry, uint32_t pass,
                        int waits_for, uint32_t expected, uint32_t found)
{
    report_stuck(a, in.opcode, in.layer, entry, pass, waits_for, expected, found);
    end_launch();
}

/* Reads the clock at every 256th try. */
struct watchdog {
    uint64_t start;
    uint32_t tries;
    MEGA_FN bool expired()
    {
        if (++tries & 255) return false;
        uint64_t now = global_ns();
        if (!start) start = now;
        return now - start > WATCHDOG_NS;
    }
};

MEGA_FN void wait_counter(const mega_arguments &a, const mega_block &b, const instruction &in,
                          uint32_t counter, uint32_t target)
{
    const uint32_t *p = (const uint32_t *)a.counters + counter * MEGA_COUNTER_WORDS;
    if (!MEGA_WAITS) return;
    watchdog watchdog = {0, 0};
    for (;;) {
        uint32_t v = load_acquire(p);
        if ((int32_t)(v - target) >= 0) return;
        if (watchdog.expired()) mega_stuck(a, in, b.entry(), b.pass(), (int)counter, target, v);
    }
}

MEGA_FN void wait_chunk(uint32_t barrier, uint32_t parity)
{
    if (barrier_try(barrier, parity)) return;
    uint64_t start = global_ns();
    while (!barrier_try(barrier, parity))
        if (global_ns() - start > WATCHDOG_NS + WATCHDOG_NS / 2) end_launch();
}

/* Waits for the next chunk and returns its address. */
MEGA_FN uint32_t acquire_chunk(const mega_arguments &a, mega_block &b)
{
    wait_chunk(b.own + a.shared.full + 8 * b.place.stage, b.place.parity);
    return b.ring + b.place.stage * stage_bytes(a);
}
/* Which lanes signal that the warp has read a stage: the first, after __syncwarp(); with delays all
 * (see kernels.cu). */
MEGA_FN bool signals(const mega_block &b)
{
    return MEGA_DELAYS || b.lane == 0;
}
/* Releases the stage: this warp has read it. */
MEGA_FN void release_chunk(const mega_arguments &a, mega_block &b)
{
    __syncwarp();
    if (signals(b)) barrier_arrive(b.own + a.shared.empty + 8 * b.place.stage);
    b.place.advance(a.stages);
}

/* Numbers of the weights' type, BF16 or F16. */
MEGA_FN uint16_t narrow_bits(float v)
{
    return MEGA_HALF ? __half_as_ushort(__float2half_rn(v))
                     : __bfloat16_as_ushort(__float2bfloat16(v));
}
MEGA_FN float wide_float(uint16_t bits)
{
    return MEGA_HALF ? __half2float(__ushort_as_half(bits)) : __uint_as_float((uint32_t)bits << 16);
}

/* A plane's numbers are so many times as large as its part of the vector, because F16 has few
 * exponents. The largest number is then 2^22, and numbers from 2^-17 on are exact. */
MEGA_FN constexpr float plane_factor(int plane)
{
    return !MEGA_HALF ? 1.0f : plane == 0 ? 0.015625f : plane == 1 ? 32.0f : 65536.0f;
}

/* Splits a float32 into three numbers of 16 bits; BF16: exactly. */
MEGA_FN void split_float(float v, uint16_t *to, int plane)
{
#pragma unroll
    for (int p = 0; p < MEGA_PARTS; p++) {
        to[p * plane] = narrow_bits(v * plane_factor(p));
        v -= wide_float(to[p * plane]) * (1 / plane_factor(p));
    }
}

/* A fragment of W_down has 32 features: how many of the block's first one belong to the block
 * before. */
MEGA_FN int features_lead(int begin)
{
    return MEGA_QUANT_TYPES ? begin % FRAGMENT_COLUMNS : 0;
}

/* What families have beside a Llama; none in kernels without MEGA_FAMILIES. */
MEGA_FN const float *biases_of(const mega_entry &e)
{
    return MEGA_FAMILIES ? (const float *)e.weights.biases : NULL;
}
MEGA_FN int turning_of(const mega_entry &e)
{
    return MEGA_FAMILIES ? e.weights.turning : 0;
}

/* A bias in fixed point, which counts as no part of a sum. */
MEGA_FN int64_t bias_part(const float *biases, int i)
{
    return __float2ll_rn(biases[i] * FIXED_ONE);
}

/* A row's sum over its parts: one per warp or slice of columns. */
MEGA_FN float row_sum(const mega_arguments &a, const mega_block &b, int row, int slices)
{
    const float *sums = b.at<float>(a.shared.sums) + row;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < MEGA_WARPS; w++)
        if (w < slices) sum += sums[w * a.shared.sum_pitch];
    return sum;
}

/* The same by eight neighbouring lanes; all get it. */
MEGA_FN float add_eight(float v)
{
#pragma unroll
    for (int o = 4; o; o >>= 1)
        v += __shfl_xor_sync(~0u, v, o);
    return v;
}
MEGA_FN float row_sum_by_eight(const mega_arguments &a, const mega_block &b, int row, int slices)
{
    static_assert(MEGA_WARPS == 16, "two sums a lane");
    int slice = b.lane % 8;
    const float *sums = b.at<float>(a.shared.sums) + slice * a.shared.sum_pitch + row;
    float sum = slice < slices ? sums[0] : 0;
    return add_eight(slice + 8 < slices ? sum + sums[8 * a.shared.sum_pitch] : sum);
}

/* Kernels with delays: the warp sleeps before one entry in sixteen, chosen by a hash. */
MEGA_FN void delay_warp(const mega_arguments &a, uint32_t pass, int entry)
{
    uint32_t h = (pass * 1315423911u + (uint32_t)entry) * 2654435761u;
    h = (h ^ (blockIdx.x * 64 + (threadIdx.x >> 5))) * 2246822519u;
    h = (h ^ h >> 15) * 3266489917u;
    if (h >> 28 == 0) __nanosleep((h >> 3) % a.delay);
}

/* The KV head of attention's parts and of W_o's rows. */
MEGA_FN int entry_kv_head(const mega_arguments &a, const instruction &in)
{
    return in.units.begin / (in.opcode == MEGA_ATTENTION_OUTPUT ? a.hidden : in.parts);
}

/* A unit of QKV as op/norm_qkv_rope/pairs.h defines it, for heads that RoPE rotates whole. In 32
 * bits, because a 64-bit division takes hundreds of instructions. */
struct qkv_pair {
    /* Member: which of the KV head's heads, q then k then v. */
    int kind, kv_head, member, head, pair, features[2];
};
template <int DIM> MEGA_FN qkv_pair qkv_pair_at(const mega_arguments &a, int unit)
{
    unsigned each = (unsigned)(a.group + 2) * (DIM / 2), rest = (unsigned)unit % each;
    qkv_pair p;
    p.kv_head = (int)((unsigned)unit / each);
    p.member = (int)(rest / (DIM / 2));
    p.pair = (int)(rest % (DIM / 2));
    p.kind = p.member < a.group ? PAIR_QUERY : p.member == a.group ? PAIR_KEY : PAIR_VALUE;
    p.head = p.kind == PAIR_QUERY ? p.kv_head * a.group + p.member : p.kv_head;
    bool apart = !a.interleaved && p.kind != PAIR_VALUE;
    p.features[0] = apart ? p.pair : 2 * p.pair;
    p.features[1] = apart ? p.pair + DIM / 2 : 2 * p.pair + 1;
    return p;
}

/* The residual's sums after a step of a pass: step 0 the embedding, then two a layer. */
MEGA_FN int64_t *residual(const mega_arguments &a, uint32_t pass, int step)
{
    return (int64_t *)a.x + ((size_t)(pass & 1) * (2 * a.n_layers + 1) + step) * a.hidden;
}

/* Waits until four neighbouring elements of x are complete, in all lanes of the warp. */
MEGA_FN void wait_residual(const mega_arguments &a, const mega_block &b, const instruction &in,
                           const int64_t *x, uint32_t parts, bool inside, longlong2 *out)
{
    watchdog watchdog = {0, 0};
    /* Poll one element at first: many readers would slow down the blocks that add. */
    while (inside && MEGA_WAITS) {
        uint32_t found = fixed_count(load_relaxed(x - 4 * b.lane));
        if (found == parts) break;
        __nanosleep(100);
        if (watchdog.expired()) mega_stuck(a, in, b.entry(), b.pass(), MEGA_WAIT_X, parts, found);
    }
    for (;;) {
        bool complete = true;
        if (inside) {
            out[0] = load_relaxed_two(x);
            out[1] = load_relaxed_two(x + 2);
            complete = fixed_count(out[0].x) == parts && fixed_count(out[0].y) == parts &&
                       fixed_count(out[1].x) == parts && fixed_count(out[1].y) == parts;
        }
        if (__all_sync(~0u, complete) || !MEGA_WAITS) return;
        if (watchdog.expired() && b.lane == 0)
            mega_stuck(a, in, b.entry(), b.pass(), MEGA_WAIT_X, parts, fixed_count(out[0].x));
    }
}

/* Waits for one element of the residual. Needed because another block may have waited for it in
 * place of this one. */
MEGA_FN int64_t wait_element(const mega_arguments &a, const mega_block &b, const mega_entry &e,
                             const int64_t *x)
{
    watchdog watchdog = {0, 0};
    for (;;) {
        int64_t sum = load_relaxed(x);
        if (fixed_count(sum) == e.weights.parts || !MEGA_WAITS) return fixed_value(sum);
        if (watchdog.expired())
            mega_stuck(a, e.in, b.entry(), b.pass(), MEGA_WAIT_X, e.weights.parts,
                       fixed_count(sum));
    }
}

/* Stores each lane's four neighbouring columns in the vector's planes: of 16 bits, or digits with a
 * unit for the warp's 128 columns. */
MEGA_FN void store_columns(const mega_arguments &a, const mega_block &b, int i, const float *v)
{
    char *planes = b.at<char>(a.shared.planes);
#if MEGA_QUANT_TYPES
    float *units = (float *)(planes + DIGITS * a.shared.plane);
    store_four_digits(planes, (int)a.shared.plane, i, v, units + i / FRAGMENT_WIDTH);
#else
    uint16_t split[4 * MEGA_PARTS];
#pragma unroll
    for (int j = 0; j < 4; j++)
        split_float(v[j], split + j, 4);
#pragma unroll
    for (int p = 0; p < MEGA_PARTS; p++)
        *(uint2 *)(planes + 2 * (p * a.shared.plane + i)) = *(uint2 *)(split + 4 * p);
#endif
}

/* Stores a lane's N neighbouring features, of a head or of the MLP, in planes at `offset`. All
 * lanes of the warp call it. */
template <int N>
MEGA_FN void store_features(const mega_block &b, uint32_t offset, uint32_t plane, int i,
                            const float *v)
{
#if MEGA_QUANT_TYPES
    char *planes = b.at<char>(offset);
    store_digits<N>(planes, (int)plane, i, v, (float *)(planes + DIGITS * plane));
#else
#pragma unroll
    for (int j = 0; j < N; j++)
        split_float(v[j], b.at<uint16_t>(offset) + i + j, (int)plane);
#endif
}

#if MEGA_RANKS
/* In ranks.cuh. */
MEGA_FN void wait_ranks(const mega_arguments &a, const mega_block &b, const instruction &in,
                        const int64_t *own, int step, int column, uint32_t parts, bool inside,
                        longlong2 *out);
#endif

/* Waits for four neighbouring columns from `i` on of x at `step`, stores x times the norm's weight
 * as planes, and adds their squares to a sum. */
MEGA_FN float read_columns(const mega_arguments &a, mega_block &b, const mega_entry &e, int step,
                           int i, float squares)
{
    const bool inside = i < a.hidden;
    const int64_t *x = residual(a, b.pass(), step) + i;
    float w[4] = {0, 0, 0, 0};
    if (inside && e.weights.norm_is_f32) {
        uint4 v = load_early_16((const float *)e.weights.norm + i);
        w[0] = __uint_as_float(v.x), w[1] = __uint_as_float(v.y);
        w[2] = __uint_as_float(v.z), w[3] = __uint_as_float(v.w);
    } else if (inside) {
        uint2 v = load_early_8((const uint16_t *)e.weights.norm + i);
        w[0] = wide_float((uint16_t)v.x), w[1] = wide_float((uint16_t)(v.x >> 16));
        w[2] = wide_float((uint16_t)v.y), w[3] = wide_float((uint16_t)(v.y >> 16));
    }
    longlong2 sums[2] = {{0, 0}, {0, 0}};
#if MEGA_RANKS
    wait_ranks(a, b, e.in, x, step, i, e.weights.parts, inside, sums);
#else
    wait_residual(a, b, e.in, x, e.weights.parts, inside, sums);
#endif
    const int64_t s[4] = {sums[0].x, sums[0].y, sums[1].x, sums[1].y};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float v = fixed_to_float(s[j]);
        squares = fmaf(v, v, squares);
        w[j] = __fmul_rn(v, w[j]);
    }
    store_columns(a, b, i, w);
    return squares;
}

/* Stores x times the norm's weight as planes, and parts of the sum of squares. The results are
 * multiplied by the norm's factor later. ONE: x has no more than MEGA_COLUMNS columns. */
template <bool ONE>
MEGA_FN void read_residual(const mega_arguments &a, mega_block &b, const mega_entry &e, int step)
{
    float squares = 0;
    for (int c = 0; c < (ONE ? 1 : a.hidden); c += MEGA_COLUMNS)
        squares = read_columns(a, b, e, step, c + 4 * b.thread, squares);
#pragma unroll
    for (int o = 16; o; o >>= 1)
        squares += __shfl_xor_sync(~0u, squares, o);
    if (b.lane == 0) b.at<float>(a.shared.squares)[b.warp] = squares;
    /* A warp multiplies only what it stored itself, except with narrow tiles of fragments. */
    if (MEGA_QUANT_TYPES && a.tiles[0].across < MEGA_WARPS)
        b.sync();
    else
        __syncwarp();
    b.stamp(a, MEGA_WORKS);
}

MEGA_FN float inverse_rms_by_eight(const mega_arguments &a, const mega_block &b)
{
    const float *squares = b.at<float>(a.shared.squares) + b.lane % 8;
    return rsqrtf(add_eight(squares[0] + squares[8]) / (float)a.hidden + a.eps);
}
MEGA_FN float inverse_rms(const mega_arguments &a, const mega_block &b)
{
    const float *squares = b.at<float>(a.shared.squares);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < MEGA_WARPS; i++)
        sum += squares[i];
    return rsqrtf(sum / (float)a.hidden + a.eps);
}
