/* An operator: one struct that describes all of it.
 *
 * The struct holds the description (axes, tensors, parameters, formula), the cost, the shape check,
 * the reference and the fast variants, the test cases and the tolerances; nothing else in the tree
 * knows these facts. Shapes and costs are texts over the axes ("n_tokens, 2 * intermediate_size")
 * that op_bind() and op_cost() evaluate, so that what is printed is what is checked.
 *
 * An operator is called with an op_call: views of its tensors in the order of the description, its
 * parameters, and a slice [begin, end) of its units. A unit is the smallest piece of work with an
 * output of its own (a row, an output feature, a head of a token). Every kernel computes any slice,
 * and the values do not depend on the cut into units: threads and schedules divide work this way.
 *
 * The reference computes in float64 from inputs of any type and rounds once, to the output's type;
 * with F64 outputs it is the oracle with which variants are compared.
 */
#pragma once

#include "base/status.h"
#include "tensor/tensor.h"

#include <stdbool.h>

enum { OP_MAX_AXES = 16 };

typedef struct op_axis {
    const char *name;
    enum { AXIS_CONSTANT = 1, AXIS_VARIABLE, AXIS_DERIVED } kind;
    /* constant: fixed by the model; variable: changes with the batch; derived: not in any shape,
     * computed by `derive` from the contents of index tensors (for costs) */
    const char *help;
} op_axis;

/* How a call accesses a tensor's elements. OP_ACCUMULATE: integers are added to them, in any order
 * and by any number of calls at once; they must be initialised before, and can be read after all of
 * these calls have ended. */
typedef enum op_direction { OP_IN, OP_OUT, OP_INOUT, OP_ACCUMULATE } op_direction;

/* Whether the call reads the tensor's previous contents, and whether it changes them. */
static inline bool op_reads(op_direction direction)
{
    return direction != OP_OUT;
}
static inline bool op_writes(op_direction direction)
{
    return direction != OP_IN;
}

/* Sets of element types. */
#define OP_TYPE(name) ((uint64_t)1 << DTYPE_##name)
enum {
    OP_FLOATS = OP_TYPE(F32) | OP_TYPE(F16) | OP_TYPE(BF16) | OP_TYPE(F64),
    OP_CACHES = OP_FLOATS | OP_TYPE(F8), /* keys and values */
};
#define OP_WEIGHTS                                                                                 \
    (OP_TYPE(F32) | OP_TYPE(F16) | OP_TYPE(BF16) | OP_TYPE(Q8_0) | OP_TYPE(Q4_0) | OP_TYPE(Q4_1) | \
     OP_TYPE(Q5_0) | OP_TYPE(Q5_1) | OP_TYPE(Q2_K) | OP_TYPE(Q3_K) | OP_TYPE(Q4_K) |               \
     OP_TYPE(Q5_K) | OP_TYPE(Q6_K) | OP_TYPE(F8_128) | OP_TYPE(IQ4_NL) | OP_TYPE(IQ4_XS) |         \
     OP_TYPE(NVFP4) | OP_TYPE(TQ1_0) | OP_TYPE(TQ2_0) | OP_TYPE(IQ3_XXS) | OP_TYPE(IQ3_S) |        \
     OP_TYPE(IQ2_XXS) | OP_TYPE(IQ2_XS) | OP_TYPE(IQ2_S) | OP_TYPE(IQ1_S) | OP_TYPE(IQ1_M) |       \
     OP_TYPE(MXFP4))

typedef struct op_tensor {
    const char *name;
    op_direction direction;
    uint64_t types;    /* set of OP_TYPE() bits */
    const char *shape; /* "n_tokens, n_heads, head_dim": an expression over axes per dimension; an
                        * axis gets its value where it stands alone or plus a number */
    bool optional;
    const char *help; /* meaning, layout, in-place effects */
} op_tensor;

typedef struct op_param {
    const char *name;
    enum { PARAM_FLOAT = 1, PARAM_INT, PARAM_BOOL } kind;
    double value; /* the usual value */
    const char *help;
} op_param;

/* Tolerance against the float64 oracle, per element type of the output: |out - ref| must satisfy
 * norm(out - ref) <= relative * norm(ref), and no element may differ by more than
 * absolute * rms(ref) + relative * |ref|, both scaled by sqrt(reduction length) for F32. Float32
 * denormals may be flushed to zero. */
typedef struct op_tolerance {
    dtype type;
    double relative, absolute;
} op_tolerance;

/* How products take x. By default variants round it to 8 bits for quantised weights, and not for
 * others; with one of these bits in a set of CPU features, above those of base/cpu.h, variants that
 * need the bit are there too and preferred. */
enum {
    OP_X_BF16 = 1 << 27,  /* rounded to BF16 for weights in BF16 */
    OP_X_16 = 1 << 28,    /* rounded to 16 bits */
    OP_X_FLOAT = 1 << 29, /* not rounded: weights are decoded to float32 */
    OP_X_BITS = OP_X_BF16 | OP_X_16 | OP_X_FLOAT,
};

/* "8", "16", "float" or "bf16" to these bits, and the bits to words for a message. */
qp_status op_x_bits_parse(const char *text, uint32_t *bits, qp_error *error);
const char *op_x_bits_text(uint32_t bits);

typedef struct op_variant {
    const char *name;  /* "avx2", "avx512_vnni"; the reference is always "reference" */
    uint32_t needs;    /* CPU features that must all be present: bits of base/cpu.h, OP_X_... */
    op_kernel *kernel; /* same contract as the reference */
    bool (*accepts)(const op_call *call); /* types and shapes that it handles; NULL: all */
    /* A variant may want its weights in a form of its own, made once when the model is loaded: the
     * bytes of that form, and the function that makes the part for units [call->begin, call->end)
     * of call->packed (which is writable then). Both depend only on the constant tensors; begin and
     * end are multiples of pack_units, or the end. NULL: the weights are read as stored. */
    size_t (*packed_bytes)(const op_call *call);
    void (*pack)(const op_call *call, void *packed);
    int64_t pack_units;
    /* Bytes of the first of several matrices that follow each other in the packed form, each in the
     * order of units; NULL: there is one. */
    size_t (*packed_first)(const op_call *call);
    /* Scratch that this variant's slice needs; NULL: the operator's. */
    size_t (*scratch_bytes)(const op_call *call);
    /* Tolerances where the variant's arithmetic is coarser than the operator asks for, not scaled;
     * NULL: the operator's. */
    const op_tolerance *tolerances;
    /* The reference with the roundings that this variant makes more coarsely on purpose (x to 8
     * bits, for example): its outputs are within the operator's own tolerances of this. NULL: no
     * such rounding. */
    op_kernel *rounded;
    size_t (*rounded_scratch_bytes)(const op_call *call);
} op_variant;

/* The floating-point inputs of tests: always normally distributed values, small ones, zeros,
 * denormals and few distinct values; the following where the operator defines their results. */
typedef enum op_fill {
    OP_FILL_HUGE = 1,     /* magnitudes around 2^50 (2^14 for F16): squares stay finite */
    OP_FILL_INFINITY = 2, /* some elements minus infinity, whole rows too */
    OP_FILL_NAN = 4,      /* some elements NaN */
} op_fill;

/* Elements [begin, end) of a row of a tensor, in the order of memory: its first dimension counts
 * rows, the others together make a row. */
typedef struct op_columns {
    int64_t begin, end;
} op_columns;

typedef struct op_info {
    const char *name;
    const char *summary;    /* one line */
    const char *place;      /* purpose and place in the model */
    const char *formula;    /* what is computed, in the axes' and tensors' names */
    const char *precision;  /* in what precision, where it rounds */
    const char *edge_cases; /* empty inputs, NaN, masked rows, ties */
    const char *source;     /* where the semantics come from */
    const char *unit;       /* what a unit is: "a row", "an output feature" */
    const char *flops;      /* expression over axes */
    const char *bytes;      /* the same, with sizeof_TENSOR (bytes per element, may be a fraction);
                             * NULL: every tensor once, in-out tensors twice */
    op_axis axes[OP_MAX_AXES];
    op_tensor tensors[OP_MAX_TENSORS];
    op_param params[OP_MAX_PARAMS];

    /* The fewest units that are worth a thread of their own; 0: any number is. */
    int64_t grain;
    /* Units in the whole of a bound call. */
    int64_t (*units)(const op_call *call);
    /* Where a unit is a part of every row (an output feature, a head of all tokens): the part of
     * the rows of tensor t that the units [begin, end) touch, or a superset; of a KV cache a row is
     * a page. Schedules derive from this which units depend on which. Rows are independent then,
     * and a call may also be cut by rows, unless it has sequences. NULL: units follow the rows one
     * by one, with the same number of units in each row. */
    op_columns (*columns)(const op_call *call, int t, int64_t begin, int64_t end);
    /* Where units touch an equal part of each `period` elements of a row of tensor t, from the
     * first of columns() to its last: that period; 0: they touch all between. NULL: 0. */
    int64_t (*period)(const op_call *call, int t);
    /* Checks what shapes cannot express (divisibility, ranges of index contents); NULL: nothing. */
    qp_status (*check)(const op_call *call, qp_error *error);
    /* Value of a derived axis; NULL: there is none. */
    double (*derive)(const op_call *call, const char *axis);
    /* Bytes that a slice needs; NULL: none. */
    size_t (*scratch_bytes)(const op_call *call);
    /* Fills the inputs of a test call whose contents are restricted: index tensors (page tables,
     * offsets, ids), masks, positive sums; NULL: there are none. The data of the views is allocated
     * and the other inputs are filled. */
    void (*prepare)(op_call *call, uint64_t seed);

    op_kernel *reference;
    const op_variant *variants; /* ends with a NULL name, in rising order of preference; or NULL */
    const struct cuda_kernel *cuda; /* kernels on a GPU, likewise: op/cuda_ops.h; or NULL */

    /* Test cases: texts such as "n_tokens=3 hidden_size=500 x:BF16 bias:- eps=1e-6 x+16 out=x":
     * axes and parameters by name, element types (":-" leaves an optional tensor out), strides
     * larger than what they step over by so many elements ("x+16"), the order of the dimensions in
     * memory from the outermost ("q@0213"), and views that share memory ("out=x"). A type left out
     * is F32, or the first that the tensor can have. Ends with NULL. */
    const char *const *cases;
    /* Shapes of real models: the same texts after a "name: ". Ends with NULL. */
    const char *const *workloads;
    const op_tolerance *tolerances; /* ends with relative 0; NULL: outputs are exact */
    /* The number of terms in the longest sum of an output element, an expression over axes that
     * scales the tolerances; NULL: 1. */
    const char *reduction;
    unsigned fills; /* set of op_fill: unusual inputs for which the operator is defined */
} op_info;

/* Numbers of entries in use. */
int op_n_axes(const op_info *op);
int op_n_tensors(const op_info *op);
int op_n_params(const op_info *op);
int op_tensor_index(const op_info *op, const char *name); /* -1: none */
int op_param_index(const op_info *op, const char *name);
int op_axis_index(const op_info *op, const char *name);

/* Evaluates the shape of tensor t for the axes' values (axes[OP_MAX_AXES], negative: not known)
 * into shape[TENSOR_MAX_RANK]; *rank gets its length. Fails when an axis
 * is missing or a dimension is not a whole number. */
qp_status op_shape(const op_info *op, int t, const int64_t *axes, int64_t *shape, int *rank,
                   qp_error *error);

/* Checks the call's types, ranks and shapes against the description and finds the axes' values
 * (axes[OP_MAX_AXES], by index; may be NULL). The message names operator, tensor, expected, found.
 */
qp_status op_bind(const op_info *op, const op_call *call, int64_t *axes, qp_error *error);

/* Value of an expression over the axes of a bound call, derived ones too; 0 when `text` is NULL. */
double op_evaluate(const op_info *op, const op_call *call, const char *text);

typedef struct op_cost {
    double flops, bytes;
} op_cost;

/* FLOPs and bytes of the whole call, from the description's expressions. */
op_cost op_cost_of(const op_info *op, const op_call *call);

/* The best kernel for this call on a CPU with `features`; *variant (may be NULL) gets its entry or
 * NULL for the reference. Depends on types and shapes only, never on contents. */
op_kernel *op_select(const op_info *op, uint32_t features, const op_call *call,
                     const op_variant **variant);
