/* Tokens become text, thoughts and calls of tools: see text_stream.h, and quipu.h. */
#define _GNU_SOURCE /* memmem */
#include "engine/text_stream.h"

#include "base/sized.h"
#include "engine/engine.h"
#include "engine/text_channels.h"

#include <stdlib.h>
#include <string.h>

/* The marks of thoughts that models are trained on; the template's source says which. */
static const thinking_marks marks_of_thoughts[] = {
    {"<think>", "</think>", NULL},                    /* Qwen 3, DeepSeek R1, SmolLM3 */
    {"[THINK]", "[/THINK]", NULL},                    /* Magistral */
    {"<seed:think>", "</seed:think>", NULL},          /* Seed */
    {"<|START_THINKING|>", "<|END_THINKING|>", NULL}, /* Command A */
    {"<|inner_prefix|>", "<|inner_suffix|>", NULL},   /* Apertus */
    {"<|channel|>analysis<|message|>", "<|channel|>final<|message|>", "<|start|>assistant"},
    /* gpt-oss */
};

/* ---- opening ------------------------------------------------------------------------------- */

static void free_texts(char **texts)
{
    for (size_t i = 0; texts && texts[i]; i++)
        free(texts[i]);
    free(texts);
}

/* A copy that ends with NULL. */
static qp_status copy_texts(const char *const *from, size_t n, char ***out, qp_error *error)
{
    *out = calloc(n + 1, sizeof **out);
    bool copied = *out != NULL;
    for (size_t i = 0; copied && i < n; i++)
        copied = ((*out)[i] = strdup(from[i])) != NULL;
    return copied ? QP_OK : error_no_memory(error, "the text stream", n * sizeof **out);
}

static qp_status take_sampling(qp_text_stream *s, const qp_sampling *given, qp_error *error)
{
    qp_sampling sampling = {0};
    if (given) TRY(SIZED_READ(qp_sampling, given, &sampling, error));
    for (size_t i = 0; i < sampling.n_stops; i++)
        if (!*sampling.stops[i])
            return error_set(error, QP_INVALID, "a stop text must not be empty");
    TRY(copy_texts(sampling.stops, sampling.n_stops, &s->stops, error));
    s->stop = (stop_text){.stops = (const char *const *)s->stops, .n_stops = sampling.n_stops};
    memcpy(s->stop_tokens, sampling.stop_tokens, sizeof s->stop_tokens);
    s->n_stop_tokens = sampling.n_stop_tokens;
    return QP_OK;
}

const thinking_marks *thinking_marks_of(const qp_vocabulary *v)
{
    const size_t n = sizeof marks_of_thoughts / sizeof *marks_of_thoughts;
    for (size_t i = 0; v && v->templates.plain.source && i < n; i++)
        if (strstr(v->templates.plain.source, marks_of_thoughts[i].close))
            return &marks_of_thoughts[i];
    return NULL;
}

/* Whether tokens end with a mark, before white space. */
static bool ends_with(const tokenizer *t, const int32_t *prompt, size_t n, const char *mark)
{
    enum { LAST_TOKENS = 16 };
    const size_t first = n > LAST_TOKENS ? n - LAST_TOKENS : 0, length = strlen(mark);
    strbuf text = {0};
    tokenizer_decode(t, prompt + first, n - first,
                     TOKENIZER_DECODE_CONTINUE | TOKENIZER_DECODE_CONTROL, &text, NULL);
    while (text.length > 0 && strchr(" \n\r\t", text.data[text.length - 1]))
        text.length--;
    const bool ends =
        text.length >= length && memcmp(text.data + text.length - length, mark, length) == 0;
    strbuf_free(&text);
    return ends;
}

bool thinking_begins(const thinking_marks *marks, const tokenizer *t, const int32_t *prompt,
                     size_t n)
{
    return ends_with(t, prompt, n, marks->open) ||
           (marks->prompt && ends_with(t, prompt, n, marks->prompt));
}

/* What the answer to a prompt begins with. */
static void begin(qp_text_stream *s, const thinking_marks *marks,
                  const qp_text_stream_options *given)
{
    const tokenizer *t = s->decoder.tokenizer;
    if (!marks || (!given->thinking && !marks->prompt)) return;
    if (given->thinking) s->thinking = marks;
    const bool header =
        marks->prompt && ends_with(t, given->prompt, given->n_prompt, marks->prompt);
    s->channels = header || (marks->prompt && (given->thinking || given->n_tools));
    if (header)
        s->state = TEXT_HEADER;
    else if (s->thinking && ends_with(t, given->prompt, given->n_prompt, marks->open))
        s->state = TEXT_THINKING;
    s->trims = s->state == TEXT_THINKING;
}

static qp_status open_stream(qp_text_stream *s, const qp_vocabulary *v,
                             const qp_text_stream_options *given, qp_error *error)
{
    qp_text_stream_options o;
    TRY(SIZED_READ(qp_text_stream_options, given, &o, error));
    TRY(take_sampling(s, o.sampling, error));
    TRY(copy_texts(o.tools, o.n_tools, &s->tools, error));
    s->names = (tool_names){(const char **)s->tools, o.n_tools};
    s->begins = true;
    if (!v) return QP_OK;
    tokenizer_decoder_init(&s->decoder, v->tokenizer,
                           TOKENIZER_DECODE_CONTINUE | (o.special ? TOKENIZER_DECODE_CONTROL : 0));
    begin(s, thinking_marks_of(v), &o);
    return QP_OK;
}

qp_status qp_text_stream_open(const qp_vocabulary *v, const qp_text_stream_options *options,
                              qp_text_stream **out, qp_error *error)
{
    *out = NULL;
    qp_text_stream *s = calloc(1, sizeof *s);
    if (!s) return error_no_memory(error, "the text stream", sizeof *s);
    const qp_status status = open_stream(s, v, options, error);
    if (status == QP_OK)
        *out = s;
    else
        qp_text_stream_close(s);
    return status;
}

void qp_text_stream_close(qp_text_stream *s)
{
    if (!s) return;
    free_texts(s->stops);
    free_texts(s->tools);
    strbuf_free(&s->stop.pending);
    strbuf_free(&s->rest);
    tool_call_free(&s->call);
    free(s);
}

/* ---- tokens -------------------------------------------------------------------------------- */

static bool is_stop_token(const qp_text_stream *s, int32_t token)
{
    for (size_t i = 0; i < s->n_stop_tokens; i++)
        if (s->stop_tokens[i] == token) return true;
    return false;
}

/* Whether a control token is a mark that the stream looks for, and so is a part of the text. */
static bool is_mark(const qp_text_stream *s, const char *piece, size_t length)
{
    if (s->names.count && tool_call_is_mark(piece, length)) return true;
    if (s->channels) return text_channels_is_mark(piece, length);
    const thinking_marks *m = s->thinking;
    return m && ((strlen(m->open) == length && memcmp(m->open, piece, length) == 0) ||
                 (strlen(m->close) == length && memcmp(m->close, piece, length) == 0));
}

static qp_status decode(qp_text_stream *s, int32_t token, qp_error *error)
{
    const tokenizer *t = s->decoder.tokenizer;
    strbuf *pending = &s->stop.pending;
    const size_t before = pending->length;
    size_t length = 0;
    if (!t || token >= tokenizer_vocab_size(t)) return QP_OK;
    const char *piece = tokenizer_is_control(t, token) ? tokenizer_piece(t, token, &length) : NULL;
    if (piece && is_mark(s, piece, length))
        strbuf_append(pending, piece, length);
    else
        TRY(tokenizer_decoder_push(&s->decoder, token, pending, error));
    s->decoded += pending->length - before;
    return QP_OK;
}

/* Makes the next bytes of the pending text certain. */
static qp_status take_certain(qp_text_stream *s, size_t count, qp_error *error)
{
    const bool failed = s->stop.pending.failed ||
                        (count && !strbuf_append(&s->rest, strbuf_text(&s->stop.pending), count));
    stop_text_consume(&s->stop, count);
    s->certain += count;
    return failed ? error_no_memory(error, "the text", s->rest.length) : QP_OK;
}

static qp_status end(qp_text_stream *s, qp_finish finish, qp_error *error)
{
    s->ended = true;
    s->finish = finish;
    if (s->decoder.tokenizer && !s->stop.found) {
        TRY(tokenizer_decoder_flush(&s->decoder, &s->stop.pending, error));
        stop_text_scan(&s->stop);
        if (s->stop.found) s->finish = QP_FINISH_STOP_TEXT;
    }
    return take_certain(s, s->stop.pending.length, error);
}

qp_status qp_text_stream_add(qp_text_stream *s, int32_t token, qp_error *error)
{
    if (s->ended) return QP_OK;
    if (is_stop_token(s, token)) return end(s, QP_FINISH_STOP_TOKEN, error);
    TRY(decode(s, token, error));
    return text_stream_scan(s, error);
}

qp_status text_stream_scan(qp_text_stream *s, qp_error *error)
{
    const size_t certain = stop_text_scan(&s->stop);
    return s->stop.found ? end(s, QP_FINISH_STOP_TEXT, error) : take_certain(s, certain, error);
}

qp_status qp_text_stream_end(qp_text_stream *s, qp_error *error)
{
    return s->ended ? QP_OK : end(s, QP_FINISH_LENGTH, error);
}

bool qp_text_stream_ended(const qp_text_stream *s, qp_finish *finish, const char **stop)
{
    const bool stopped = s->ended && s->finish != QP_FINISH_LENGTH;
    if (stopped && finish) *finish = s->finish;
    if (stop) *stop = s->stop.found;
    return stopped;
}

/* ---- pieces -------------------------------------------------------------------------------- */

const char *text_stream_rest(const qp_text_stream *s, size_t *length)
{
    *length = s->rest.length - s->handed;
    return strbuf_text(&s->rest) + s->handed;
}

static void drop_handed(qp_text_stream *s)
{
    if (s->handed == 0) return;
    s->rest.length -= s->handed;
    memmove(s->rest.data, s->rest.data + s->handed, s->rest.length + 1);
    s->handed = 0;
}

static size_t blanks(const char *text, size_t length)
{
    size_t n = 0;
    while (n < length && strchr(" \n\r\t", text[n]) && text[n])
        n++;
    return n;
}

size_t text_stream_find(const char *text, size_t length, const char *word, bool ended, bool *whole)
{
    const size_t n = strlen(word);
    const char *at = memmem(text, length, word, n);
    *whole = at != NULL;
    if (at) return (size_t)(at - text);
    for (size_t k = n - 1 < length ? n - 1 : length; !ended && k > 0; k--)
        if (memcmp(text + length - k, word, k) == 0) return length - k;
    return length;
}

/* What begins after content. */
typedef struct opening {
    size_t at;
    bool whole; /* all of the mark is there */
    int form;   /* of a call; -1: a thought */
    const char *mark;
} opening;

static void look_for(const char *text, size_t length, const char *mark, int form, bool ended,
                     opening *first)
{
    bool whole;
    const size_t at = text_stream_find(text, length, mark, ended, &whole);
    if (at < first->at) *first = (opening){at, whole, form, mark};
}

static opening find_opening(const qp_text_stream *s, const char *text, size_t length)
{
    opening first = {.at = length};
    if (s->thinking) look_for(text, length, s->thinking->open, -1, s->ended, &first);
    for (int i = 0; s->names.count && i < TOOL_CALL_FORMS; i++)
        look_for(text, length, tool_call_marks[i], i, s->ended, &first);
    return first;
}

bool text_stream_give(qp_text_piece *piece, qp_text_kind kind, const char *text, size_t length)
{
    piece->kind = kind;
    piece->text = text;
    piece->length = length;
    return true;
}

static void begin_call(qp_text_stream *s, tool_call_form form)
{
    tool_call_begin(&s->call, form);
    s->state = TEXT_CALL;
    s->announced = false;
}

/* Skips what may stand before content: blanks of a mark, and marks that end calls. false: more text
 * is needed. */
static bool skip_before_content(qp_text_stream *s)
{
    size_t length;
    bool unsure = false;
    const char *text = text_stream_rest(s, &length);
    if (s->n_calls > 0 && s->begins)
        s->handed += tool_call_skip(text, length, &unsure);
    else if (s->trims)
        s->handed += blanks(text, length);
    if (unsure && !s->ended) return false;
    text_stream_rest(s, &length);
    if (length > 0) s->trims = false;
    return length > 0;
}

/* Content up to the next mark; or the mark itself, whose state begins. */
static bool next_content(qp_text_stream *s, qp_text_piece *piece)
{
    size_t length;
    if (!skip_before_content(s)) return false;
    const char *text = text_stream_rest(s, &length);
    const bool tools = s->names.count > 0, looks = s->begins && (tools || s->thinking);
    const size_t skip = looks ? blanks(text, length) : 0;
    if (looks && skip == length && !s->ended) return false;
    if (looks && tools && skip < length && text[skip] == '{')
        return begin_call(s, TOOL_CALL_BARE), false;
    const opening o = find_opening(s, text, length);
    size_t count = o.at;
    if (looks && o.at == skip && o.at < length) { /* blanks before a mark are its own */
        if (!o.whole) return false;
        s->handed += skip;
        count = 0;
    }
    if (count > 0) {
        s->begins = false;
        s->handed += count;
        return text_stream_give(piece, QP_TEXT_CONTENT, text, count);
    }
    if (!o.whole) return false;
    if (o.form >= 0) return begin_call(s, (tool_call_form)o.form), false;
    s->handed += strlen(o.mark);
    s->state = TEXT_THINKING;
    s->trims = true;
    return false;
}

/* Thoughts, without blanks before their end. */
static bool next_thought(qp_text_stream *s, qp_text_piece *piece)
{
    size_t length;
    bool whole;
    const char *text = text_stream_rest(s, &length);
    if (s->trims) {
        s->handed += blanks(text, length);
        text = text_stream_rest(s, &length);
        if (length > 0) s->trims = false;
    }
    const size_t at = text_stream_find(text, length, s->thinking->close, s->ended, &whole);
    size_t count = at;
    while ((whole || !s->ended) && count > 0 && blanks(text + count - 1, 1))
        count--;
    if (count > 0) {
        s->handed += count;
        return text_stream_give(piece, QP_TEXT_THINKING, text, count);
    }
    if (!whole) return false;
    s->handed += at + strlen(s->thinking->close);
    s->state = TEXT_CONTENT;
    s->trims = true;
    return false;
}

/* What the model wrote is no call: it is content, unless the call was announced. */
static bool give_broken(qp_text_stream *s, qp_text_piece *piece, const char *text, size_t length)
{
    if (!s->announced) return text_stream_give(piece, QP_TEXT_CONTENT, text, length);
    piece->call = s->n_calls++;
    piece->broken = 1;
    return text_stream_give(piece, QP_TEXT_CALL_END, text, length);
}

static bool next_of_call(qp_text_stream *s, qp_text_piece *piece)
{
    size_t length, out_length = 0;
    const char *text = text_stream_rest(s, &length), *out = NULL;
    piece->call = s->n_calls;
    switch (tool_call_next(&s->call, &s->names, text, length, s->ended, &out, &out_length)) {
    case TOOL_CALL_NAMED:
        s->announced = true;
        return text_stream_give(piece, QP_TEXT_CALL, out, out_length);
    case TOOL_CALL_ARGUMENTS:
        return text_stream_give(piece, QP_TEXT_ARGUMENTS, out, out_length);
    case TOOL_CALL_DONE:
        s->n_calls++;
        s->announced = false;
        s->handed += out_length;
        if (s->channels) s->state = TEXT_CONTENT;
        return text_stream_give(piece, QP_TEXT_CALL_END, out, out_length);
    case TOOL_CALL_BROKEN:
        s->state = TEXT_CONTENT;
        s->begins = false;
        s->handed += out_length;
        return give_broken(s, piece, out, out_length);
    case TOOL_CALL_OVER:
        s->state = TEXT_CONTENT;
        s->begins = true;
        s->handed += out_length;
        return false;
    default:
        return false;
    }
}

bool qp_text_stream_next(qp_text_stream *s, qp_text_piece *out)
{
    qp_text_piece piece = {.size = sizeof piece};
    bool found = false;
    drop_handed(s);
    for (bool more = true; more && !found && s->rest.length > s->handed;) {
        const size_t handed = s->handed;
        const text_state state = s->state;
        found = state == TEXT_CALL       ? next_of_call(s, &piece)
                : s->channels            ? text_channels_next(s, &piece)
                : state == TEXT_THINKING ? next_thought(s, &piece)
                                         : next_content(s, &piece);
        more = s->handed > handed || s->state != state;
    }
    return found && SIZED_WRITE(qp_text_piece, &piece, out, NULL) == QP_OK;
}
