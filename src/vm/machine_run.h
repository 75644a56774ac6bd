/* Functions that several machine types use to run a request. */
#pragma once

#include "vm/machine.h"

/* Steps [first, last) of a program. */
typedef struct machine_steps {
    int first, last;
} machine_steps;

/* The steps that choose the batch's tokens from the logits: "sample", and before it "adjust_logits"
 * if a row uses that. */
machine_steps machine_choosing_steps(const program *program, const batch *batch);

machine_steps machine_steps_of(const program *program, const machine_request *request);

static inline int machine_passes_of(const machine_request *request)
{
    return request->passes > 0 ? request->passes : 1;
}

/* NULL, or why no machine runs this. */
const char *machine_refuses(const program *program, const machine_request *request);

static inline bool machine_is_cancelled(const machine_request *request)
{
    return request->cancel && *request->cancel;
}

/* Delivers a pass's tokens, [n_outputs], to the request; false: the caller wants no more. */
bool machine_hand_on(const machine_request *request, const int32_t *tokens);
