/* Levels of the formats with 4 bits a value: X(LEVEL) of each. */
#pragma once

#include <stdint.h>

/* clang-format off */
/* Of IQ4_NL and IQ4_XS. */
#define LEVELS_IQ4(X)                                                                              \
    X(-127) X(-104) X(-83) X(-65) X(-49) X(-35) X(-22) X(-10)                                      \
    X(1)    X(13)   X(25)  X(38)  X(53)  X(69)  X(89)  X(113)

/* Of MXFP4 and NVFP4: twice the numbers of FP4 (E2M1). */
#define LEVELS_FP4(X)                                                                              \
    X(0) X(1)  X(2)  X(3)  X(4)  X(6)  X(8)  X(12)                                                 \
    X(0) X(-1) X(-2) X(-3) X(-4) X(-6) X(-8) X(-12)
/* clang-format on */

extern const int8_t levels_iq4[16], levels_fp4[16];
