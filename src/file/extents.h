/* Checks that the spans that a file gives its tensors do not overlap. Private to src/file. */
#pragma once

#include "base/status.h"
#include "file/stored_tensor.h"

/* QP_FORMAT, naming both, when two of the tensors of one file share a byte. */
qp_status extents_check(const stored_tensor *tensors, size_t count, const char *path,
                        qp_error *error);
