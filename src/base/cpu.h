/* What this processor can do, asked at run time: instruction sets, caches, name.
 *
 * The program is compiled for plain x86-64 or ARMv8; faster variants of an operator are entered
 * only when cpu_features() has their bits. A mask turns features off, so that every variant can be
 * tested on one machine.
 */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A set of features is a uint32_t of these. */
typedef enum cpu_feature {
    CPU_AVX2 = 1 << 0,
    CPU_FMA = 1 << 1,
    CPU_F16C = 1 << 2,
    CPU_AVX_VNNI = 1 << 3,
    CPU_AVX512F = 1 << 4,
    CPU_AVX512BW = 1 << 5,
    CPU_AVX512VL = 1 << 6,
    CPU_AVX512DQ = 1 << 7,
    CPU_AVX512VBMI = 1 << 8,
    CPU_AVX512_VNNI = 1 << 9,
    CPU_AVX512_BF16 = 1 << 10,
    CPU_AVX512_FP16 = 1 << 11,
    CPU_AMX_TILE = 1 << 12,
    CPU_AMX_INT8 = 1 << 13,
    CPU_AMX_BF16 = 1 << 14,
    /* Vectors of 128 bits, which every processor of the architecture has: SSE2, ARM's ASIMD, or
     * what the compiler makes of them. */
    CPU_VECTORS = 1 << 15,
    CPU_DOTPROD = 1 << 16,
    CPU_I8MM = 1 << 17,
    CPU_BF16 = 1 << 18,
    CPU_ALL = (1 << 19) - 1,

    /* What the levels of CMakeLists.txt are compiled for. */
    CPU_LEVEL_AVX2 = CPU_AVX2 | CPU_FMA | CPU_F16C,
    CPU_LEVEL_AVX512 = CPU_LEVEL_AVX2 | CPU_AVX512F | CPU_AVX512BW | CPU_AVX512VL | CPU_AVX512DQ,
    CPU_LEVEL_DOTPROD = CPU_VECTORS | CPU_DOTPROD,
    CPU_LEVEL_I8MM = CPU_LEVEL_DOTPROD | CPU_I8MM,
} cpu_feature;

/* The features that the processor has, that the operating system enables, and that `off` does not
 * contain. Asks Linux for the AMX tile registers, which it grants on request; call it before
 * starting threads. */
uint32_t cpu_features(uint32_t off);

/* `features` without `off` and without the features that require one of those: avx512_vnni needs
 * avx512f. */
uint32_t cpu_without(uint32_t features, uint32_t off);

/* Whether there is an instruction for products of BF16, and whether it is faster than those of
 * float32: with AMX, with vdpbf16ps on AMD's processors, and on ARM. On Intel's vdpbf16ps has half
 * the rate of a float32 multiply-add. */
bool cpu_has_bf16(uint32_t features);
bool cpu_multiplies_bf16(uint32_t features);

/* Why kernels run in their slow form, a sentence for people; NULL: they do not. */
const char *cpu_slow_form(uint32_t features);

/* Reads names separated by commas or blanks, such as "avx512_vnni,avx512_bf16"; "all" is every
 * feature. An unknown name is QP_INVALID, and the message lists the known names. */
qp_status cpu_features_parse(const char *list, uint32_t *out, qp_error *error);

/* Appends the names, separated by blanks: "avx2 fma f16c". */
void cpu_features_print(uint32_t features, strbuf *out);

typedef struct cpu_description {
    char model[64];     /* as the processor calls itself; on ARM its core; "" if unknown */
    int processors;     /* that this process may use */
    size_t l1d, l2, l3; /* bytes, as seen from one processor; 0 where unknown */
} cpu_description;

void cpu_describe(cpu_description *out);
