/* The launches of a pass before anything is loaded, for the GPU here or one that is described. */
#ifndef QUIPU_INSPECT_PASS_LAUNCHES_H
#define QUIPU_INSPECT_PASS_LAUNCHES_H

#include "model/model.h"
#include "plan/plan.h"
#include "vm/cuda/launch_list.h"

typedef struct pass_launches {
    program program;
    cuda_device gpu; /* its figures */
    cuda_weights weights;
    launch_setting setting;
    launch_list list;
} pass_launches;

/* Of `tokens` tokens: a prompt's, or, where there are as many sequences, one of each, at the plan's
 * full context. `arch`: "sm_90" or "sm_100"; NULL: the GPU here, or where there is none sm_90.
 * pass_launches_free() it, also after a failure. */
qp_status pass_launches_make(const model *model, const plan_options *options, int64_t tokens,
                             int64_t sequences, const char *arch, pass_launches *out,
                             qp_error *error);
void pass_launches_free(pass_launches *launches);

/* A heading, and the list as launch_list_print() has it. */
void pass_launches_print(const pass_launches *launches, strbuf *out);

#endif
