/* chain_speculative_sampling for AVX2. */
#include "op/chain_speculative_sampling/chain_speculative_sampling_simd.inc"
