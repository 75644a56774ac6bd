/* Forms of answers: see qp_grammar in quipu.h. */
#include "base/sized.h"
#include "engine/engine.h"
#include "grammar/gbnf.h"
#include "grammar/json_schema.h"
#include "grammar/matcher.h"

static qp_status read_form(qp_grammar_kind kind, const char *text, size_t length, grammar *out,
                           qp_error *error)
{
    if (kind == QP_GRAMMAR_JSON_SCHEMA) return json_schema_parse(text, length, out, error);
    if (kind == QP_GRAMMAR_GBNF) return gbnf_read(text, length, out, error);
    if (kind == QP_GRAMMAR_JSON) return json_schema_any_object(out), QP_OK;
    return error_set(error, QP_INVALID, "there is no kind of grammar %d", (int)kind);
}

qp_status qp_grammar_open(const qp_vocabulary *v, qp_grammar_kind kind, const char *text,
                          size_t length, qp_grammar **out, qp_error *error)
{
    grammar g = {0};
    *out = NULL;
    if (!v) return vocabulary_missing(error);
    qp_status status = read_form(kind, text, length, &g, error);
    if (status == QP_OK) status = vocabulary_open_form(v, &g, out, error);
    grammar_free(&g);
    return status;
}

void qp_grammar_close(qp_grammar *grammar)
{
    form_release(grammar);
}

/* The masks of a form have bits for the ids of its own vocabulary. */
static qp_status check_vocabulary(const qp_engine *e, const tokenizer *t, qp_error *error)
{
    const int32_t size = tokenizer_vocab_size(t);
    if (!e->vocabulary && size > e->program.config.vocab_size)
        return error_set(error, QP_INVALID,
                         "the grammar is of a vocabulary with %d tokens, and the model has only "
                         "%lld rows of logits",
                         size, (long long)e->program.config.vocab_size);
    const int32_t id = e->vocabulary ? tokenizer_difference(e->vocabulary->tokenizer, t) : -1;
    if (id < 0) return QP_OK;
    return error_set(error, QP_INVALID,
                     "the grammar is of another vocabulary than the model's, in which token %d is "
                     "not the same text: open it with qp_engine_vocabulary()",
                     id);
}

qp_status qp_matcher_open(const qp_engine *e, const qp_sampling *given, qp_matcher **out,
                          qp_error *error)
{
    qp_sampling sampling;
    *out = NULL;
    TRY(SIZED_READ(qp_sampling, given, &sampling, error));
    if (!sampling.grammar)
        return error_set(error, QP_INVALID, "the settings have no grammar for the matcher");
    TRY(check_vocabulary(e, form_tokenizer(sampling.grammar), error));
    return matcher_open(sampling.grammar, sampling.stop_tokens, sampling.n_stop_tokens,
                        (size_t)e->program.config.vocab_size, out, error);
}

void qp_matcher_close(qp_matcher *matcher)
{
    matcher_close(matcher);
}

qp_status qp_matcher_allowed(qp_matcher *matcher, const uint32_t **allowed, qp_error *error)
{
    return matcher_mask(matcher, allowed, error);
}

qp_status qp_matcher_take(qp_matcher *matcher, int32_t token, qp_error *error)
{
    return matcher_take(matcher, token, error);
}
