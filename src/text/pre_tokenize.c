/* Cutting a text into words: see pre_tokenize.h. */
#include "text/pre_tokenize.h"

#include "text/utf8.h"

#include <string.h>

/* --- The list of steps. --- */

qp_status pre_tokenizer_add(pre_tokenizer *pre, pre_step step, const char *where, qp_error *error)
{
    if (pre->count == MAX_PRE_STEPS) {
        regex_free(step.split);
        return error_set(error, QP_UNSUPPORTED, "%s: more than %d pre-tokenizers in a row", where,
                         MAX_PRE_STEPS);
    }
    pre->steps[pre->count++] = step;
    return QP_OK;
}

qp_status pre_tokenizer_add_split(pre_tokenizer *pre, const char *pattern, split_behavior behavior,
                                  const char *where, qp_error *error)
{
    pre_step step = {.behavior = behavior};
    TRY(regex_compile(pattern, strlen(pattern), false, where, &step.split, error));
    return pre_tokenizer_add(pre, step, where, error);
}

void pre_tokenizer_free(pre_tokenizer *pre)
{
    for (int i = 0; i < pre->count; i++)
        regex_free(pre->steps[i].split);
    pre->count = 0;
}

void pre_scratch_free(pre_scratch *scratch)
{
    regex_scratch_free(scratch->regex);
    for (int i = 0; i < MAX_PRE_STEPS; i++)
        strbuf_free(&scratch->prefixed[i]);
    memset(scratch, 0, sizeof *scratch);
}

/* --- Running them. --- */

typedef struct run {
    const pre_tokenizer *pre;
    pre_scratch *scratch;
    bool is_first;
    pre_tokenizer_word *word;
    void *context;
} run;

/* A word in progress: a stretch that was cut off and may still be joined with the next ones. */
typedef struct cutter {
    const run *run;
    int step;
    const char *text;
    size_t begin, end; /* the pending stretch; empty when begin == end */
    bool is_match;     /* the last part of the pending stretch */
} cutter;

static qp_status run_step(const run *run, int step, const char *text, size_t length,
                          qp_error *error);

static qp_status flush(cutter *c, qp_error *error)
{
    size_t begin = c->begin, end = c->end;
    c->begin = c->end;
    return run_step(c->run, c->step + 1, c->text + begin, end - begin, error);
}

/* Whether the next stretch is joined to the pending one. */
static bool joins(const cutter *c, split_behavior behavior, bool is_match)
{
    if (c->begin == c->end) return false;
    switch (behavior) {
    case SPLIT_MERGED_WITH_PREVIOUS:
        return is_match && !c->is_match;
    case SPLIT_MERGED_WITH_NEXT:
        return !is_match && c->is_match;
    case SPLIT_CONTIGUOUS:
        return is_match == c->is_match;
    case SPLIT_ISOLATED:
    case SPLIT_REMOVED:
        return false;
    }
    return false;
}

/* Finds the next stretch, directly after the last one: a match, or the text between two matches. */
static qp_status cut(cutter *c, size_t begin, size_t end, bool is_match, qp_error *error)
{
    const pre_step *step = &c->run->pre->steps[c->step];
    is_match = is_match != step->invert;
    if (!joins(c, step->behavior, is_match)) {
        TRY(flush(c, error));
        c->begin = begin;
    }
    c->end = end;
    c->is_match = is_match;
    if (step->behavior == SPLIT_REMOVED && is_match) c->begin = end;
    return QP_OK;
}

/* Cuts text[0 .. length), which is valid UTF-8. */
static qp_status split_valid(cutter *c, size_t length, qp_error *error)
{
    const regex *regex = c->run->pre->steps[c->step].split;
    size_t done = 0, from = 0;
    while (from <= length) {
        bool found;
        size_t begin, end;
        TRY(regex_find(regex, c->run->scratch->regex, c->text, length, from, &found, &begin, &end,
                       error));
        if (!found) break;
        if (begin > done) TRY(cut(c, done, begin, false, error));
        TRY(cut(c, begin, end, true, error));
        done = from = end;
        if (begin == end) from += end < length ? utf8_sequence(c->text + end, length - end) : 1;
    }
    if (done < length) TRY(cut(c, done, length, false, error));
    return flush(c, error);
}

static qp_status run_split(const run *run, int step, const char *text, size_t length,
                           qp_error *error)
{
    while (length > 0) {
        size_t valid = utf8_valid_run(text, length);
        if (valid > 0) {
            cutter c = {.run = run, .step = step, .text = text};
            TRY(split_valid(&c, valid, error));
        }
        size_t invalid = utf8_invalid_run(text + valid, length - valid);
        TRY(run_step(run, step + 1, text + valid, invalid, error));
        text += valid + invalid;
        length -= valid + invalid;
    }
    return QP_OK;
}

static qp_status run_prefix(const run *run, int step, const char *text, size_t length,
                            qp_error *error)
{
    space_prefix prefix = run->pre->steps[step].prefix;
    bool wanted = prefix == SPACE_PREFIX_ALWAYS || (prefix == SPACE_PREFIX_FIRST && run->is_first);
    if (!wanted || text[0] == ' ') return run_step(run, step + 1, text, length, error);
    strbuf *prefixed = &run->scratch->prefixed[step];
    strbuf_clear(prefixed);
    if (!strbuf_putc(prefixed, ' ') || !strbuf_append(prefixed, text, length))
        return error_no_memory(error, "a word", length);
    return run_step(run, step + 1, strbuf_text(prefixed), prefixed->length, error);
}

static qp_status run_step(const run *run, int step, const char *text, size_t length,
                          qp_error *error)
{
    if (length == 0) return QP_OK;
    if (step == run->pre->count) return run->word(run->context, text, length, error);
    if (run->pre->steps[step].split) return run_split(run, step, text, length, error);
    return run_prefix(run, step, text, length, error);
}

qp_status pre_tokenize(const pre_tokenizer *pre, pre_scratch *scratch, const char *text,
                       size_t length, bool is_first, pre_tokenizer_word *word, void *context,
                       qp_error *error)
{
    if (pre->count > 0 && !scratch->regex) {
        scratch->regex = regex_scratch_create();
        if (!scratch->regex) return error_no_memory(error, "the pre-tokenizer", 0);
    }
    run run = {pre, scratch, is_first, word, context};
    return run_step(&run, 0, text, length, error);
}
