/* Synthetic weights: a model of real dimensions without any file,
 * "synthetic:PRESET[:TYPE[+OTHER][:SEED]]", or with a config.json, or its folder, as the PRESET.
 *
 * Every stored bit is a pure function of (seed, tensor's name, element's index), so any number of
 * threads, on the CPU or the GPU (synthetic_bits.h), can make rows in any order and get the same
 * bits. Quantised types are made as blocks directly, without a float model. The deviations keep
 * activations near unit size through all layers. Synthetic models measure speed and compare kernels
 * where real weights are not available.
 */
#pragma once

#include "base/status.h"
#include "file/synthetic_bits.h"

/* The numbers of a model, in the words of its config.json. */
typedef struct synthetic_config {
    const char *name;   /* of the preset */
    const char *family; /* a family's name: model/family/families.def */
    int64_t hidden_size;
    int64_t n_layers;
    int64_t n_heads;
    int64_t n_kv_heads;
    int64_t head_dim;
    int64_t intermediate_size;
    int64_t vocab_size;
    int64_t context_length;
    double rms_norm_eps;
    double rope_theta;
    double
        rope_factor; /* of llama3 scaling (low 1, high 4, original context 8192); 0: no scaling */
    bool tied;       /* the output projection is the embedding */
    int64_t window;  /* positions that attention of every layer slides over; 0: all */
    int64_t n_experts, n_experts_used; /* of a layer, and by a token; 0: dense */
} synthetic_config;

enum {
    SYNTHETIC_ROPE_LOW = 1,
    SYNTHETIC_ROPE_HIGH = 4,
    SYNTHETIC_ROPE_ORIGINAL = 8192,
};

typedef struct synthetic_spec {
    const synthetic_config *config; /* static */
    dtype type;                     /* of matrices; norms are F32 */
    dtype other; /* of the embedding and the output, and of some matrices where it is quantised */
    uint64_t seed;
} synthetic_spec;

/* The presets in order; NULL past the last. */
const synthetic_config *synthetic_preset(int i);

/* Whether `text` names a synthetic model (begins with "synthetic:"). */
bool synthetic_is_name(const char *text);

/* Copies the path of a name whose sizes are those of a file: it has a slash, or ends in .json.
 * False: the name has a preset. */
bool synthetic_config_path(const char *text, char *path, size_t size);

/* Type BF16, no other and seed 0 where not given. `own`: the sizes and `type` the usual type of a
 * name with a path; NULL: the name has a preset. QP_INVALID with the choices when the preset or
 * type is unknown, or when a type's block does not divide the rows. */
qp_status synthetic_parse(const char *text, const synthetic_config *own, dtype type,
                          synthetic_spec *out, qp_error *error);

/* What a tensor is for, which determines how large its values are. */
typedef enum synthetic_role {
    SYNTHETIC_EMBEDDING, /* unit deviation; of a tied model 1/sqrt(hidden_size) */
    SYNTHETIC_LINEAR,    /* 1/sqrt(fan_in): q, k, v, gate, up, the output projection */
    SYNTHETIC_RESIDUAL,  /* 1/sqrt(fan_in * 2 * n_layers): matrices whose product is added to the
                            residual */
    SYNTHETIC_NORM,      /* 1 +- 0.05 */
    SYNTHETIC_BIAS,      /* 0 +- 0.02 */
} synthetic_role;

typedef struct synthetic_distribution {
    float mean; /* must be 0 for quantised types */
    float deviation;
} synthetic_distribution;

/* `fan_in` is the length of a row (ignored where the role does not say so). */
synthetic_distribution synthetic_distribution_of(const synthetic_config *config,
                                                 synthetic_role role, int64_t fan_in);

/* The tensor's number in the generator: a hash of its name. */
uint64_t synthetic_tensor_id(const char *name);

/* Whether synthetic_fill() can make the type: F32, F16, BF16, F8_128, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1,
 * Q4_K, Q6_K. */
bool synthetic_can_make(dtype type);

/* What a kernel needs to make the tensor's elements: synthetic_value() of synthetic_bits.h for
 * plain types and, before they are rounded, F8_128, synthetic_block() for the rest. */
synthetic_stream synthetic_stream_of(const synthetic_spec *spec, uint64_t tensor_id, dtype type,
                                     synthetic_distribution distribution);

/* Writes rows [first_row, first_row + rows) of a matrix of `cols` columns (whole blocks) to `dst`,
 * contiguous, in the stored form of `type`. A vector is one row. Thread safe. */
void synthetic_fill(const synthetic_spec *spec, uint64_t tensor_id, dtype type,
                    synthetic_distribution distribution, void *dst, int64_t first_row, int64_t rows,
                    int64_t cols);
