/* Call layout of embedding_clear: indices of its tensors. */
#pragma once

#include "op/op.h"

enum { EMBEDDING_CLEAR_IDS, EMBEDDING_CLEAR_TABLE, EMBEDDING_CLEAR_X, EMBEDDING_CLEAR_X_NEXT };

op_kernel embedding_clear_reference;
