/* The prompts of a call: token ids, texts and conversations. See call.h. */
#include "server/call.h"

#include "server/server_state.h"

#include <stdlib.h>
#include <string.h>

const char *call_prompt_name(const call *c)
{
    return c->chat ? "messages" : c->embeds ? "input" : "prompt";
}

static qp_status no_memory(api_error *error, size_t bytes)
{
    return api_failed(error, error_no_memory(&error->error, "the prompt", bytes));
}

static qp_status add_prompt(call *c, call_prompt **out, api_error *error)
{
    if (c->n_prompts == CALL_MOST_PROMPTS)
        return api_refuse(error, 400, call_prompt_name(c), "a request may have %d prompts at most",
                          CALL_MOST_PROMPTS);
    if (c->n_prompts == c->prompts_capacity) {
        size_t capacity = c->prompts_capacity ? 2 * c->prompts_capacity : 1;
        call_prompt *grown = realloc(c->prompts, capacity * sizeof *grown);
        if (!grown) return no_memory(error, capacity * sizeof *grown);
        c->prompts = grown;
        c->prompts_capacity = capacity;
    }
    *out = &c->prompts[c->n_prompts];
    **out = (call_prompt){.request = request_new()};
    if (!(*out)->request) return no_memory(error, 0);
    c->n_prompts++;
    return QP_OK;
}

qp_status call_add_tokens(call *c, qp_tokens *tokens, api_error *error)
{
    call_prompt *prompt = NULL;
    int64_t vocab_size = c->server->info.vocab_size;
    for (size_t i = 0; i < tokens->count; i++) {
        if (tokens->data[i] < 0 || tokens->data[i] >= vocab_size)
            return api_refuse(error, 400, call_prompt_name(c),
                              "token %d of the prompt is outside the vocabulary of %lld tokens",
                              (int)tokens->data[i], (long long)vocab_size);
    }
    if (!tokens->count)
        return api_refuse(error, 400, call_prompt_name(c),
                          "the prompt is empty: at least one token is needed to begin from");
    TRY(add_prompt(c, &prompt, error));
    prompt->request->prompt = tokens->data;
    prompt->request->n_prompt = tokens->count;
    *tokens = (qp_tokens){0};
    return QP_OK;
}

qp_status call_append_token(qp_tokens *to, int32_t id, api_error *error)
{
    if (to->count == to->capacity) {
        const size_t capacity = to->capacity ? 2 * to->capacity : 256;
        int32_t *grown = realloc(to->data, capacity * sizeof *grown);
        if (!grown) return no_memory(error, capacity * sizeof *grown);
        to->data = grown;
        to->capacity = capacity;
    }
    to->data[to->count++] = id;
    return QP_OK;
}

/* Ends a function that filled `tokens`. */
static qp_status add_filled(call *c, qp_tokens *tokens, qp_status status, api_error *error)
{
    status = status == QP_OK ? call_add_tokens(c, tokens, error) : api_failed(error, status);
    qp_tokens_free(tokens);
    return status;
}

/* How the text at the beginning of a prompt is read: one that has BOS gets no other. */
static unsigned first_flags(const call *c, const char *text)
{
    size_t length = 0;
    const qp_vocabulary *v = c->server->vocabulary;
    const int32_t bos = qp_special_token(v, QP_ROLE_BOS);
    if (!c->p.parse_special) return QP_BOS_DEFAULT;
    const char *piece = bos >= 0 ? qp_token_piece(v, bos, &length) : NULL;
    const bool begun = piece && length && strncmp(text, piece, length) == 0;
    return (begun ? QP_BOS_NEVER : QP_BOS_DEFAULT) | QP_SPECIAL;
}

/* Texts to embed end with EOS where the model was trained so. */
qp_status call_add_text(call *c, const char *text, api_error *error)
{
    qp_tokens tokens = {0};
    TRY(server_vocabulary(c->server, error));
    const qp_vocabulary *v = c->server->vocabulary;
    qp_status status =
        qp_tokenize(v, text, strlen(text), first_flags(c, text), &tokens, &error->error);
    const bool ends = c->embeds && tokenizer_default_flags(v->tokenizer) & TOKENIZER_EOS;
    if (status == QP_OK && ends)
        status = call_append_token(&tokens, qp_special_token(v, QP_ROLE_EOS), error);
    return add_filled(c, &tokens, status, error);
}

qp_status call_add_chat(call *c, cJSON *variables, api_error *error)
{
    qp_tokens tokens = {0};
    char *json = json_print(variables);
    cJSON_Delete(variables);
    c->chat = true;
    if (!json) return no_memory(error, 0);
    qp_status status = qp_tokenize_chat(c->server->vocabulary, json, strlen(json),
                                        !c->p.no_generation_prompt, 0, &tokens, &error->error);
    cJSON_free(json);
    return add_filled(c, &tokens, status, error);
}

/* ---- Lists of prompts ---------------------------------------------------------------------- */

/* The text of a prompt: a string, or where prompts are mixed, {"prompt_string": text}. NULL: it is
 * something else. */
static const char *text_of(const call *c, const cJSON *prompt)
{
    const bool object = c->p.mixed && cJSON_IsObject(prompt);
    const bool other = object && json_get(prompt, "multimodal_data");
    const cJSON *text = object && !other ? json_get(prompt, "prompt_string") : prompt;
    return cJSON_IsString(text) ? text->valuestring : NULL;
}

bool call_token_id(const cJSON *item, int32_t *id)
{
    const double number = cJSON_IsNumber(item) ? item->valuedouble : -1;
    *id = number >= 0 && number <= INT32_MAX ? (int32_t)number : -1;
    return *id >= 0 && number == (double)*id;
}

/* An item of a prompt: a token id, or a text; only one that comes first begins with BOS. */
static qp_status append_item(const call *c, const char *name, const cJSON *item, qp_tokens *to,
                             api_error *error)
{
    int32_t id;
    const char *text = c->p.mixed ? text_of(c, item) : NULL;
    if (!text && !call_token_id(item, &id))
        return api_refuse(error, 400, name,
                          "token ids of a prompt must be whole numbers from 0 on");
    if (!text) return call_append_token(to, id, error);
    TRY(server_vocabulary(c->server, error));
    const unsigned later = QP_BOS_NEVER | (c->p.parse_special ? QP_SPECIAL : 0);
    const unsigned flags = to->count ? later : first_flags(c, text);
    qp_status status =
        qp_tokenize(c->server->vocabulary, text, strlen(text), flags, to, &error->error);
    return status == QP_OK ? QP_OK : api_failed(error, status);
}

static qp_status add_items(call *c, const char *name, const cJSON *items, api_error *error)
{
    qp_tokens tokens = {0};
    const cJSON *item;
    qp_status status = QP_OK;
    cJSON_ArrayForEach(item, items)
    {
        status = append_item(c, name, item, &tokens, error);
        if (status != QP_OK) break;
    }
    if (status == QP_OK) status = call_add_tokens(c, &tokens, error);
    qp_tokens_free(&tokens);
    return status;
}

static qp_status add_one(call *c, const char *name, const cJSON *prompt, call_prompt_added *added,
                         api_error *error)
{
    const char *text = text_of(c, prompt);
    if (!text && !cJSON_IsArray(prompt))
        return api_refuse(error, 400, name,
                          "\"%s\" must be a text, an array of token ids, or an array of these",
                          name);
    TRY(text ? call_add_text(c, text, error) : add_items(c, name, prompt, error));
    return added ? added(c, prompt, error) : QP_OK;
}

qp_status call_add_prompts(call *c, const char *name, call_prompt_added *added, api_error *error)
{
    const cJSON *prompt = c->p.prompt, *first = prompt->child, *item;
    if (!cJSON_IsArray(prompt) || cJSON_IsNumber(first))
        return add_one(c, name, prompt, added, error);
    if (!first) return api_refuse(error, 400, name, "\"%s\" is empty", name);
    cJSON_ArrayForEach(item, prompt) TRY(add_one(c, name, item, added, error));
    return QP_OK;
}
