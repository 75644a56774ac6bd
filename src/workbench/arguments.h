/* The arguments of a function on a workload of a FlashInfer-Bench data set: where they lie in
 * memory, and the inputs' values. */
#pragma once

#include "base/buffer.h"
#include "workbench/schema.h"

/* The memory begins with room for a text, why a function failed. */
enum { ARGUMENTS_TEXT_BYTES = 4096, ARGUMENTS_ALIGNMENT = 256 };

typedef struct arguments {
    const schema_definition *definition;
    const schema_workload *workload;
    size_t offset[SCHEMA_MAX_TENSORS], elements[SCHEMA_MAX_TENSORS]; /* of tensors */
    double scalars[SCHEMA_MAX_TENSORS];                              /* of the others */
    size_t total;
    buffer memory; /* total bytes: inputs in their places */
} arguments;

/* Lays them out, and reads or makes the inputs; `folder` is the data set's. */
qp_status arguments_create(const schema_definition *definition, const schema_workload *workload,
                           const char *folder, uint64_t seed, arguments *out, qp_error *error);
void arguments_free(arguments *arguments);

/* Other values for the random tensors; those from files, and scalars, stay. */
void arguments_randomize(arguments *arguments, uint64_t seed);

size_t arguments_bytes(const arguments *arguments, int t);

/* Copies the inputs into such a memory, and fills the outputs there with a pattern that is a wrong
 * result. */
void arguments_put(const arguments *arguments, char *memory);

/* Whether only outputs differ in `memory`; if not, `what` says what was written. */
bool arguments_intact(const arguments *arguments, const char *memory, char *what, size_t size);
