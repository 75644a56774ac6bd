/* Tokens of a template: see lexer.h. The rules are those of jinja2's lexer. */
#include "template/lexer.h"

#include "template/pychar.h"

#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void lexer_start(lexer *lexer, heap *heap, const char *source, size_t length, qp_error *error)
{
    memset(lexer, 0, sizeof *lexer);
    lexer->heap = heap;
    lexer->error = error;
    lexer->source = source;
    lexer->length = length;
    lexer->line = lexer->column = 1;
}

qp_status template_error_at(qp_error *error, qp_status status, uint32_t line, uint32_t column,
                            const char *format, ...)
{
    char message[QP_ERROR_SIZE];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return error_set(error, status, "chat template, line %u, column %u: %s", line, column, message);
}

/* Moves the mark, from which lines and columns are counted, forward to `offset`. */
static void mark(lexer *lexer, size_t offset)
{
    uint32_t code;
    while (lexer->marked < offset) {
        const char *next = lexer->source + lexer->marked;
        lexer->marked += pychar_decode(next, lexer->length - lexer->marked, &code);
        lexer->column = code == '\n' ? 1 : lexer->column + 1;
        lexer->line += code == '\n';
    }
}

static qp_status lexer_fail(lexer *lexer, size_t offset, const char *message)
{
    mark(lexer, offset);
    return template_error_at(lexer->error, QP_FORMAT, lexer->line, lexer->column, "%s", message);
}

static bool starts(const lexer *lexer, size_t at, const char *text)
{
    size_t length = strlen(text);
    return at <= lexer->length && length <= lexer->length - at &&
           memcmp(lexer->source + at, text, length) == 0;
}

/* The offset after the white space at `at`. */
static size_t skip_space(const lexer *lexer, size_t at)
{
    uint32_t code;
    while (at < lexer->length) {
        size_t size = pychar_decode(lexer->source + at, lexer->length - at, &code);
        if (!pychar_is_space(code)) break;
        at += size;
    }
    return at;
}

/* The end of [from, to) without trailing white space. */
static size_t rstrip(const lexer *lexer, size_t from, size_t to)
{
    size_t end = from;
    uint32_t code;
    for (size_t at = from; at < to;) {
        at += pychar_decode(lexer->source + at, to - at, &code);
        if (!pychar_is_space(code)) end = at;
    }
    return end;
}

/* Where the text before a tag ends. `-` removes all white space; without a sign, lstrip_blocks
 * removes blanks between the start of the line and the tag. */
static size_t text_end(const lexer *lexer, size_t from, size_t to, char sign, bool is_print)
{
    if (sign == '-') return rstrip(lexer, from, to);
    if (sign == '+' || is_print) return to;
    size_t line = to;
    while (line > from && lexer->source[line - 1] != '\n')
        line--;
    bool line_start = line > from || from == 0 || lexer->source[from - 1] == '\n';
    return line_start && rstrip(lexer, line, to) == line ? line : to;
}

/* Whether a tag ends at `at` with `close` and an optional sign. *after: the offset after it and
 * after the white space that it removes. Printing tags have no + and trim no newline. */
static bool tag_end(const lexer *lexer, size_t at, const char *close, bool is_print, size_t *after)
{
    char sign = at < lexer->length ? lexer->source[at] : 0;
    if (sign == '-' && starts(lexer, at + 1, close)) {
        *after = skip_space(lexer, at + 1 + strlen(close));
        return true;
    }
    if (sign == '+' && !is_print && starts(lexer, at + 1, close)) {
        *after = at + 1 + strlen(close);
        return true;
    }
    if (!starts(lexer, at, close)) return false;
    *after = at + strlen(close);
    if (!is_print && starts(lexer, *after, "\n")) ++*after;
    return true;
}

/* The sign after the two characters that open a tag, or 0. */
static char tag_sign(const lexer *lexer, size_t at)
{
    char sign = at + 2 < lexer->length ? lexer->source[at + 2] : 0;
    return sign == '-' || sign == '+' ? sign : 0;
}

/* Whether `{% word %}` begins at `at`, with any signs; *after: the offset after the white space
 * that it removes.
 */
static bool word_tag(const lexer *lexer, size_t at, const char *word, bool opening, size_t *after)
{
    if (!starts(lexer, at, "{%")) return false;
    size_t name = skip_space(lexer, at + 2 + (tag_sign(lexer, at) != 0));
    if (!starts(lexer, name, word)) return false;
    size_t end = skip_space(lexer, name + strlen(word));
    if (!opening) return tag_end(lexer, end, "%}", false, after);
    return !starts(lexer, end, "+") && tag_end(lexer, end, "%}", true, after);
}

static qp_status emit_data(lexer *lexer, size_t from, size_t to, token *out)
{
    mark(lexer, from);
    out->kind = TOKEN_DATA;
    out->line = lexer->line;
    out->column = lexer->column;
    out->text = string_view(lexer->heap, lexer->source + from, to - from);
    return out->text ? QP_OK : error_no_memory(lexer->error, "a template's text", to - from);
}

static qp_status lex_raw(lexer *lexer, size_t tag, size_t body, token *out)
{
    for (size_t at = body; at < lexer->length; at++) {
        size_t after;
        if (lexer->source[at] != '{' || !word_tag(lexer, at, "endraw", false, &after)) continue;
        lexer->at = after;
        return emit_data(lexer, body, text_end(lexer, body, at, tag_sign(lexer, at), false), out);
    }
    return lexer_fail(lexer, tag, "this raw block has no {% endraw %}");
}

static qp_status skip_comment(lexer *lexer, size_t tag)
{
    for (size_t at = tag + 2 + (tag_sign(lexer, tag) != 0); at < lexer->length; at++) {
        if (tag_end(lexer, at, "#}", false, &lexer->at)) return QP_OK;
    }
    return lexer_fail(lexer, tag, "this comment has no end #}");
}

/* The next tag's offset, or the length. */
static size_t find_tag(const lexer *lexer, size_t at)
{
    for (; at + 1 < lexer->length; at++) {
        char next = lexer->source[at + 1];
        if (lexer->source[at] == '{' && (next == '{' || next == '%' || next == '#')) return at;
    }
    return lexer->length;
}

/* Returns the text up to a tag; and then, at the tag itself, the token that opens it. */
static qp_status lex_text(lexer *lexer, token *out)
{
    while (lexer->at < lexer->length) {
        size_t from = lexer->at, tag = find_tag(lexer, from), raw_body;
        if (tag == lexer->length) {
            lexer->at = tag;
            return emit_data(lexer, from, tag, out);
        }
        char kind = lexer->source[tag + 1], sign = tag_sign(lexer, tag);
        size_t end = text_end(lexer, from, tag, sign, kind == '{');
        if (end > from) {
            /* The next call returns the tag; the white space stripped before it is not text any
             * more. */
            TRY(emit_data(lexer, from, end, out));
            lexer->at = tag;
            return QP_OK;
        }
        if (word_tag(lexer, tag, "raw", true, &raw_body)) return lex_raw(lexer, tag, raw_body, out);
        if (kind == '#') {
            TRY(skip_comment(lexer, tag));
            continue;
        }
        mark(lexer, tag);
        out->kind = kind == '{' ? TOKEN_PRINT_BEGIN : TOKEN_BLOCK_BEGIN;
        out->line = lexer->line;
        out->column = lexer->column;
        lexer->mode = kind == '{' ? LEXER_PRINT : LEXER_BLOCK;
        lexer->at = tag + 2 + (sign != 0);
        return QP_OK;
    }
    mark(lexer, lexer->length);
    *out = (token){.kind = TOKEN_END, .line = lexer->line, .column = lexer->column};
    return QP_OK;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_word(char c)
{
    return is_digit(c) || c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (unsigned char)c >= 0x80;
}

double template_parse_double(const char *text, size_t length)
{
    char small[64], *copy = length < sizeof small ? small : malloc(length + 1);
    if (!copy) return 0;
    size_t n = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] != '_') copy[n++] = text[i] == '.' ? *localeconv()->decimal_point : text[i];
    }
    copy[n] = '\0';
    double number = strtod(copy, NULL);
    if (copy != small) free(copy);
    return number;
}

/* Digits that single underscores may separate; returns the end. */
static size_t skip_digits(const lexer *lexer, size_t at)
{
    while (at < lexer->length &&
           (is_digit(lexer->source[at]) || (lexer->source[at] == '_' && at + 1 < lexer->length &&
                                            is_digit(lexer->source[at + 1]))))
        at++;
    return at;
}

/* The end of the float at `at`, or `at` where there is none. */
static size_t float_end(const lexer *lexer, size_t at)
{
    if (at > 0 && lexer->source[at - 1] == '.') return at;
    size_t whole = skip_digits(lexer, at), end = whole;
    if (end + 1 < lexer->length && lexer->source[end] == '.' && is_digit(lexer->source[end + 1]))
        end = skip_digits(lexer, end + 1);
    if (end < lexer->length && (lexer->source[end] | 32) == 'e') {
        size_t digits = end + 1;
        if (digits < lexer->length &&
            (lexer->source[digits] == '+' || lexer->source[digits] == '-'))
            digits++;
        if (digits < lexer->length && is_digit(lexer->source[digits]))
            end = skip_digits(lexer, digits);
    }
    return end > whole ? end : at;
}

static int digit_of(char c)
{
    return is_digit(c) ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : 99;
}

static qp_status lex_number(lexer *lexer, token *out)
{
    size_t from = lexer->at, end = float_end(lexer, from);
    if (end > from) {
        out->kind = TOKEN_FLOAT;
        out->number = value_float(template_parse_double(lexer->source + from, end - from));
        lexer->at = end;
        return QP_OK;
    }
    int base = 10;
    if (lexer->source[from] == '0' && from + 2 < lexer->length) {
        char mark = lexer->source[from + 1] | 32;
        base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
        if (base != 10 && digit_of(lexer->source[from + 2]) >= base) base = 10;
    }
    int64_t number = 0;
    size_t at = from + (base == 10 ? 0 : 2);
    bool zero = base == 10 && lexer->source[from] == '0'; /* 0 is followed only by zeros */
    for (; at < lexer->length; at++) {
        char c = lexer->source[at];
        if (c == '_' && at + 1 < lexer->length && digit_of(lexer->source[at + 1]) < base) continue;
        if (digit_of(c) >= base || (zero && c != '0')) break;
        if (__builtin_mul_overflow(number, base, &number) ||
            __builtin_add_overflow(number, digit_of(c), &number))
            return lexer_fail(lexer, from, "this integer does not fit into 64 bits");
    }
    out->kind = TOKEN_INT;
    out->number = value_int(number);
    lexer->at = at;
    return QP_OK;
}

/* Reads at most `most` digits of `base` at *at. */
static uint32_t read_digits(const char *text, size_t end, size_t *at, int base, int most, int *read)
{
    uint32_t number = 0;
    for (*read = 0; *read < most && *at < end && digit_of(text[*at]) < base; ++*read)
        number = number * (uint32_t)base + (uint32_t)digit_of(text[(*at)++]);
    return number;
}

/* Appends the character of the escape after the backslash at `*at - 1`, like Python's
 * unicode-escape codec, which leaves unknown escapes unchanged. Returns NULL, or an error
 * message. */
static const char *unescape(const char *text, size_t end, size_t *at, char *out, size_t *used)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = text[(*at)++];
    const char *simple = c ? strchr(from, c) : NULL;
    if (simple) {
        out[(*used)++] = to[simple - from];
        return NULL;
    }
    if (c == '\n') return NULL;
    int wanted = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0, read = 0;
    uint32_t code;
    if (wanted) {
        code = read_digits(text, end, at, 16, wanted, &read);
        if (read < wanted) return "an escape with too few hexadecimal digits";
    } else if (c >= '0' && c <= '7') {
        --*at;
        code = read_digits(text, end, at, 8, 3, &read);
    } else if (c == 'N') {
        return "escapes by character name (\\N) are not supported";
    } else {
        out[(*used)++] = '\\';
        out[(*used)++] = c;
        return NULL;
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return "an escape that is not a Unicode character";
    *used += pychar_encode(code, out + *used);
    return NULL;
}

static qp_status lex_string(lexer *lexer, token *out)
{
    size_t from = lexer->at, end = from + 1;
    char quote = lexer->source[from];
    bool escaped = false;
    while (end < lexer->length && lexer->source[end] != quote) {
        escaped |= lexer->source[end] == '\\';
        end += lexer->source[end] == '\\' ? 2 : 1;
    }
    if (end >= lexer->length) return lexer_fail(lexer, from, "this string has no closing quote");
    const char *text = lexer->source + from + 1;
    size_t length = end - from - 1;
    out->kind = TOKEN_STRING;
    lexer->at = end + 1;
    if (escaped) {
        /* No escape is shorter than the character that it encodes. */
        char *buffer = heap_alloc(lexer->heap, length, 1);
        if (!buffer) return error_no_memory(lexer->error, "a template's text", length);
        size_t used = 0;
        for (size_t at = 0; at < length;) {
            char c = text[at++];
            if (c != '\\') {
                buffer[used++] = c;
                continue;
            }
            const char *wrong = unescape(text, length, &at, buffer, &used);
            if (wrong) return lexer_fail(lexer, from + at, wrong);
        }
        text = buffer;
        length = used;
    }
    out->text = string_view(lexer->heap, text, length);
    return out->text ? QP_OK : error_no_memory(lexer->error, "a template's text", length);
}

/* Counts brackets: inside them, }} and %} do not end the tag. */
static qp_status balance(lexer *lexer, char c)
{
    const char *close = strchr("(){}[]", c);
    if (!close) return QP_OK;
    if (c == '(' || c == '{' || c == '[') {
        if (lexer->depth == TEMPLATE_MAX_NESTING)
            return lexer_fail(lexer, lexer->at, "brackets are nested too deeply");
        lexer->closing[lexer->depth++] = close[1];
        return QP_OK;
    }
    char expected = lexer->depth ? lexer->closing[lexer->depth - 1] : 0;
    char message[48];
    if (expected == c) {
        lexer->depth--;
        return QP_OK;
    }
    snprintf(message, sizeof message,
             expected ? "unexpected '%c', expected '%c'" : "unexpected '%c'", c, expected);
    return lexer_fail(lexer, lexer->at, message);
}

static qp_status lex_operator(lexer *lexer, token *out)
{
    static const struct {
        char text[3];
        token_kind kind;
    } operators[] = {
        {"**", TOKEN_POW},     {"//", TOKEN_FLOORDIV}, {"==", TOKEN_EQ},    {"!=", TOKEN_NE},
        {">=", TOKEN_GE},      {"<=", TOKEN_LE},       {"+", TOKEN_ADD},    {"-", TOKEN_SUB},
        {"/", TOKEN_DIV},      {"*", TOKEN_MUL},       {"%", TOKEN_MOD},    {"~", TOKEN_TILDE},
        {"[", TOKEN_LBRACKET}, {"]", TOKEN_RBRACKET},  {"(", TOKEN_LPAREN}, {")", TOKEN_RPAREN},
        {"{", TOKEN_LBRACE},   {"}", TOKEN_RBRACE},    {">", TOKEN_GT},     {"<", TOKEN_LT},
        {"=", TOKEN_ASSIGN},   {".", TOKEN_DOT},       {":", TOKEN_COLON},  {"|", TOKEN_PIPE},
        {",", TOKEN_COMMA},    {";", TOKEN_SEMICOLON},
    };
    for (size_t i = 0; i < sizeof operators / sizeof operators[0]; i++) {
        if (!starts(lexer, lexer->at, operators[i].text)) continue;
        TRY(balance(lexer, lexer->source[lexer->at]));
        out->kind = operators[i].kind;
        lexer->at += strlen(operators[i].text);
        return QP_OK;
    }
    char message[48];
    snprintf(message, sizeof message, "unexpected character '%c'", lexer->source[lexer->at]);
    return lexer_fail(lexer, lexer->at, message);
}

static qp_status lex_name(lexer *lexer, token *out)
{
    size_t from = lexer->at;
    while (lexer->at < lexer->length && is_word(lexer->source[lexer->at]))
        lexer->at++;
    out->kind = TOKEN_NAME;
    out->text = string_view(lexer->heap, lexer->source + from, lexer->at - from);
    return out->text ? QP_OK : error_no_memory(lexer->error, "a template's name", lexer->at - from);
}

static qp_status lex_code(lexer *lexer, token *out)
{
    bool is_print = lexer->mode == LEXER_PRINT;
    size_t after;
    lexer->at = skip_space(lexer, lexer->at);
    mark(lexer, lexer->at);
    out->line = lexer->line;
    out->column = lexer->column;
    if (lexer->depth == 0 && tag_end(lexer, lexer->at, is_print ? "}}" : "%}", is_print, &after)) {
        out->kind = is_print ? TOKEN_PRINT_END : TOKEN_BLOCK_END;
        lexer->at = after;
        lexer->mode = LEXER_TEXT;
        return QP_OK;
    }
    if (lexer->at == lexer->length) {
        out->kind = TOKEN_END;
        return QP_OK;
    }
    char c = lexer->source[lexer->at];
    if (is_digit(c)) return lex_number(lexer, out);
    if (c == '\'' || c == '"') return lex_string(lexer, out);
    return is_word(c) ? lex_name(lexer, out) : lex_operator(lexer, out);
}

qp_status lexer_next(lexer *lexer, token *out)
{
    memset(out, 0, sizeof *out);
    if (lexer->mode == LEXER_TEXT) return lex_text(lexer, out);
    size_t before = lexer->at;
    TRY(lex_code(lexer, out));
    size_t from = skip_space(lexer, before);
    out->start = lexer->source + (from < lexer->at ? from : before);
    out->length = lexer->at - (size_t)(out->start - lexer->source);
    return QP_OK;
}
