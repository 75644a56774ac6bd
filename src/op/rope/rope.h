/* Call layout of rope: indices of its tensors and parameters. */
#pragma once

#include "op/op.h"

enum { ROPE_POSITIONS, ROPE_Q, ROPE_K, ROPE_COS_SIN };
enum { ROPE_INTERLEAVED };

enum { ROPE_FEW_THREADS = 512 }; /* of a GPU block with one head per thread, at most */

op_kernel rope_reference;
