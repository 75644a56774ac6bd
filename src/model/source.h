/* Where weights come from: one question, "the tensor of that name", for every kind of source. */
#pragma once

#include "base/arena.h"
#include "base/buffer.h"
#include "file/gguf.h"
#include "file/safetensors.h"
#include "file/synthetic.h"
#include "model/model.h"

typedef struct owned_buffer {
    struct owned_buffer *next;
    buffer memory;
} owned_buffer;

typedef struct weight_source {
    const char *path;
    gguf *gguf; /* one of these two, or neither */
    safetensors *safetensors;
    synthetic_spec
        synthetic; /* when there is neither; without its config: sizes are all there is */
    const model_options *options;
    const model_config *config;
    arena *arena;
    owned_buffer *owned;     /* memory of tensors that no file holds as they are needed */
    int64_t n_fp8;           /* matrices that the file stores in FP8: see fp8.h */
    int64_t n_fp8_kept;      /* and of them those that are read in F8_128 */
    int64_t n_fp8_by_blocks; /* and of those the ones whose rows have several scales */
} weight_source;

/* The slot's weight (or bias) as the source stores it; *out keeps rank 0 when it is absent. The
 * shape is not checked here. */
qp_status source_get(weight_source *source, weight_slot slot, int64_t layer, bool bias, tensor *out,
                     qp_error *error);

/* Rows [begin, begin + rows) of a weight or bias as stored, also where its view has no data because
 * only sizes were asked for. Several threads may read at once. */
void source_read_rows(const weight_source *source, weight_slot slot, int64_t layer, bool bias,
                      const tensor *view, int64_t begin, int64_t rows, void *dst);

/* The full name that the source uses for it. */
void source_name(const weight_source *source, weight_slot slot, int64_t layer, bool bias,
                 char *name, size_t size);

/* QP_UNSUPPORTED names a tensor of the file that is neither a weight of the model's family and
 * sizes nor known to be of no use: leaving it out would change what the model computes. */
qp_status source_check_unread(const weight_source *source, qp_error *error);

/* What makes the elements of a synthetic source's weight or bias. */
synthetic_stream source_synthetic_stream(const weight_source *source, weight_slot slot,
                                         int64_t layer, bool bias);

/* Whether `data` is the slot's weight where it lies in a mapped file, not a copy of the source's.
 */
bool source_is_mapped(const weight_source *source, weight_slot slot, int64_t layer,
                      const void *data);

/* Gives up the memory of a tensor that the source made, where `data` is one. */
void source_discard(const weight_source *source, const void *data);

void source_close(weight_source *source);
