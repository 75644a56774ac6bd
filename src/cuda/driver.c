/* The CUDA driver, found at run time: see cuda/driver.h. */
#include "cuda/driver.h"

#include <assert.h>
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

enum { L2_LINE = 128 }; /* bytes */

enum { /* CUdevice_attribute */
       ATTRIBUTE_CLOCK_KILOHERTZ = 13,
       ATTRIBUTE_MULTIPROCESSORS = 16,
       ATTRIBUTE_L2_BYTES = 38,
       ATTRIBUTE_MAJOR = 75,
       ATTRIBUTE_MINOR = 76,
       ATTRIBUTE_SHARED_OPTIN = 97,
};

enum { PEER_NATIVE_ATOMICS = 3 }; /* CUdevice_P2PAttribute */

enum { /* CUresult: the errors with advice of their own */
       OUT_OF_MEMORY = 2,
       NO_DEVICE = 100,
       SYSTEM_NOT_READY = 802,
       DRIVER_MISMATCH = 803,
       NO_BINARY = 209,
       ILLEGAL_ADDRESS = 700,
       LAUNCH_RESOURCES = 701,
       LAUNCH_TIMEOUT = 702,
       LAUNCH_FAILED = 719,
};

/* --- opening --------------------------------------------------------------------------------- */

static struct {
    pthread_once_t once;
    cuda_driver driver;
    qp_error error; /* QP_OK: the driver was opened */
} loaded = {.once = PTHREAD_ONCE_INIT};

static const char *const symbols[] = {
#define FUNCTION(member, symbol, parameters) symbol,
    CUDA_DRIVER_FUNCTIONS(FUNCTION)
#undef FUNCTION
};

static qp_status find_functions(void *library, qp_error *error)
{
    enum { N = sizeof symbols / sizeof *symbols };
    void *found[N];
    _Static_assert(sizeof found == sizeof(cuda_driver), "a pointer for each function");
    for (int i = 0; i < N; i++) {
        found[i] = dlsym(library, symbols[i]);
        if (!found[i])
            return error_set(
                error, QP_DEVICE,
                "the NVIDIA driver lacks %s: it is too old; CUDA 12 or newer is needed",
                symbols[i]);
    }
    /* POSIX allows a function pointer to be read from dlsym(); ISO C has no cast for it. */
    memcpy(&loaded.driver, found, sizeof found);
    return QP_OK;
}

static qp_status load(qp_error *error)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return error_set(error, QP_DEVICE,
                         "there is no NVIDIA driver (libcuda.so.1 cannot be loaded); use --device "
                         "cpu, or install the driver");
    TRY(find_functions(library, error));
    return cuda_check(loaded.driver.init(0), "initialising the NVIDIA driver", error);
}

static void load_once(void)
{
    loaded.error.status = load(&loaded.error);
}

/* The driver, opened and initialised at the first call; the same answer afterwards. */
static qp_status open_driver(const cuda_driver **out, qp_error *error)
{
    pthread_once(&loaded.once, load_once);
    *out = &loaded.driver;
    if (loaded.error.status == QP_OK) return QP_OK;
    return error_set(error, loaded.error.status, "%s", loaded.error.message);
}

static const char *advice(cuda_result result)
{
    switch (result) {
    case OUT_OF_MEMORY:
        return "the GPU's memory is full: a smaller --context or a quantised model needs less";
    case NO_DEVICE:
        return "there is no NVIDIA GPU that this process may use; use --device cpu";
    case SYSTEM_NOT_READY:
    case DRIVER_MISMATCH:
        return "the driver is not ready, or not the one that its kernel module belongs to: restart "
               "the machine, or use --device cpu";
    case NO_BINARY:
        return "the program holds no code for this GPU: it needs compute capability 9.0 or newer; "
               "use --device cpu";
    case ILLEGAL_ADDRESS:
    case LAUNCH_RESOURCES:
    case LAUNCH_TIMEOUT:
    case LAUNCH_FAILED:
        return "a kernel failed, and the GPU cannot be used further by this process: please report "
               "it, and use --device cpu meanwhile";
    default:
        return "see nvidia-smi for the GPU's state, or use --device cpu";
    }
}

qp_status cuda_check(cuda_result result, const char *operation, qp_error *error)
{
    const char *name = NULL;
    if (result == CUDA_SUCCESS) return QP_OK;
    if (loaded.driver.error_name) loaded.driver.error_name(result, &name);
    return error_set(error, result == OUT_OF_MEMORY ? QP_NO_MEMORY : QP_DEVICE,
                     "%s failed: %s (%d); %s", operation, name ? name : "an unknown CUDA error",
                     result, advice(result));
}

/* --- a device -------------------------------------------------------------------------------- */

static qp_status read_attributes(cuda_device *d, qp_error *error)
{
    const struct {
        int *to;
        int attribute;
    } wanted[] = {{&d->n_multiprocessors, ATTRIBUTE_MULTIPROCESSORS},
                  {&d->l2_bytes, ATTRIBUTE_L2_BYTES},
                  {&d->major, ATTRIBUTE_MAJOR},
                  {&d->minor, ATTRIBUTE_MINOR},
                  {&d->shared_bytes, ATTRIBUTE_SHARED_OPTIN}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        TRY(cuda_check(d->driver->device_attribute(wanted[i].to, wanted[i].attribute, d->ordinal),
                       "reading the GPU's figures", error));
    d->features = cuda_features_of(d->major, d->minor);
    return cuda_check(d->driver->device_name(d->name, sizeof d->name, d->ordinal),
                      "reading the GPU's name", error);
}

/* Whether the program can run on any GPU: it has code for one, and there is a driver. */
static qp_status begin_probe(cuda_device *d, qp_error *error)
{
    *d = (cuda_device){0};
    if (!cuda_images[0].name)
        return error_set(
            error, QP_DEVICE,
            "this program was built without GPU code; use --device cpu, or build it with "
            "the CUDA toolkit's nvcc (GPU_CODE=on ./dev build)");
    TRY(open_driver(&d->driver, error));
    return cuda_check(d->driver->driver_version(&d->driver_version), "reading the driver's version",
                      error);
}

static qp_status count_devices(const cuda_driver *driver, int *count, qp_error *error)
{
    TRY(cuda_check(driver->device_count(count), "counting GPUs", error));
    return *count > 0 ? QP_OK : cuda_check(NO_DEVICE, "counting GPUs", error);
}

static qp_status read_device(cuda_device *d, int number, qp_error *error)
{
    TRY(cuda_check(d->driver->device_get(&d->ordinal, number), "finding a GPU", error));
    return read_attributes(d, error);
}

static bool runs_code(const cuda_device *d)
{
    return d->major >= 9;
}

static qp_status say_too_old(const cuda_device *d, qp_error *error)
{
    return error_set(error, QP_DEVICE,
                     "%s has compute capability %d.%d, and the program holds code for 9.0 (Hopper) "
                     "and newer; use --device cpu",
                     d->name, d->major, d->minor);
}

qp_status cuda_device_count(int *count, qp_error *error)
{
    cuda_device probed;
    *count = 0;
    TRY(begin_probe(&probed, error));
    return count_devices(probed.driver, count, error);
}

qp_status cuda_device_probe(cuda_device *d, qp_error *error)
{
    int count = 0;
    TRY(begin_probe(d, error));
    TRY(count_devices(d->driver, &count, error));
    for (int i = 0; i < count; i++) {
        TRY(read_device(d, i, error));
        if (runs_code(d)) return QP_OK;
    }
    return say_too_old(d, error);
}

qp_status cuda_device_probe_number(cuda_device *d, int number, qp_error *error)
{
    int count = 0;
    TRY(begin_probe(d, error));
    TRY(count_devices(d->driver, &count, error));
    if (number < 0 || number >= count)
        return error_set(error, QP_INVALID,
                         "there is no GPU %d: this machine has %d, numbered from 0; \"quipu "
                         "doctor\" lists them",
                         number, count);
    TRY(read_device(d, number, error));
    return runs_code(d) ? QP_OK : say_too_old(d, error);
}

/* Starts work on a GPU that was probed. */
static qp_status start_device(cuda_device *d, qp_error *error)
{
    size_t free_bytes;
    TRY(cuda_check(d->driver->context_retain(&d->context, d->ordinal), "starting work on the GPU",
                   error));
    TRY(cuda_device_enter(d, error));
    /* Weights are read in order, so L2 may fetch a whole line when a part of it is read. This is
     * only a hint, which a driver may refuse. */
    d->driver->limit_set(CUDA_LIMIT_L2_FETCH, L2_LINE);
    TRY(cuda_check(d->driver->memory_info(&free_bytes, &d->memory_total),
                   "reading the GPU's memory size", error));
    return cuda_check(d->driver->stream_create(&d->stream, CUDA_STREAM_NON_BLOCKING),
                      "making a stream", error);
}

qp_status cuda_device_open(cuda_device *d, qp_error *error)
{
    TRY(cuda_device_probe(d, error));
    return start_device(d, error);
}

qp_status cuda_device_open_number(cuda_device *d, int number, qp_error *error)
{
    TRY(cuda_device_probe_number(d, number, error));
    return start_device(d, error);
}

void cuda_device_close(cuda_device *d)
{
    if (!d->context) return;
    d->driver->context_set(d->context);
    for (int i = 0; i < CUDA_MAX_IMAGES; i++)
        if (d->modules[i]) d->driver->module_unload(d->modules[i]);
    if (d->stream) d->driver->stream_destroy(d->stream);
    d->driver->context_release(d->ordinal);
    *d = (cuda_device){0};
}

bool cuda_device_describe(const char *arch, cuda_device *out)
{
    static const struct {
        const char *arch;
        int major, n_multiprocessors;
    } known[] = {{"sm_90", 9, CUDA_USUAL_MULTIPROCESSORS}, {"sm_100", 10, 148}};
    enum { SHARED_BYTES = 227 << 10 };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i].arch, arch) != 0) continue;
        *out = (cuda_device){.major = known[i].major,
                             .features = cuda_features_of(known[i].major, 0),
                             .n_multiprocessors = known[i].n_multiprocessors,
                             .shared_bytes = SHARED_BYTES};
        return true;
    }
    return false;
}

double cuda_device_flops(const cuda_device *d)
{
    enum { HOPPERS = 4096 }; /* FLOPs of one multiprocessor in one clock */
    int kilohertz = 0;
    if (d->driver->device_attribute(&kilohertz, ATTRIBUTE_CLOCK_KILOHERTZ, d->ordinal) !=
        CUDA_SUCCESS)
        return 0;
    return 1e3 * kilohertz * HOPPERS * d->n_multiprocessors;
}

qp_status cuda_device_enter(const cuda_device *d, qp_error *error)
{
    return cuda_check(d->driver->context_set(d->context), "entering the GPU's context", error);
}

qp_status cuda_device_uuid(const cuda_device *d, char uuid[CUDA_UUID_BYTES], qp_error *error)
{
    return cuda_check(d->driver->device_uuid(uuid, d->ordinal), "reading the GPU's number", error);
}

qp_status cuda_device_link(const cuda_device *d, const cuda_device *peer, cuda_link *out,
                           qp_error *error)
{
    static const char operation[] = "reading how GPUs are linked";
    int direct = 0, atomics = 0;
    *out = (cuda_link){0};
    TRY(cuda_check(d->driver->peer_possible(&direct, d->ordinal, peer->ordinal), operation, error));
    if (direct)
        TRY(cuda_check(
            d->driver->peer_attribute(&atomics, PEER_NATIVE_ATOMICS, d->ordinal, peer->ordinal),
            operation, error));
    *out = (cuda_link){.direct = direct, .atomics = atomics};
    return QP_OK;
}

qp_status cuda_device_reach(const cuda_device *d, const cuda_device *peer, qp_error *error)
{
    cuda_link link;
    TRY(cuda_device_enter(d, error));
    if (d->ordinal == peer->ordinal) return QP_OK;
    TRY(cuda_device_link(d, peer, &link, error));
    if (!link.direct)
        return error_set(
            error, QP_UNSUPPORTED,
            "GPU %d (%s) cannot access the memory of GPU %d (%s): ranks need GPUs with "
            "peer access; \"quipu doctor\" lists them, --gpus chooses them",
            d->ordinal, d->name, peer->ordinal, peer->name);
    const cuda_result result = d->driver->peer_enable(peer->context, 0);
    if (result == CUDA_PEER_ACCESS_ALREADY_ENABLED) return QP_OK;
    return cuda_check(result, "giving a GPU access to another's memory", error);
}

qp_status cuda_device_free_memory(const cuda_device *d, size_t *bytes, qp_error *error)
{
    size_t total;
    return cuda_check(d->driver->memory_info(bytes, &total), "reading the GPU's free memory",
                      error);
}

static qp_status load_module(cuda_device *d, const char *image, cuda_module *out, qp_error *error)
{
    int i = 0;
    while (i < CUDA_MAX_IMAGES && cuda_images[i].name && strcmp(cuda_images[i].name, image) != 0)
        i++;
    if (i == CUDA_MAX_IMAGES || !cuda_images[i].name)
        return error_set(error, QP_DEVICE, "the program holds no GPU code named %s", image);
    if (!d->modules[i]) {
        char operation[96] = "loading GPU code ";
        strncat(operation, image, sizeof operation - sizeof "loading GPU code ");
        TRY(cuda_check(d->driver->module_load(&d->modules[i], cuda_images[i].data), operation,
                       error));
    }
    *out = d->modules[i];
    return QP_OK;
}

static qp_status find_function(cuda_device *d, const char *image, const char *kernel,
                               int shared_bytes, cuda_function *out, qp_error *error)
{
    cuda_module module = NULL;
    char operation[96] = "finding kernel ";
    strncat(operation, kernel, sizeof operation - sizeof "finding kernel ");
    TRY(load_module(d, image, &module, error));
    TRY(cuda_check(d->driver->module_function(out, module, kernel), operation, error));
    if (shared_bytes <= 48 * 1024) return QP_OK;
    return cuda_check(d->driver->function_set(*out, CUDA_FUNCTION_MAX_SHARED, shared_bytes),
                      "giving a kernel shared memory", error);
}

/* The slot of a kernel in the table, or the empty slot where it belongs; NULL if the table is full.
 */
static cuda_found *place_of(cuda_device *d, const char *image, const char *kernel, int shared_bytes)
{
    uint32_t hash = 2166136261u;
    for (const char *c = kernel; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    for (int i = 0; i < CUDA_MAX_KERNELS; i++) {
        cuda_found *place = &d->kernels[(hash + (uint32_t)i) % CUDA_MAX_KERNELS];
        if (!*place->name ||
            (strcmp(place->name, kernel) == 0 && place->shared_bytes == shared_bytes &&
             strcmp(place->image, image) == 0))
            return place;
    }
    return NULL;
}

void cuda_device_replace(cuda_device *d, const char *image, const char *kernel, int shared_bytes,
                         cuda_function function)
{
    cuda_found *place = place_of(d, image, kernel, shared_bytes);
    assert(strlen(kernel) < CUDA_KERNEL_NAME && strlen(image) < CUDA_KERNEL_NAME);
    if (!place) return; /* the table is full: the driver finds the kernel each time */
    *place = (cuda_found){.shared_bytes = shared_bytes, .function = function};
    strcpy(place->image, image);
    strcpy(place->name, kernel);
}

qp_status cuda_device_function(cuda_device *d, const char *image, const char *kernel,
                               int shared_bytes, cuda_function *out, qp_error *error)
{
    const cuda_found *place = place_of(d, image, kernel, shared_bytes);
    if (place && *place->name) {
        *out = place->function;
        return QP_OK;
    }
    TRY(find_function(d, image, kernel, shared_bytes, out, error));
    cuda_device_replace(d, image, kernel, shared_bytes, *out);
    return QP_OK;
}

qp_status cuda_device_wait(const cuda_device *d, const char *operation, qp_error *error)
{
    return cuda_check(d->driver->stream_synchronize(d->stream), operation, error);
}
