/* Functions in processes of their own, the judge's side: see function.h. */
#include "workbench/function_child.h"

#include "base/clock.h"
#include "base/embedded.h"
#include "base/files.h"
#include "base/output.h"
#include "base/platform.h"
#include "base/printable.h"
#include "workbench/dialogue.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct function {
    function_process process;
    dialogue dialogue;
};

const char function_not_confined[] = "functions in Python, C++ and CUDA cannot be confined; read "
                                     "them, then give --unconfined to run "
                                     "them with your rights";

static bool fail(check_status *status, char *detail, size_t size, const char *text)
{
    *status = CHECK_RUNTIME_ERROR;
    snprintf(detail, size, "%s", text);
    return false;
}

/* --- asking ---------------------------------------------------------------------------------- */

static bool ask(function *f, function_question question, uint32_t n, check_status *status,
                char *detail, size_t size)
{
    static const check_status statuses[] = {[FUNCTION_DONE] = CHECK_PASSED,
                                            [FUNCTION_RAISED] = CHECK_RUNTIME_ERROR,
                                            [FUNCTION_NOT_LOADED] = CHECK_COMPILE_ERROR,
                                            [FUNCTION_WRONG_SHAPE] = CHECK_INCORRECT_SHAPE,
                                            [FUNCTION_WRONG_TYPE] = CHECK_INCORRECT_DTYPE};
    uint32_t code;
    char text[ARGUMENTS_TEXT_BYTES];
    if (!dialogue_ask(&f->dialogue, question, n, &code, status, detail, size)) return false;
    if (code == FUNCTION_DONE) return true;
    *status = code < sizeof statuses / sizeof *statuses ? statuses[code] : CHECK_RUNTIME_ERROR;
    memcpy(text, f->process.memory, sizeof text);
    text[sizeof text - 1] = '\0';
    printable_copy(text, detail, size);
    return false;
}

bool function_put(function *f, const arguments *arguments, check_status *status, char *detail,
                  size_t size)
{
    arguments_put(arguments, f->process.memory);
    return ask(f, FUNCTION_REFRESH, 0, status, detail, size);
}

bool function_run(function *f, uint32_t n, uint64_t *ns, check_status *status, char *detail,
                  size_t size)
{
    const uint64_t begin = clock_ns();
    bool done = ask(f, FUNCTION_RUN, n, status, detail, size);
    *ns = clock_ns() - begin;
    return done;
}

bool function_results(function *f, const char **memory, check_status *status, char *detail,
                      size_t size)
{
    *memory = f->process.memory;
    return ask(f, FUNCTION_STORE, 0, status, detail, size);
}

/* --- the plan for Python --------------------------------------------------------------------- */

static void add_tensor(cJSON *list, const arguments *a, int t)
{
    const schema_tensor *tensor = &a->definition->tensors[t];
    cJSON *item = cJSON_CreateObject();
    cJSON_AddItemToArray(list, item);
    cJSON_AddStringToObject(item, "name", tensor->name);
    cJSON_AddStringToObject(item, "dtype", tensor->type->name);
    if (tensor->rank < 0) {
        if (strcmp(tensor->type->name, "bool") == 0)
            cJSON_AddBoolToObject(item, "value", a->scalars[t] != 0);
        else
            cJSON_AddNumberToObject(item, "value", a->scalars[t]);
        return;
    }
    cJSON_AddNumberToObject(item, "offset", (double)a->offset[t]);
    cJSON_AddNumberToObject(item, "elements", (double)a->elements[t]);
    cJSON *shape = cJSON_AddArrayToObject(item, "shape");
    for (int d = 0; d < tensor->rank; d++)
        cJSON_AddItemToArray(
            shape, cJSON_CreateNumber((double)schema_size(a->definition, a->workload, t, d)));
}

static cJSON *plan_json(const function_source *source, const arguments *a,
                        const function_options *options, const char *folder)
{
    const schema_definition *definition = a->definition;
    cJSON *plan = cJSON_CreateObject();
    cJSON_AddStringToObject(plan, "folder", folder);
    cJSON_AddStringToObject(plan, "language", source->language);
    cJSON_AddStringToObject(plan, "binding", source->binding ? source->binding : "tvm-ffi");
    cJSON_AddStringToObject(plan, "file", source->file);
    cJSON_AddStringToObject(plan, "function", source->symbol);
    cJSON_AddStringToObject(plan, "device", options->cuda ? "cuda" : "cpu");
    cJSON_AddNumberToObject(plan, "threads", options->threads);
    cJSON_AddBoolToObject(plan, "fills_outputs", source->fills_outputs);
    cJSON *sources = cJSON_AddArrayToObject(plan, "sources");
    const cJSON *file;
    cJSON_ArrayForEach(file, source->sources) cJSON_AddItemToArray(
        sources, cJSON_CreateString(cJSON_GetStringValue(cJSON_GetObjectItem(file, "path"))));
    cJSON *inputs = cJSON_AddArrayToObject(plan, "inputs");
    for (int t = 0; t < definition->n_inputs; t++)
        add_tensor(inputs, a, t);
    cJSON *outputs = cJSON_AddArrayToObject(plan, "outputs");
    for (int t = 0; t < definition->n_outputs; t++)
        add_tensor(outputs, a, definition->n_inputs + t);
    return plan;
}

static qp_status write_plan(const function_source *source, const arguments *arguments,
                            const function_options *options, qp_error *error)
{
    char path[512], folder[512];
    strbuf text = {0};
    const embedded_text *program = embedded_find("src/workbench/function.py");
    snprintf(path, sizeof path, "%.400s/function.py", source->folder);
    TRY(files_write(path, program->text, program->length, error));
    snprintf(path, sizeof path, "%.400s/plan.json", source->folder);
    snprintf(folder, sizeof folder, "%.400s/solution", source->folder);
    qp_status status =
        output_json_line(plan_json(source, arguments, options, folder), &text, error);
    if (status == QP_OK) status = files_write(path, text.data, text.length, error);
    strbuf_free(&text);
    return status;
}

/* --- opening --------------------------------------------------------------------------------- */

static bool share_memory(function_process *p, check_status *status, char *detail, size_t size)
{
    p->bytes = p->arguments->total;
    p->shared = platform_memory_file("quipu-arguments", p->bytes);
    if (p->shared >= 0) {
        void *memory = mmap(NULL, p->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, p->shared, 0);
        p->memory = memory == MAP_FAILED ? NULL : memory;
    }
    return p->memory || fail(status, detail, size, strerror(errno));
}

bool function_open(const function_source *source, const arguments *arguments,
                   const function_options *options, function **out, check_status *status,
                   char *detail, size_t size)
{
    qp_error error;
    function *f = calloc(1, sizeof *f);
    *out = NULL;
    if (!f) return fail(status, detail, size, "out of memory");
    f->process = (function_process){
        .source = source, .arguments = arguments, .options = options, .shared = -1};
    f->dialogue.socket = f->dialogue.output = -1;
    bool is_python = !source->library && !source->op;
    bool open = share_memory(&f->process, status, detail, size);
    if (open && is_python && !options->unconfined) {
        open = fail(status, detail, size, function_not_confined);
        *status = CHECK_COMPILE_ERROR;
    }
    if (open && is_python && write_plan(source, arguments, options, &error) != QP_OK)
        open = fail(status, detail, size, error.message);
    if (open) arguments_put(arguments, f->process.memory);
    open = open &&
           dialogue_start(&f->dialogue, is_python ? function_python : function_call, &f->process,
                          options->timeout_ms, options->cancel, status, detail, size) &&
           ask(f, FUNCTION_LOAD, 0, status, detail, size);
    if (open)
        *out = f;
    else
        function_close(f);
    return open;
}

void function_close(function *f)
{
    if (!f) return;
    dialogue_end(&f->dialogue);
    if (f->process.memory) munmap(f->process.memory, f->process.bytes);
    if (f->process.shared >= 0) close(f->process.shared);
    free(f);
}
