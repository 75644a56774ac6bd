/* What the kernels of route read and write: declarations shared by host and device. */
#pragma once

#include "op/device_rows.h"

enum {
    ROUTE_MOST = 1024, /* experts of a layer, whose logits a block keeps in shared memory */
    NORM_ROUTE_WARPS = 4,
};

typedef struct route_rows {
    device_rows logits, ids, shares;
    int64_t begin; /* the first block's token */
    int32_t n_experts, top_k, normalised;
} route_rows;

/* The norm before a router, the router's product and route in one launch. */
typedef struct norm_route {
    norm_rows norm;
    device_rows weight; /* of the router, (n_experts, n) */
    device_rows bias;   /* one row; or NULL */
    route_rows route;   /* its logits are in F32 */
    uint32_t *counters; /* one for each token: zero before and after */
} norm_route;
