/* The megakernel for one sequence: one launch runs passes of a whole model, a block a
 * multiprocessor, each token fed back to the next pass.
 *
 * Sixteen warps compute, one fetches. Between blocks there are three dependencies a layer: x of the
 * layer before to QKV, QKV to attention within a KV head, and x of attention to the MLP. Attention
 * and its output projection are cut by KV head, gate, up and down by features: both add their part
 * of x with integer reductions, so that nothing stands between them.
 */
#ifndef QUIPU_VM_MEGA_ONE_SEQUENCE_CUH
#define QUIPU_VM_MEGA_ONE_SEQUENCE_CUH

#define MEGA_STOPPABLE 1
#include "vm/mega/heads.cuh"
#include "vm/mega/interpreter.cuh"
#include "vm/mega/rows.cuh"

/* What the blocks do for one sequence. */
template <int DIM, bool HALF, int BLOCKS> struct one_sequence {
    static const bool PREFETCHES = true; /* contexts that are long enough */
    static const bool PUBLISHES = false;
    static MEGA_FN void publish(const mega_arguments &, uint32_t, int) {}
    /* Short contexts have no parts. Warps may be an entry apart here, so that this entry alone
     * tells all of them: the slots of those before are being filled with others already. */
    static MEGA_FN bool skips(const mega_arguments &a, const mega_block &b, const mega_entry &e)
    {
        return e.weights.skippable &&
               a.first_position + (int)(b.pass() - a.first_pass) < a.recompute;
    }
    static MEGA_FN void run(const mega_arguments &a, mega_block &b, const mega_entry &e)
    {
        switch (e.in.opcode) {
        case OP_EMBEDDING_CLEAR:
            run_embedding(a, b, e);
            break;
        case OP_ATTENTION_PARTIAL:
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
        fetch_entry<DIM, BLOCKS, 0>(a, e, f, a.first_position + pass);
    }
};

#endif
