/* The machine's limits: see hardware.h. */
#include "op/bench/hardware.h"

#include "base/buffer.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "op/bench/peak.h"

#include <stdlib.h>
#include <string.h>

enum {
    SAMPLE_BYTES = 64 << 20, /* bytes that all threads read at a time */
    READ_AHEAD = 4096,       /* bytes */
    SAMPLE_NS = 2000000,     /* the duration that an arithmetic sample aims at */
};

struct hardware {
    thread_pool *pool;
    buffer memory;
    size_t position; /* of the next read */
    peak_loop *loops[HARDWARE_LIMITS];
    int64_t rounds[HARDWARE_LIMITS]; /* of the loop in a sample */
    volatile double sink;            /* so that the compiler keeps every loop */
};

/* A sample, shared by the workers. */
typedef struct sample {
    hardware *hardware;
    hardware_limit limit;
    const char *memory; /* read by all workers */
    size_t bytes;
    double operations; /* of worker 0; the others do the same number */
} sample;

static void choose_loops(hardware *hardware, uint32_t features)
{
    peak_loop **loops = hardware->loops;
#define CHOOSE(level, needs, name)                                                                 \
    if ((features & (needs)) == (needs)) loops[HARDWARE_FLOAT] = name##_##level;
    SIMD_LEVELS(CHOOSE, peak_float)
#if defined(__x86_64__)
    if (features & CPU_AVX2) loops[HARDWARE_INTEGER] = peak_integer_avx2;
    if ((features & CPU_LEVEL_AVX512) == CPU_LEVEL_AVX512) {
        loops[HARDWARE_INTEGER] = peak_integer_avx512;
        if (features & CPU_AVX512_VNNI) loops[HARDWARE_INTEGER] = peak_integer_avx512_vnni;
    }
    if (features & CPU_AMX_BF16) loops[HARDWARE_MATRIX] = peak_matrix_amx;
#elif defined(__aarch64__)
    if (features & CPU_DOTPROD) loops[HARDWARE_INTEGER] = peak_integer_neon_dotprod;
#endif
}

/* Rounds that take about SAMPLE_NS. */
static int64_t find_rounds(hardware *hardware, peak_loop *loop)
{
    double operations;
    for (int64_t n = 1024;; n *= 2) {
        uint64_t start = clock_ns();
        hardware->sink += loop(n, &operations);
        if (clock_ns() - start > SAMPLE_NS / 2) return 2 * n;
    }
}

qp_status hardware_create(size_t bytes, uint32_t features, thread_pool *pool, hardware **out,
                          qp_error *error)
{
    *out = NULL;
    hardware *hardware = calloc(1, sizeof *hardware);
    if (!hardware) return error_no_memory(error, "measuring the machine", sizeof *hardware);
    hardware->pool = pool;
    bytes = round_up(bytes, SAMPLE_BYTES);
    qp_status status = buffer_alloc(&hardware->memory, bytes, "memory to read", error);
    if (status != QP_OK) {
        hardware_destroy(hardware);
        return status;
    }
    memset(hardware->memory.data, 1, bytes);
    choose_loops(hardware, features);
    for (int limit = 0; limit < HARDWARE_LIMITS; limit++) {
        if (hardware->loops[limit])
            hardware->rounds[limit] = find_rounds(hardware, hardware->loops[limit]);
    }
    *out = hardware;
    return QP_OK;
}

void hardware_destroy(hardware *hardware)
{
    if (!hardware) return;
    buffer_free(&hardware->memory);
    free(hardware);
}

/* Small loads with prefetches further ahead than the hardware's: faster than either by itself.
 * Builds with sanitizers read at the machine's rate too, not at that of their checks. */
__attribute__((no_sanitize("address"), no_sanitize("undefined"))) static uint64_t
read_bytes(const char *from, size_t bytes)
{
    uint64_t sums[8] = {0};
    for (size_t i = 0; i < bytes; i += sizeof sums) {
        uint64_t line[8];
        __builtin_prefetch(from + i + READ_AHEAD);
        memcpy(line, from + i, sizeof line);
        for (int j = 0; j < 8; j++)
            sums[j] += line[j];
    }
    return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

static void take_share(void *context, int worker, int n_workers)
{
    sample *sample = context;
    hardware *hardware = sample->hardware;
    if (sample->limit == HARDWARE_READ) {
        int64_t begin, end;
        thread_share((int64_t)(sample->bytes / 64), worker, n_workers, &begin, &end);
        uint64_t sum = read_bytes(sample->memory + begin * 64, (size_t)(end - begin) * 64);
        if (sum == 1) hardware->sink = 1;
        return;
    }
    double operations;
    double value = hardware->loops[sample->limit](hardware->rounds[sample->limit], &operations);
    if (value == -1) hardware->sink = 1;
    if (worker == 0) sample->operations = operations;
}

static double seconds_of(hardware *hardware, sample *sample)
{
    uint64_t start = clock_ns();
    thread_pool_run(hardware->pool, take_share, sample);
    return (double)(clock_ns() - start) * 1e-9;
}

double hardware_read(hardware *hardware, const void *memory, size_t bytes)
{
    sample sample = {
        .hardware = hardware, .limit = HARDWARE_READ, .memory = memory, .bytes = bytes};
    return (double)bytes / seconds_of(hardware, &sample);
}

double hardware_sample(hardware *hardware, hardware_limit limit)
{
    if (limit == HARDWARE_READ) {
        if (hardware->position + SAMPLE_BYTES > hardware->memory.bytes) hardware->position = 0;
        const char *memory = (const char *)hardware->memory.data + hardware->position;
        hardware->position += SAMPLE_BYTES;
        return hardware_read(hardware, memory, SAMPLE_BYTES);
    }
    if (!hardware->loops[limit]) return 0;
    sample sample = {.hardware = hardware, .limit = limit};
    double seconds = seconds_of(hardware, &sample);
    return sample.operations * thread_pool_size(hardware->pool) / seconds;
}
