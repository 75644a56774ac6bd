/* Operators by number, for files that need no more of them: instruction records, the device's
 * switch. */
#pragma once

typedef enum op_code {
#define OP(NAME, name) OP_##NAME,
#include "op/ops.def"
#undef OP
    OP_COUNT
} op_code;
