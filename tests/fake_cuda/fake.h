/* What the files of the fake driver share: its log, its memory and its images.
 *
 * The library replaces libcuda.so.1 and libcublasLt.so.13 where there is no GPU. Its memory has the
 * same addresses in every run. It accepts the kernels that the images hold but runs none of them:
 * it writes a line for each launch. README.md says how to use it.
 */
#pragma once

#include "cuda/driver.h"

enum {
    FAKE_DEVICES = 2,
    FAKE_HOST = FAKE_DEVICES, /* as the owner of memory */
    FAKE_MULTIPROCESSORS = 132,
    FAKE_MAX_PARAMETERS = 16,
};

/* ---- log.c --------------------------------------------------------------------------------- */

/* A line of the log; without one, nothing. */
__attribute__((format(printf, 1, 2))) void fake_log(const char *format, ...);

/* Whether there is a log. Without one a launch takes next to no time, so that the host's can be
 * measured. */
bool fake_logs(void);

/* Whether whole parameters are wanted, not only their hash. */
bool fake_logs_words(void);

/* FNV-1a. */
uint64_t fake_hash(uint64_t hash, const void *data, size_t bytes);
#define FAKE_HASH_BEGIN 0xcbf29ce484222325u

/* ---- memory.c ------------------------------------------------------------------------------ */

/* Memory of a GPU, or of the host where kernels see it (FAKE_HOST): zeros, taken when touched. 0:
 * none left. */
cuda_address fake_memory_take(size_t bytes, int owner);
cuda_result fake_memory_give(cuda_address address);
size_t fake_memory_free(int device);

/* The number of the memory that holds an address, and how far in; -1: none. Memory is numbered as
 * it is taken, so that logs stay the same where sizes before it change. */
int fake_memory_find(uint64_t address, uint64_t *offset);

/* "3+4096", or "0" for no address. */
const char *fake_memory_name(uint64_t address, char text[48]);

/* Whether an address is one of pinned memory. */
bool fake_memory_is_host(uint64_t address);

/* ---- driver.c ------------------------------------------------------------------------------ */

/* What stands before a line: whether it is done now or becomes part of a graph. */
const char *fake_stream_mode(cuda_stream stream);

/* Work in streams does not end while this is set. */
void fake_stuck(bool stuck);

/* ---- image.c ------------------------------------------------------------------------------- */

typedef struct fake_parameter {
    unsigned bytes;
} fake_parameter;

struct CUfunc_st {
    struct CUfunc_st *next;
    char name[96];
    int n_parameters, max_shared;
    fake_parameter parameters[FAKE_MAX_PARAMETERS];
};

struct CUmod_st {
    struct CUfunc_st *functions;
};

/* The kernels of a fatbin; NULL where it is none that this file understands. */
struct CUmod_st *fake_module_read(const void *image);
void fake_module_free(struct CUmod_st *module);

/* ---- parameters.c -------------------------------------------------------------------------- */

/* Bytes of a kernel's parameter that mean something. */
unsigned fake_parameter_bytes(const struct CUfunc_st *function, int parameter);

/* Takes a parameter into a hash, and prints its words with `print`. */
uint64_t fake_parameter_take(uint64_t hash, const void *data, unsigned bytes, bool print);
