/* Fast variants of fused operators, composed of the variants of the operators inside them.
 *
 * A composed variant represents a level of CPU features: at that level each part is the variant
 * that the operator alone would use. The parts compute the same values as separate operators would,
 * with the rows in between in scratch instead of the plan's memory, so the fused operator gives the
 * same bits as the operators that it fuses. Its packed weights are the parts' packed weights, one
 * after the other.
 */
#pragma once

#include "base/cpu.h"
#include "op/op.h"

/* As a level: projections use linear's reference on x with the variant's roundings
 * (op_variant.rounded), those without roundings linear's reference; nothing is packed. */
enum { COMPOSE_ROUNDED = 1 << 30 };

/* x, norm_weight and the projections of a fused call: these operators begin with them. A weight of
 * three dimensions is a matrix for each expert, each with a row of the bias; an absent one is no
 * projection. */
typedef struct compose_norm {
    int x, norm_weight, eps;      /* indices of tensors and of the parameter; without a norm -1 */
    int weights[3], biases[3], n; /* indices of the projections' tensors */
} compose_norm;

/* One projection: a call of linear without x and out, with the matrix of the first expert. */
typedef struct compose_linear {
    op_call call;
    const op_variant *variant;
    size_t packed_at;   /* bytes into the fused call's packed weights */
    size_t packed_each; /* of an expert */
    int64_t n_experts;  /* 1: the projection has one matrix */
} compose_linear;

enum { COMPOSE_MOST = 3 };
int compose_linears(const op_call *call, const compose_norm *norm, uint32_t level,
                    compose_linear out[COMPOSE_MOST]);

/* The projection with the matrix of another expert. */
compose_linear compose_expert(const op_call *call, const compose_norm *norm, int which,
                              const compose_linear *part, int64_t expert);

/* Whether x is F32 or in fixed point (fixed.h), norm and biases are F32, and every projection has a
 * variant at this level; `coarse`: whether at least one weight must be quantised, or none. */
bool compose_accepts(const op_call *call, const compose_norm *norm, uint32_t level, bool coarse);

/* Hooks of a variant. A slice of units packs as large a part of each weight. */
size_t compose_packed_bytes(const op_call *call, const compose_norm *norm, uint32_t level);
size_t compose_packed_first(const op_call *call, const compose_norm *norm, uint32_t level);
void compose_pack(const op_call *call, const compose_norm *norm, uint32_t level, int64_t units,
                  void *packed);

/* What compose_rows() and the projections of its rows need. */
size_t compose_scratch_bytes(const op_call *call, const compose_norm *norm, int64_t n_rows,
                             uint32_t level);

/* Normalises rows [0, n_rows) of x, or the rows `which` where it is not NULL: F32 (n_rows,
 * hidden_size) at `to`, followed by the projections' scratch. */
tensor compose_rows(const op_call *call, const compose_norm *norm, int64_t n_rows,
                    const int32_t *which, uint32_t level, void *to);

/* Computes features [begin, end) of a projection of these rows, in their columns of out (n_rows,
 * all features). */
void compose_project(const op_call *call, const compose_linear *linear, const tensor *rows,
                     int64_t begin, int64_t end, const tensor *out);

/* The same into memory of their own, out (n_rows, end - begin). */
void compose_project_apart(const op_call *call, const compose_linear *linear, const tensor *rows,
                           int64_t begin, int64_t end, const tensor *out);

/* Runs a part with the best kernel of the level. */
void compose_run(const op_info *op, uint32_t level, const op_call *part);

/* The tolerances of composed variants with quantised weights: twice those of linear, since a norm's
 * weight spreads the magnitudes of what linear rounds to 8 bits. */
extern const op_tolerance compose_coarse_tolerances[];

/* The same with x rounded to 16 bits. */
extern const op_tolerance compose_fine_tolerances[];

/* The same with BF16 weights and x rounded to BF16. */
extern const op_tolerance compose_bf16_tolerances[];

/* The levels, in rising order, each for float and for quantised weights. An operator defines
 * NAME_compute(call, level), NAME_scratch(call, level), NAME_norm (a compose_norm),
 * NAME_accepts(call) and `units`; this macro then defines its table of variants. */
#define COMPOSE_LEVEL_VNNI (CPU_LEVEL_AVX512 | CPU_AVX512_VNNI)
#define COMPOSE_LEVEL_BF16 (OP_X_BF16 | CPU_AVX512_BF16)
#define COMPOSE_LEVEL_AMX  (COMPOSE_LEVEL_VNNI | CPU_AMX_TILE | CPU_AMX_INT8 | CPU_AMX_BF16)

#define COMPOSE_HOOKS(op, name, level)                                                             \
    static void op##_##name(const op_call *call)                                                   \
    {                                                                                              \
        op##_compute(call, level);                                                                 \
    }                                                                                              \
    static size_t op##_packed_bytes_##name(const op_call *call)                                    \
    {                                                                                              \
        return compose_packed_bytes(call, &op##_norm, level);                                      \
    }                                                                                              \
    static size_t op##_packed_first_##name(const op_call *call)                                    \
    {                                                                                              \
        return compose_packed_first(call, &op##_norm, level);                                      \
    }                                                                                              \
    static void op##_pack_##name(const op_call *call, void *packed)                                \
    {                                                                                              \
        compose_pack(call, &op##_norm, level, units(call), packed);                                \
    }                                                                                              \
    static size_t op##_scratch_##name(const op_call *call)                                         \
    {                                                                                              \
        return op##_scratch(call, level);                                                          \
    }

/* Hooks for quantised weights, for float weights, and for references with a variant's roundings. */
#define COMPOSE_COARSE(op, name, level)                                                            \
    static bool op##_accepts_coarse_##name(const op_call *call)                                    \
    {                                                                                              \
        return op##_accepts(call) && compose_accepts(call, &op##_norm, level, true);               \
    }
#define COMPOSE_PLAIN(op, name, level)                                                             \
    static bool op##_accepts_##name(const op_call *call)                                           \
    {                                                                                              \
        return op##_accepts(call) && compose_accepts(call, &op##_norm, level, false);              \
    }
#define COMPOSE_ROUNDS(op, name, level)                                                            \
    static void op##_rounded_##name(const op_call *call)                                           \
    {                                                                                              \
        op##_compute(call, level | COMPOSE_ROUNDED);                                               \
    }                                                                                              \
    static size_t op##_rounded_scratch_##name(const op_call *call)                                 \
    {                                                                                              \
        return op##_scratch(call, level | COMPOSE_ROUNDED);                                        \
    }

#define COMPOSE_LEVEL(op, name, level)                                                             \
    COMPOSE_16(op, name, level)                                                                    \
    COMPOSE_PLAIN(op, name, level)
#define COMPOSE_16(op, name, level)                                                                \
    COMPOSE_FLOAT(op, name, level)                                                                 \
    COMPOSE_ROUNDS(op, name, level)
#define COMPOSE_FLOAT(op, name, level)                                                             \
    COMPOSE_HOOKS(op, name, level)                                                                 \
    COMPOSE_COARSE(op, name, level)
#define COMPOSE_X_BF16(op, name, level)                                                            \
    COMPOSE_HOOKS(op, name, level)                                                                 \
    COMPOSE_PLAIN(op, name, level)                                                                 \
    COMPOSE_ROUNDS(op, name, level)

#define COMPOSE_VARIANT(op, text, suffix, level, accepting, together, ...)                         \
    {                                                                                              \
        .name = text, .needs = level, .kernel = op##_##suffix, .accepts = op##_##accepting,        \
        .packed_bytes = op##_packed_bytes_##suffix, .pack = op##_pack_##suffix,                    \
        .packed_first = op##_packed_first_##suffix, .pack_units = together,                        \
        .scratch_bytes = op##_scratch_##suffix, __VA_ARGS__                                        \
    }

#define COMPOSE_QUANTISED(op, text, suffix, level, together, held_to)                              \
    COMPOSE_VARIANT(op, text, suffix, level, accepts_coarse_##suffix, together,                    \
                    .tolerances = held_to, .rounded = op##_rounded_##suffix,                       \
                    .rounded_scratch_bytes = op##_rounded_scratch_##suffix)
#define COMPOSE_PAIR(op, name, level, together, held_to)                                           \
    COMPOSE_VARIANT(op, #name, name, level, accepts_##name, together, .tolerances = NULL),         \
        COMPOSE_QUANTISED(op, #name "_int8", name, level, together, held_to)

#define COMPOSE_BF16(op, text, suffix, level, together)                                            \
    COMPOSE_VARIANT(op, text, suffix, level, accepts_##suffix, together,                           \
                    .tolerances = compose_bf16_tolerances, .rounded = op##_rounded_##suffix,       \
                    .rounded_scratch_bytes = op##_rounded_scratch_##suffix)

/* X(name, features, ...): the levels, those whose weights may be decoded to float32, and those that
 * multiply BF16. */
#if defined(__x86_64__)
#define COMPOSE_DECODED(X, ...)                                                                    \
    X(sse2, CPU_VECTORS, __VA_ARGS__)                                                              \
    X(avx2, CPU_LEVEL_AVX2, __VA_ARGS__)                                                           \
    X(avx512, CPU_LEVEL_AVX512, __VA_ARGS__)
#define COMPOSE_LEVELS(X, ...)                                                                     \
    COMPOSE_DECODED(X, __VA_ARGS__)                                                                \
    X(avx512_vnni, COMPOSE_LEVEL_VNNI, __VA_ARGS__)                                                \
    X(amx, COMPOSE_LEVEL_AMX, __VA_ARGS__)
#define COMPOSE_BF16S(X, ...)                                                                      \
    X(avx512_bf16, COMPOSE_LEVEL_BF16 | CPU_LEVEL_AVX512, __VA_ARGS__)                             \
    X(amx_bf16, COMPOSE_LEVEL_BF16 | COMPOSE_LEVEL_AMX, __VA_ARGS__)
#elif defined(__aarch64__)
#define COMPOSE_DECODED(X, ...) X(neon, CPU_VECTORS, __VA_ARGS__)
#define COMPOSE_LEVELS(X, ...)                                                                     \
    COMPOSE_DECODED(X, __VA_ARGS__)                                                                \
    X(neon_dotprod, CPU_LEVEL_DOTPROD, __VA_ARGS__)                                                \
    X(neon_i8mm, CPU_LEVEL_I8MM, __VA_ARGS__)
#define COMPOSE_BF16S(X, ...) X(neon_bf16, OP_X_BF16 | CPU_VECTORS | CPU_BF16, __VA_ARGS__)
#else
#define COMPOSE_DECODED(X, ...) X(portable, CPU_VECTORS, __VA_ARGS__)
#define COMPOSE_LEVELS(X, ...)  COMPOSE_DECODED(X, __VA_ARGS__)
#define COMPOSE_BF16S(X, ...)
#endif

#define COMPOSE_OF_LEVEL(name, level, op)                                                          \
    COMPOSE_LEVEL(op, name, level)                                                                 \
    COMPOSE_16(op, name##_16, OP_X_16 | level)
#define COMPOSE_OF_DECODED(name, level, op) COMPOSE_FLOAT(op, name##_float, OP_X_FLOAT | level)
#define COMPOSE_OF_BF16(name, level, op)    COMPOSE_X_BF16(op, name, level)

#define COMPOSE_ROWS_8(name, level, op, together, held_to)                                         \
    COMPOSE_PAIR(op, name, level, together, held_to),
#define COMPOSE_ROW_16(name, level, op, together)                                                  \
    COMPOSE_QUANTISED(op, #name "_int16", name##_16, OP_X_16 | level, together,                    \
                      compose_fine_tolerances),
#define COMPOSE_ROW_DECODED(name, level, op, together)                                             \
    COMPOSE_VARIANT(op, #name "_decoded", name##_float, OP_X_FLOAT | level,                        \
                    accepts_coarse_##name##_float, together, .tolerances = NULL),
#define COMPOSE_ROW_BF16(name, level, op, together)                                                \
    COMPOSE_BF16(op, #name "_rounded", name, level, together),

#define COMPOSE_VARIANTS(op, together, held_to)                                                    \
    COMPOSE_LEVELS(COMPOSE_OF_LEVEL, op)                                                           \
    COMPOSE_DECODED(COMPOSE_OF_DECODED, op)                                                        \
    COMPOSE_BF16S(COMPOSE_OF_BF16, op)                                                             \
    const op_variant op##_variants[] = {COMPOSE_LEVELS(                                            \
        COMPOSE_ROWS_8, op, together, held_to) COMPOSE_LEVELS(COMPOSE_ROW_16, op, together)        \
                                            COMPOSE_DECODED(COMPOSE_ROW_DECODED, op, together)     \
                                                COMPOSE_BF16S(COMPOSE_ROW_BF16, op, together){0}};
