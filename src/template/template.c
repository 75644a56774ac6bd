/* Compiles and renders templates: see template.h. */
#include "template/template.h"

#include "template/pychar.h"
#include "template/run.h"

#include <stdlib.h>
#include <string.h>

struct template
{
    heap heap;        /* the tree and its texts */
    const node *body; /* NULL for an empty template */
};

/* Enough memory for a tree: a token and its nodes cost a few dozen bytes. */
enum { BYTES_PER_SOURCE_BYTE = 512 };

/* Converts line ends to \n, and removes one at the very end, as jinja2 does before anything
 * else. */
static qp_status normalize(heap *heap, const char *source, size_t *length, const char **out,
                           qp_error *error)
{
    char *text = heap_alloc(heap, *length, 1);
    if (!text) return error_no_memory(error, "a chat template", *length);
    size_t used = 0;
    for (size_t i = 0; i < *length; i++) {
        text[used++] = source[i] == '\r' ? '\n' : source[i];
        if (source[i] == '\r' && i + 1 < *length && source[i + 1] == '\n') i++;
    }
    if (used && text[used - 1] == '\n') used--;
    *length = used;
    *out = text;
    return QP_OK;
}

static qp_status check_source(const char *source, size_t length, qp_error *error)
{
    if (length > TEMPLATE_MAX_SOURCE)
        return error_set(error, QP_FORMAT, "a chat template of %zu bytes: at most %zu are read",
                         length, TEMPLATE_MAX_SOURCE);
    size_t valid = pychar_valid_prefix(source, length);
    uint32_t line = 1, column = 1;
    if (valid == length) return QP_OK;
    for (size_t i = 0; i < valid; i++) {
        column = source[i] == '\n' ? 1 : column + ((source[i] & 0xc0) != 0x80);
        line += source[i] == '\n';
    }
    return template_error_at(error, QP_FORMAT, line, column, "not UTF-8: byte 0x%02x",
                             (unsigned)(unsigned char)source[valid]);
}

qp_status template_compile(const char *source, size_t length, template **out, qp_error *error)
{
    *out = NULL;
    TRY(check_source(source, length, error));
    template *made = calloc(1, sizeof *made);
    if (!made) return error_no_memory(error, "a chat template", sizeof *made);
    made->heap.limit = ((size_t)1 << 20) + length * BYTES_PER_SOURCE_BYTE;
    made->heap.max_steps = UINT64_MAX;
    const char *text = NULL;
    qp_status status = normalize(&made->heap, source, &length, &text, error);
    if (status == QP_OK) status = template_parse(&made->heap, text, length, &made->body, error);
    if (status == QP_OK)
        *out = made;
    else
        template_free(made);
    return status;
}

void template_free(template *template)
{
    if (!template) return;
    arena_free(&template->heap.arena);
    free(template);
}

static void resolve_options(run *run, const template_options *options)
{
    if (options) run->options = *options;
    template_options *resolved = &run->options;
    if (!resolved->max_steps) resolved->max_steps = TEMPLATE_MAX_STEPS;
    if (!resolved->max_output) resolved->max_output = TEMPLATE_MAX_OUTPUT;
    if (!resolved->max_memory) resolved->max_memory = TEMPLATE_MAX_MEMORY;
    run->heap.limit = resolved->max_memory;
    run->heap.max_steps = resolved->max_steps;
}

static qp_status render(run *run, const node *body, const cJSON *context)
{
    for (const cJSON *item = context->child; item; item = item->next) {
        value name, member;
        TRY(run_text(run, item->string, strlen(item->string), &name));
        TRY(run_from_json(run, item, 0, &member));
        TRY(scope_set(run, run->scope, name.as.text, member));
    }
    return run_exec(run, body);
}

qp_status template_render(const template *template, const cJSON *context,
                          const template_options *options, strbuf *out, qp_error *error)
{
    if (!cJSON_IsObject(context))
        return error_set(error, QP_INVALID,
                         "the variables of a chat template must be an object, found %s",
                         json_type_name(context));
    static const node start = {.line = 1, .column = 1};
    scope scope = {0};
    run run = {.error = error, .at = &start, .scope = &scope};
    builder text = {.run = &run};
    run.out = &text;
    resolve_options(&run, options);
    qp_status status = render(&run, template->body, context);
    if (status == QP_OK && !strbuf_append(out, text.data, text.length))
        status = error_no_memory(error, "a rendered conversation", text.length);
    arena_free(&run.heap.arena);
    return status;
}
