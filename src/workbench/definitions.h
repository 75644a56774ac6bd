/* Operators under the names and in the terms of FlashInfer-Bench, for Llama-3.1-8B. */
#ifndef QUIPU_WORKBENCH_DEFINITIONS_H
#define QUIPU_WORKBENCH_DEFINITIONS_H

typedef struct definition {
    const char *name, *op_type;
    const char *op; /* the operator that it is */
    const char *description;
    const char *axes;            /* "batch_size hidden_size=4096": variable, constant */
    const char *inputs;          /* "weight:bfloat16[hidden_size] sm_scale:float32" */
    const char *outputs;         /* the same */
    const char *constraints[3];  /* Python expressions */
    const char *const reference; /* Python with a top-level run() */
    /* The operator's case (see op_info.cases), with {axis} where a variable axis stands. */
    const char *call;
    /* Sets of variable axes; the first is the smallest, for checking. */
    const char *workloads[4];
    /* Inputs that are scalars or index tensors: "sm_scale=0.088" (a value), "kv_indptr" (a tensor
     * of the operator, saved to a file). The others are random. */
    const char *fixed;
} definition;

extern const definition definitions[]; /* ends with a NULL name */

#endif
