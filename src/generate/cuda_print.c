/* The GPU's memory as text: see cuda_print.h. */
#include "generate/cuda_print.h"

#include "generate/cuda_mega.h"

enum { USUAL_BLOCKS = 132 }; /* multiprocessors, where there is no GPU to ask */

static void print_parts(const cuda_bytes *bytes, const cuda_mega_bytes *mega, strbuf *out)
{
    const struct {
        const char *name;
        size_t bytes;
    } rows[] = {{"weights", bytes->weights},
                {"arena", bytes->arena},
                {"KV cache", bytes->kv_cache},
                {"RoPE table", bytes->rope_table},
                {"batch state", bytes->inputs},
                {"workspace", bytes->workspace},
                {"weights again", mega->weights},
                {"megakernel", mega->tables},
                {"everything", bytes->total + mega->weights + mega->tables}};
    strbuf_puts(out, "\non the GPU            bytes         MiB\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        strbuf_printf(out, "%-12s %14zu %11.2f\n", rows[i].name, rows[i].bytes,
                      (double)rows[i].bytes / 0x1p20);
}

static const char *verdict(size_t without, size_t all, size_t available)
{
    if (all <= available) return "fits";
    return without <= available ? "fits without the megakernel, operator by operator"
                                : "does not fit";
}

/* The parts, and whether they fit, where there is a GPU to ask. */
static void print_memory(const plan *p, const model *model, strbuf *out)
{
    cuda_device device = {0};
    qp_error why;
    size_t available;
    cuda_bytes bytes = cuda_executor_count(p, model);
    qp_status status = cuda_device_open(&device, &why);
    cuda_mega_bytes mega = {0};
    if (status != QP_OK || device.major == 9)
        mega = cuda_mega_count(p, model, status == QP_OK ? device.n_multiprocessors : USUAL_BLOCKS);
    print_parts(&bytes, &mega, out);
    if (status == QP_OK) status = cuda_device_free_memory(&device, &available, &why);
    if (status != QP_OK)
        strbuf_printf(out, "\nno GPU to hold it against: %s\n", why.message);
    else
        strbuf_printf(out, "\n%s: %.2f of %.2f GiB are free: it %s\n", device.name,
                      (double)available / 0x1p30, (double)device.memory_total / 0x1p30,
                      verdict(bytes.total, bytes.total + mega.weights + mega.tables, available));
    cuda_device_close(&device);
}

qp_status cuda_print_memory(const cuda_print_options *o, strbuf *out, qp_error *error)
{
    model *model;
    model_options sizes_only = {.sizes_only = true};
    TRY(model_open(o->model, &sizes_only, &model, error));
    plan_options options = plan_default_options(model_get_config(model));
    options.max_tokens = o->tokens > o->sequences ? o->tokens : o->sequences;
    options.max_sequences = options.max_outputs = o->sequences;
    if (o->context) options.context = o->context;
    options.page_size = o->page_size;
    options.kv_type = dtype_from_name(o->kv_type);
    plan plan;
    qp_status status = plan_build(model_get_config(model), &options, &plan, error);
    if (status == QP_OK) print_memory(&plan, model, out);
    plan_free(&plan);
    model_close(model);
    return status;
}
