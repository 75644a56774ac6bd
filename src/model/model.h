/* A model: its sizes and checked views of its weights.
 *
 * Three sources look alike from here: a GGUF file, a Hugging Face directory with safetensors, and
 * synthetic weights. After model_open() every view has the shape that the config demands and lies
 * inside mapped or owned memory, and every tensor of the file is one that the model's family reads.
 * Weights are read-only.
 */
#pragma once

#include "base/progress.h"
#include "base/threads.h"
#include "file/synthetic_bits.h"
#include "model/config.h"
#include "model/weights.h"
#include "tensor/tensor.h"

/* The expected shape of a slot's weight. */
void weight_shape(const model_config *config, weight_slot slot, int64_t *rows, int64_t *columns);

typedef struct model_weight {
    tensor weight; /* (rows, columns), or (columns) for a norm; of experts the rows of all */
    tensor bias;   /* (rows); rank 0 where there is none */
    tensor lora_a, lora_b; /* of adapters that are not merged: see adapter.h; rank 0: none */
} model_weight;

/* A LoRA adapter of the model. */
typedef struct model_adapter {
    const char *path;
    double scaling; /* alpha / rank, a factor of what its matrices add */
    int64_t rank;
    uint64_t checksum; /* of its matrices */
} model_adapter;

/* An adapter to open: a GGUF file, or a directory of PEFT. */
typedef struct adapter_choice {
    const char *path;
    double scale; /* if it is merged: a factor beside alpha / rank */
} adapter_choice;

/* Adapters to open, which need not outlive model_open(). Merged ones are added to the weights, the
 * others are kept beside these. */
typedef struct adapter_choices {
    const adapter_choice *of; /* [n] */
    int64_t n;
    bool merge;
} adapter_choices;

typedef struct model model;
typedef struct gguf gguf;

typedef struct model_options {
    bool sizes_only; /* leave unmade what no file holds as it is needed (synthetic weights, the
                      * parts of a fused matrix, matrices in FP8): those views have no data */
    bool config_is_enough; /* with sizes_only: of a directory without safetensors config.json is
                            * read alone, and weights are views without data of its type */
    bool fp8_as_bf16;      /* weights in FP8 are read as BF16: for ranks, other files, most GPUs */
    bool fp8_by_rows_only; /* the same of those with several scales a row */
    bool discardable;      /* model_discard_weight() may be called: there is one reader */
    adapter_choices adapters;
    thread_pool *pool;  /* makes synthetic weights; may be NULL */
    progress *progress; /* shows how far they are made; may be NULL */
} model_options;

/* `path`: a .gguf file, a directory with config.json and safetensors, or "synthetic:...". */
qp_status model_open(const char *path, const model_options *options, model **out, qp_error *error);
void model_close(model *model);

const model_config *model_get_config(const model *model);

/* Whether the model is a config.json alone: see model_options. */
bool model_is_config(const model *model);

/* `layer` is ignored for slots of the whole model. The views of a weight that the family does not
 * have are of rank 0. */
const model_weight *model_get_weight(const model *model, weight_slot slot, int64_t layer);

/* The adapters, [config->adapters.n], or as many as were merged. */
const model_adapter *model_get_adapter(const model *model, int64_t adapter);

/* Whether every view has data: not so for sizes_only where weights would have to be made. */
bool model_has_weights(const model *model);

/* Rows [begin, begin + rows) of a slot's weight or bias as stored, made on the spot where the view
 * has no data. A norm is one row; a bias has a row for each element. Several threads may read at
 * once. */
void model_read_rows(const model *model, weight_slot slot, int64_t layer, bool bias, int64_t begin,
                     int64_t rows, void *dst);

/* Where the weights came from: the path as given. */
const char *model_path(const model *model);

/* The open file, for its other contents; NULL when the source is another. */
gguf *model_gguf(const model *model);

/* Where the weights are synthetic: what makes the elements of a slot's weight or bias
 * (file/synthetic_bits.h), so that a GPU can make them itself; false for other models. */
bool model_synthetic_stream(const model *model, weight_slot slot, int64_t layer, bool bias,
                            synthetic_stream *out);

/* A number for the sizes of the model's files and the times when they were last written; 0: no file
 * holds the weights. */
uint64_t model_stamp(const model *model);

/* Gives the memory of the file's metadata, a vocabulary of megabytes, back to the system until it
 * is read again. Called once everything needed has been read. */
void model_release_metadata(const model *model);

/* Gives the memory of a weight that lies in a mapped file back to the system until it is read
 * again. Called by a machine that has made its own form of the weight. */
void model_release_weight(const model *model, weight_slot slot, int64_t layer);

/* Whether a weight lies in a mapped file as it is. */
bool model_is_mapped(const model *model, weight_slot slot, int64_t layer);

/* Tells the system that few and scattered bytes will be read of a weight in a mapped file. */
void model_read_sparsely(const model *model, weight_slot slot, int64_t layer);

/* Frees the memory of a weight that was made (synthetic, or split from a fused matrix): reading it
 * later faults. Does nothing to a weight in a mapped file, nor where model_options did not allow
 * it. */
void model_discard_weight(const model *model, weight_slot slot, int64_t layer);

/* Matrices that the file stores in FP8, and those of them that are read in F8_128, the rest as
 * BF16: see fp8.h. */
int64_t model_fp8_matrices(const model *model);
int64_t model_fp8_kept(const model *model);

/* Bytes of all weights as stored, or as read where they are made (a tied output counts once). */
uint64_t model_weight_bytes(const model *model);

/* Bytes of those that a pass of one token reads: all, but of an embedding that is not the output as
 * well one row, and of experts those that a token uses. */
uint64_t model_read_bytes(const model *model);
