/* The megakernel's opcodes: see opcodes.h. */
#include "vm/mega/opcodes.h"

#include "op/attention_output/attention_output.h"
#include "op/attention_partial/attention_partial.h"
#include "op/embedding_clear/embedding_clear.h"
#include "op/norm_linear/norm_linear.h"
#include "op/norm_mlp/norm_mlp.h"
#include "op/norm_qkv_rope/norm_qkv_rope.h"
#include "vm/mega/mega.h"

#define NONE MEGA_NO_OPERAND

static const mega_opcode unknown = {.x = NONE, .sums = NONE, .norm = NONE, .k_cache = NONE};

static const mega_opcode opcodes[OP_COUNT] = {
    [OP_EMBEDDING_CLEAR] = {.code = MEGA_EMBEDDING,
                            .x = NONE,
                            .sums = EMBEDDING_CLEAR_X,
                            .norm = NONE,
                            .k_cache = NONE,
                            .number = MEGA_ONE_A_PASS,
                            .first = true},
    [OP_NORM_QKV_ROPE] = {.code = MEGA_QKV,
                          .x = NORM_QKV_ROPE_X,
                          .sums = NONE,
                          .norm = NORM_QKV_ROPE_NORM_WEIGHT,
                          .k_cache = NORM_QKV_ROPE_K_CACHE,
                          .matrices = {NORM_QKV_ROPE_Q_WEIGHT, NORM_QKV_ROPE_K_WEIGHT,
                                       NORM_QKV_ROPE_V_WEIGHT},
                          .n_matrices = 3,
                          .grain = MEGA_GRAIN_PAIRS,
                          .carrier = MEGA_COUNTS},
    [OP_ATTENTION_PARTIAL] = {.code = MEGA_ATTENTION_PART,
                              .x = NONE,
                              .sums = NONE,
                              .norm = NONE,
                              .k_cache = ATTENTION_PARTIAL_K_CACHE,
                              .split = MEGA_BY_PART,
                              .carrier = MEGA_TAGS,
                              .writer = OP_NORM_QKV_ROPE},
    [OP_ATTENTION_OUTPUT] = {.code = MEGA_ATTENTION_OUTPUT,
                             .x = ATTENTION_OUTPUT_X,
                             .sums = ATTENTION_OUTPUT_X_OUT,
                             .norm = NONE,
                             .k_cache = ATTENTION_OUTPUT_K_CACHE,
                             .matrices = {ATTENTION_OUTPUT_WEIGHT},
                             .n_matrices = 1,
                             .split = MEGA_BY_HEAD,
                             .grain = MEGA_GRAIN_ROWS,
                             .carrier = MEGA_TAGS,
                             .writer = OP_ATTENTION_PARTIAL,
                             .number = MEGA_ONE_A_LAYER},
    [OP_NORM_MLP] = {.code = MEGA_MLP,
                     .x = NORM_MLP_X,
                     .sums = NORM_MLP_X_OUT,
                     .norm = NORM_MLP_NORM_WEIGHT,
                     .k_cache = NONE,
                     .matrices = {NORM_MLP_GATE_WEIGHT, NORM_MLP_UP_WEIGHT, NORM_MLP_DOWN_WEIGHT},
                     .n_matrices = 3,
                     .grain = MEGA_GRAIN_FEATURES,
                     .carrier = MEGA_COUNTS,
                     .number = MEGA_ONE_A_LAYER,
                     .shares_x = true},
    [OP_NORM_LINEAR] = {.code = MEGA_LOGITS,
                        .x = NORM_LINEAR_X,
                        .sums = NONE,
                        .norm = NORM_LINEAR_NORM_WEIGHT,
                        .k_cache = NONE,
                        .matrices = {NORM_LINEAR_WEIGHT},
                        .n_matrices = 1,
                        .grain = MEGA_GRAIN_LOGITS,
                        .carrier = MEGA_COUNTS,
                        .number = MEGA_ONE_A_PASS,
                        .last = true},
};

const mega_opcode *mega_opcode_of(op_code op)
{
    return op < OP_COUNT && opcodes[op].code ? &opcodes[op] : &unknown;
}

op_code mega_operator_of(int code)
{
    int op = 0;
    while (op < OP_COUNT && (code == 0 || opcodes[op].code != code))
        op++;
    return (op_code)op;
}
