/* Weights that the first passes read from their file, because they are not packed yet.
 *
 * Packing takes several times as long as a pass of few tokens: it writes as many bytes as it reads,
 * to memory that is new to the process. A node whose weights are still in the file runs
 * unpacked_kernel instead: it packs a few rows at a time to a room in the worker's scratch, which
 * stays in L2, and the node's own kernel multiplies with them there. The kernel and what it reads
 * are those of packed weights, so the bits are, too.
 */
#pragma once

#include "plan/program.h"

/* How a product's weights are read from their file. */
typedef struct unpacked {
    const program *program;
    int weight; /* its number in the program */
    const op_variant *variant;
    size_t room_at;  /* in a worker's scratch */
    char *packed_to; /* where they will be packed; NULL: they are, or the node has none */
} unpacked;

enum { UNPACKED_ROOM = 512 << 10 }; /* bytes of a worker's scratch: half of a usual L2 */

/* The kernel of such a node; call->packed points to its `unpacked`. */
op_kernel unpacked_kernel;

/* Bytes of a room for the product: for rows as they are stored, and packed. */
size_t unpacked_room(const op_variant *variant, const op_call *call);
