/* Call layout of embedding: indices of its tensors. */
#ifndef QUIPU_OP_EMBEDDING_H
#define QUIPU_OP_EMBEDDING_H

#include "op/op.h"

enum { EMBEDDING_IDS, EMBEDDING_TABLE, EMBEDDING_OUT };

op_kernel embedding_reference;

#endif
