/* Call layout of repeat_kv: indices of its tensors and parameters. */
#ifndef QUIPU_OP_REPEAT_KV_H
#define QUIPU_OP_REPEAT_KV_H

#include "op/op.h"

enum { REPEAT_KV_K_CACHE, REPEAT_KV_V_CACHE, REPEAT_KV_KV_LENS, REPEAT_KV_K, REPEAT_KV_V };
enum { REPEAT_KV_LAYER };

op_kernel repeat_kv_reference;

#endif
