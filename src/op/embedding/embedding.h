/* Call layout of embedding: indices of its tensors. */
#pragma once

#include "op/op.h"

enum { EMBEDDING_IDS, EMBEDDING_TABLE, EMBEDDING_OUT };

op_kernel embedding_reference;
