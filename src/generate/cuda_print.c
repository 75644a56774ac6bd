/* The GPU's memory as text: see cuda_print.h. */
#include "generate/cuda_print.h"

#include "generate/cuda_executor.h"

static void print_parts(const cuda_bytes *bytes, strbuf *out)
{
    const struct {
        const char *name;
        size_t bytes;
    } rows[] = {{"weights", bytes->weights},    {"arena", bytes->arena},
                {"KV cache", bytes->kv_cache},  {"RoPE table", bytes->rope_table},
                {"batch state", bytes->inputs}, {"workspace", bytes->workspace},
                {"everything", bytes->total}};
    strbuf_puts(out, "\non the GPU            bytes         MiB\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        strbuf_printf(out, "%-12s %14zu %11.2f\n", rows[i].name, rows[i].bytes,
                      (double)rows[i].bytes / 0x1p20);
}

/* Whether it fits, where there is a GPU to ask. */
static void print_verdict(const cuda_bytes *bytes, strbuf *out)
{
    cuda_device device = {0};
    qp_error why;
    size_t available;
    qp_status status = cuda_device_open(&device, &why);
    if (status == QP_OK) status = cuda_device_free_memory(&device, &available, &why);
    if (status != QP_OK)
        strbuf_printf(out, "\nno GPU to hold it against: %s\n", why.message);
    else
        strbuf_printf(out, "\n%s: %.2f of %.2f GiB are free: it %s\n", device.name,
                      (double)available / 0x1p30, (double)device.memory_total / 0x1p30,
                      bytes->total <= available ? "fits" : "does not fit");
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
    if (status == QP_OK) {
        cuda_bytes bytes = cuda_executor_count(&plan, model);
        print_parts(&bytes, out);
        print_verdict(&bytes, out);
    }
    plan_free(&plan);
    model_close(model);
    return status;
}
