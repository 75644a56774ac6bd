/* The processes in which functions run: see function.h. */
#include "workbench/function_child.h"

#include "workbench/dialogue.h"
#include "workbench/sandbox.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { FILE_BYTES = 1 << 30 };

static int seconds_of(const function_process *p)
{
    return p->options->timeout_ms / 1000 + 1;
}

/* What the process prints goes into a file, for the trace's log. */
static int open_log(const function_process *p)
{
    char path[512];
    if (!p->source->folder) return -1;
    snprintf(path, sizeof path, "%s/log.txt", p->source->folder);
    return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
}

/* --- Python ---------------------------------------------------------------------------------- */

void function_python(void *context, int socket, int judge)
{
    const function_process *p = context;
    char program[512], plan[512], numbers[2][16];
    sandbox_enter(&(sandbox){.kind = SANDBOX_UNCONFINED,
                             .parent = judge,
                             .keep = {socket, p->shared},
                             .output = open_log(p),
                             .cpu_seconds = seconds_of(p)});
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){FILE_BYTES, FILE_BYTES});
    snprintf(program, sizeof program, "%s/function.py", p->source->folder);
    snprintf(plan, sizeof plan, "%s/plan.json", p->source->folder);
    snprintf(numbers[0], sizeof numbers[0], "%d", socket);
    snprintf(numbers[1], sizeof numbers[1], "%d", p->shared);
    fcntl(socket, F_SETFD, 0);
    fcntl(p->shared, F_SETFD, 0);
    execlp(p->options->python, p->options->python, program, numbers[0], numbers[1], plan,
           (char *)NULL);
    dialogue_message asked;
    if (!dialogue_read(socket, &asked)) _exit(1);
    snprintf(p->memory, ARGUMENTS_TEXT_BYTES, "%.1000s cannot be started: %s", p->options->python,
             strerror(errno));
    dialogue_answer(socket, &asked, FUNCTION_NOT_LOADED);
    _exit(1);
}

/* --- C --------------------------------------------------------------------------------------- */

typedef struct loaded {
    const function_process *process;
    op_kernel *kernel;
    op_call call;
} loaded;

static function_code refuse(const loaded *l, const char *text)
{
    snprintf(l->process->memory, ARGUMENTS_TEXT_BYTES, "%s", text);
    return FUNCTION_NOT_LOADED;
}

/* The call of a function in C: all tensors and scalars in the definition's order. */
static function_code make_call(loaded *l)
{
    const arguments *a = l->process->arguments;
    const schema_definition *definition = a->definition;
    int n_tensors = 0, n_params = 0;
    for (int t = 0; t < definition->n_inputs + definition->n_outputs; t++) {
        const schema_tensor *from = &definition->tensors[t];
        int64_t shape[SCHEMA_MAX_RANK];
        if (from->rank < 0) {
            if (n_params == OP_MAX_PARAMS) return refuse(l, "too many scalars");
            l->call.params[n_params++] = a->scalars[t];
            continue;
        }
        if (n_tensors == OP_MAX_TENSORS || from->rank == 0 || from->rank > TENSOR_MAX_RANK ||
            from->type->type == DTYPE_COUNT)
            return refuse(l, "an op_call cannot have the definition's tensors: their number, ranks "
                             "or types");
        for (int d = 0; d < from->rank; d++)
            shape[d] = schema_size(definition, a->workload, t, d);
        l->call.tensors[n_tensors++] =
            tensor_make(l->process->memory + a->offset[t], from->type->type, from->rank, shape);
    }
    l->call.end = 1;
    return FUNCTION_DONE;
}

static function_code load_library(loaded *l)
{
    const function_source *source = l->process->source;
    void *library = dlopen(source->library, RTLD_NOW | RTLD_LOCAL);
    void *symbol = library ? dlsym(library, source->symbol) : NULL;
    if (!symbol) return refuse(l, dlerror());
    /* POSIX allows a function pointer to be read from dlsym(); ISO C has no cast for it. */
    memcpy(&l->kernel, &symbol, sizeof symbol);
    return make_call(l);
}

static bool set_ones(tensor *view)
{
    const int64_t n = tensor_elements(view);
    int32_t *ones = view->type == DTYPE_I32 ? malloc((size_t)n * sizeof *ones + 1) : NULL;
    for (int64_t i = 0; ones && i < n; i++)
        ones[i] = 1;
    view->data = ones;
    return ones;
}

/* quipu's own reference; it is bound to each set of inputs, because it trusts index tensors. */
static function_code bind_own(loaded *l)
{
    const function_source *source = l->process->source;
    qp_error error;
    l->call = source->call;
    for (int t = 0; t < op_n_tensors(source->op); t++) {
        const int place = source->places[t];
        if (place >= 0)
            l->call.tensors[t].data = l->process->memory + l->process->arguments->offset[place];
        if (place == FUNCTION_ONES && !set_ones(&l->call.tensors[t]))
            return refuse(l, "out of memory");
    }
    if (op_bind(source->op, &l->call, NULL, &error) != QP_OK) return refuse(l, error.message);
    l->kernel = source->op->reference;
    l->call.end = source->op->units(&l->call);
    size_t scratch = source->op->scratch_bytes ? source->op->scratch_bytes(&l->call) : 0;
    l->call.scratch = scratch ? calloc(1, scratch) : NULL;
    return FUNCTION_DONE;
}

static function_code obey(loaded *l, const dialogue_message *asked)
{
    const bool own = l->process->source->op;
    switch ((function_question)asked->what) {
    case FUNCTION_LOAD:
        return own ? FUNCTION_DONE : load_library(l);
    case FUNCTION_REFRESH:
        free(l->call.scratch);
        return own ? bind_own(l) : FUNCTION_DONE;
    case FUNCTION_RUN:
        for (uint32_t i = 0; i < asked->n; i++)
            l->kernel(&l->call);
        return FUNCTION_DONE;
    default:
        return FUNCTION_DONE;
    }
}

void function_call(void *context, int socket, int judge)
{
    const function_process *p = context;
    loaded l = {.process = p};
    dialogue_message asked;
    sandbox_enter(&(sandbox){.kind = p->options->unconfined ? SANDBOX_UNCONFINED : SANDBOX_KERNEL,
                             .parent = judge,
                             .keep = {-1, socket},
                             .output = open_log(p),
                             .cpu_seconds = seconds_of(p),
                             .file = p->source->library});
    while (dialogue_read(socket, &asked)) {
        if (!dialogue_answer(socket, &asked, obey(&l, &asked))) break;
    }
    _exit(0);
}
