/* The megakernel: one launch runs passes of a whole model, a block a multiprocessor, each token fed
 * back to the next pass.
 *
 * Sixteen warps compute, one fetches. Between blocks there are three dependencies a layer: x of the
 * layer before to QKV, QKV to attention within a KV head, and x of attention to the MLP. Attention
 * and its output projection are cut by KV head, gate, up and down by features: both add their part
 * of x with integer reductions, so that nothing stands between them.
 */
#include "vm/mega/heads.cuh"
#include "vm/mega/machine.cuh"
#include "vm/mega/rows.cuh"

/* What the blocks do for one sequence. */
template <int DIM, bool HALF, int BLOCKS> struct one_sequence {
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
            if (e.weights.ends)
                tell_token(a, b, e.in, (int)(b.pass() - a.first_pass));
        }
    }
    static MEGA_FN void fetch(const mega_arguments &a, const mega_entry &e, mega_fetch &f, int pass)
    {
        fetch_entry<DIM>(a, e, f, a.first_position + pass);
    }
};

#define MEGA_KERNEL(dim, name, half, blocks, suffix, dawdles)                                      \
    extern "C" __global__ void __launch_bounds__(MEGA_THREADS, 1)                                  \
        mega_##dim##_##name##_##blocks##suffix(const __grid_constant__ mega_arguments a)           \
    {                                                                                              \
        run_machine<one_sequence<dim, half, blocks>, dawdles>(a);                                  \
    }

#if !MEGA_BRICKS

/* out (columns, rows) = in (rows, columns) transposed: W_down, once. Blocks of 32 x 8 threads. */
extern "C" __global__ void mega_transpose(const uint16_t *in, uint16_t *out, int rows, int columns)
{
    __shared__ uint16_t tile[32][33];
    int column = blockIdx.x * 32, row = blockIdx.y * 32, x = threadIdx.x;
    for (int y = threadIdx.y; y < 32; y += 8)
        if (row + y < rows && column + x < columns)
            tile[y][x] = in[(int64_t)(row + y) * columns + column + x];
    __syncthreads();
    for (int y = threadIdx.y; y < 32; y += 8)
        if (column + y < columns && row + x < rows)
            out[(int64_t)(column + y) * rows + row + x] = tile[x][y];
}

#define MEGA(dim, name, half, blocks) MEGA_KERNEL(dim, name, half, blocks, , false)

MEGA(64, F16, true, 1)
MEGA(64, F16, true, 2)
MEGA(64, BF16, false, 1)
MEGA(64, BF16, false, 2)
MEGA(128, F16, true, 1)
MEGA(128, F16, true, 2)
MEGA(128, BF16, false, 1)
MEGA(128, BF16, false, 2)
MEGA_KERNEL(64, F16, true, 1, _dawdling, true) /* for tests: races show */

#endif
