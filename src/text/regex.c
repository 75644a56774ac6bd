/* Pre-tokenizer expressions on PCRE2: see regex.h. */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "text/regex.h"

#include "base/strbuf.h"

#include <pcre2.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Unicode's White_Space, fit for the inside of a character class. */
#define WHITE_SPACE                                                                                \
    "\\t-\\r\\x20\\x85\\xA0\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}"       \
    "\\x{3000}"

enum {
    MAX_PATTERN = 16384,
    HEAP_LIMIT_KIB = 65536,
    JIT_STACK_START = 32768,
    JIT_STACK_MAX = 4 << 20,
    MATCH_LIMIT_BASE =
        1000000, /* steps of one search, and additional steps for each byte of the subject: */
    MATCH_LIMIT_PER_BYTE = 32, /* harmless expressions backtrack over a run of spaces a few times */
};

struct regex {
    pcre2_code *code;
    char *where;
    char *pattern; /* as given; NULL for a plain string */
};

struct regex_scratch {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *jit_stack;
};

/* --- From Oniguruma's notation to PCRE2's. --- */

typedef struct rewriter {
    const char *pattern;
    size_t length, at;
    bool in_class;
    strbuf out;
} rewriter;

/* Refuses escapes that the two engines interpret differently, or that would let a match begin
 * inside a character or before the position asked for. */
static const char refused_escapes[] = "hHRXKCQENGgkoOyY";

/* Handles a backslash. False if the escape is refused. */
static bool rewrite_escape(rewriter *r)
{
    if (r->at + 1 >= r->length) return false;
    char c = r->pattern[r->at + 1];
    if (c == '\0' || strchr(refused_escapes, c)) return false;
    if (c == 's')
        strbuf_puts(&r->out, r->in_class ? WHITE_SPACE : "[" WHITE_SPACE "]");
    else if (c == 'S')
        strbuf_puts(&r->out, r->in_class ? "\\P{White_Space}" : "[^" WHITE_SPACE "]");
    else
        strbuf_append(&r->out, r->pattern + r->at, 2);
    r->at += 2;
    return true;
}

/* Whether an interval {n,m} that ends here is followed by '+', which is possessive in one engine
 * and a repetition in the other. */
static bool is_interval_plus(const rewriter *r)
{
    if (r->at + 1 >= r->length || r->pattern[r->at + 1] != '+') return false;
    size_t i = r->at;
    while (i > 0 && (r->pattern[i - 1] == ',' || (unsigned)(r->pattern[i - 1] - '0') < 10))
        i--;
    return i > 0 && i < r->at && r->pattern[i - 1] == '{';
}

/* Of the inline flags, only i has the same meaning. */
static bool are_flags_shared(const rewriter *r)
{
    for (size_t i = r->at + 2; i < r->length; i++) {
        char c = r->pattern[i];
        if (c == 'i' || c == '-') continue;
        return !(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z');
    }
    return false;
}

static bool rewrite_plain(rewriter *r)
{
    char c = r->pattern[r->at];
    char next = r->at + 1 < r->length ? r->pattern[r->at + 1] : '\0';
    if (r->in_class) {
        if (c == '[' || (c == '&' && next == '&')) return false; /* nested sets */
        if (c == ']') r->in_class = false;
    } else {
        if (c == '}' && is_interval_plus(r)) return false;
        if (c == '(' && next == '*') return false; /* PCRE2's verbs */
        if (c == '(' && next == '?' && !are_flags_shared(r)) return false;
        if (c == '[') {
            r->in_class = true;
            strbuf_putc(&r->out, c);
            r->at++;
            if (next == '^') {
                strbuf_putc(&r->out, '^');
                r->at++;
            }
            return r->at < r->length &&
                   r->pattern[r->at] != ']'; /* literal or empty: the engines differ */
        }
    }
    strbuf_putc(&r->out, c);
    r->at++;
    return true;
}

static qp_status rewrite(const char *pattern, size_t length, const char *where, strbuf *out,
                         qp_error *error)
{
    rewriter r = {.pattern = pattern, .length = length};
    while (r.at < length) {
        bool understood = pattern[r.at] == '\\' ? rewrite_escape(&r) : rewrite_plain(&r);
        if (understood) continue;
        strbuf_free(&r.out);
        return error_set(error, QP_UNSUPPORTED,
                         "%s: the expression %.200s uses a sign at byte %zu that quipu does not "
                         "read as the tokenizer's own engine does",
                         where, pattern, r.at);
    }
    if (r.out.failed) {
        strbuf_free(&r.out);
        return error_no_memory(error, "a pre-tokenizer's expression", length);
    }
    *out = r.out;
    return QP_OK;
}

/* --- Compiling and matching. --- */

static qp_status compile(const strbuf *pattern, uint32_t options, const char *where,
                         pcre2_code **out, qp_error *error)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) return error_no_memory(error, "a compile context", 0);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int code = 0;
    PCRE2_SIZE offset = 0;
    *out = pcre2_compile((PCRE2_SPTR)strbuf_text(pattern), pattern->length, options, &code, &offset,
                         context);
    pcre2_compile_context_free(context);
    if (*out) return QP_OK;
    PCRE2_UCHAR message[160] = "";
    pcre2_get_error_message(code, message, sizeof message);
    return error_set(error, QP_FORMAT, "%s: the expression %.200s is not valid at byte %zu: %s",
                     where, strbuf_text(pattern), (size_t)offset, (const char *)message);
}

qp_status regex_compile(const char *pattern, size_t length, bool literal, const char *where,
                        regex **out, qp_error *error)
{
    *out = NULL;
    if (length > MAX_PATTERN)
        return error_set(error, QP_UNSUPPORTED, "%s: an expression of %zu bytes, at most %d", where,
                         length, MAX_PATTERN);
    strbuf text = {0};
    uint32_t options = PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C;
    if (literal) {
        strbuf_append(&text, pattern, length);
        options = PCRE2_UTF | PCRE2_LITERAL;
    } else {
        TRY(rewrite(pattern, length, where, &text, error));
        options |= PCRE2_UCP | PCRE2_MULTILINE; /* In Ruby, ^ and $ match at every line */
    }
    regex *result = calloc(1, sizeof *result);
    if (result) result->where = strdup(where);
    if (result && !literal) result->pattern = strndup(pattern, length);
    qp_status status = QP_OK;
    if (!result || !result->where || (!literal && !result->pattern) || text.failed)
        status = error_no_memory(error, "an expression", length);
    else
        status = compile(&text, options, where, &result->code, error);
    strbuf_free(&text);
    if (status != QP_OK) {
        regex_free(result);
        return status;
    }
    /* Where the system refuses executable memory, the interpreter does the same, more slowly. */
    (void)pcre2_jit_compile(result->code, PCRE2_JIT_COMPLETE);
    *out = result;
    return QP_OK;
}

void regex_free(regex *regex)
{
    if (!regex) return;
    pcre2_code_free(regex->code);
    free(regex->where);
    free(regex->pattern);
    free(regex);
}

const char *regex_pattern(const regex *regex)
{
    return regex->pattern;
}

regex_scratch *regex_scratch_create(void)
{
    regex_scratch *scratch = calloc(1, sizeof *scratch);
    if (!scratch) return NULL;
    scratch->match = pcre2_match_data_create(1, NULL);
    scratch->context = pcre2_match_context_create(NULL);
    scratch->jit_stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MAX, NULL);
    if (!scratch->match || !scratch->context) {
        regex_scratch_free(scratch);
        return NULL;
    }
    pcre2_set_heap_limit(scratch->context, HEAP_LIMIT_KIB);
    if (scratch->jit_stack) pcre2_jit_stack_assign(scratch->context, NULL, scratch->jit_stack);
    return scratch;
}

void regex_scratch_free(regex_scratch *scratch)
{
    if (!scratch) return;
    pcre2_match_data_free(scratch->match);
    pcre2_match_context_free(scratch->context);
    pcre2_jit_stack_free(scratch->jit_stack);
    free(scratch);
}

qp_status regex_find(const regex *regex, regex_scratch *scratch, const char *subject, size_t length,
                     size_t from, bool *found, size_t *begin, size_t *end, qp_error *error)
{
    uint64_t limit = MATCH_LIMIT_BASE + (uint64_t)MATCH_LIMIT_PER_BYTE * length;
    pcre2_set_match_limit(scratch->context, limit > UINT32_MAX ? UINT32_MAX : (uint32_t)limit);
    int count = pcre2_match(regex->code, (PCRE2_SPTR)subject, length, from, PCRE2_NO_UTF_CHECK,
                            scratch->match, scratch->context);
    if (count ==
        PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter needs more memory than the compiled code */
        count = pcre2_match(regex->code, (PCRE2_SPTR)subject, length, from,
                            PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, scratch->match, scratch->context);
    *found = count >= 0;
    if (count >= 0) {
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(scratch->match);
        *begin = range[0];
        *end = range[1];
        return QP_OK;
    }
    if (count == PCRE2_ERROR_NOMATCH) return QP_OK;
    PCRE2_UCHAR message[160] = "";
    pcre2_get_error_message(count, message, sizeof message);
    return error_set(error, QP_UNSUPPORTED,
                     "%s: matching the pre-tokenizer's expression on %zu bytes of text failed: %s",
                     regex->where, length, (const char *)message);
}
