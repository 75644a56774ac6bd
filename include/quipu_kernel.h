/* What an operator's kernel is called with: all that the source of a kernel needs to include.
 *
 *     #include "quipu_kernel.h"
 *
 *     void rms_norm_kernel(const op_call *call) { ... }
 *
 * `quipu ops describe OP` says what a kernel of the operator OP must compute, which of its tensors
 * and parameters has which index, and what a unit is; `quipu ops check OP --kernel FILE.c` compiles
 * one and holds it to that. The structs here are those that the program itself uses.
 */
#ifndef QUIPU_KERNEL_H
#define QUIPU_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Element types. F32, F16 (IEEE binary16), BF16 (the upper half of an F32), F8 (E4M3), F64, I32 and
 * I64 are plain; the others hold blocks: of 32 (Q*_0, Q*_1, IQ4_NL, MXFP4), 64 (NVFP4) or 256
 * elements (Q*_K, IQ*, TQ*) as GGUF files do, or of 128 in F8 with a scale in F32 (F8_128). */
typedef enum dtype {
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_Q8_0,
    DTYPE_Q4_0,
    DTYPE_Q4_1,
    DTYPE_Q5_0,
    DTYPE_Q5_1,
    DTYPE_Q2_K,
    DTYPE_Q3_K,
    DTYPE_Q4_K,
    DTYPE_Q5_K,
    DTYPE_Q6_K,
    DTYPE_Q8_1,
    DTYPE_Q8_K,
    DTYPE_I32,
    DTYPE_I64,
    DTYPE_F64,
    DTYPE_F8,
    DTYPE_F8_128,
    DTYPE_IQ4_NL,
    DTYPE_IQ4_XS,
    DTYPE_NVFP4,
    DTYPE_TQ1_0,
    DTYPE_TQ2_0,
    DTYPE_IQ3_XXS,
    DTYPE_IQ3_S,
    DTYPE_IQ2_XXS,
    DTYPE_IQ2_XS,
    DTYPE_IQ2_S,
    DTYPE_IQ1_S,
    DTYPE_IQ1_M,
    DTYPE_MXFP4,
    DTYPE_COUNT
} dtype;

enum { TENSOR_MAX_RANK = 5 };

/* A view of values in memory. shape[0] is the outermost dimension; the innermost is contiguous, and
 * the others lie wherever the strides say. Addresses are multiples of an element's size (a block's
 * for the quantised types, which need not be aligned at all), of nothing more. */
typedef struct tensor {
    void *data; /* NULL: absent (an optional input) or not bound yet (a plan's view) */
    dtype type;
    int rank; /* 0: absent */
    int64_t shape[TENSOR_MAX_RANK];
    int64_t stride[TENSOR_MAX_RANK]; /* bytes from one index to the next of that dimension */
} tensor;

enum { OP_MAX_TENSORS = 20, OP_MAX_PARAMS = 8 };

/* A call of an operator: views of its tensors, its parameters, and a slice of its units. Types,
 * shapes and contents of index tensors were checked before; a kernel need not. */
typedef struct op_call {
    tensor tensors[OP_MAX_TENSORS]; /* in the description's order; rank 0: absent */
    double params[OP_MAX_PARAMS];   /* in the description's order; whole numbers are exact */
    int64_t begin, end;             /* units of this slice; begin == end: nothing to do */
    void *scratch;                  /* bytes of this worker's own as asked for, or NULL if none */
    const void *packed; /* what the variant's pack() made of the constant tensors, or NULL */
    bool scratch_kept;  /* the scratch is as this worker's last call left it, and that call differed
                         * from this one in begin and end alone; a kernel may ignore it */
} op_call;

/* Computes the units [call->begin, call->end). It is called from several threads at once, each with
 * another slice; the values must not depend on how the units were cut. When it returns, the outputs
 * are written: work that goes on afterwards is an error. */
typedef void op_kernel(const op_call *call);

#ifdef __cplusplus
}
#endif

#endif
