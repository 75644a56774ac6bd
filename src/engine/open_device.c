/* On what an engine runs: the CPU, a GPU, or a GPU for each rank. */
#include "engine/open.h"

#include <stdio.h>

/* What contradicts itself. */
static qp_status check_device(const qp_engine_options *options, const machine_type *type,
                              qp_error *error)
{
    const char *device = options->device;
    const bool cpu = option_is(device, "cpu"), cuda = option_is(device, "cuda");
    if (device && !cpu && !cuda && !option_is(device, "auto"))
        return error_set(error, QP_INVALID, "the device must be auto, cpu or cuda, found \"%s\"",
                         device);
    if (type && type->on_gpu && cpu)
        return error_set(error, QP_INVALID,
                         "--exec %s runs on a GPU, but --device cpu excludes that: leave one out",
                         type->name);
    if (type && !type->on_gpu && cuda)
        return error_set(error, QP_INVALID,
                         "--exec %s runs on the CPU; with --device cuda it is megakernel, cuda or "
                         "auto",
                         type->name);
    if (cpu && options->gpus && *options->gpus)
        return error_set(error, QP_INVALID,
                         "--gpus %s names GPUs, but --device cpu excludes them: leave one out",
                         options->gpus);
    return QP_OK;
}

/* The GPU where the device is "auto", if there is one. */
static void try_device(qp_engine *e)
{
    qp_error why = {0};
    char message[QP_ERROR_SIZE + 64];
    const bool found = cuda_device_open(&e->device, &why) == QP_OK;
    if (found)
        snprintf(message, sizeof message, "running on %s; --device cpu does not", e->device.name);
    else
        snprintf(message, sizeof message, "running on the CPU: %s", why.message);
    if (!found) cuda_device_close(&e->device);
    engine_say(e, found ? QP_LOG_NOTICE : QP_LOG_INFO, message);
}

/* Opens the GPU if it is asked for by the device or the machine, or if both leave it open and there
 * is one. */
qp_status engine_choose_device(qp_engine *e, const qp_engine_options *options,
                               const machine_type *type, qp_error *error)
{
    char message[128];
    TRY(check_device(options, type, error));
    if (type && type->on_gpu) {
        qp_error why = {0};
        qp_status status = engine_ranks_device(&e->ranks, &e->device, &why);
        if (status == QP_OK) return QP_OK;
        return error_set(error, why.status, "--exec %s runs on a GPU, but %s", type->name,
                         why.message);
    }
    if (option_is(options->device, "cuda") || e->ranks.n_numbers || (e->has_cuda_kernels && !type))
        return engine_ranks_device(&e->ranks, &e->device, error);
    if (!option_is_automatic(options->device) || e->ranks.size > 1) return QP_OK;
    if (e->has_kernels) {
        engine_say(e, QP_LOG_INFO, "running on the CPU, where custom kernels run");
        return QP_OK;
    }
    if (!type) {
        try_device(e);
        return QP_OK;
    }
    snprintf(message, sizeof message, "running on the CPU, as --exec %s does", type->name);
    engine_say(e, QP_LOG_INFO, message);
    return QP_OK;
}

/* Workers are the megakernel's blocks, all of which run at once. */
qp_status engine_check_workers(const qp_engine *e, const qp_engine_options *options,
                               qp_error *error)
{
    const int workers = options->workers, most = e->device.n_multiprocessors;
    if (workers == 0) return QP_OK;
    if (!e->device.context || option_is(options->exec, "cuda"))
        return error_set(error, QP_INVALID,
                         "--workers is the number of the megakernel's thread blocks, and this does "
                         "not run it: on a CPU give --threads");
    if (workers > 0 && workers <= most) return QP_OK;
    return error_set(error, QP_INVALID,
                     "this GPU runs 1 to %d blocks of the megakernel at once, --workers says %d",
                     most, workers);
}

static void say_exchange(const qp_engine *e)
{
    static const char *const by[] = {
        [CUDA_BY_PEERS] = "ranks exchange rows by kernels, which write to each other's memory",
        [CUDA_BY_NCCL] = "ranks exchange rows by NCCL",
        [CUDA_BY_HOST] = "ranks exchange rows through the host's memory, where each pass waits for "
                         "them; --exchange nccl needs NCCL and a GPU for each rank"};
    const bool slow = e->ranks.gpus->by == CUDA_BY_HOST && e->ranks.exchange != CUDA_BY_HOST;
    engine_say(e, slow ? QP_LOG_NOTICE : QP_LOG_INFO, by[e->ranks.gpus->by]);
}

/* On GPUs each rank has one. */
qp_status engine_connect_ranks(qp_engine *e, qp_error *error)
{
    if (!e->device.context) return QP_OK;
    TRY(engine_ranks_connect(&e->ranks, &e->device, error));
    if (e->ranks.gpus) say_exchange(e);
    return QP_OK;
}

void engine_name_device(qp_engine *e)
{
    const char *name = e->device.context ? e->device.name : "cpu";
    if (e->ranks.gpus)
        snprintf(e->device_text, sizeof e->device_text, "%d x %s", e->ranks.size, name);
    else
        snprintf(e->device_text, sizeof e->device_text, "%s", name);
}
