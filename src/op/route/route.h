/* Call layout of route: indices of its tensors and parameters. */
#pragma once

#include "op/op.h"

enum { ROUTE_LOGITS, ROUTE_IDS, ROUTE_SHARES };
enum { ROUTE_NORMALISED };

op_kernel route_reference;
