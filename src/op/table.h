/* The table of operators: each by its number and by its name. Apart from op.h, because GPU images
 * read op.h: a new operator does not compile them again. */
#pragma once

#include "op/code.h"
#include "op/op.h"

#define OP(NAME, name) extern const op_info op_##name;
#include "op/ops.def"
#undef OP

const op_info *op_get(op_code code);
/* NULL when there is none of that name. */
const op_info *op_find(const char *name);
