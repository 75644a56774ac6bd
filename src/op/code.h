/* Operators by number, for files that need no more of them: instruction records, the device's
 * switch. */
#ifndef QUIPU_OP_CODE_H
#define QUIPU_OP_CODE_H

typedef enum op_code {
#define OP(NAME, name) OP_##NAME,
#include "op/ops.def"
#undef OP
    OP_COUNT
} op_code;

#endif
