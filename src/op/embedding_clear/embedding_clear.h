/* Call layout of embedding_clear: indices of its tensors. */
#ifndef QUIPU_OP_EMBEDDING_CLEAR_H
#define QUIPU_OP_EMBEDDING_CLEAR_H

#include "op/op.h"

enum { EMBEDDING_CLEAR_IDS, EMBEDDING_CLEAR_TABLE, EMBEDDING_CLEAR_X, EMBEDDING_CLEAR_X_NEXT };

op_kernel embedding_clear_reference;

#endif
