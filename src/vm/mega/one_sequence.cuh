/* The megakernel for one sequence: a launch runs many passes of a whole model, one block per
 * multiprocessor, and feeds each token back to the next pass.
 *
 * A layer has three dependencies between blocks: the previous layer's x to QKV, QKV to attention
 * within a KV head, attention's x to the MLP. Attention and its output projection are cut by KV
 * head; gate, up and down are cut by features. Both add their parts of x with integer reductions,
 * so they need no further dependency.
 */
#pragma once

#define MEGA_STOPPABLE 1
#include "vm/mega/heads.cuh"
#include "vm/mega/interpreter.cuh"
#include "vm/mega/rows.cuh"

/* The handlers for one sequence. */
template <int DIM, bool HALF, int BLOCKS> struct one_sequence {
    static const bool PREFETCHES = true; /* in long contexts: MEGA_PREFETCH_CONTEXT */
    static const bool PUBLISHES = false;
    static MEGA_FN void publish(const mega_arguments &, uint32_t, int) {}
    /* Short contexts have no parts. Warps may be one entry apart here, so the decision may read
     * this entry only: earlier slots may already hold other entries. */
    static MEGA_FN bool skips(const mega_arguments &a, const mega_block &b, const mega_entry &e)
    {
        return e.weights.skippable &&
               a.first_position + (int)(b.pass() - a.first_pass) < a.recompute;
    }
    static MEGA_FN void run(const mega_arguments &a, mega_block &b, const mega_entry &e)
    {
        switch (e.in.opcode) {
        case MEGA_EMBEDDING:
            run_embedding(a, b, e);
            break;
        case MEGA_ATTENTION_PART:
        case MEGA_ATTENTION_OUTPUT:
            run_attention<DIM, HALF>(a, b, e);
            break;
        default:
            run_rows<DIM, HALF, BLOCKS>(a, b, e);
            if (e.weights.ends && !MEGA_CHOOSES)
                report_token(a, b, e.in, (int)(b.pass() - a.first_pass));
        }
    }
    static MEGA_FN void fetch(const mega_arguments &a, const mega_entry &e, mega_fetch &f, int pass)
    {
        fetch_entry<DIM, BLOCKS>(a, e, f, a.first_position + pass);
    }
};
