/* Measures what lies between the launches of a pass on a GPU: the most that one persistent kernel
 * for the whole pass could gain.
 *
 * Usage: tool_launches MODEL SEQUENCES PROMPT CONTEXT: a pass in which SEQUENCES sequences decode
 * after CONTEXT positions each, and one more reads a prompt of PROMPT tokens; either may be 0.
 * MODEL is such as synthetic:llama-3.2-1b:BF16. Prints us a pass, passes following each other:
 * as the machine `cuda` runs it; launch by launch; in a graph; without chains. Then the sum of the
 * pass's launches, each following itself, so that nothing waits for another kernel's last block, no
 * kernel begins with cold memory, and none is short of work: no kernel that does the same work with
 * the same instructions takes less.
 */
#include "base/cpu.h"
#include "lower/lower.h"
#include "vm/cuda/executor_parts.h"
#include "vm/cuda/machine.h"
#include "vm/machine.h"

#include <stdio.h>
#include <stdlib.h>

enum { PAGE = 16, PASSES = 20, ROUNDS = 5, REPEATS = 20 };

typedef struct bench {
    model *model;
    program program;
    thread_pool *pool;
    cuda_device device;
    machine cuda;
    cuda_executor *executor;
    batch batch;
    cuda_event begin, end;
    int64_t sequences, prompt, context;
} bench;

static qp_status open_bench(bench *b, const char *name, qp_error *error)
{
    const int64_t rows = b->sequences + (b->prompt > 0);
    TRY(cuda_device_open(&b->device, error));
    TRY(model_open(name, NULL, &b->model, error));
    plan_options o = plan_default_options(model_get_config(b->model));
    o.max_tokens = b->sequences + b->prompt;
    o.max_sequences = o.max_outputs = rows;
    o.context = (b->context > b->prompt ? b->context : b->prompt) + 1;
    o.page_size = PAGE;
    o.kv_type = DTYPE_BF16;
    TRY(lower_build(model_get_config(b->model), b->model, &o, &b->program, error));
    TRY(thread_pool_create(1, &b->pool, error));
    TRY(batch_init(&b->batch, &b->program, error));
    const machine_setup setup = {.program = &b->program,
                                 .pool = b->pool,
                                 .cpu_features = cpu_features(0),
                                 .device = &b->device};
    TRY(machine_open(&machine_cuda, &setup, &b->cuda, error));
    b->executor = cuda_machine_executor(&b->cuda);
    TRY(cuda_check(b->device.driver->event_create(&b->begin, 0), "making an event", error));
    return cuda_check(b->device.driver->event_create(&b->end, 0), "making an event", error);
}

static qp_status fill(bench *b, qp_error *error)
{
    const int64_t n_pages = b->program.capacity.of[AXIS_PAGES];
    const int64_t most = (b->program.options.context + PAGE - 1) / PAGE;
    const int64_t longest = b->prompt > 1 ? b->prompt : 1;
    int32_t *pages = calloc((size_t)most, sizeof *pages);
    int32_t *tokens = calloc((size_t)longest, sizeof *tokens);
    if (!pages || !tokens) return error_no_memory(error, "a batch", (size_t)most);
    for (int64_t i = 0; i < longest; i++)
        tokens[i] = (int32_t)((i * 97 + 5) % 500);
    batch_clear(&b->batch);
    for (int64_t s = 0; s < b->sequences + (b->prompt > 0); s++) {
        const bool reads = s == b->sequences;
        for (int64_t i = 0; i < most; i++)
            pages[i] = (int32_t)((s * most + i) % n_pages);
        batch_add(&b->batch, tokens, reads ? b->prompt : 1, reads ? 0 : b->context, pages);
        batch_want(&b->batch, batch_tokens(&b->batch) - 1);
    }
    free(pages);
    free(tokens);
    return QP_OK;
}

/* ---- timing -------------------------------------------------------------------------------- */

typedef qp_status timed(bench *b, const void *context, qp_error *error);

/* Microseconds of `work`, which does something `count` times; the quickest of some rounds. */
static qp_status time_work(bench *b, timed *work, const void *context, int count, double *us,
                           qp_error *error)
{
    const cuda_driver *driver = b->device.driver;
    *us = 1e30;
    for (int round = 0; round < ROUNDS; round++) {
        float ms;
        TRY(cuda_check(driver->event_record(b->begin, b->device.stream), "timing", error));
        TRY(work(b, context, error));
        TRY(cuda_check(driver->event_record(b->end, b->device.stream), "timing", error));
        TRY(cuda_device_wait(&b->device, "passes", error));
        TRY(cuda_check(driver->event_elapsed(&ms, b->begin, b->end), "timing", error));
        if (ms * 1e3 / count < *us) *us = ms * 1e3 / count;
    }
    return QP_OK;
}

static qp_status run_passes(bench *b, const void *context, qp_error *error)
{
    (void)context;
    for (int i = 0; i < PASSES; i++)
        TRY(cuda_executor_run(b->executor, &b->batch, 0, b->program.logits_end, error));
    return QP_OK;
}

static void forget_lists(bench *b)
{
    cuda_executor *x = b->executor;
    for (int i = 0; i < CUDA_MAX_LISTS; i++)
        launch_list_free(&x->lists[i]);
    for (int i = 0; i < CUDA_MAX_GRAPHS; i++) {
        if (x->passes[i].graph) b->device.driver->graph_exec_destroy(x->passes[i].graph);
        x->passes[i] = (cuda_pass){0};
    }
}

static qp_status time_passes(bench *b, cuda_graph_use graphs, bool without_chains, double *us,
                             qp_error *error)
{
    TRY(cuda_device_wait(&b->device, "passes", error));
    forget_lists(b);
    b->executor->graphs = graphs;
    b->executor->setting.rules = lower_launch_rules(&b->program);
    if (without_chains) b->executor->setting.rules &= ~(UINT32_C(1) << LOWER_RULE_persistent);
    TRY(run_passes(b, NULL, error)); /* makes lists and graphs */
    return time_work(b, run_passes, NULL, PASSES, us, error);
}

/* ---- launches alone ------------------------------------------------------------------------ */

typedef struct launch {
    const launch_list *list;
    const launch_entry *entry;
} launch;

static qp_status run_launch(bench *b, const void *context, qp_error *error)
{
    const launch *l = context;
    for (int i = 0; i < REPEATS; i++)
        TRY(cuda_executor_run_entry(b->executor, l->list, l->entry, error));
    return QP_OK;
}

static const launch_list *last_list(const bench *b)
{
    const launch_list *last = b->executor->lists;
    for (int i = 0; i < CUDA_MAX_LISTS; i++)
        if (b->executor->lists[i].used > last->used) last = &b->executor->lists[i];
    return last;
}

/* Launches that are alike are measured once for each layer: memory lies elsewhere. */
static qp_status sum_launches(bench *b, double *us, int *n, qp_error *error)
{
    const launch_list *list = last_list(b);
    *us = 0;
    *n = 0;
    for (int i = 0; i < list->n_entries; i++) {
        const launch l = {list, &list->entries[i]};
        double one;
        if (l.entry->n_records == 0) continue;
        TRY(time_work(b, run_launch, &l, REPEATS, &one, error));
        *us += one;
        *n += l.entry->n_records;
    }
    return QP_OK;
}

static qp_status measure(bench *b, qp_error *error)
{
    double usual, launches, graph, plain, alone;
    int n;
    TRY(fill(b, error));
    TRY(time_passes(b, CUDA_GRAPHS_ALWAYS, true, &plain, error));
    TRY(time_passes(b, CUDA_GRAPHS_NEVER, false, &launches, error));
    TRY(time_passes(b, CUDA_GRAPHS_ALWAYS, false, &graph, error));
    TRY(time_passes(b, CUDA_GRAPHS_OF_SHORT_PASSES, false, &usual, error));
    TRY(sum_launches(b, &alone, &n, error));
    printf(
        "%lld decode after %lld, prompt of %lld: usual %.1f us, launches %.1f, graph %.1f, graph "
        "without chains %.1f; %d launches alone %.1f, %.1f%% less than the usual pass\n",
        (long long)b->sequences, (long long)b->context, (long long)b->prompt, usual, launches,
        graph, plain, n, alone, 100 * (1 - alone / usual));
    return QP_OK;
}

static void close_bench(bench *b)
{
    machine_close(&b->cuda);
    batch_free(&b->batch);
    thread_pool_destroy(b->pool);
    program_free(&b->program);
    model_close(b->model);
    cuda_device_close(&b->device);
}

int main(int argc, char **argv)
{
    qp_error error;
    if (argc != 5 || strtoll(argv[2], NULL, 10) + strtoll(argv[3], NULL, 10) < 1) {
        fprintf(stderr, "usage: tool_launches MODEL SEQUENCES PROMPT CONTEXT\n");
        return 2;
    }
    bench b = {.sequences = strtoll(argv[2], NULL, 10),
               .prompt = strtoll(argv[3], NULL, 10),
               .context = strtoll(argv[4], NULL, 10)};
    qp_status status = open_bench(&b, argv[1], &error);
    if (status == QP_OK) status = measure(&b, &error);
    if (status != QP_OK) fprintf(stderr, "tool_launches: %s\n", error.message);
    close_bench(&b);
    return status != QP_OK;
}
