/* Launches of all_reduce and all_gather between GPUs of one host. */
#pragma once

#include "op/cuda_ops.h"
#include "op/exchange_likeliest.h"
#include "op/exchange_rows.h"

/* Whether kernels can exchange these rows: out (n_rows, n_columns) and this rank's part of it, in
 * float32. */
bool cuda_exchange_accepts(const tensor *part, const tensor *out);

/* `name`: "all_reduce" or "all_gather". `first`: the column of out at which `part` begins. The
 * ranks are those of ops->exchange, or of ops->carrier. */
qp_status cuda_exchange(cuda_ops *ops, const char *name, const tensor *part, const tensor *out,
                        int64_t first, qp_error *error);

/* Each rank has the rows [first, first + count) of x, and gets to `out` those of all: in their
 * order, or those that `ids` names, if it is not NULL. */
qp_status cuda_exchange_own_rows(cuda_ops *ops, const tensor *x, int64_t first, int64_t count,
                                 const tensor *ids, const tensor *out, qp_error *error);

/* all_reduce of `part` to `out`, and an rms_norm of out, as one launch; whether that is possible.
 */
bool cuda_exchange_norm_accepts(const tensor *part, const op_call *norm);
qp_status cuda_exchange_norm(cuda_ops *ops, const tensor *part, const tensor *out,
                             const op_call *norm, qp_error *error);

/* ids[row]: the column of the largest element of each row over all ranks, of which `part` has those
 * from `first` on. */
qp_status cuda_exchange_likeliest(cuda_ops *ops, const tensor *part, int64_t first,
                                  const tensor *ids, qp_error *error);
