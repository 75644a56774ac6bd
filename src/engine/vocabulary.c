/* A model's vocabulary: converts text to tokens and back: see quipu.h. */
#include "engine/vocabulary.h"

#include "file/mapping.h"
#include "file/synthetic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static qp_status open_gguf(qp_vocabulary *v, gguf *file, qp_error *error)
{
    TRY(tokenizer_open_gguf(file, &v->tokenizer, error));
    return chat_templates_read_gguf(file, &v->templates, error);
}

static qp_status open_directory(qp_vocabulary *v, const char *path, qp_error *error)
{
    TRY(tokenizer_open_directory(path, &v->tokenizer, error));
    return chat_templates_read_directory(path, &v->templates, error);
}

static qp_status open_source(const char *path, gguf *file, qp_vocabulary **out, qp_error *error)
{
    qp_vocabulary *v = calloc(1, sizeof *v);
    shared_trie *trie = calloc(1, sizeof *trie);
    if (!v || !trie) {
        free(v);
        free(trie);
        return error_no_memory(error, "the vocabulary", sizeof *v);
    }
    v->trie = trie;
    pthread_mutex_init(&trie->lock, NULL);
    qp_status status = file ? open_gguf(v, file, error) : open_directory(v, path, error);
    if (status == QP_OK)
        *out = v;
    else
        qp_vocabulary_close(v);
    return status;
}

qp_status qp_vocabulary_open(const char *path, qp_vocabulary **out, qp_error *error)
{
    *out = NULL;
    if (synthetic_is_name(path))
        return error_set(error, QP_UNSUPPORTED, "%s: a synthetic model has no vocabulary", path);
    if (file_is_directory(path)) return open_source(path, NULL, out, error);
    gguf *file;
    TRY(gguf_open(path, &file, error));
    qp_status status = open_source(path, file, out, error);
    gguf_close(file);
    return status;
}

/* Whether the files contain a vocabulary; a model without one takes token ids. */
static qp_status has_vocabulary(const model *model, bool *out, qp_error *error)
{
    const gguf *file = model_gguf(model);
    if (file) {
        text_slice kind = {0};
        TRY(gguf_get_string(file, "tokenizer.ggml.model", &kind, error));
        *out = kind.data && !slice_is(kind, "none") && !slice_is(kind, "no_vocab");
        return QP_OK;
    }
    static const char *const names[] = {"tokenizer.json", "tokenizer.model", "vocab.json"};
    *out = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[4096];
        if (snprintf(path, sizeof path, "%s/%s", model_path(model), names[i]) < (int)sizeof path)
            *out = *out || file_exists(path);
    }
    return QP_OK;
}

qp_status vocabulary_open_beside(const model *model, qp_vocabulary **out, qp_error *error)
{
    *out = NULL;
    bool there = false;
    if (!synthetic_is_name(model_path(model))) TRY(has_vocabulary(model, &there, error));
    if (!there) return QP_OK;
    return open_source(model_path(model), model_gguf(model), out, error);
}

static void *open_in_thread(void *context)
{
    vocabulary_reading *r = context;
    r->status = vocabulary_open_beside(r->model, &r->vocabulary, &r->error);
    return NULL;
}

void vocabulary_begin(const model *model, vocabulary_reading *r)
{
    *r = (vocabulary_reading){.model = model};
    r->has_thread = pthread_create(&r->thread, NULL, open_in_thread, r) == 0;
}

qp_status vocabulary_end(vocabulary_reading *r, qp_vocabulary **out, qp_error *error)
{
    if (r->has_thread)
        pthread_join(r->thread, NULL);
    else
        open_in_thread(r);
    *out = r->vocabulary;
    return r->status == QP_OK ? QP_OK : error_set(error, r->status, "%s", r->error.message);
}

void qp_vocabulary_close(qp_vocabulary *v)
{
    if (!v) return;
    token_trie_free(v->trie->trie);
    pthread_mutex_destroy(&v->trie->lock);
    free(v->trie);
    chat_templates_free(&v->templates);
    tokenizer_free(v->tokenizer);
    free(v);
}

enum { WARM_NS = 20000000 };

static qp_status find_trie(const qp_vocabulary *v, const token_trie **out, qp_error *error)
{
    shared_trie *shared = v->trie;
    pthread_mutex_lock(&shared->lock);
    qp_status status = shared->trie ? QP_OK : token_trie_build(v->tokenizer, &shared->trie, error);
    *out = shared->trie;
    pthread_mutex_unlock(&shared->lock);
    return status;
}

qp_status vocabulary_open_form(const qp_vocabulary *v, grammar *g, form **out, qp_error *error)
{
    const token_trie *trie;
    *out = NULL;
    TRY(find_trie(v, &trie, error));
    TRY(form_open(g, trie, out, error));
    form_warm(*out, WARM_NS);
    return QP_OK;
}

int32_t qp_vocabulary_size(const qp_vocabulary *v)
{
    return v ? tokenizer_vocab_size(v->tokenizer) : 0;
}

const char *qp_token_piece(const qp_vocabulary *v, int32_t id, size_t *length)
{
    *length = 0;
    return v ? tokenizer_piece(v->tokenizer, id, length) : NULL;
}

bool qp_token_is_control(const qp_vocabulary *v, int32_t id)
{
    return v && tokenizer_is_control(v->tokenizer, id);
}

int32_t qp_special_token(const qp_vocabulary *v, qp_role role)
{
    if (!v) return -1;
    const tokenizer_special ids = tokenizer_special_ids(v->tokenizer);
    switch (role) {
    case QP_ROLE_BOS:
        return ids.bos;
    case QP_ROLE_EOS:
        return ids.eos;
    case QP_ROLE_EOT:
        return ids.eot;
    case QP_ROLE_UNKNOWN:
        return ids.unknown;
    case QP_ROLE_PADDING:
        return ids.padding;
    }
    return -1;
}

const char *qp_chat_template(const qp_vocabulary *v)
{
    return v->templates.plain.source;
}

void qp_free(void *memory)
{
    free(memory);
}

void qp_tokens_free(qp_tokens *tokens)
{
    free(tokens->data);
    *tokens = (qp_tokens){0};
}

unsigned vocabulary_encode_flags(const tokenizer *tokenizer, unsigned flags)
{
    unsigned own = tokenizer_default_flags(tokenizer);
    if (flags & QP_BOS_ALWAYS) own |= TOKENIZER_BOS;
    if (flags & QP_BOS_NEVER) own &= ~(unsigned)TOKENIZER_BOS;
    own &= ~(unsigned)TOKENIZER_EOS; /* the message is continued by the caller */
    return own | (flags & QP_SPECIAL ? TOKENIZER_SPECIAL : 0);
}

qp_status vocabulary_missing(qp_error *error)
{
    return error_set(error, QP_INVALID,
                     "the model has no vocabulary: it takes and makes token ids");
}

qp_status qp_tokenize(const qp_vocabulary *v, const char *text, size_t length, unsigned flags,
                      qp_tokens *tokens, qp_error *error)
{
    if (!v) return vocabulary_missing(error);
    token_ids ids = {tokens->data, tokens->count, tokens->capacity};
    qp_status status = tokenizer_encode(v->tokenizer, text, length,
                                        vocabulary_encode_flags(v->tokenizer, flags), &ids, error);
    *tokens = (qp_tokens){ids.data, ids.count, ids.capacity};
    return status;
}

qp_status qp_detokenize(const qp_vocabulary *v, const int32_t *ids, size_t count, unsigned flags,
                        char **text, size_t *length, qp_error *error)
{
    *text = NULL;
    if (!v) return vocabulary_missing(error);
    strbuf out = {0};
    unsigned decode = flags & QP_SPECIAL ? TOKENIZER_DECODE_CONTROL : 0;
    qp_status status = tokenizer_decode(v->tokenizer, ids, count, decode, &out, error);
    if (length) *length = out.length;
    *text = strbuf_take(&out);
    if (status == QP_OK && !*text) status = error_no_memory(error, "the text", count);
    if (status != QP_OK) {
        free(*text);
        *text = NULL;
    }
    return status;
}
