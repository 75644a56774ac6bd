/* The launches of a pass before anything is loaded, for the GPU here or for one that is known by
 * its figures. */
#pragma once

#include "model/model.h"
#include "plan/plan.h"
#include "vm/cuda/launch_list.h"

typedef struct pass_launches {
    program program;
    cuda_device gpu; /* the GPU's figures */
    cuda_weights weights;
    launch_setting setting;
    launch_list list;
} pass_launches;

/* That GPU's features, bits of cuda_feature. `arch`: as below. */
uint32_t pass_launches_features(const char *arch);

/* Makes the launches of a pass of `tokens` tokens at the plan's full context: a prompt's, or, where
 * there are as many sequences as tokens, one of each sequence. `arch`: "sm_90" or "sm_100"; NULL:
 * the GPU here, or sm_90 where there is none. pass_launches_free() the result, also after a
 * failure. */
qp_status pass_launches_make(const model *model, const plan_options *options, int64_t tokens,
                             int64_t sequences, const char *arch, pass_launches *out,
                             qp_error *error);
void pass_launches_free(pass_launches *launches);

/* Appends which launch rules were taken how often, and why they do not apply where they nearly do.
 */
qp_status pass_launches_explain(const pass_launches *launches, strbuf *out, qp_error *error);

/* Appends a heading and the list in the format of launch_list_print(). */
void pass_launches_print(const pass_launches *launches, strbuf *out);
