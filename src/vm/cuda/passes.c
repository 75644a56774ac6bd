/* Passes on the GPU as CUDA graphs, one by one and in groups: see executor.h. */
#include "vm/cuda/executor_parts.h"

#include "op/linear/linear_stream.h"
#include "op/attention/attention_cuda.h"

#include <string.h>

enum {
    /* Passes of more tokens take long enough to be launched kernel by kernel, unless all sequences
     * decode: then the time of each launch matters. */
    GRAPH_TOKENS = 8,
    GRAPH_SEQUENCES = 512,
    FEW_PASSES = 2,
    LEAST_MIXED = 4, /* sequences that decode in a mixed pass and have attention of their own */
};

/* The shape of a pass before it runs. */
static cuda_pass shape_of(const cuda_executor *x, const batch *batch, int first, int last,
                          int group, int n_passes, int choice)
{
    const int64_t *of = batch->sizes.of;
    return (cuda_pass){.n_tokens = of[AXIS_TOKENS],
                       .n_sequences = of[AXIS_SEQUENCES],
                       .n_outputs = of[AXIS_OUTPUTS],
                       .n_chunks = cuda_decode_chunks(x->longest),
                       .first = first,
                       .last = last,
                       .n_passes = n_passes,
                       .group = group,
                       .choice = choice,
                       .sums = x->memory.data[PLAN_SUMS]};
}

/* The pass of that shape; a new one replaces the oldest. */
static cuda_pass *find_pass(cuda_executor *x, const cuda_pass *wanted)
{
    for (int i = 0; i < CUDA_MAX_GRAPHS; i++) {
        cuda_pass *p = &x->passes[i];
        if (p->runs && p->n_tokens == wanted->n_tokens && p->n_sequences == wanted->n_sequences &&
            p->n_outputs == wanted->n_outputs && p->n_chunks == wanted->n_chunks &&
            p->first == wanted->first && p->last == wanted->last &&
            p->n_passes == wanted->n_passes && p->group == wanted->group &&
            p->choice == wanted->choice && p->sums == wanted->sums)
            return p;
    }
    cuda_pass *pass = &x->passes[x->next_pass];
    x->next_pass = (x->next_pass + 1) % CUDA_MAX_GRAPHS;
    if (pass->graph) x->device->driver->graph_exec_destroy(pass->graph);
    *pass = *wanted;
    return pass;
}

static qp_status launch_group(cuda_executor *x, const batch *batch, const program_sizes *sizes,
                              const cuda_pass *shape, qp_error *error);

static qp_status capture(cuda_executor *x, const batch *batch, const program_sizes *sizes,
                         cuda_pass *pass, qp_error *error)
{
    static const char operation[] = "capturing a forward pass in a graph";
    const cuda_driver *driver = x->device->driver;
    cuda_graph graph = NULL;
    TRY(cuda_check(driver->capture_begin(x->device->stream, CUDA_CAPTURE_THREAD_LOCAL), operation,
                   error));
    qp_status status = pass->n_passes > 0
                           ? launch_group(x, batch, sizes, pass, error)
                           : cuda_executor_launch(x, sizes, pass->first, pass->last, error);
    cuda_result ended = driver->capture_end(x->device->stream, &graph);
    if (status == QP_OK) status = cuda_check(ended, operation, error);
    if (status == QP_OK)
        status = cuda_check(driver->graph_instantiate(&pass->graph, graph, 0), operation, error);
    if (graph) driver->graph_destroy(graph);
    return status;
}

/* How many sequences at the beginning of the batch have one new token each, and the most positions
 * of one of them. */
static int64_t decoding_first(const batch *batch, int64_t *longest)
{
    const int64_t sequences = batch->sizes.of[AXIS_SEQUENCES];
    const int32_t *positions = batch_i32(batch, PLAN_POSITION_IDS);
    const int32_t *begin = batch_i32(batch, PLAN_QO_INDPTR);
    int64_t n = 0;
    for (*longest = 0; n < sequences && begin[n + 1] == n + 1; n++)
        if (positions[n] >= *longest) *longest = positions[n] + 1;
    return n;
}

/* The most positions of a sequence if there are several, or a single one is a batch too, each with
 * one new token; else 0. */
static int64_t longest_decoding(const cuda_executor *x, const batch *batch)
{
    int64_t longest;
    const int64_t n = decoding_first(batch, &longest), least = x->ops.few_rows == 0 ? 1 : 2;
    return n >= least && n == batch_tokens(batch) ? longest : 0;
}

/* The same of the sequences that decode in a pass that also reads prompts, if a launch of attention
 * for only these pays. */
static int64_t longest_mixed(const batch *batch, int64_t *n_decode)
{
    int64_t longest;
    *n_decode = decoding_first(batch, &longest);
    if (*n_decode < LEAST_MIXED || batch_tokens(batch) <= LINEAR_STREAM_MAX_X) *n_decode = 0;
    return *n_decode > 0 ? longest : 0;
}

/* No kernel reads the total number of pages, so a graph stays valid when they grow. */
static program_sizes sizes_of(const cuda_executor *x, const batch *batch)
{
    program_sizes sizes = batch->sizes;
    sizes.of[AXIS_PAGE_REFS] = x->program->capacity.of[AXIS_PAGE_REFS];
    return sizes;
}

/* Puts steps [first, last) into the stream; their inputs are on the GPU. */
static qp_status run_steps(cuda_executor *x, const batch *batch, int first, int last,
                           qp_error *error)
{
    const program_sizes sizes = sizes_of(x, batch);
    x->longest = longest_decoding(x, batch);
    x->n_decode = 0;
    if (first == 0) cuda_executor_begin_pass(x);
    int64_t most = x->longest > 0 ? GRAPH_SEQUENCES : GRAPH_TOKENS;
    if (x->longest == 0) x->longest = longest_mixed(batch, &x->n_decode);
    if (x->graphs == CUDA_GRAPHS_ALWAYS) most = INT64_MAX;
    if (batch_tokens(batch) > most || last - first < 2 || x->marks ||
        x->graphs == CUDA_GRAPHS_NEVER)
        return cuda_executor_launch(x, &sizes, first, last, error);
    const cuda_pass wanted = shape_of(x, batch, first, last, 0, 0, 0);
    cuda_pass *pass = find_pass(x, &wanted);
    if (pass->runs++ == 0) return cuda_executor_launch(x, &sizes, first, last, error);
    if (!pass->graph) TRY(capture(x, batch, &sizes, pass, error));
    return cuda_check(x->device->driver->graph_launch(pass->graph, x->device->stream),
                      "running a forward pass", error);
}

qp_status cuda_executor_run(cuda_executor *x, const batch *batch, int first, int last,
                            qp_error *error)
{
    TRY(cuda_executor_take_inputs(x, batch, error));
    return run_steps(x, batch, first, last, error);
}

/* ---- groups of passes ---------------------------------------------------------------------- */

static qp_status allocate_groups(cuda_executor *x, qp_error *error)
{
    static const char operation[] = "preparing passes";
    const cuda_driver *driver = x->device->driver;
    const size_t passes = CUDA_GROUPS * CUDA_GROUP;
    if (x->tokens.data) return QP_OK;
    TRY(cuda_check(driver->stream_create(&x->copies, CUDA_STREAM_NON_BLOCKING), operation, error));
    for (int i = 0; i < CUDA_GROUPS; i++)
        TRY(cuda_check(driver->event_create(&x->ended[i], CUDA_EVENT_NO_TIMING), operation, error));
    TRY(cuda_pinned_alloc(x->device, passes * cuda_executor_input_bytes(x->program), "inputs",
                          &x->staged, error));
    return cuda_pinned_alloc(x->device, CUDA_GROUP * cuda_executor_token_bytes(x->program),
                             "tokens", &x->tokens, error);
}

/* A pass's inputs in pinned memory. */
static char *staged_inputs(const cuda_executor *x, int group, int pass)
{
    return (char *)x->staged.data +
           (size_t)(group * CUDA_GROUP + pass) * cuda_executor_input_bytes(x->program);
}

/* The tokens of a group's pass, counted back from its last. */
static cuda_address tokens_of(const cuda_executor *x, int group, int back)
{
    return cuda_executor_inputs(x, CUDA_GROUPS, 0) +
           (size_t)(group * CUDA_GROUP + CUDA_GROUP - 1 - back) *
               cuda_executor_token_bytes(x->program);
}

int cuda_executor_group(const cuda_executor *x, int64_t n_sequences)
{
    /* Each pass has a table of its own. */
    if (program_has_dynamic_rope(x->program)) return 1;
    return n_sequences > LINEAR_STREAM_MAX_X ? FEW_PASSES : CUDA_GROUP;
}

qp_status cuda_executor_stage(cuda_executor *x, const batch *batch, int group, int pass,
                              qp_error *error)
{
    TRY(cuda_device_enter(x->device, error));
    TRY(allocate_groups(x, error));
    memcpy(staged_inputs(x, group, pass), batch->memory, batch->memory_bytes);
    if (pass == 0) x->staged_longest = longest_decoding(x, batch);
    return QP_OK;
}

/* The program's steps from `step` on choose the tokens and store them where the next pass reads
 * them. */
static qp_status launch_choice(cuda_executor *x, const program_sizes *sizes, int step,
                               cuda_address made, qp_error *error)
{
    void *usual = x->memory.data[PLAN_NEXT];
    x->memory.data[PLAN_NEXT] = cuda_host_form(made);
    qp_status status = cuda_executor_launch(x, sizes, step, x->program->n_steps, error);
    x->memory.data[PLAN_NEXT] = usual;
    return status;
}

/* Every pass reads the tokens of the previous one; the first reads those of the other group's last
 * pass. */
static qp_status launch_group(cuda_executor *x, const batch *batch, const program_sizes *sizes,
                              const cuda_pass *shape, qp_error *error)
{
    const int n = shape->n_passes;
    cuda_address read = tokens_of(x, (shape->group + 1) % CUDA_GROUPS, 0), made;
    qp_status status = QP_OK;
    for (int pass = 0; pass < n && status == QP_OK; pass++, read = made) {
        made = tokens_of(x, shape->group, n - 1 - pass);
        cuda_executor_begin_pass(x);
        cuda_executor_place_inputs(x, batch, shape->group, pass);
        x->memory.data[PLAN_TOKEN_IDS] = x->memory.data[PLAN_LAST] = cuda_host_form(read);
        x->follows = pass > 0;
        x->longest = x->staged_longest > 0 ? x->staged_longest + pass : 0;
        x->n_decode = 0;
        if (!shape->choice) x->likeliest = made;
        status = cuda_executor_launch(x, sizes, shape->first, shape->last, error);
        if (status == QP_OK && shape->choice)
            status = launch_choice(x, sizes, shape->choice, made, error);
    }
    x->follows = false;
    x->likeliest = 0;
    return status;
}

/* Runs a group. Several passes are captured in a graph when they first run. */
static qp_status run_group(cuda_executor *x, const batch *batch, int last, int choice, int group,
                           int n_passes, qp_error *error)
{
    const program_sizes sizes = sizes_of(x, batch);
    void *const sums[2] = {x->memory.data[PLAN_SUMS], x->memory.data[PLAN_SUMS_NEXT]};
    x->longest = x->staged_longest;
    const cuda_pass wanted = shape_of(x, batch, 0, last, group, n_passes, choice);
    bool same = wanted.n_chunks == cuda_decode_chunks(x->longest + n_passes - 1);
    if (!same || batch_tokens(batch) > GRAPH_SEQUENCES || x->marks ||
        x->graphs == CUDA_GRAPHS_NEVER)
        return launch_group(x, batch, &sizes, &wanted, error);
    cuda_pass *pass = find_pass(x, &wanted);
    if (pass->graph) {
        for (int i = 0; i < n_passes; i++)
            cuda_executor_begin_pass(x);
        return cuda_check(x->device->driver->graph_launch(pass->graph, x->device->stream),
                          "running forward passes", error);
    }
    TRY(launch_group(x, batch, &sizes, &wanted, error));
    if (pass->runs++ == 0 && n_passes == 1) return QP_OK;
    x->memory.data[PLAN_SUMS] = sums[0];
    x->memory.data[PLAN_SUMS_NEXT] = sums[1];
    return capture(x, batch, &sizes, pass, error);
}

/* Copies the inputs of a group, and its first tokens if no earlier group makes them. Returns when
 * the copies have ended. */
static qp_status copy_staged(cuda_executor *x, const batch *batch, int group, int n_passes,
                             bool continues, qp_error *error)
{
    static const char operation[] = "copying inputs to the GPU";
    const cuda_driver *driver = x->device->driver;
    const size_t ids = (size_t)((char *)batch->of[PLAN_TOKEN_IDS] - (char *)batch->memory);
    const char *from = staged_inputs(x, group, 0);
    TRY(cuda_check(driver->copy_to_device(cuda_executor_inputs(x, group, 0), from,
                                          (size_t)n_passes * cuda_executor_input_bytes(x->program),
                                          x->copies),
                   operation, error));
    if (!continues)
        TRY(cuda_check(
            driver->copy_to_device(tokens_of(x, (group + 1) % CUDA_GROUPS, 0), from + ids,
                                   (size_t)batch_tokens(batch) * sizeof(int32_t), x->copies),
            operation, error));
    return cuda_check(driver->stream_synchronize(x->copies), operation, error);
}

qp_status cuda_executor_decode(cuda_executor *x, const batch *batch, int last, int choice,
                               int group, int n_passes, bool continues, qp_error *error)
{
    TRY(cuda_executor_copy_angles(x, batch, error));
    TRY(cuda_executor_send_masks(x, error));
    TRY(copy_staged(x, batch, group, n_passes, continues, error));
    TRY(run_group(x, batch, last, choice, group, n_passes, error));
    return cuda_check(x->device->driver->event_record(x->ended[group], x->device->stream),
                      "running forward passes", error);
}

qp_status cuda_executor_read_tokens(cuda_executor *x, int group, int64_t n, int n_passes,
                                    int32_t *tokens, qp_error *error)
{
    static const char operation[] = "copying tokens from the GPU";
    const cuda_driver *driver = x->device->driver;
    const size_t pitch = cuda_executor_token_bytes(x->program);
    TRY(cuda_device_enter(x->device, error));
    TRY(cuda_check(driver->event_synchronize(x->ended[group]), "the forward passes", error));
    TRY(cuda_check(driver->copy_to_host(x->tokens.data, tokens_of(x, group, n_passes - 1),
                                        (size_t)n_passes * pitch, x->copies),
                   operation, error));
    TRY(cuda_check(driver->stream_synchronize(x->copies), operation, error));
    for (int pass = 0; pass < n_passes; pass++)
        memcpy(tokens + pass * n, (char *)x->tokens.data + (size_t)pass * pitch,
               (size_t)n * sizeof *tokens);
    return QP_OK;
}
