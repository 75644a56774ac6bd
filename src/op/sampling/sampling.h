/* Call layout of sampling, and its arithmetic, which every variant must repeat bit for bit. */
#pragma once

#include "op/op.h"

enum {
    SAMPLING_LOGITS,
    SAMPLING_SEEDS,
    SAMPLING_POSITIONS,
    SAMPLING_TEMPERATURES,
    SAMPLING_TOP_KS,
    SAMPLING_TOP_PS,
    SAMPLING_MIN_PS,
    SAMPLING_IDS,
    SAMPLING_CANDIDATES,
};
enum { SAMPLING_TEMPERATURE, SAMPLING_TOP_K, SAMPLING_TOP_P, SAMPLING_MIN_P, SAMPLING_TOP_K_FIRST };

op_kernel sampling_reference;
