/* How fast the GPU reads the weights: see cuda_executor_measure_read() in executor.h. */
#include "vm/cuda/executor.h"

#include "base/clock.h"

enum { READ_RUNS = 8, READ_THREADS = 512, READ_BLOCKS = 4 }; /* blocks per multiprocessor */

/* Enough bytes that the cost of the launch does not matter. */
static const int64_t LEAST_BYTES = INT64_C(8) << 30;

qp_status cuda_executor_measure_read(const cuda_executor *x, double *bytes_per_second,
                                     qp_error *error)
{
    static const char operation[] = "measuring how fast the GPU reads";
    cuda_device *d = x->device;
    cuda_function kernel;
    double best = 0;
    TRY(cuda_device_enter(d, error));
    TRY(cuda_device_function(d, "cuda_read", "read_all", 0, &kernel, error));
    cuda_address from = x->weights.memory.address, sink = 0;
    int64_t words = (int64_t)(x->weights.memory.bytes / 16);
    int64_t repeats = LEAST_BYTES / (words * 16 + 1) + 1;
    TRY(cuda_device_wait(d, operation, error));
    for (int run = 0; run < READ_RUNS; run++) {
        uint64_t start = clock_ns();
        for (int64_t i = 0; i < repeats; i++)
            TRY(cuda_check(d->driver->launch(kernel, (unsigned)d->n_multiprocessors * READ_BLOCKS,
                                             1, 1, READ_THREADS, 1, 1, 0, d->stream,
                                             (void *[]){&from, &words, &sink}, NULL),
                           operation, error));
        TRY(cuda_device_wait(d, operation, error));
        double speed = (double)(words * 16 * repeats) / ((double)(clock_ns() - start) * 1e-9);
        if (speed > best) best = speed;
    }
    *bytes_per_second = best;
    return QP_OK;
}
