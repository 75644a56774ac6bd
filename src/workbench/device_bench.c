/* Measures a GPU kernel: see device_bench.h. */
#include "workbench/device_bench.h"

#include "base/paired.h"
#include "op/bench/copies.h"
#include "op/element.h"
#include "op/harness/child.h"
#include "op/view.h"
#include "workbench/workload.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_COPIES = 32,
    MAX_ROUNDS = 64,
    ROTATE_BYTES = 256 << 20, /* several times the largest cache */
    COPY_BYTES = 1 << 30,
    SAMPLE_US = 2000,
    GRAPH_CALLS = 64,
    CHECKED_UNITS = 16,
    POISON = 0xff,
};

/* A call on the GPU, in several copies. */
typedef struct device_calls {
    const device_timing_request *request;
    cuda_ops *ops;
    void (*launcher)(const op_call *call, cuda_stream stream); /* of a candidate */
    op_call calls[MAX_COPIES];
    int n;
    cuda_buffer memory, scratch;
    cuda_event begin, end;
    cuda_graph_exec graph; /* a graph of GRAPH_CALLS calls; NULL: calls are launched one by one */
} device_calls;

/* ---- memory -------------------------------------------------------------------------------- */

/* Writes the call's tensors to the addresses of one copy on the GPU. */
static qp_status upload(const device_calls *d, const op_call *host, const op_call *there,
                        qp_error *error)
{
    const cuda_device *device = d->ops->device;
    for (int t = 0; t < OP_MAX_TENSORS; t++) {
        const tensor *view = &host->tensors[t];
        if (copies_span(view) == 0) continue;
        TRY(cuda_check(
            device->driver->copy_to_device((cuda_address)(uintptr_t)there->tensors[t].data,
                                           view->data, copies_span(view), device->stream),
            "copying tensors to the GPU", error));
    }
    return cuda_device_wait(device, "copying tensors to the GPU", error);
}

/* Assigns addresses to one copy from `at` on; tensors that share memory share it there too. Returns
 * the copy's bytes. */
static size_t place(const op_call *host, cuda_address at, op_call *there)
{
    size_t used = 0;
    *there = *host;
    for (int t = 0; t < OP_MAX_TENSORS; t++) {
        size_t bytes = copies_span(&host->tensors[t]);
        int other = 0;
        if (bytes == 0) continue;
        while (host->tensors[other].data != host->tensors[t].data)
            other++;
        if (other < t) {
            there->tensors[t].data = there->tensors[other].data;
            continue;
        }
        there->tensors[t].data = (void *)(uintptr_t)(at + used);
        used += (bytes + CUDA_ALIGNMENT - 1) / CUDA_ALIGNMENT * CUDA_ALIGNMENT;
    }
    return used;
}

static qp_status make_copies(device_calls *d, const op_call *host, qp_error *error)
{
    op_call unused;
    size_t bytes = place(host, 0, &unused) + CUDA_ALIGNMENT;
    d->n = (int)(ROTATE_BYTES / bytes) + 1;
    if (d->n > MAX_COPIES) d->n = MAX_COPIES;
    TRY(cuda_buffer_alloc(d->ops->device, bytes * (size_t)d->n, "tensors", &d->memory, error));
    for (int i = 0; i < d->n; i++) {
        place(host, d->memory.address + bytes * (size_t)i, &d->calls[i]);
        d->calls[i].begin = 0;
        d->calls[i].end = d->request->op->units(host);
        d->calls[i].scratch = (void *)(uintptr_t)d->scratch.address;
        TRY(upload(d, host, &d->calls[i], error));
    }
    return QP_OK;
}

/* ---- timing -------------------------------------------------------------------------------- */

static qp_status launch(device_calls *d, int i, qp_error *error)
{
    const op_call *call = &d->calls[i % d->n];
    if (!d->launcher) return cuda_ops_launch(d->ops, d->request->kernel, call, error);
    d->launcher(call, d->ops->device->stream);
    return QP_OK;
}

/* Enqueues that many calls. As in a pass, a kernel may start before the previous one has ended. */
static qp_status launch_many(device_calls *d, int count, qp_error *error)
{
    cuda_recording recording = {0};
    const cuda_address areas[CUDA_MAX_AREAS] = {0}; /* the calls have addresses already */
    cuda_ops *ops = d->ops;
    qp_status status = QP_OK;
    ops->recording = d->launcher ? NULL : &recording;
    for (int i = 0; i < count && status == QP_OK; i++)
        status = launch(d, i, error);
    ops->recording = NULL;
    if (status == QP_OK) status = cuda_recording_bind(&recording, ops->device, areas, error);
    for (int i = 0; i < recording.n_records && status == QP_OK; i++)
        status = cuda_recording_run(&recording, i, i > 0, ops->device, ops->blas,
                                    ops->workspace.address, error);
    cuda_recording_free(&recording);
    return status;
}

/* Records calls in a graph, so that the host's share of a launch is not measured. A candidate may
 * do what a graph cannot record; then its calls are launched one by one. */
static void capture(device_calls *d)
{
    const cuda_driver *driver = d->ops->device->driver;
    cuda_stream stream = d->ops->device->stream;
    cuda_graph graph = NULL;
    qp_error unused;
    if (driver->capture_begin(stream, CUDA_CAPTURE_THREAD_LOCAL) != 0) return;
    qp_status status = launch_many(d, GRAPH_CALLS, &unused);
    cuda_result ended = driver->capture_end(stream, &graph);
    if (status == QP_OK && ended == 0 && driver->graph_instantiate(&d->graph, graph, 0) != 0)
        d->graph = NULL;
    if (graph) driver->graph_destroy(graph);
}

/* Seconds of a call, the mean of at least `calls` calls. */
static qp_status sample(device_calls *d, int calls, double *seconds, qp_error *error)
{
    const cuda_driver *driver = d->ops->device->driver;
    cuda_stream stream = d->ops->device->stream;
    float milliseconds = 0;
    int done = 0;
    TRY(cuda_check(driver->event_record(d->begin, stream), "timing", error));
    for (; done < calls; done += d->graph ? GRAPH_CALLS : 1) {
        if (d->graph)
            TRY(cuda_check(driver->graph_launch(d->graph, stream), "running the kernel", error));
        else
            TRY(launch(d, done, error));
    }
    TRY(cuda_check(driver->event_record(d->end, stream), "timing", error));
    TRY(cuda_check(driver->event_synchronize(d->end), "running the kernel", error));
    TRY(cuda_check(driver->event_elapsed(&milliseconds, d->begin, d->end), "timing", error));
    *seconds = milliseconds * 1e-3 / done;
    return QP_OK;
}

static qp_status time_calls(device_calls *d, bench_figure *out, qp_error *error)
{
    double seconds[MAX_ROUNDS], once;
    int rounds = d->request->rounds < MAX_ROUNDS ? d->request->rounds : MAX_ROUNDS;
    TRY(sample(d, 3, &once, error)); /* warm-up: loads the kernels */
    capture(d);
    TRY(sample(d, 3, &once, error));
    int calls = (int)(SAMPLE_US * 1e-6 / (once + 1e-9)) + 1;
    if (calls > 2000) calls = 2000;
    for (int i = 0; i < rounds; i++)
        TRY(sample(d, calls, &seconds[i], error));
    sort_times(seconds, rounds);
    *out = (bench_figure){
        .median = seconds[rounds / 2], .low = seconds[rounds / 4], .high = seconds[rounds * 3 / 4]};
    return QP_OK;
}

/* Bytes per second that a copy inside the GPU's memory reads and writes. */
static qp_status measure_copying(device_calls *d, double *out, qp_error *error)
{
    const cuda_device *device = d->ops->device;
    cuda_buffer memory = {0};
    float milliseconds = 1;
    qp_status status = cuda_buffer_alloc(device, 2 * (size_t)COPY_BYTES, "a copy", &memory, error);
    for (int i = 0; i < 3 && status == QP_OK; i++) {
        device->driver->event_record(d->begin, device->stream);
        status =
            cuda_check(device->driver->copy_on_device(memory.address + COPY_BYTES, memory.address,
                                                      COPY_BYTES, device->stream),
                       "copying on the GPU", error);
        device->driver->event_record(d->end, device->stream);
        device->driver->event_synchronize(d->end);
        device->driver->event_elapsed(&milliseconds, d->begin, d->end);
    }
    cuda_buffer_free(device, &memory);
    *out = 2.0 * COPY_BYTES / (milliseconds * 1e-3);
    return status;
}

/* ---- checking ------------------------------------------------------------------------------ */

static void poison_outputs(const op_info *op, const op_call *call)
{
    for (int t = 0; t < op_n_tensors(op); t++)
        if (op->tensors[t].direction == OP_OUT && call->tensors[t].rank)
            memset(call->tensors[t].data, POISON, copies_span(&call->tensors[t]));
}

/* Whether units add to the same output; then a part of the units cannot be checked alone. */
static bool accumulates(const op_info *op)
{
    for (int t = 0; t < op_n_tensors(op); t++)
        if (op->tensors[t].direction == OP_ACCUMULATE) return true;
    return false;
}

/* Runs the reference on units spread over the call, or on all units if a part cannot be checked. */
static qp_status run_reference(const op_info *op, const op_call *call, qp_error *error)
{
    op_call part = *call;
    size_t scratch = op->scratch_bytes ? op->scratch_bytes(call) : 0;
    int64_t units = op->units(call), step = units / CHECKED_UNITS + 1;
    int64_t checked = accumulates(op) ? step : 1;
    part.scratch = scratch ? aligned_alloc(64, (scratch + 63) / 64 * 64) : NULL;
    if (scratch && !part.scratch) return error_no_memory(error, "the reference", scratch);
    for (int64_t unit = 0; unit < units; unit += step) {
        part.begin = unit;
        part.end = unit + checked < units ? unit + checked : units;
        op->reference(&part);
    }
    free(part.scratch);
    return QP_OK;
}

/* Adds the squares of an output's errors and of its values where the reference wrote. */
static bool add_errors(const tensor *before, const tensor *expected, const tensor *found,
                       double *errors, double *values)
{
    size_t size = dtype_block_bytes(found->type);
    for (int64_t row = 0; row < view_rows(found); row++) {
        const char *was = view_row(before, row), *want = view_row(expected, row);
        const char *have = view_row(found, row);
        for (int64_t i = 0; i < found->shape[found->rank - 1]; i++) {
            if (memcmp(was + (size_t)i * size, want + (size_t)i * size, size) == 0) continue;
            double e = element_load(found->type, want, i), f = element_load(found->type, have, i);
            if (found->type == DTYPE_I32 && e != f) return false;
            if (isnan(e) != isnan(f)) return false;
            if (isnan(e) || (isinf(e) && e == f)) continue;
            *errors += (e - f) * (e - f);
            *values += e * e;
        }
    }
    return true;
}

static double allowed(const device_timing_request *request, const op_call *call, dtype type)
{
    const op_info *op = request->op;
    bool own = request->kernel && request->kernel->tolerances;
    const op_tolerance *t = own ? request->kernel->tolerances : op->tolerances;
    double terms = op->reduction && !own ? op_evaluate(op, call, op->reduction) : 1;
    for (; t && t->relative != 0; t++)
        if (t->type == type) return t->relative * (type == DTYPE_F32 ? sqrt(terms) : 1);
    return 0;
}

/* Runs once more from the same inputs, with poisoned outputs; three copies of the tensors are
 * compared.
 */
static qp_status verify(device_calls *d, const workload *load, device_timing *out, qp_error *error)
{
    const device_timing_request *request = d->request;
    const cuda_device *device = d->ops->device;
    call_copies copies = {0};
    poison_outputs(request->op, &load->call);
    TRY(copies_create(request->op, &load->call, NULL, 2, NULL, &copies, error));
    const op_call *expected = &copies.calls[0], *found = &copies.calls[1];
    qp_status status = upload(d, &load->call, &d->calls[0], error);
    if (status == QP_OK) status = launch(d, 0, error);
    if (status == QP_OK) status = run_reference(request->op, expected, error);
    for (int t = 0; t < op_n_tensors(request->op) && status == QP_OK; t++) {
        const tensor *view = &found->tensors[t];
        double errors = 0, values = 0;
        if (request->op->tensors[t].direction == OP_IN || copies_span(view) == 0) continue;
        status = cuda_check(device->driver->copy_to_host(
                                view->data, (cuda_address)(uintptr_t)d->calls[0].tensors[t].data,
                                copies_span(view), device->stream),
                            "copying outputs from the GPU", error);
        if (status == QP_OK) status = cuda_device_wait(device, "running the kernel", error);
        bool right =
            add_errors(&load->call.tensors[t], &expected->tensors[t], view, &errors, &values);
        double relative = values > 0 ? sqrt(errors / values) : 0;
        if (relative > out->error) out->error = relative;
        if (right && relative <= allowed(request, &load->call, view->type)) continue;
        out->status = CHECK_INCORRECT_NUMERICAL;
        snprintf(out->detail, sizeof out->detail, "%s: wrong after the timing",
                 request->op->tensors[t].name);
    }
    copies_free(&copies);
    return status;
}

/* ---- one workload -------------------------------------------------------------------------- */

static qp_status run_calls(device_calls *d, const workload *load, device_timing *out,
                           qp_error *error)
{
    const cuda_driver *driver = d->ops->device->driver;
    op_cost cost = op_cost_of(d->request->op, &load->call);
    TRY(cuda_check(driver->event_create(&d->begin, 0), "making an event", error));
    TRY(cuda_check(driver->event_create(&d->end, 0), "making an event", error));
    TRY(make_copies(d, &load->call, error));
    TRY(measure_copying(d, &out->copying, error));
    TRY(time_calls(d, &out->seconds, error));
    out->bytes = cost.bytes / out->seconds.median;
    out->flops = cost.flops / out->seconds.median;
    return verify(d, load, out, error);
}

static qp_status time_workload(const device_timing_request *asked, device_timing *out,
                               qp_error *error)
{
    workload load;
    device_timing_request own = *asked, *request = &own;
    device_calls calls = {.request = request};
    TRY(device_open(error));
    calls.ops = device_ops();
    out->kernel = -1;
    if (request->candidate) {
        char message[400];
        if (!candidate_load_launcher(request->candidate, &calls.launcher, message, sizeof message))
            return error_set(error, QP_FORMAT, "%s", message);
    }
    TRY(workload_create(request->op, request->workload, request->seed, &load, error));
    qp_status status = QP_OK;
    if (!request->kernel && !request->candidate && request->op->cuda)
        request->kernel = cuda_ops_choose(calls.ops, request->op->cuda->op, &load.call);
    if (request->kernel) out->kernel = (int)(request->kernel - request->op->cuda);
    out->declined =
        !request->candidate && (!request->kernel || !request->kernel->accepts(&load.call) ||
                                !cuda_kernel_runs(calls.ops, request->kernel));
    size_t workspace = request->kernel && request->kernel->workspace && !out->declined
                           ? request->kernel->workspace(&load.call)
                           : 0;
    if (!out->declined) {
        cuda_ops_free(calls.ops); /* the default workspace is for small calls */
        status = cuda_ops_init(calls.ops, device_gpu(), workspace, true, error);
        if (status == QP_OK) status = run_calls(&calls, &load, out, error);
    }
    workload_free(&load);
    return status; /* the process ends here, which frees what it holds on the GPU */
}

static void run_in_child(void *context, void *result)
{
    qp_error error;
    device_timing *out = result;
    if (time_workload(context, out, &error) == QP_OK) return;
    out->status = CHECK_RUNTIME_ERROR;
    snprintf(out->detail, sizeof out->detail, "%.500s", error.message);
}

void device_timing_run(const device_timing_request *request, device_timing *out)
{
    char what[128];
    *out = (device_timing){.status = CHECK_PASSED};
    child_end end =
        child_run(run_in_child, (void *)request, out, sizeof *out, request->timeout_ms,
                  request->candidate ? request->candidate->cancel : NULL, what, sizeof what);
    out->declined = *(unsigned char *)&out->declined & 1;
    out->detail[sizeof out->detail - 1] = '\0';
    bool sound = check_status_is_one(out->status) && isfinite(out->seconds.median) &&
                 isfinite(out->bytes) && isfinite(out->flops) && isfinite(out->error);
    if (end == CHILD_DONE && sound) return;
    if (end == CHILD_DONE) snprintf(what, sizeof what, "it wrote into the channel to the judge");
    *out = (device_timing){.status = end == CHILD_TIMEOUT ? CHECK_TIMEOUT : CHECK_RUNTIME_ERROR};
    snprintf(out->detail, sizeof out->detail, "%s", what);
}
