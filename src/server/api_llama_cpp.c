/* POST /completion, as llama.cpp's server has it: text that goes on, with the settings that made it
 * and how long it took. Clients written for that server, such as its command-line tools and plugins
 * of editors, use it in place of OpenAI's API. */
#include "server/endpoints.h"

#include "server/api_parts.h"
#include "server/lora.h"
#include "server/server_state.h"
#include "text/json_string.h"

#include <string.h>

static qp_status read_n_probs(void *out, const char *name, const cJSON *value, api_error *error)
{
    parameters *p = out;
    const double n = value->valuedouble;
    if (!(n >= 0 && n <= REQUEST_MAX_TOP) || n != (double)(int)n)
        return api_refuse(error, 400, name,
                          "\"%s\" must be a whole number from 0 to %d, found %.17g", name,
                          REQUEST_MAX_TOP, n);
    p->logprobs = n > 0;
    p->top_logprobs = (int64_t)n;
    return QP_OK;
}

static const field completion_fields[] = {
    FIELD("n_predict", READ(JSON_NUMBER, call_read_length), .schema = SCHEMA_COUNT,
          .help = "tokens of an answer; -1, or none: until the context is full"),
    FIELD("n_probs", READ(JSON_NUMBER, read_n_probs),
          .help = "log probabilities of the tokens, and of this many alternatives to each"),
    FIELD(
        "logit_bias", TREE(JSON_OBJECT | JSON_ARRAY, text_biases),
        .help =
            "added to the logits of tokens: {\"50256\": -1, \" word\": -1}, or arrays of an id or "
            "a text and a number or false"),
    FIELD("return_tokens", BOOLEAN(token_ids),
          .help = "the reply has the ids of the tokens; the events of a stream always do"),
    FIELD(
        "response_fields", TREE(JSON_ARRAY, reply_fields),
        .help =
            "the reply has only these fields; \"generation_settings/seed\" is one within another"),
    FIELD("return_progress", BOOLEAN(progress),
          .help = "a stream begins with events that say how much of the prompt is read"),
    FIELD("timings_per_token", BOOLEAN(timings),
          .help = "these events have timings; the last event always has them"),
    {0}};

static const field prompt_fields[] = {
    FIELD("prompt", TREE(JSON_STRING | JSON_ARRAY | JSON_OBJECT, prompt), .required = true,
          .help =
              "a text, an array of token ids and texts, {\"prompt_string\": text}, or an array of "
              "these"),
    {0}};

static const field fill_fields[] = {
    FIELD("input_prefix", TEXT(before), .help = "what comes before the text that is filled in"),
    FIELD("input_suffix", TEXT(suffix), .help = "what comes after it"),
    FIELD("input_extra", TREE(JSON_ARRAY, files), .items = ITEMS_OBJECTS,
          .help = "other files of the project: {\"filename\": name, \"text\": text}"),
    FIELD("prompt", TEXT(text),
          .help = "how the text that is filled in begins; it is not repeated"),
    {0}};

static const field *const completion_tables[] = {
    prompt_fields,       completion_fields,    call_openai_fields,
    call_ending_fields,  call_sampling_fields, call_vendor_fields,
    call_refused_fields, call_single_fields,   NULL};
static const field *const fill_tables[] = {
    fill_fields,         completion_fields,    call_openai_fields,
    call_ending_fields,  call_sampling_fields, call_vendor_fields,
    call_refused_fields, call_single_fields,   NULL};

/* Checks what the tables cannot. */
static qp_status check_completion(call *c, api_error *error)
{
    const cJSON *item;
    TRY(server_vocabulary(c->server, error));
    cJSON_ArrayForEach(item, c->p.reply_fields)
    {
        if (!cJSON_IsString(item))
            return api_refuse(error, 400, "response_fields",
                              "\"response_fields\" must be an array of names, found %s in it",
                              json_type_name(item));
    }
    if (c->p.text_biases)
        TRY(call_add_biases(&c->p, "logit_bias", c->p.text_biases, c->server->vocabulary, error));
    if (c->p.stream) c->p.token_ids = true;
    return QP_OK;
}

static qp_status read_completion(call *c, const cJSON *body, api_error *error)
{
    (void)body;
    TRY(check_completion(c, error));
    c->p.mixed = true;
    c->p.parse_special = atomic_load(&c->server->raw_special);
    return call_add_prompts(c, "prompt", NULL, error);
}

static qp_status read_fill(call *c, const cJSON *body, api_error *error)
{
    (void)body;
    TRY(check_completion(c, error));
    return call_add_fill(c, c->p.before, c->p.suffix, c->p.files, c->p.text, error);
}

/* ---- Parts of replies ---------------------------------------------------------------------- */

static void put_probabilities(const call *c, answer *a, size_t end, strbuf *out)
{
    if (!c->p.logprobs) return;
    json_put(out, ",'completion_probabilities':");
    put_notes(c, a, end, true, out);
}

static void put_settings(const call *c, const request *r, strbuf *out)
{
    json_put(out, ",'generation_settings':{'n_predict':%i,'stream':%b,", c->p.max_tokens,
             c->p.stream);
    for (int i = 0; i < QP_SETTING_COUNT; i++)
        json_put(out, "%q:%g,", qp_setting_name((qp_setting)i), r->sampling.value[i]);
    json_put(out, "'min_tokens':%z,'ignore_eos':%b,'n_probs':%d,'stop':[", r->min_tokens,
             r->ignore_eos, c->p.logprobs ? r->top_logprobs : 0);
    for (size_t i = 0; i < c->p.n_stops; i++)
        json_put(out, i ? ",%q" : "%q", c->p.stops[i]);
    json_put(out, "],'logit_bias':[");
    for (size_t i = 0; i < c->p.n_biases; i++)
        strbuf_printf(out, "%s{\"token\":%d,\"bias\":%.9g}", i ? "," : "",
                      (int)c->p.biases[i].token, (double)c->p.biases[i].bias);
    strbuf_puts(out, "]}");
}

/* The prompt as the model has read it. */
static void put_prompt(const call *c, const request *r, strbuf *out)
{
    char *text = NULL;
    size_t length = 0;
    qp_error ignored;
    qp_status status = qp_detokenize(c->server->vocabulary, r->prompt, r->n_prompt, QP_SPECIAL,
                                     &text, &length, &ignored);
    json_put(out, ",'prompt':%Q", status == QP_OK ? text : "", status == QP_OK ? length : 0);
    if (status == QP_OK) qp_free(text);
}

static void put_stop(const answer *a, strbuf *out)
{
    const char *type = a->finish == QP_FINISH_STOP_TOKEN  ? "eos"
                       : a->finish == QP_FINISH_STOP_TEXT ? "word"
                                                          : "limit";
    json_put(out, ",'stop':true,'stop_type':%q,'stopping_word':%q,'truncated':%b", type,
             a->stopped ? a->stopped : "", a->finish == QP_FINISH_CONTEXT);
}

void put_llama_cpp_result(const call *c, answer *a, bool last, strbuf *out)
{
    const request *r = c->prompts[a->prompt].request;
    json_put(out, "{'index':%z,'content':%Q", a->index, strbuf_text(&a->text),
             last ? 0 : a->text.length);
    put_ids(a, "tokens", last ? a->n_ids : 0, out);
    json_put(out, ",'model':%q,'tokens_predicted':%z,'tokens_evaluated':%z,'tokens_cached':%z",
             lora_model(c), a->n_tokens, r->n_prompt, r->n_prompt + a->n_tokens);
    put_settings(c, r, out);
    put_prompt(c, r, out);
    put_stop(a, out);
    json_put(out, ",'has_new_line':%b",
             memchr(strbuf_text(&a->text), '\n', a->text.length) != NULL);
    put_probabilities(c, a, a->n_notes, out);
    put_timings(c, a, last, out);
    strbuf_putc(out, '}');
}

/* ---- The fields that a client wants -------------------------------------------------------- */

/* The member of a tree by its path, with '/' between names; NULL: there is none. */
static const cJSON *find_member(const cJSON *tree, const char *path)
{
    char name[64];
    while (tree && *path) {
        const size_t length = strcspn(path, "/");
        if (length >= sizeof name) return NULL;
        memcpy(name, path, length);
        name[length] = '\0';
        tree = json_get(tree, name);
        path += length + (path[length] == '/');
    }
    return tree;
}

/* Appends the object `whole`, or of it only the fields of `names`, if there are any. */
static void put_fields(const strbuf *whole, const cJSON *names, strbuf *out)
{
    const cJSON *name;
    cJSON *tree = cJSON_GetArraySize(names) ? cJSON_Parse(strbuf_text(whole)) : NULL;
    cJSON *some = tree ? cJSON_CreateObject() : NULL;
    cJSON_ArrayForEach(name, names)
    {
        const cJSON *found = find_member(tree, name->valuestring);
        if (found) cJSON_AddItemToObject(some, name->valuestring, cJSON_Duplicate(found, true));
    }
    char *text = some ? cJSON_PrintUnformatted(some) : NULL;
    strbuf_puts(out, text ? text : strbuf_text(whole)); /* all, if the memory is out */
    cJSON_free(text);
    cJSON_Delete(tree);
    cJSON_Delete(some);
}

/* ---- Replies ------------------------------------------------------------------------------- */

static void put_wanted(const call *c, answer *a, bool last, strbuf *out)
{
    strbuf result = {0};
    put_llama_cpp_result(c, a, last, &result);
    put_fields(&result, c->p.reply_fields, out);
    strbuf_free(&result);
}

static void whole(call *c)
{
    strbuf *out = &c->out;
    if (c->n_answers > 1) strbuf_putc(out, '[');
    for (size_t i = 0; i < c->n_answers; i++) {
        if (i) strbuf_putc(out, ',');
        put_wanted(c, &c->answers[i], false, out);
    }
    if (c->n_answers > 1) strbuf_putc(out, ']');
}

static void delta(call *c, answer *a, qp_text_kind kind, const char *text, size_t length)
{
    (void)kind; /* there are no conversations here */
    const request *r = c->prompts[a->prompt].request;
    if (!length && a->n_ids == a->ids_sent) return;
    json_put(&c->out, "data: {'index':%z,'content':%Q", a->index, text, length);
    put_ids(a, "tokens", a->ids_sent, &c->out);
    json_put(&c->out, ",'stop':false,'tokens_predicted':%z,'tokens_evaluated':%z", a->n_tokens,
             r->n_prompt);
    put_probabilities(c, a, notes_handed(a), &c->out);
    strbuf_puts(&c->out, "}\n\n");
}

static void put_reading(call *c, const answer *a, size_t read)
{
    const request *r = c->prompts[a->prompt].request;
    json_put(&c->out,
             "data: {'index':%z,'content':'','tokens':[],'stop':false,'tokens_predicted':0,"
             "'tokens_evaluated':%z",
             a->index, r->n_prompt);
    if (c->p.timings) put_prompt_timings(c, a, read, &c->out);
    put_progress(c, a, read, &c->out);
    strbuf_puts(&c->out, "}\n\n");
}

static void finish(call *c, answer *a)
{
    strbuf_puts(&c->out, "data: ");
    put_wanted(c, a, true, &c->out);
    strbuf_puts(&c->out, "\n\n");
}

#define DIALECT(tables, reader)                                                                    \
    {                                                                                              \
        .fields = (tables), .stream_type = "text/event-stream", .likely = true, .read = (reader),  \
        .whole = whole, .delta = delta, .progress = put_reading, .finish = finish,                 \
        .fail = fail_openai                                                                        \
    }
const dialect llama_cpp_completion = DIALECT(completion_tables, read_completion);
const dialect llama_cpp_infill = DIALECT(fill_tables, read_fill);
