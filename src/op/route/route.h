/* Call layout of route: indices of its tensors and parameters. */
#ifndef QUIPU_OP_ROUTE_H
#define QUIPU_OP_ROUTE_H

#include "op/op.h"

enum { ROUTE_LOGITS, ROUTE_IDS, ROUTE_SHARES };
enum { ROUTE_NORMALISED };

op_kernel route_reference;

#endif
