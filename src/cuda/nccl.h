/* NCCL, opened at run time: sums over GPUs of several processes or hosts.
 *
 * A group has a thread of its own, which opens the group, watches it, and ends it. NCCL's calls and
 * kernels wait for the other ranks without a limit, so the thread aborts the group if the ranks
 * make no progress for a few seconds; then the calls and the kernels end.
 */
#pragma once

#include "cuda/memory.h"

enum { NCCL_ID_BYTES = 128 };

typedef struct nccl_group nccl_group; /* one rank's place in it */

/* Opens the library, once. 22703: version 2.27.3. QP_UNSUPPORTED: it is not installed. */
qp_status nccl_version(int *version, qp_error *error);

/* "2.27.3" */
enum { NCCL_VERSION_TEXT = 40 };
const char *nccl_version_text(int version, char text[NCCL_VERSION_TEXT]);

/* What a group's ranks must know to find each other: one rank makes it, and tells the others. */
qp_status nccl_make_id(char id[NCCL_ID_BYTES], qp_error *error);

/* Asked by the group's thread now and then: whether the other ranks have given up. */
typedef bool nccl_others_failed(const void *context);

/* Called by all ranks, each for a GPU of its own. nccl_close() the group, also after a failure. */
qp_status nccl_open(const cuda_device *device, const char id[NCCL_ID_BYTES], int rank, int size,
                    nccl_others_failed *others_failed, const void *context, nccl_group **out,
                    qp_error *error);
void nccl_close(nccl_group *group);

/* What is added: float32, or the bits of 32-bit words of which one rank has others than zero. */
typedef enum nccl_elements { NCCL_FLOATS, NCCL_WORDS } nccl_elements;

/* Puts the sum over ranks of `count` elements into the device's stream. `from` may be `to`. */
qp_status nccl_sum(nccl_group *group, cuda_address from, cuda_address to, size_t count,
                   nccl_elements elements, qp_error *error);

/* The stream has work of the group from now on; the last of it was waited for. */
void nccl_begin(nccl_group *group);
void nccl_end(nccl_group *group);

/* QP_DEVICE: the group has failed, and why. */
qp_status nccl_check(const nccl_group *group, qp_error *error);
