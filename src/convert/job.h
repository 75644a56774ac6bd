/* The state of a conversion, shared by its parts: keys, tensors, and the loop over the tensors. */
#pragma once

#include "base/progress.h"
#include "base/arena.h"
#include "base/threads.h"
#include "convert/convert.h"
#include "convert/mix.h"
#include "file/gguf_write.h"
#include "quipu.h"

/* A tensor to write. It comes from a slot of the model, or from memory. */
typedef struct target {
    text_slice name;
    weight_slot slot; /* WEIGHT_COUNT: `data` is the source */
    int64_t layer;
    bool bias;
    uint32_t fused;   /* the slots whose rows follow each other, `slot` the first; 0: only `slot` */
    const void *data; /* rows as stored; NULL: model_read_rows() makes them */
    dtype from, to;
    int rank;
    int64_t shape[TENSOR_MAX_RANK];
    int64_t rows, columns;
    const float *importance;  /* (rows / matrix_rows, columns); NULL: all count alike */
    int64_t matrix_rows;      /* of each matrix; one after the other */
    int64_t turned, head_dim; /* the first `turned` rows of each head are permuted from halves to
                                 pairs; 0: none */
} target;

typedef struct convert_job {
    const qp_convert_options *options;
    convert_importance importance;
    model *model;
    const mix *mix; /* NULL: types stay as they are */
    gguf_writer *writer;
    arena arena;
    target *targets; /* [n_targets] */
    size_t n_targets, capacity;
    thread_pool *pool;
    progress progress;
    strbuf warnings; /* a line for each */
} convert_job;

/* Lists the tensors of the new file. */
qp_status convert_list_targets(convert_job *job, qp_error *error);

/* Writes the keys, the vocabulary's included. The targets must be listed by then. */
qp_status convert_put_keys(convert_job *job, qp_error *error);
