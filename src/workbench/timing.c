/* Measures kernels in a child process: see timing.h. */
#include "workbench/timing.h"

#include "base/cpu.h"
#include "base/platform.h"
#include "op/harness/child.h"
#include "workbench/sandbox.h"
#include "workbench/workload.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LATE_WORK_US = 20000 };

static bool fail(timing_report *out, check_status status, const char *detail)
{
    out->status = status;
    snprintf(out->detail, sizeof out->detail, "%.500s", detail);
    return false;
}

static void refill(void *context, const op_call *call)
{
    const timing_request *request = context;
    workload_refill(request->op, call, request->seed + 1000);
}

/* The kernels to measure: the reference if it is not too slow, the best variant, and the requested
 * kernel. */
static int choose(const timing_request *request, const workload *load, const op_variant *asked,
                  bench_candidate candidates[TIMING_MAX], timing_report *out)
{
    int n = 0;
    const op_variant *best;
    op_select(request->op, request->features, &load->call, &best);
    out->slow_reference = !request->with_reference &&
                          op_cost_of(request->op, &load->call).flops > TIMING_REFERENCE_FLOPS;
    if (request->alone && asked) {
        candidates[n++] = (bench_candidate){asked->name, asked->kernel, asked};
        return n;
    }
    if (!out->slow_reference || (!best && !asked))
        candidates[n++] = (bench_candidate){"reference", request->op->reference, NULL};
    if (best && best != asked) candidates[n++] = (bench_candidate){best->name, best->kernel, best};
    if (asked) candidates[n++] = (bench_candidate){asked->name, asked->kernel, asked};
    return n;
}

/* Number of copies: enough to exceed the caches, but no more than memory allows. */
static size_t bytes_to_rotate(int n)
{
    enum { LEAST = 64 << 20, MOST = 256 << 20 };
    cpu_description cpu;
    cpu_describe(&cpu);
    size_t bytes = 2 * (cpu.l3 + cpu.l2);
    uint64_t share = platform_free_memory() / (uint64_t)(4 * n);
    if (bytes > MOST) bytes = MOST;
    if (bytes < LEAST) bytes = LEAST;
    return bytes < share ? bytes : (size_t)share;
}

static bool run_bench(const timing_request *request, const workload *load, const op_variant *asked,
                      timing_report *out)
{
    qp_error error;
    thread_pool *pool = NULL;
    hardware *hardware = NULL;
    bench_candidate candidates[TIMING_MAX];
    bench_result results[TIMING_MAX] = {0};
    out->n = choose(request, load, asked, candidates, out);
    size_t rotate = bytes_to_rotate(out->n);
    bench_options options = {.rounds = request->rounds,
                             .sample_seconds = 0.004,
                             .rotate_bytes = rotate,
                             .refill = refill,
                             .context = (void *)request};
    qp_status status = thread_pool_create(request->threads, &pool, &error);
    if (status == QP_OK)
        status = hardware_create(rotate, request->features, pool, &hardware, &error);
    if (status == QP_OK)
        status = bench_run(request->op, &load->call, candidates, out->n, hardware, pool, &options,
                           &out->limits, results, &error);
    hardware_destroy(hardware);
    thread_pool_destroy(pool);
    if (status != QP_OK) return fail(out, CHECK_RUNTIME_ERROR, error.message);
    for (int i = 0; i < out->n; i++) {
        timing *entry = &out->entries[i];
        *entry = (timing){.result = results[i],
                          .status = results[i].verified ? CHECK_PASSED : CHECK_INCORRECT_NUMERICAL};
        snprintf(entry->name, sizeof entry->name, "%s", candidates[i].name);
    }
    return true;
}

/* A kernel that still works after it returned has not been measured. */
static void find_late_work(DIR *tasks, int threads_before, timing_report *out)
{
    usleep(LATE_WORK_US);
    int left = candidate_threads(tasks) - threads_before;
    if (left <= 0) return;
    out->entries[out->n - 1].status = CHECK_RUNTIME_ERROR;
    snprintf(out->detail, sizeof out->detail, "%d threads of its own were left running", left);
}

typedef struct timing_job {
    const timing_request *request;
    int judge, output;
} timing_job;

/* The time is the judge's to limit, because a measurement may use many threads. */
static void enter_sandbox(const timing_job *job, int tasks)
{
    const candidate *candidate = job->request->candidate;
    sandbox_enter(&(sandbox){.kind = candidate_sandbox(candidate),
                             .parent = job->judge,
                             .keep = {tasks, child_result_descriptor()},
                             .output = job->output,
                             .cpu_seconds = job->request->timeout_ms / 1000 * job->request->threads,
                             .file = candidate->library});
}

static void run_in_child(void *context, void *result)
{
    const timing_job *job = context;
    const timing_request *request = job->request;
    timing_report *out = result;
    workload load;
    op_variant loaded;
    const op_variant *asked = request->variant;
    qp_error error;
    char message[400];
    DIR *tasks = platform_threads(0);
    if (!tasks) {
        fail(out, CHECK_RUNTIME_ERROR,
             "this system does not say how many threads a process has (Linux: /proc is missing)");
        return;
    }
    const int threads = candidate_threads(tasks);
    if (request->candidate) {
        enter_sandbox(job, dirfd(tasks));
        if (!candidate_load(request->candidate, &loaded, message, sizeof message)) {
            fail(out, CHECK_COMPILE_ERROR, message);
            return;
        }
        asked = &loaded;
    }
    if (workload_create(request->op, request->workload, request->seed, &load, &error) != QP_OK) {
        fail(out, CHECK_RUNTIME_ERROR, error.message);
        return;
    }
    out->declined = asked && asked->accepts && !asked->accepts(&load.call);
    if (!out->declined && run_bench(request, &load, asked, out) && request->candidate)
        find_late_work(tasks, threads, out);
    workload_free(&load);
    closedir(tasks);
}

static bool is_number(double value)
{
    return isfinite(value) && value >= 0;
}

/* The child process ran untrusted code, which may have written this report: only plausible values
 * are accepted. */
static bool is_sound(timing_report *out)
{
    bool sound = out->n >= 0 && out->n <= TIMING_MAX && check_status_is_one(out->status);
    out->detail[sizeof out->detail - 1] = '\0';
    out->declined = *(unsigned char *)&out->declined & 1;
    out->slow_reference = *(unsigned char *)&out->slow_reference & 1;
    for (int i = 0; sound && i < out->n; i++) {
        timing *entry = &out->entries[i];
        bench_result *r = &entry->result;
        entry->name[sizeof entry->name - 1] = '\0';
        r->verified = *(unsigned char *)&r->verified & 1;
        sound = check_status_is_one(entry->status) && is_number(r->seconds.median) &&
                r->seconds.median > 0 && is_number(r->seconds.low) && is_number(r->seconds.high) &&
                is_number(r->bytes) && is_number(r->flops) && is_number(r->error);
    }
    return sound && (out->n > 0 || out->declined || out->status != CHECK_PASSED);
}

/* This process judges the results itself, unless that would take hours. */
static void judge(const timing_request *request, timing_report *out)
{
    workload load;
    qp_error error;
    check_verdict verdict;
    bool declined;
    timing *asked = &out->entries[out->n - 1];
    if (out->status != CHECK_PASSED || out->declined || asked->status != CHECK_PASSED) return;
    if (workload_create(request->op, request->workload, request->seed, &load, &error) != QP_OK)
        return;
    double flops = op_cost_of(request->op, &load.call).flops;
    workload_free(&load);
    if (flops > TIMING_JUDGED_FLOPS) return;
    candidate_check_briefly(request->candidate, request->workload, request->seed,
                            request->timeout_ms, &verdict, &declined);
    if (verdict.status == CHECK_PASSED && !declined) return;
    asked->status = declined ? CHECK_INCORRECT_SHAPE : verdict.status;
    snprintf(out->detail, sizeof out->detail, "%s",
             declined ? "it declines what it was timed on" : verdict.detail);
}

void timing_run(const timing_request *request, timing_report *out)
{
    char what[128];
    *out = (timing_report){.status = CHECK_PASSED};
    timing_job job = {request, getpid(), request->candidate ? sandbox_output_open() : -1};
    child_end end =
        child_run(run_in_child, &job, out, sizeof *out, request->timeout_ms,
                  request->candidate ? request->candidate->cancel : NULL, what, sizeof what);
    sandbox_output_take(job.output, request->candidate ? request->candidate->printed : NULL);
    if (end == CHILD_DONE && is_sound(out)) {
        if (request->candidate) judge(request, out);
        return;
    }
    *out = (timing_report){0};
    if (end == CHILD_DONE) {
        fail(out, CHECK_RUNTIME_ERROR, "it wrote into the channel to the judge");
        return;
    }
    fail(out, end == CHILD_TIMEOUT ? CHECK_TIMEOUT : CHECK_RUNTIME_ERROR, what);
}
