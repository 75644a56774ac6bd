/* Importance matrices: for each tensor the mean squares of the inputs that its rows are multiplied
 * with. They come from a file of llama.cpp, the older form ("imatrix.dat") or GGUF, or from a text
 * that the model reads (engine/importance.h).
 */
#pragma once

#include "convert/job.h"

typedef struct imatrix_entry {
    text_slice name;     /* of the tensor: "blk.0.attn_q.weight" */
    int64_t n, columns;  /* matrices: 1, or experts */
    const float *sums;   /* (n, columns): squares of inputs, summed over rows */
    const float *counts; /* [n]: how many rows that were */
    bool used;
} imatrix_entry;

typedef struct imatrix {
    const char *path;
    arena memory;
    imatrix_entry *of; /* [count] */
    size_t count, n_chunks;
} imatrix;

/* Reads a file; with `bytes` not in memory of its own. QP_FORMAT names what is wrong. The result is
 * zero before; imatrix_free() it in every case. */
qp_status imatrix_read(const void *bytes, size_t size, const char *name, imatrix *out,
                       qp_error *error);
void imatrix_free(imatrix *m);

/* Reads job->importance.from, or makes it from that text, and gives the targets their importance.
 * QP_FORMAT: it is of another model. */
qp_status imatrix_open(convert_job *job, imatrix *out, qp_error *error);

/* Writes it as llama.cpp does. */
qp_status imatrix_write(const imatrix *m, const char *path, qp_error *error);
