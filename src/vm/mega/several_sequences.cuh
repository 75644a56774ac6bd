/* The megakernel for several rows of x, which are in registers: two to eight with hidden sizes up
 * to MEGA_COLUMNS, two to four with more. */
#pragma once

#include "vm/mega/batch.cuh"
#include "vm/mega/interpreter.cuh"

#if MEGA_QUANT_TYPES

/* `tiles` tiles of an entry's rows of a matrix, in chunks as multiply_fragments() takes them. */
template <int DIM, int UNITS>
MEGA_FN void fetch_fragments(const mega_arguments &a, const mega_entry &e, mega_fetch &f,
                             int matrix, int tiles)
{
#pragma unroll 1
    for (int tile = 0; tile < tiles;) {
        const tile_run run = tile_run_from<DIM>(a, e, matrix, tile, tiles);
        const int kind = e.weights.kinds[run.matrix], each = fragment_chunk_units(kind);
        const int bytes = fragment_bytes(kind), across = a.tiles[OVER_HIDDEN].across;
        const char *at =
            (const char *)e.weights.matrix[run.matrix] + (int64_t)run.first * across * bytes;
#pragma unroll 1
        for (int unit = 0; unit < run.tiles * UNITS; unit += each) {
            int n = unit_fragments(a, unit % UNITS);
            if (each > 1 && unit + 1 < run.tiles * UNITS)
                n += unit_fragments(a, (unit + 1) % UNITS);
            f.piece(at, n * bytes);
            at += n * bytes;
        }
        tile += run.tiles;
    }
}

/* Gate and up, then of W_down the block's share of rows for the features of its group. */
template <int DIM, int BLOCKS>
MEGA_FN void fetch_batch_mlp(const mega_arguments &a, const mega_entry &e, mega_fetch &f)
{
    const int tiles = (e.in.units.end - e.in.units.begin) / FRAGMENT_ROWS;
    const int below = fragments_below(a.hidden), bytes = fragment_bytes(e.weights.kinds[2]);
    fetch_fragments<DIM, BLOCKS>(a, e, f, 0, tiles);
    fetch_fragments<DIM, BLOCKS>(a, e, f, 1, tiles);
#pragma unroll 1
    for (int i = 0; i < a.down_share; i += DOWN_FRAGMENTS) {
        const int fragments = min((int)DOWN_FRAGMENTS, a.down_share - i);
        for_down_groups(a, e, [&](int, int group, int groups) {
            const int64_t first = (int64_t)(group + f.lane) * below + e.weights.down_first + i;
            const char *from = (const char *)e.weights.matrix[2] + first * bytes;
            const uint32_t to = f.stage() + f.lane * fragments * bytes;
            computed_now(to, from);
            f.begin(groups * fragments * bytes);
            if (f.lane < groups) f.copy(to, from, fragments * bytes);
            f.end();
        });
    }
}

/* QKV or logits. */
template <int DIM, int BLOCKS>
MEGA_FN void fetch_batch_rows(const mega_arguments &a, const mega_entry &e, mega_fetch &f)
{
    const int units = e.in.units.end - e.in.units.begin;
    const int rows = e.in.opcode == MEGA_QKV ? 2 * units : e.in.opcode == MEGA_LOGITS ? units : 0;
    fetch_fragments<DIM, BLOCKS>(a, e, f, 0, (rows + FRAGMENT_ROWS - 1) / FRAGMENT_ROWS);
}

#else

template <int DIM, int BLOCKS>
MEGA_FN void fetch_batch_rows(const mega_arguments &a, const mega_entry &e, mega_fetch &f)
{
    fetch_entry<DIM, BLOCKS>(a, e, f, 0);
}

/* W_down by columns, all rows of one block's features at a time. */
template <int DIM, int BLOCKS>
MEGA_FN void fetch_batch_mlp(const mega_arguments &a, const mega_entry &e, mega_fetch &f)
{
    int begin = e.in.units.begin, n = e.in.units.end - begin;
#pragma unroll 1
    for (int i = 0; i < 2; i++)
        fetch_rows<BLOCKS>(a, f, e.weights.matrix[i], begin, n);
#pragma unroll 1
    for (int i = 0; i < a.n_turns; i++) {
        mega_turn turn = a.turns[i];
        int row = first_feature(e, turn.peer), each = MEGA_COLUMNS / 64;
        int group = down_chunk(a, e, turn) * a.down_groups, block = BLOCKS > 1 ? group / each : 0;
        f.begin(a.down_groups * a.down_rows * 128);
        if (f.lane == 0)
            copy_box(f.stage(), a.down_maps + MEGA_MAP_BYTES * (e.weights.map * BLOCKS + block), 0,
                     row, group - block * each, f.barrier(), f.policy);
        f.end();
    }
}

#endif

template <int DIM, bool HALF, int BLOCKS> struct several_sequences {
    static const bool PREFETCHES = false, PUBLISHES = true;
    static MEGA_FN void publish(const mega_arguments &a, uint32_t flow, int publisher)
    {
        publish_residual(a, flow, publisher);
    }
    static MEGA_FN bool skips(const mega_arguments &, const mega_block &, const mega_entry &)
    {
        return false;
    }
    static MEGA_FN void run(const mega_arguments &a, mega_block &b, const mega_entry &e)
    {
        switch (e.in.opcode) {
        case MEGA_EMBEDDING:
            run_batch_embedding(a, b, e);
            break;
        case MEGA_ATTENTION_PART:
            run_batch_attention<DIM, HALF>(a, b, e);
            break;
        case MEGA_ATTENTION_OUTPUT:
            run_batch_output<DIM, BLOCKS>(a, b, e);
            break;
        default:
            run_batch_rows<DIM, HALF, BLOCKS>(a, b, e);
            if (b.current().in.opcode == MEGA_LOGITS) report_tokens(a, b, b.current().in);
        }
    }
    static MEGA_FN void fetch(const mega_arguments &a, const mega_entry &e, mega_fetch &f, int pass)
    {
        if (e.in.opcode == MEGA_ATTENTION_PART) {
            for_rows<DIM>(a, e.in, pass, [&](const row_group &group) {
                const mega_row &last = a.rows[group.first + group.count - 1];
                int old = last.position + pass, first;
                instruction in = e.in;
                /* The block's parts follow each other. */
                in.part = group.end - 1;
                int end = row_chunks<DIM>(a, in, group.parts, old, &first);
                end += first;
                in.part = group.begin;
                row_chunks<DIM>(a, in, group.parts, old, &first);
                fetch_cache<DIM>(a, e, f, last.first_page, old, first, end - first);
            });
        } else if (e.in.opcode == MEGA_ATTENTION_OUTPUT) {
            fetch_output<DIM>(a, e, f);
        } else if (e.in.opcode == MEGA_MLP) {
            fetch_batch_mlp<DIM, BLOCKS>(a, e, f);
        } else {
            if (e.in.opcode == MEGA_LOGITS) f.wait_begun(); /* every phase must be waited for */
            fetch_batch_rows<DIM, BLOCKS>(a, e, f);
        }
    }
};
