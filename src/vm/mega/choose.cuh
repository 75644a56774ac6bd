/* All blocks together, of all ranks, sample a pass's token, each with the logits that it computed.
 *
 * Warps of their own do it, because its registers and calls would slow down the loops over weights.
 * Kernels that make the likeliest token have none of this code: see MEGA_CHOOSES in kernels.cu.
 *
 * Blocks exchange data through slots of words. Half of each word is the number of the exchange, so
 * a reader needs no counter and no fence. Two slots alternate: a block may be one exchange before
 * another that still reads, but not two. Of several ranks a block posts into the slots of each (see
 * mega_ranks). Bias and penalties change the logits first. The block that
 * computed a token's logit counts the token, because no other block uses that count.
 */
#pragma once

#include "op/sampling/sampling.cuh"
#if MEGA_RANKS
#include "vm/mega/ranks.cuh"
#else
#include "vm/mega/block.cuh"
#endif

/* ---- bias and penalties ---- */

/* The same operations in the same order as in engine/sampler.c. */
MEGA_FN float adjust_logit(const mega_arguments &a, int token, float logit)
{
    const mega_sampling &with = a.sampling;
    if (with.bias) logit = __fadd_rn(logit, ((const float *)with.bias)[token]);
    uint32_t seen = with.penalises ? ((const uint32_t *)a.history)[token] : 0;
    if (!seen) return logit;
    if (!(logit > 0))
        logit = __fmul_rn(logit, with.repetition);
    else if (isfinite(logit)) /* the quotient rounded twice is still the nearest float32 */
        logit = (float)definite_quotient((double)logit, (double)with.repetition);
    if (seen < 2) return logit;
    float times = __fmul_rn(with.frequency, (float)(seen >> 1));
    return __fsub_rn(logit, __fadd_rn(with.presence, times));
}

/* ---- the blocks as a team ------------------------------------------------------------------- */

enum { PART_WORDS = 10, KEY_WORD = PART_WORDS };
static_assert(sizeof(sample_part) == MEGA_PART_BYTES && sizeof(sample_view) <= MEGA_VIEW_BYTES,
              "as the host lays out shared memory");

/* The block's logits. */
MEGA_FN const mega_entry &last_entry(const mega_arguments &a)
{
    return ((const mega_entry *)a.program)[(size_t)blockIdx.x * a.longest +
                                           ((const int32_t *)a.lengths)[blockIdx.x] - 1];
}

/* The token of the first of this rank's logits. */
MEGA_FN int first_token(const mega_arguments &a)
{
    return MEGA_RANKS ? a.ranks.vocab_first : 0;
}

struct mega_team {
    static const bool TOP_K_FIRST = false;
    const mega_arguments &a;
    uint32_t pass;
    int32_t begin, end;
    const float *logits; /* from token `begin` on */
    int thread, threads;
    sample_part *cells;
    sample_view *view;
    uint32_t *keys;
    uint32_t number; /* of the last exchange */
    bool over;       /* in thread 0: the launch ends after the next pass */

    MEGA_FN float logit(int32_t token) const { return logits[token - begin]; }
    MEGA_FN void sync() const { asm volatile("bar.sync 2, %0;" ::"r"(threads) : "memory"); }
    MEGA_FN bool any(bool value) const { return value; } /* all threads have the same row */

    /* Blocks of all ranks, and this one's number among them. */
#if MEGA_RANKS
    MEGA_FN int blocks() const
    {
        return a.ranks.count * (int)gridDim.x;
    }
    MEGA_FN int own() const
    {
        return a.ranks.rank * (int)gridDim.x + (int)blockIdx.x;
    }
    MEGA_FN int64_t *slots(int rank) const
    {
        return pushed_slots(a, rank);
    }
    MEGA_FN int64_t load(const int64_t *p) const
    {
        return load_system(p);
    }
    MEGA_FN longlong2 load_two(const int64_t *p) const
    {
        return load_system_two(p);
    }
#else
    MEGA_FN int blocks() const
    {
        return gridDim.x;
    }
    MEGA_FN int own() const
    {
        return blockIdx.x;
    }
    MEGA_FN int64_t *slots(int) const
    {
        return (int64_t *)a.slots;
    }
    MEGA_FN int64_t load(const int64_t *p) const
    {
        return load_relaxed(p);
    }
    MEGA_FN longlong2 load_two(const int64_t *p) const
    {
        return load_relaxed_two(p);
    }
#endif
    MEGA_FN int place(int block) const
    {
        return ((number & 1) * blocks() + block) * MEGA_SLOT_WORDS;
    }
    MEGA_FN const int64_t *slot(int block) const
    {
        return slots(MEGA_RANKS ? a.ranks.rank : 0) + place(block);
    }
    MEGA_FN void post(int word, uint32_t value) const
    {
        const int64_t tagged = (int64_t)((uint64_t)number << 32 | value);
#if MEGA_RANKS
        for (int rank = 0; rank < a.ranks.count; rank++)
            store_system(slots(rank) + place(own()) + word, tagged);
#else
        store_relaxed(slots(0) + place(own()) + word, tagged);
#endif
    }
    MEGA_FN bool has_come(int64_t word) const
    {
        return (uint32_t)((uint64_t)word >> 32) == number;
    }
    MEGA_FN void check_watchdog(watchdog &watchdog, int block) const
    {
        if (watchdog.expired())
            mega_stuck(a, last_entry(a).in, -1, pass, MEGA_WAIT_CHOICE, number, block);
    }

    MEGA_FN int gather(uint32_t key)
    {
        key = sample_max_of_block(*this, key);
        number++;
        if (thread == 0) post(KEY_WORD, key);
        for (int block = thread; block < blocks(); block += threads) {
            watchdog watchdog = {0, 0};
            int64_t word = load(slot(block) + KEY_WORD);
            for (; !has_come(word); word = load(slot(block) + KEY_WORD))
                check_watchdog(watchdog, block);
            keys[block] = (uint32_t)word;
        }
        sync();
        return blocks();
    }

    /* Of several ranks, the first block also hands on the host's request to stop. */
    MEGA_FN void post_part(const sample_part &p) const
    {
        const bool stop =
            MEGA_RANKS && own() == 0 && load_relaxed((const uint32_t *)a.stop_request) == a.launch;
        uint64_t score = (uint64_t)__double_as_longlong(p.score);
        const uint64_t wide[3] = {score, p.weight, p.total};
        const uint32_t words[PART_WORDS - 6] = {p.key, p.count, (uint32_t)p.id, stop};
#pragma unroll
        for (int i = 0; i < 3; i++) {
            post(2 * i, (uint32_t)wide[i]);
            post(2 * i + 1, (uint32_t)(wide[i] >> 32));
        }
#pragma unroll
        for (int i = 0; i < PART_WORDS - 6; i++)
            post(6 + i, words[i]);
    }
    MEGA_FN sample_part wait_part(int block)
    {
        watchdog watchdog = {0, 0};
        for (;;) {
            longlong2 words[PART_WORDS / 2];
            bool complete = true;
#pragma unroll
            for (int i = 0; i < PART_WORDS / 2; i++) {
                words[i] = load_two(slot(block) + 2 * i);
                complete = complete && has_come(words[i].x) && has_come(words[i].y);
            }
            if (complete) {
                over = over || (MEGA_RANKS && block == 0 && (uint32_t)words[4].y);
                uint64_t wide[3];
#pragma unroll
                for (int i = 0; i < 3; i++)
                    wide[i] = (uint32_t)words[i].x | (uint64_t)words[i].y << 32;
                return sample_part{__longlong_as_double((int64_t)wide[0]),
                                   wide[1],
                                   wide[2],
                                   (uint32_t)words[3].x,
                                   (uint32_t)words[3].y,
                                   (int32_t)words[4].x};
            }
            check_watchdog(watchdog, block);
        }
    }
    MEGA_FN void exchange(sample_part &part)
    {
        sample_merge_block(*this, part);
        number++;
        if (thread == 0) post_part(part);
        part = sample_nothing();
        for (int block = thread; block < blocks(); block += threads)
            sample_merge(part, wait_part(block));
        sample_merge_block(*this, part);
    }
};

/* ---- sampling ------------------------------------------------------------------------------- */

/* Applies bias and penalties to the block's logits, in memory and in `local`. */
MEGA_FN void adjust_logits(const mega_arguments &a, const mega_team &t, float *local)
{
    const bool adjusts = a.sampling.bias || a.sampling.penalises;
    float *logits = (float *)a.logits - first_token(a);
#pragma unroll 4
    for (int i = t.begin + t.thread; i < t.end; i += t.threads) {
        float *logit = logits + i, v = *logit;
        if (adjusts) *logit = v = adjust_logit(a, i, v);
        local[i - t.begin] = v;
    }
}

/* Waits until the block has its logits; false: the launch has ended. */
MEGA_FN bool wait_logits(const volatile mega_flow *flow, uint32_t barrier, int index)
{
    while (!barrier_try(barrier, index & 1))
        if (flow->stop) return false;
    return true;
}

/* Whether one of this rank's blocks has the token's logit. The first block counts the tokens of
 * other ranks: machines that choose from all logits need the counts of all. */
MEGA_FN bool is_own_token(const mega_arguments &a, int token)
{
    return !MEGA_RANKS ||
           (token >= a.ranks.vocab_first && token < a.ranks.vocab_first + a.ranks.vocab_count);
}

/* Makes the compiler forget the value, so that what is computed from a setting does not stay in
 * registers from pass to pass. */
MEGA_FN float opaque(float v)
{
    asm volatile("" : "+f"(v));
    return v;
}
MEGA_FN uint64_t opaque(uint64_t v)
{
    asm volatile("" : "+l"(v));
    return v;
}

/* What the sampling warps do, thread `thread` of `threads`. Logits and work space are where x and
 * the sums were. */
MEGA_FN void choose_tokens(const mega_arguments &a, char *memory, uint32_t own, int thread,
                           int threads)
{
    volatile mega_flow *flow = (volatile mega_flow *)(memory + a.shared.flow);
    uint32_t barriers = own + a.shared.flow;
    const instruction_span units = last_entry(a).in.units;
    float *local = (float *)(memory + a.shared.planes);
    sample_part *cells = (sample_part *)(memory + a.shared.sums);
    sample_view *view = (sample_view *)(cells + MEGA_WARPS);
    mega_team team = {a,
                      a.first_pass,
                      first_token(a) + units.begin,
                      first_token(a) + units.end,
                      local,
                      thread,
                      threads,
                      cells,
                      view,
                      (uint32_t *)(view + 1),
                      *(const uint32_t *)a.exchanges,
                      false};
    const bool counts_others = MEGA_RANKS && blockIdx.x == 0;
#pragma unroll 1
    for (int index = 0; index < a.n_passes; index++, team.pass++) {
        if (!wait_logits(flow, barriers + FLOW_TO_CHOOSE, index)) break;
        adjust_logits(a, team, local);
        team.sync();
        const mega_sampling &as = a.sampling;
        uint64_t position = (uint64_t)(a.first_position + index + 1);
        sample_settings with = {
            opaque(as.temperature), opaque(as.top_p), opaque(as.min_p), as.top_k, false,
            opaque(as.seed),        position};
        int32_t token = sample_row(team, with, a.vocab);
        team.sync(); /* no thread reads the logits after this */
        if (thread) continue;
        const bool own = token >= team.begin && token < team.end;
        if (a.sampling.penalises && (own || (counts_others && !is_own_token(a, token)))) {
            uint32_t *seen = (uint32_t *)a.history + token;
            *seen = (*seen | 1) + 2;
        }
        flow->next = token;
        flow->over = team.over;
        if (blockIdx.x == 0) ((volatile int32_t *)a.tokens_out)[index] = token;
        barrier_arrive(barriers + FLOW_CHOSEN);
    }
    if (blockIdx.x == 0 && thread == 0) *(uint32_t *)a.exchanges = team.number;
}
