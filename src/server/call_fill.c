/* Text that is filled in between two others: prompts with the marks of models for code. */
#include "server/call.h"

#include "server/server_state.h"

#include <string.h>

/* How a family writes it. A mark that is NULL is not there. */
typedef struct fill_marks {
    const char *prefix, *suffix, *middle; /* tokens; the first decides which family it is */
    bool suffix_first;
    const char *repository, *file; /* before texts of other files */
    const char *end;               /* ends the answer, besides the model's own tokens */
} fill_marks;

static const fill_marks families[] = {
    /* Qwen 2.5 Coder, CodeGemma */
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", false, "<|repo_name|>", "<|file_sep|>",
     "<|fim_pad|>"},
    /* StarCoder 1 and 2, Granite, SmolLM */
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", false, "<repo_name>", "<file_sep>",
     "<fim_pad>"},
    {"<reponame>", "<fim_suffix>", "<fim_middle>", false, NULL, NULL, NULL},
    /* Code Llama */
    {"\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>", false, NULL, NULL, "\u2581<EOT>"},
    {"<PRE>", "<SUF>", "<MID>", false, NULL, NULL, "<EOT>"},
    /* Codestral and other models of Mistral */
    {"[PREFIX]", "[SUFFIX]", NULL, true, NULL, NULL, NULL},
    /* DeepSeek Coder */
    {"<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>",
     false, NULL, NULL, NULL},
};

static int32_t token_of(const call *c, const char *mark)
{
    return mark ? tokenizer_find(c->server->vocabulary->tokenizer, mark, strlen(mark)) : -1;
}

static const fill_marks *find_marks(const call *c)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const fill_marks *m = &families[i];
        if (token_of(c, m->prefix) >= 0 && token_of(c, m->suffix) >= 0 &&
            (!m->middle || token_of(c, m->middle) >= 0))
            return m;
    }
    return NULL;
}

static qp_status put_mark(const call *c, const char *mark, qp_tokens *out, api_error *error)
{
    const int32_t token = token_of(c, mark);
    return token >= 0 ? call_append_token(out, token, error) : QP_OK;
}

/* Text of a client: without control tokens. */
static qp_status put_text(const call *c, const char *text, qp_tokens *out, api_error *error)
{
    qp_status status = qp_tokenize(c->server->vocabulary, text ? text : "", text ? strlen(text) : 0,
                                   QP_BOS_NEVER, out, &error->error);
    return status == QP_OK ? QP_OK : api_failed(error, status);
}

static qp_status put_files(const call *c, const fill_marks *m, const cJSON *files, qp_tokens *out,
                           api_error *error)
{
    const cJSON *file;
    if (cJSON_GetArraySize(files) && token_of(c, m->repository) >= 0) {
        TRY(put_mark(c, m->repository, out, error));
        TRY(put_text(c, "repository\n", out, error));
    }
    cJSON_ArrayForEach(file, files)
    {
        const char *name = cJSON_GetStringValue(json_get(file, "filename"));
        const char *text = cJSON_GetStringValue(json_get(file, "text"));
        if (!text)
            return api_refuse(error, 400, "input_extra",
                              "\"input_extra\" must be an array of {\"filename\", \"text\"}");
        TRY(put_mark(c, m->file, out, error));
        TRY(put_text(c, name ? name : "file", out, error));
        TRY(put_text(c, "\n", out, error));
        TRY(put_text(c, text, out, error));
        TRY(put_text(c, "\n", out, error));
    }
    if (cJSON_GetArraySize(files) && token_of(c, m->file) >= 0) {
        TRY(put_mark(c, m->file, out, error));
        TRY(put_text(c, "current\n", out, error));
    }
    return QP_OK;
}

static qp_status put_both(const call *c, const fill_marks *m, const char *before, const char *after,
                          qp_tokens *out, api_error *error)
{
    for (int i = 0; i < 2; i++) {
        const bool prefix = (i == 0) != m->suffix_first;
        TRY(put_mark(c, prefix ? m->prefix : m->suffix, out, error));
        TRY(put_text(c, prefix ? before : after, out, error));
    }
    return put_mark(c, m->middle, out, error);
}

/* The model goes on with another file, or with a mark, when it has filled in the text. */
static void add_ends(call *c, const fill_marks *m)
{
    const char *const ends[] = {m->end, m->file, m->repository, m->prefix, m->suffix, m->middle};
    qp_sampling *s = &c->p.sampling;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const int32_t token = token_of(c, ends[i]);
        if (token >= 0 && s->n_stop_tokens < QP_MAX_STOP_TOKENS)
            s->stop_tokens[s->n_stop_tokens++] = token;
    }
}

qp_status call_add_fill(call *c, const char *before, const char *after, const cJSON *files,
                        const char *begun, api_error *error)
{
    qp_tokens tokens = {0};
    TRY(server_vocabulary(c->server, error));
    const fill_marks *m = find_marks(c);
    if (!m)
        return api_refuse(
            error, 400, json_get(c->body, "suffix") ? "suffix" : "input_suffix",
            "text cannot be filled in before another: the model's vocabulary has no "
            "marks for that, such as <|fim_prefix|>, <fim_prefix>, <PRE> or [PREFIX]");
    add_ends(c, m);
    qp_status status =
        qp_tokenize(c->server->vocabulary, "", 0, QP_BOS_DEFAULT, &tokens, &error->error);
    if (status != QP_OK) status = api_failed(error, status);
    if (status == QP_OK) status = put_files(c, m, files, &tokens, error);
    if (status == QP_OK) status = put_both(c, m, before, after, &tokens, error);
    if (status == QP_OK && begun) status = put_text(c, begun, &tokens, error);
    if (status == QP_OK) status = call_add_tokens(c, &tokens, error);
    qp_tokens_free(&tokens);
    return status;
}
