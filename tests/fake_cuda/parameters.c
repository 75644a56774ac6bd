/* Logs the parameters of launches: hashed, and printed where requested.
 *
 * An address is replaced by the memory that contains it and the offset in it. Padding after a
 * struct's last member holds undefined bytes and is left out.
 */
#include "fake.h"

#include "op/device_rows.h"
#include "op/linear/linear_stream.h"
#include "op/linear/linear_wide.h"

#include <string.h>

#define END(type, member) (unsigned)(offsetof(type, member) + sizeof((type *)0)->member)

static const struct {
    const char *kernels; /* what their names begin with */
    int parameter;
    unsigned bytes;
} ends[] = {
    {"run_silu_and_mul_", 0, END(silu_rows, n)},
    {"run_rope_kv_append_vectors", 1, END(append_rows, head_dim)},
    {"run_linear_wide_silu", 0, END(linear_wide, half_step)},
    {"run_linear_wide_rope", 0, END(linear_wide, half_step)},
    {"run_linear_wide_rope", 2, END(append_rows, head_dim)},
    {"run_linear_stream", 0, END(linear_stream, vectors)},
};

unsigned fake_parameter_bytes(const struct CUfunc_st *function, int parameter)
{
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends[i].parameter == parameter &&
            strncmp(function->name, ends[i].kernels, strlen(ends[i].kernels)) == 0)
            return ends[i].bytes;
    return function->parameters[parameter].bytes;
}

uint64_t fake_parameter_take(uint64_t hash, const void *data, unsigned bytes, bool print)
{
    const char *at = data;
    if (print) fake_log("   ");
    while (bytes > 0) {
        uint64_t word = 0, offset = 0;
        unsigned n = bytes < sizeof word ? bytes : (unsigned)sizeof word;
        memcpy(&word, at, n);
        int block = n == sizeof word ? fake_memory_find(word, &offset) : -1;
        if (block >= 0) hash = fake_hash(hash, &block, sizeof block), word = offset;
        hash = fake_hash(hash, &word, sizeof word);
        if (print && block >= 0) fake_log(" %d+%llu", block, (unsigned long long)offset);
        if (print && block < 0) fake_log(" %llx", (unsigned long long)word);
        at += n;
        bytes -= n;
    }
    if (print) fake_log("\n");
    return hash;
}
