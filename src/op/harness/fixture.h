/* The tensors of one call, each in memory of its own between guards, filled and poisoned.
 *
 * The fixture knows every byte that a kernel must not change (inputs, guards, gaps between rows)
 * and every byte that it must write. The former are compared with a copy afterwards. The latter
 * hold one of two poisons beforehand, and no result equals both. Bytes that the kernel must not
 * read hold NaN in one round and large numbers in another, so that reading them changes the result.
 *
 * A kernel that is not trusted computes in another process. Then the tensors and the scratch memory
 * have a second copy in memory that both processes share: fixture_arm() writes it, and
 * fixture_collect() copies it back before anything is checked, so that nothing can change during
 * the check.
 */
#pragma once

#include "op/harness/case.h"
#include "op/harness/fill.h"
#include "op/view.h"

/* Two poisons: bytes 0xff (NaN) or 0x5a (large numbers). Bytes around an index tensor hold 0 or 1,
 * so that a kernel that reads them does not crash but gives a wrong result. */
typedef enum poison { POISON_NAN, POISON_LARGE } poison;

/* What a byte belongs to. */
enum { ROLE_INPUT = 1, ROLE_OUTPUT = 2 }; /* neither: a guard or a gap */

typedef struct fixture_tensor {
    unsigned char *memory;    /* guard, elements and gaps, guard */
    unsigned char *images[2]; /* the same bytes as they are before a run, for each poison */
    unsigned char *roles;     /* of each byte */
    unsigned char *locked;    /* 0xff for each byte that must not change, else 0 */
    unsigned char *there;     /* shared with the kernel's process; NULL: it computes in `memory` */
    size_t bytes;             /* bytes of each of these, a multiple of 64 */
} fixture_tensor;

typedef struct fixture {
    const op_info *op;
    const op_variant *variant; /* NULL: the reference */
    const op_case *about;
    op_call call;                           /* packed: the elements of `packed` below */
    fixture_tensor tensors[OP_MAX_TENSORS]; /* memory NULL: absent or shared */
    poison armed;                           /* by the last fixture_arm() */
    unsigned char *scratch, *scratch_there; /* the latter FIXTURE_SCRATCH_MOST bytes, or NULL */
    size_t scratch_bytes, scratch_stride;   /* for one of FIXTURE_WORKERS; from one to the next */
    unsigned char *packed, *packed_before;  /* guard, the variant's form of the weights, guard */
    size_t packed_bytes;
} fixture;

enum { FIXTURE_WORKERS = 8, FIXTURE_GUARD = 256, FIXTURE_SCRATCH_MOST = 1 << 30 };

/* Allocates the tensors of a case for a variant (NULL: the reference). `shift` moves every tensor
 * by that many elements (blocks) from an address that is a multiple of 64. */
qp_status fixture_create(fixture *out, const op_info *op, const op_variant *variant,
                         const op_case *about, int shift, qp_error *error);

/* Makes the shared copies. Call it before the kernel's process is created, so that both processes
 * have them at the same addresses. */
qp_status fixture_share(fixture *fixture, qp_error *error);

/* Sets the scratch memory of a worker, instead of what the variant asks for. QP_NO_MEMORY where the
 * shared memory has no room for it. */
qp_status fixture_set_scratch(fixture *fixture, size_t bytes, qp_error *error);

/* The call of all units, with tensors and scratch at the addresses where the kernel computes. */
op_call fixture_call(const fixture *fixture);

/* Copies back what the kernel's process wrote; without such a process it does nothing. */
void fixture_collect(fixture *fixture);

/* Fills all inputs, lets the operator prepare inputs whose contents are restricted, and binds the
 * call. A second fill with the same arguments gives the same contents. */
qp_status fixture_fill(fixture *fixture, fill_kind fill, uint64_t seed, qp_error *error);

/* Restores the inputs, poisons outputs, guards, gaps and scratch, and saves all of it. Packs the
 * weights if the variant does so: whole, or by the smallest groups, depending on the poison. */
void fixture_arm(fixture *fixture, poison poison);

/* The scratch memory of worker 0; worker i's is i * scratch_stride further. NULL if none. */
void *fixture_scratch(const fixture *fixture);

/* Whether element i of a row of output t still holds the poison of the last fixture_arm(). */
bool fixture_is_poison(const fixture *fixture, int t, int64_t row, int64_t i);

/* Whether only elements of outputs changed since fixture_arm(); if not, `detail` says where. */
bool fixture_intact(const fixture *fixture, char *detail, size_t size);

void fixture_destroy(fixture *fixture);
