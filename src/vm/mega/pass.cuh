/* Both ends of a pass. First: the token's row of the embedding to x, and zeros for the next pass's
 * sums. Last: the logits, and the likeliest token, for the next pass and for the host; or the
 * logits for the sampling warps, which then hand on the token. */
#pragma once

#include "vm/mega/weights.cuh"
#if MEGA_RANKS
#include "vm/mega/ranks.cuh"
#endif
#if MEGA_CHOOSES
#include "vm/mega/choose.cuh"
#endif
#if MEGA_QUANT_TYPES
#include "tensor/decode.cuh"
#endif

/* Elements [begin, begin + n) of a token's row of the embedding to x. */
MEGA_FN void read_embedding(const mega_arguments &a, const mega_block &b, int token, int begin,
                            int n, int64_t *x)
{
#if MEGA_QUANT_TYPES
    const char *row = (const char *)a.embedding + (int64_t)token * a.embedding_bytes;
    int first = begin & ~7;
    for (int i = first + 8 * b.thread; i < begin + n; i += 8 * MEGA_CONSUMERS) {
        float v[8];
        decode8<DTYPE_COUNT>((dtype)a.embedding_type, row, i, v);
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (i + j >= begin && i + j < begin + n) store_relaxed(x + i + j, fixed_part(v[j]));
    }
#else
    const uint16_t *row = (const uint16_t *)a.embedding + (int64_t)token * a.hidden;
    for (int i = begin + b.thread; i < begin + n; i += MEGA_CONSUMERS)
        store_relaxed(x + i, fixed_part(wide_float(row[i])));
#endif
}

/* ---- from pass to pass ---- */

/* The token that the pass before made. */
MEGA_FN int token_made(const mega_arguments &a, const mega_block &b, uint32_t pass)
{
#if MEGA_CHOOSES
    uint32_t index = pass - 1 - a.first_pass;
    while (!barrier_try(b.own + a.shared.flow + FLOW_CHOSEN, index & 1)) {
    } /* the sampling warps watch the time */
    return b.flow(a)->next;
#else
    return a.vocab - 1 - (int)(uint32_t)((volatile uint64_t *)a.key)[pass & 1];
#endif
}

#if MEGA_RANKS && !MEGA_CHOOSES

/* The same of all ranks; *over: the launch ends. */
MEGA_FN int token_of_ranks(const mega_arguments &a, const mega_block &b, const instruction &in,
                           uint32_t pass, bool *over)
{
    return a.vocab - 1 - (int)(uint32_t)wait_keys(a, b, in, pass - 1, over);
}

#endif

/* Finds the token that this pass reads; or stops the block, if that is a stop token or the host has
 * asked the launch to stop. One thread of each block. All blocks decide alike: only block 0 reads
 * the host's request, and the launch then ends after the pass that follows. */
MEGA_FN void find_token(const mega_arguments &a, const mega_block &b, const instruction &in)
{
    const uint32_t pass = b.pass();
    const bool asks = blockIdx.x == 0 && !MEGA_RANKS;
    int64_t *ended = (int64_t *)a.ended;
    uint32_t stop_request = asks ? load_relaxed((const uint32_t *)a.stop_request) : 0;
    int token = a.token;
    if (pass != a.first_pass) {
        int64_t last = MEGA_RANKS ? 0 : load_relaxed(ended + ((pass - 1) & 1));
        bool over = last == (int64_t)pass;
#if MEGA_RANKS && !MEGA_CHOOSES
        token = token_of_ranks(a, b, in, pass, &over);
#else
        token = token_made(a, b, pass);
        over = over || (MEGA_RANKS && b.flow(a)->over);
#endif
#pragma unroll 1
        for (int i = 0; i < a.n_stops; i++)
            over |= token == a.stops[i];
        if (over) b.flow(a)->stop = 1;
    }
    if (asks && stop_request == a.launch) store_relaxed(ended + (pass & 1), (int64_t)pass + 1);
    b.flow(a)->token = token;
}

MEGA_FN void run_embedding(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    const int begin = e.in.units.begin, n = e.in.units.end - begin;
    if (e.weights.begins && b.thread == 0) {
        wait_counter(a, b, e.in, 0, b.pass() * gridDim.x);
        barrier_arrive(b.own + a.shared.flow + FLOW_BEGUN);
        find_token(a, b, e.in);
    }
    b.sync();
    b.stamp(a, MEGA_WORKS);
    if (b.flow(a)->stop) return;
    int token = b.flow(a)->token;
    int64_t *x = residual(a, b.pass(), 0), *next = residual(a, b.pass() + 1, 0);
    read_embedding(a, b, token, begin, n, x);
    int sums = 2 * a.n_layers + 1;
    for (int i = begin * sums + b.thread; i < (begin + n) * sums; i += MEGA_CONSUMERS)
        next[i] = 0;
    b.sync();
    if (!MEGA_CHOOSES && e.weights.begins && blockIdx.x == 0 && b.thread == 0)
        ((volatile uint64_t *)a.key)[(b.pass() + 1) & 1] = 0;
}

/* The pass's token for the host: by block 0, when the last block has ended its logits. */
MEGA_FN void report_token(const mega_arguments &a, mega_block &b, const instruction &in, int index)
{
    if (blockIdx.x || b.thread) return;
    wait_counter(a, b, in, 0, (b.pass() + 1) * gridDim.x);
#if MEGA_RANKS
    bool over = false;
    uint64_t key = wait_keys(a, b, in, b.pass(), &over);
#else
    uint64_t key = ((volatile uint64_t *)a.key)[(b.pass() + 1) & 1];
#endif
    ((volatile int32_t *)a.tokens_out)[index] = a.vocab - 1 - (int)(uint32_t)key;
}

/* ---- the last norm, logits, the largest of them ---- */

MEGA_FN uint64_t logit_key(const mega_arguments &a, float v, int token)
{
    uint32_t bits = __float_as_uint(v);
    bits = bits >> 31 ? ~bits : bits | 0x80000000;
    /* Of equal logits the lowest token. */
    return (uint64_t)bits << 32 | (uint32_t)(a.vocab - 1 - token);
}

/* Stores the logits of `rows` rows, and the largest key of this thread's warp beside those of the
 * rows before. */
MEGA_FN void finish_logits(const mega_arguments &a, mega_block &b, int slices, int begin, int rows,
                           bool more)
{
    const int first = MEGA_RANKS ? a.ranks.vocab_first : 0; /* a.logits is the rank's part */
    uint64_t best = 0;
    for (int i = b.thread; i < rows; i += MEGA_CONSUMERS) {
        float v = row_sum(a, b, i, slices) * inverse_rms(a, b);
        ((float *)a.logits)[begin + i] = v;
        best = max(best, logit_key(a, v, first + begin + i));
    }
    if (!MEGA_CHOOSES) {
        uint64_t *mine = b.at<uint64_t>(a.shared.keys) + b.warp;
#pragma unroll
        for (int o = 16; o; o >>= 1)
            best = max(best, __shfl_xor_sync(~0u, best, o));
        if (b.lane == 0) *mine = more ? max(best, *mine) : best;
    }
    b.sync();
}

/* Merges the keys of all warps; ends the block's pass if this is its last entry. */
MEGA_FN void finish_pass(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    b.stamp(a, MEGA_SIGNALS);
#if MEGA_CHOOSES
    if (b.thread && !MEGA_DELAYS) return; /* one after a barrier, or for racecheck all */
    if (e.weights.ends) barrier_arrive(b.own + a.shared.flow + FLOW_TO_CHOOSE);
    if (b.thread) return;
#else
    if (b.thread) return;
    const uint64_t *keys = b.at<uint64_t>(a.shared.keys);
    uint64_t best = keys[0];
    for (int w = 1; w < MEGA_WARPS; w++)
        best = max(best, keys[w]);
    atomicMax((unsigned long long *)a.key + ((b.pass() + 1) & 1), (unsigned long long)best);
#endif
    if (e.weights.ends) /* Release: the next pass sees everything of this one. */
        add_release((uint32_t *)a.counters);
}
