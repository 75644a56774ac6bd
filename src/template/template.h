/* Chat templates: a small Jinja that renders the `chat_template` of models.
 *
 * The dialect and its settings are those of transformers' apply_chat_template: jinja2's
 * ImmutableSandboxedEnvironment with trim_blocks, lstrip_blocks, loop controls, `generation`
 * blocks, raise_exception, strftime_now and a tojson that is json.dumps(ensure_ascii=False). Values
 * print as in Python. Templates are untrusted: nesting, steps, output and memory are bounded, and
 * rendering accesses only its arguments.
 *
 * Differences: integers have 64 bits (overflow is an error); there is no autoescaping, and `safe`
 * returns its argument; include, import, extends and block are refused. Numbers of the context are
 * floats where they were written with a point or an exponent, if the tree has their texts
 * (json_parse_exact()); else whole ones are integers.
 */
#pragma once

#include "base/json.h"
#include "base/strbuf.h"

#include <stddef.h>
#include <stdint.h>

/* A compiled template: immutable, so any number of threads may render it at once. */
typedef struct template template;

/* Inputs and limits of a rendering; a limit of 0 means its default. */
typedef struct template_options {
    int64_t now;        /* seconds since 1970-01-01 00:00 UTC: the time for strftime_now() */
    int32_t utc_offset; /* seconds that local time is ahead of UTC */
    uint64_t max_steps; /* most expressions and statements evaluated; long texts count by length */
    size_t max_output;  /* most bytes of output, including what macros and set blocks hold */
    size_t max_memory;  /* most bytes of values */
} template_options;

#define TEMPLATE_MAX_STEPS  UINT64_C(20000000)
#define TEMPLATE_MAX_OUTPUT ((size_t)16 << 20)
#define TEMPLATE_MAX_MEMORY ((size_t)256 << 20)
#define TEMPLATE_MAX_SOURCE ((size_t)1 << 20) /* most bytes of a template */

/* Parses `length` bytes of UTF-8. The message names line and column and what was found there.
 * template_free() the result. */
qp_status template_compile(const char *source, size_t length, template **out, qp_error *error);

/* Renders with the members of `context` (a JSON object: messages, add_generation_prompt, bos_token,
 * eos_token, tools, ...) as variables; a member that is null is Python's None. `options` may be
 * NULL. The text is appended to `out`, which is left as it was on failure. raise_exception() of the
 * template gives QP_INVALID with its message, exceeded limits QP_NO_MEMORY, other errors of the
 * template QP_FORMAT; each names line and column. */
qp_status template_render(const template *template, const cJSON *context,
                          const template_options *options, strbuf *out, qp_error *error);

void template_free(template *template);
