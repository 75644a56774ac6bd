/* What the megakernel does with an opcode, one row each: the operands that it reads and adds to,
 * how an instruction is cut into entries, and how it sees that its inputs are complete. The files
 * that make or check a program for the GPU read this table; the kernels switch on its codes. */
#pragma once

#include "op/table.h"

enum { MEGA_NO_OPERAND = -1, MEGA_MATRICES = 3 /* of an instruction, at most */ };

/* An instruction becomes one entry, or one entry for each of its KV heads or parts of a context,
 * because an entry has room for one head or part. */
typedef enum mega_split { MEGA_WHOLE, MEGA_BY_HEAD, MEGA_BY_PART } mega_split;

/* Units that stay together when a schedule deals a node's units to blocks: the rows that one tile
 * of a matrix holds. */
typedef enum mega_grain {
    MEGA_GRAIN_NONE,
    MEGA_GRAIN_PAIRS, /* of features of q, k and v: two rows each */
    MEGA_GRAIN_ROWS,  /* of W_o */
    MEGA_GRAIN_LOGITS,
    MEGA_GRAIN_FEATURES,
    MEGA_GRAINS,
} mega_grain;

/* How a block sees that data of other blocks is complete. */
typedef enum mega_carrier {
    MEGA_NOTHING, /* an instruction that waits for another block is refused */
    MEGA_COUNTS,  /* each element of x counts the parts that were added to it */
    MEGA_TAGS,    /* each value of a KV head has the number of its pass, or pass and layer */
} mega_carrier;

/* How many instructions of an operator each block must have, for the kernels that run several
 * sequences. */
typedef enum mega_number { MEGA_ANY_NUMBER, MEGA_ONE_A_PASS, MEGA_ONE_A_LAYER } mega_number;

typedef struct mega_opcode {
    int code; /* of its entries: MEGA_QKV and so on; 0: the megakernel has no code for it */
    /* Indices among the operator's operands; MEGA_NO_OPERAND: it has none. */
    int x;       /* the residual that it reads */
    int sums;    /* the residual that it adds to, or sets */
    int norm;    /* weights of the norm of x */
    int k_cache; /* a KV cache: the units belong to KV heads, equally many to each */
    int matrices[MEGA_MATRICES], n_matrices;

    mega_split split;
    mega_grain grain;
    mega_carrier carrier; /* how its inputs say that they are complete */
    op_code writer;       /* MEGA_TAGS: the operator that makes the tagged values */
    mega_number number;
    bool first, last; /* every block's queue begins, or ends, with one */
    bool shares_x;    /* each block reads a share of x, and adds it to the sums */
} mega_opcode;

/* An opcode that the megakernel has no code for has no operands and waits for nothing. */
const mega_opcode *mega_opcode_of(op_code op);

/* The operator whose entries have a code; OP_COUNT: none. */
op_code mega_operator_of(int code);
