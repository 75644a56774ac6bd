/* chain_speculative_sampling for AVX-512. */
#include "op/chain_speculative_sampling/chain_speculative_sampling_simd.inc"
