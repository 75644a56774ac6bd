/* A candidate for rms_norm: the worked example of doc/KERNELS.md.
 *
 *     quipu ops check rms_norm --kernel examples/rms_norm.c
 *     quipu ops bench rms_norm --kernel examples/rms_norm.c
 *
 * Where the reference works in float64, element by element, this works in float32 on whole rows: a
 * row is brought to float32 in pieces that stay in the first cache, squared into sixteen partial
 * sums, and scaled on a second pass. The loops are such that a compiler turns them into vector
 * instructions by itself. The order of the sums depends on the row's length alone.
 */
#include "quipu_kernel.h"

#include <math.h>
#include <string.h>

enum { X, WEIGHT, OUT };   /* of call->tensors */
enum { EPS, ROUND_FIRST }; /* of call->params */
enum { PIECE = 256, LANES = 16 };

size_t rms_norm_scratch_bytes(const op_call *call);
bool rms_norm_accepts(const op_call *call);
void rms_norm_kernel(const op_call *call);

/* No scratch: the pieces lie on the stack. */
size_t rms_norm_scratch_bytes(const op_call *call)
{
    (void)call;
    return 0;
}

static bool is_known(dtype type)
{
#ifdef __FLT16_MAX__
    if (type == DTYPE_F16) return true;
#endif
    return type == DTYPE_F32 || type == DTYPE_BF16;
}

bool rms_norm_accepts(const op_call *call)
{
    return is_known(call->tensors[X].type) && is_known(call->tensors[WEIGHT].type) &&
           is_known(call->tensors[OUT].type);
}

/* BF16 is the upper half of a float32; to the nearest, ties to even. NaN stays NaN. */
static inline float from_bf16(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint16_t to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)(value != value ? bits >> 16 | 0x40 : rounded);
}

/* Elements [first, first + n) of a row as float32. */
static inline void load(dtype type, const void *row, int64_t first, int n, float *to)
{
    if (type == DTYPE_F32) {
        memcpy(to, (const float *)row + first, (size_t)n * sizeof *to);
    } else if (type == DTYPE_BF16) {
        for (int i = 0; i < n; i++)
            to[i] = from_bf16(((const uint16_t *)row)[first + i]);
    }
#ifdef __FLT16_MAX__
    else {
        for (int i = 0; i < n; i++)
            to[i] = (float)((const _Float16 *)row)[first + i];
    }
#endif
}

static inline void store(dtype type, void *row, int64_t first, int n, const float *from)
{
    if (type == DTYPE_F32) {
        memcpy((float *)row + first, from, (size_t)n * sizeof *from);
    } else if (type == DTYPE_BF16) {
        for (int i = 0; i < n; i++)
            ((uint16_t *)row)[first + i] = to_bf16(from[i]);
    }
#ifdef __FLT16_MAX__
    else {
        for (int i = 0; i < n; i++)
            ((_Float16 *)row)[first + i] = (_Float16)from[i];
    }
#endif
}

/* Sum of a row's squares: lane i adds the elements i, i + 16, i + 32, ... */
static float sum_of_squares(dtype type, const void *row, int64_t n)
{
    float lanes[LANES] = {0}, piece[PIECE];
    for (int64_t first = 0; first < n; first += PIECE) {
        int count = n - first < PIECE ? (int)(n - first) : PIECE;
        load(type, row, first, count, piece);
        for (int i = count; i % LANES; i++)
            piece[i] = 0;
        for (int i = 0; i < count; i += LANES) {
            for (int lane = 0; lane < LANES; lane++)
                lanes[lane] += piece[i + lane] * piece[i + lane];
        }
    }
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int lane = 0; lane < half; lane++)
            lanes[lane] += lanes[lane + half];
    }
    return lanes[0];
}

void rms_norm_kernel(const op_call *call)
{
    const tensor *x = &call->tensors[X], *weight = &call->tensors[WEIGHT];
    const tensor *out = &call->tensors[OUT];
    int64_t hidden_size = x->shape[1];
    bool round_first = call->params[ROUND_FIRST] != 0 && x->type != DTYPE_F32;
    float values[PIECE], weights[PIECE];

    for (int64_t row = call->begin; row < call->end; row++) {
        const char *from = (const char *)x->data + row * x->stride[0];
        char *to = (char *)out->data + row * out->stride[0];
        float mean = sum_of_squares(x->type, from, hidden_size) / (float)hidden_size;
        float scale = 1 / sqrtf(mean + (float)call->params[EPS]);
        for (int64_t first = 0; first < hidden_size; first += PIECE) {
            int n = hidden_size - first < PIECE ? (int)(hidden_size - first) : PIECE;
            load(x->type, from, first, n, values);
            load(weight->type, weight->data, first, n, weights);
            for (int i = 0; i < n; i++)
                values[i] *= scale;
            if (round_first) {
                uint16_t rounded[PIECE];
                store(x->type, rounded, 0, n, values);
                load(x->type, rounded, 0, n, values);
            }
            for (int i = 0; i < n; i++)
                values[i] *= weights[i];
            store(out->type, to, first, n, values);
        }
    }
}
