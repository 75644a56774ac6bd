/* Operators under the names and in the terms of FlashInfer-Bench, for Llama-3.1-8B. */
#pragma once

typedef struct definition {
    const char *name, *op_type;
    const char *op; /* the operator's name in quipu */
    const char *description;
    const char *axes;            /* "batch_size hidden_size=4096": variable, constant */
    const char *inputs;          /* "weight:bfloat16[hidden_size] sm_scale:float32" */
    const char *outputs;         /* in the same format */
    const char *constraints[3];  /* Python expressions */
    const char *const reference; /* Python with a top-level run() */
    /* The operator's case (see op_info.cases); {axis} stands for a variable axis. */
    const char *call;
    /* The operator's tensors by the names of inputs and outputs: "x=hidden_states"; a tensor that
     * must hold ones is "kv_last_page_len=1". NULL: they are not the same. */
    const char *tensors;
    /* Values of the variable axes; the first set is the smallest, for checking. */
    const char *workloads[4];
    /* Inputs that are scalars or index tensors: "sm_scale=0.088" (a value), "kv_indptr" (a tensor
     * of the operator, saved to a file). The other inputs are random. */
    const char *fixed;
} definition;

extern const definition definitions[]; /* ends with a NULL name */
