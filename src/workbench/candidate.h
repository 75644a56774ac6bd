/* A stranger's kernel: compiled on the spot, loaded, its entry points found. */
#ifndef QUIPU_WORKBENCH_CANDIDATE_H
#define QUIPU_WORKBENCH_CANDIDATE_H

#include "op/op.h"

/* How a .c file is compiled; the header's folder is put where FOLDER stands. */
#define CANDIDATE_COMPILE_LINE                                                                     \
    "cc -std=gnu17 -O3 -march=native -shared -fPIC -I FOLDER FILE.c -o FILE.so -lm"

#endif
