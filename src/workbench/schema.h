/* Definitions, workloads and solutions of FlashInfer-Bench, read from JSON and checked.
 *
 * The format: https://bench.flashinfer.ai/docs/flashinfer-trace. What is read points into the trees
 * of JSON, which outlive it.
 */
#pragma once

#include "base/status.h"
#include "workbench/values.h"

#include <cjson/cJSON.h>

enum { SCHEMA_MAX_AXES = 64, SCHEMA_MAX_TENSORS = 48, SCHEMA_MAX_RANK = 8 };

typedef struct schema_axis {
    const char *name;
    int64_t size; /* -1: variable */
} schema_axis;

typedef struct schema_tensor {
    const char *name;
    const value_type *type;
    int rank;                  /* -1: a scalar, which is an argument and no tensor */
    int axes[SCHEMA_MAX_RANK]; /* indices into the definition's */
} schema_tensor;

typedef struct schema_definition {
    const char *name, *op_type;
    const char *reference; /* Python with a function run() of all inputs */
    int n_axes, n_inputs, n_outputs;
    schema_axis axes[SCHEMA_MAX_AXES];
    schema_tensor tensors[SCHEMA_MAX_TENSORS]; /* inputs, then outputs */
} schema_definition;

/* Where an input's values come from. */
typedef struct schema_source {
    enum { SOURCE_RANDOM, SOURCE_SCALAR, SOURCE_STORED } kind;
    const cJSON *value;     /* a scalar: a number or a boolean */
    const char *path, *key; /* a safetensors file, relative to the data set, and a tensor in it */
} schema_source;

typedef struct schema_workload {
    const char *uuid;
    const cJSON *tree;
    int64_t sizes[SCHEMA_MAX_AXES]; /* of all axes */
    schema_source inputs[SCHEMA_MAX_TENSORS];
} schema_workload;

typedef struct schema_solution {
    const char *name, *definition, *author, *language;
    const char *entry;           /* "a/kernel.py::run" */
    const char *binding;         /* of C++ and CUDA: "tvm-ffi" or "torch"; NULL: the first */
    bool fills_outputs;          /* outputs are its last arguments; else it returns them */
    const cJSON *sources;        /* array of {path, content}, checked */
    char file[256], symbol[128]; /* of the entry point */
} schema_solution;

/* `where` names the file in messages. */
qp_status schema_read_definition(const cJSON *tree, const char *where, schema_definition *out,
                                 qp_error *error);
qp_status schema_read_workload(const schema_definition *definition, const cJSON *tree,
                               const char *where, schema_workload *out, qp_error *error);
qp_status schema_read_solution(const cJSON *tree, const char *where, schema_solution *out,
                               qp_error *error);

/* A string member that must be there. */
qp_status schema_string(const cJSON *object, const char *key, const char *where, const char **out,
                        qp_error *error);

/* The size of dimension d of a tensor. */
int64_t schema_size(const schema_definition *definition, const schema_workload *workload, int t,
                    int d);
