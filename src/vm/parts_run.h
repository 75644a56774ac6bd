/* What parts.c and parts_attention.c share: the memory of parts, and how one is timed. */
#pragma once

#include "base/buffer.h"
#include "vm/parts.h"

struct parts {
    const program *program;
    uint32_t cpu_features;
    int64_t n_rows, n_positions, n_heads, head_dim, n_features; /* at most */
    float *keys;     /* (head_dim, n_positions): of one KV head, transposed */
    float *values;   /* (n_positions, head_dim) */
    float *repeated; /* keys and values again, for one query head */
    float *scores;   /* (n_rows, n_positions) */
    float *largest;  /* (n_rows) */
    float *heads;    /* (n_heads, n_rows, head_dim): what each head attended to */
    float *row;      /* (head_dim) */
    float *product;  /* (n_rows, n_features): before the residual is added */
    buffer memory;
    /* The chunk that is running. */
    int node, track, chunk, chunks;
    uint64_t wait, begin, end;
    /* The parts that have run. */
    timeline_part *list;
    size_t count, capacity;
    bool lost; /* the list could not grow: out of memory */
};

void parts_begin(parts *parts);
void parts_end(parts *parts);

/* What a part computes with: shapes as text, the type of its weights, of the cache or of its
 * output, and the number of elements of its output. */
typedef struct part_shape {
    char inputs[64], outputs[40];
    dtype type;
    int64_t elements;
    double weights, cached; /* bytes of weights, and of the KV cache */
} part_shape;

/* Adds the part between parts_begin() and parts_end() to the list. */
void parts_add(parts *parts, const char *kind, op_cost cost, const part_shape *shape);

/* "2x3", from the tensor's shape. */
void parts_print_shape(const tensor *view, char *text, size_t size);

/* The query heads [begin, end) of a slice of paged_prefill's units. */
void parts_run_attention(parts *parts, const op_call *call, int64_t begin, int64_t end);
