/* The megakernel for two to eight sequences whose hidden size is one block of columns: x of all of
 * them is in registers. */
#include "vm/mega/batch.cuh"
#include "vm/mega/machine.cuh"

/* W_down by halves of its columns. */
MEGA_FN void fetch_batch_mlp(const mega_arguments &a, const mega_entry &e, mega_fetch &f)
{
    int begin = e.in.units.begin, n = e.in.units.end - begin;
    f.matrix(e.weights.matrix[0], begin, n, a.hidden);
    f.matrix(e.weights.matrix[1], begin, n, a.hidden);
    const __nv_bfloat16 *down = (const __nv_bfloat16 *)e.weights.matrix[2];
    for (int c = 0; c < a.hidden; c += MEGA_HALF_BLOCK)
        for (int row = 0; row < n; row += 2 * MEGA_TILE) {
            int rows = min(2 * MEGA_TILE, n - row), bytes = 2 * min(MEGA_HALF_BLOCK, a.hidden - c);
            f.begin(rows * bytes);
            if (f.lane < rows)
                copy_bytes(f.stage() + f.lane * MEGA_HALF_PITCH,
                           down + (int64_t)(begin + row + f.lane) * a.hidden + c, bytes,
                           f.barrier(), f.policy);
            f.end();
        }
}

template <int DIM, bool HALF> struct several_sequences {
    static MEGA_FN bool passes_over(const mega_arguments &, const mega_block &, const mega_entry &)
    {
        return false;
    }
    static MEGA_FN void run(const mega_arguments &a, mega_block &b, const mega_entry &e)
    {
        switch (e.in.opcode) {
        case OP_EMBEDDING_CLEAR:
            run_batch_embedding(a, b, e);
            break;
        case OP_ATTENTION_PARTIAL:
            run_batch_attention<DIM, HALF>(a, b, e);
            break;
        case MEGA_ATTENTION_OUTPUT:
            run_batch_output<DIM>(a, b, e);
            break;
        default:
            run_batch_rows<DIM, HALF>(a, b, e);
            if (e.in.opcode == OP_NORM_LINEAR) tell_tokens(a, b, e.in);
        }
    }
    static MEGA_FN void fetch(const mega_arguments &a, const mega_entry &e, mega_fetch &f, int pass)
    {
        if (e.in.opcode == OP_ATTENTION_PARTIAL) {
            for_rows(a, e.in, pass, [&](int row, bool parts) {
                int old = a.rows[row].position + pass, first;
                int chunks = row_chunks<DIM>(a, e.in, parts, old, &first);
                fetch_cache<DIM>(a, e, f, a.rows[row].first_page, old, first, chunks);
            });
        } else if (e.in.opcode == MEGA_ATTENTION_OUTPUT) {
            fetch_output<DIM>(a, e, f);
        } else if (e.in.opcode == MEGA_MLP) {
            fetch_batch_mlp(a, e, f);
        } else {
            if (e.in.opcode == OP_NORM_LINEAR) f.wait_begun(); /* each phase is waited for */
            fetch_entry<DIM>(a, e, f, 0);
        }
    }
};

#define MEGA_BATCH(dim, name, half, suffix, dawdles)                                               \
    extern "C" __global__ void __launch_bounds__(MEGA_THREADS, 1)                                  \
        mega_batch_##dim##_##name##suffix(const __grid_constant__ mega_arguments a)                \
    {                                                                                              \
        run_machine<several_sequences<dim, half>, dawdles>(a);                                     \
    }

MEGA_BATCH(64, F16, true, , false)
MEGA_BATCH(64, BF16, false, , false)
MEGA_BATCH(128, F16, true, , false)
MEGA_BATCH(128, BF16, false, , false)
MEGA_BATCH(64, F16, true, _dawdling, true) /* for tests: races show */
