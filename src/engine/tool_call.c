/* Calls of tools in text: see tool_call.h. */
#define _GNU_SOURCE /* strdup */
#include "engine/tool_call.h"

#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

const char *const tool_call_marks[TOOL_CALL_FORMS] = {
    [TOOL_CALL_HERMES] = "<tool_call>",
    [TOOL_CALL_MISTRAL] = "[TOOL_CALLS]",
    [TOOL_CALL_PYTHON] = "<|python_tag|>",
    [TOOL_CALL_FUNCTION] = "<function=",
};
static const char HERMES_END[] = "</tool_call>", FUNCTION_END[] = "</function>",
                  ARGUMENTS_MARK[] = "[ARGS]";

enum stage { START, NAME, BETWEEN, LIST, VALUE, CLOSE };
enum place { KEY, COLON, BEFORE_VALUE, IN_VALUE };
enum member { OTHER, NAME_MEMBER, ARGUMENTS_MEMBER };
enum { LONGEST_NAME = 128 };

static bool is_text(const char *piece, size_t length, const char *text)
{
    return strlen(text) == length && memcmp(piece, text, length) == 0;
}

bool tool_call_is_mark(const char *piece, size_t length)
{
    for (int i = 0; i < TOOL_CALL_FUNCTION; i++)
        if (is_text(piece, length, tool_call_marks[i])) return true;
    return is_text(piece, length, HERMES_END) || is_text(piece, length, ARGUMENTS_MARK);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static bool begins(const char *text, size_t length, const char *word)
{
    const size_t n = strlen(word);
    return length >= n && memcmp(text, word, n) == 0;
}

/* Whether the text ends within the word. */
static bool may_become(const char *text, size_t length, const char *word)
{
    return length < strlen(word) && memcmp(text, word, length) == 0;
}

size_t tool_call_skip(const char *text, size_t length, bool *unsure)
{
    static const char *const ends[] = {HERMES_END, FUNCTION_END};
    size_t at = 0;
    *unsure = false;
    for (bool more = true; more && at < length;) {
        more = is_blank(text[at]) || text[at] == ';';
        at += more;
        for (size_t i = 0; !more && i < sizeof ends / sizeof *ends; i++) {
            more = begins(text + at, length - at, ends[i]);
            if (more) at += strlen(ends[i]);
            *unsure |= !more && may_become(text + at, length - at, ends[i]);
        }
    }
    return at;
}

/* ---- JSON ---------------------------------------------------------------------------------- */

/* Appends the text as cJSON can hold it: with U+FFFD for bytes that are not UTF-8 and for NULs, as
 * they are or as \\u0000 in a string. */
static void put_readable(strbuf *out, const char *text, size_t length)
{
    static const char nul[] = "\\u0000", backslash[] = "\\\\";
    const size_t nul_length = sizeof nul - 1, backslash_length = sizeof backslash - 1;
    for (const char *end = text + length; text < end;) {
        const size_t left = (size_t)(end - text);
        size_t taken = 1;
        if (*text == '\0') {
            strbuf_puts(out, UTF8_REPLACEMENT);
        } else if (left >= nul_length && memcmp(text, nul, nul_length) == 0) {
            strbuf_puts(out, UTF8_REPLACEMENT);
            taken = nul_length;
        } else if (left >= backslash_length && memcmp(text, backslash, backslash_length) == 0) {
            strbuf_append(out, text, taken = backslash_length);
        } else {
            while (taken < left && text[taken] && text[taken] != '\\')
                taken++;
            utf8_put_valid(out, text, taken);
        }
        text += taken;
    }
}

/* The value of a text of JSON; NULL: it is none. */
static cJSON *parse(const char *text, size_t length)
{
    strbuf readable = {0};
    cJSON *value = NULL;
    put_readable(&readable, text, length);
    if (!readable.failed)
        json_parse_exact(strbuf_text(&readable), readable.length, "a call", &value, NULL);
    strbuf_free(&readable);
    return value;
}

cJSON *tool_call_parse_arguments(const char *text, size_t length)
{
    cJSON *object = parse(text, length);
    if (cJSON_IsObject(object)) return object;
    cJSON_Delete(object);
    return NULL;
}

char *tool_call_print_arguments(const char *text, size_t length)
{
    cJSON *object = tool_call_parse_arguments(text, length);
    char *printed = object ? json_print(object) : NULL;
    cJSON_Delete(object);
    return printed;
}

/* ---- the value that is read ---------------------------------------------------------------- */

static void end_member(tool_call_reader *r, const char *text)
{
    if (r->place == IN_VALUE && r->member == NAME_MEMBER && !r->name) {
        cJSON *name = parse(text + r->value, r->at - r->value);
        if (cJSON_IsString(name)) r->name = strdup(name->valuestring);
        cJSON_Delete(name);
    }
    r->place = KEY;
}

static void end_key(tool_call_reader *r, const char *text)
{
    const char *key = text + r->key;
    const size_t length = r->at - r->key;
    const bool arguments =
        is_text(key, length, "\"arguments\"") || is_text(key, length, "\"parameters\"");
    r->member = is_text(key, length, "\"name\"") ? NAME_MEMBER
                : arguments && !r->has_arguments ? ARGUMENTS_MEMBER
                                                 : OTHER;
    r->place = COLON;
}

static void begin_member_value(tool_call_reader *r)
{
    r->place = IN_VALUE;
    r->value = r->at;
    if (r->member != ARGUMENTS_MEMBER) return;
    r->has_arguments = true;
    r->arguments = r->arguments_end = r->sent = r->at;
}

/* Looks at one byte; false: it cannot stand there. *complete: the value ends with it. */
static bool look_at(tool_call_reader *r, const char *text, bool *complete)
{
    const char c = text[r->at];
    const bool members = r->depth == 1 && !r->whole;
    if (r->in_string) {
        r->in_string = r->escaped || c != '"';
        r->escaped = !r->escaped && c == '\\';
    } else if (members && r->place == KEY && c != '"' && c != '}' && c != ',' && !is_blank(c)) {
        return false;
    } else if (members && r->place == COLON && c != ':' && !is_blank(c)) {
        return false;
    } else if (members && (c == ',' || c == '}')) {
        end_member(r, text);
        r->depth -= c == '}';
        *complete = c == '}';
    } else if (!is_blank(c)) {
        if (members && r->place == COLON)
            r->place = BEFORE_VALUE;
        else if (members && r->place == BEFORE_VALUE)
            begin_member_value(r);
        else if (members && r->place == KEY)
            r->key = r->at;
        r->in_string = c == '"';
        r->depth += c == '{' || c == '[';
        r->depth -= c == '}' || c == ']';
        *complete = r->depth == 0;
    }
    r->at++;
    if (r->place == IN_VALUE && r->member == ARGUMENTS_MEMBER && (r->in_string || !is_blank(c)))
        r->arguments_end = r->at;
    if (members && r->place == KEY && c == '"' && !r->in_string) end_key(r, text);
    return true;
}

/* `whole`: the value is the arguments, not an object that has them. */
static void begin_value(tool_call_reader *r, bool whole)
{
    r->stage = VALUE;
    r->begin = r->at;
    r->place = KEY;
    r->whole = whole;
    if (!whole) return;
    r->member = ARGUMENTS_MEMBER;
    begin_member_value(r);
}

/* Checks the whole value strictly. Arguments that are a text, or absent, are known only now. */
static bool check_value(tool_call_reader *r, const char *text)
{
    cJSON *value = parse(text + r->begin, r->at - r->begin);
    const cJSON *arguments = r->whole ? value : json_get(value, "arguments");
    if (!arguments) arguments = json_get(value, "parameters");
    bool good = value && r->name;
    if (good && cJSON_IsString(arguments)) {
        char *opened =
            tool_call_print_arguments(arguments->valuestring, strlen(arguments->valuestring));
        good = opened && strbuf_puts(&r->own, opened);
        free(opened);
    } else if (good && !arguments) {
        good = r->form != TOOL_CALL_BARE && strbuf_puts(&r->own, "{}");
    } else if (good) {
        good = cJSON_IsObject(arguments);
        char *other = good && text[r->arguments] != '{' ? json_print(arguments) : NULL;
        if (other) good = strbuf_puts(&r->own, other); /* given twice: the last ones count */
        cJSON_free(other);
    }
    cJSON_Delete(value);
    return good;
}

/* ---- events -------------------------------------------------------------------------------- */

/* A tool's name, "" too; NULL: no memory. */
static char *copy_name(const char *text, size_t length)
{
    strbuf name = {0};
    put_readable(&name, text, length);
    strbuf_puts(&name, "");
    return strbuf_take(&name);
}

void tool_call_begin(tool_call_reader *r, tool_call_form form)
{
    tool_call_free(r);
    r->form = form;
    if (form < TOOL_CALL_FORMS) r->at = strlen(tool_call_marks[form]);
    if (form == TOOL_CALL_FUNCTION) r->stage = NAME;
}

void tool_call_begin_arguments(tool_call_reader *r, const char *name, size_t length)
{
    tool_call_begin(r, TOOL_CALL_CHANNEL);
    r->name = copy_name(name, length);
}

void tool_call_free(tool_call_reader *r)
{
    free(r->name);
    strbuf_free(&r->own);
    *r = (tool_call_reader){0};
}

static bool is_known(const tool_names *tools, const char *name)
{
    for (size_t i = 0; i < tools->count; i++)
        if (strcmp(tools->names[i], name) == 0) return true;
    return false;
}

/* Whether the name can be handed out: an object without a mark must also have arguments. */
static bool may_announce(const tool_call_reader *r)
{
    return !r->announced && r->name && (r->form != TOOL_CALL_BARE || r->has_arguments) &&
           (!r->complete || r->good);
}

static bool is_other_object(const tool_call_reader *r, const tool_names *tools)
{
    return r->form == TOOL_CALL_BARE && r->name && !is_known(tools, r->name);
}

static void skip_blanks(tool_call_reader *r, const char *text, size_t length)
{
    while (r->at < length && is_blank(text[r->at]))
        r->at++;
}

/* Skips a word that may stand there; false: more text is needed to know. */
static bool skip_word(tool_call_reader *r, const char *text, size_t length, bool ended,
                      const char *word)
{
    skip_blanks(r, text, length);
    const size_t left = length - r->at;
    if (!ended && may_become(text + r->at, left, word)) return false;
    if (begins(text + r->at, left, word)) r->at += strlen(word);
    return true;
}

static tool_call_event needs_more(tool_call_reader *r, size_t length, bool ended)
{
    if (!ended) return TOOL_CALL_MORE;
    r->at = length;
    return TOOL_CALL_BROKEN;
}

static tool_call_event read_start(tool_call_reader *r, const char *text, size_t length, bool ended)
{
    skip_blanks(r, text, length);
    if (r->at == length) return needs_more(r, length, ended);
    if (text[r->at] == '{') {
        begin_value(r, r->form == TOOL_CALL_CHANNEL);
    } else if (text[r->at] == '[' && r->form < TOOL_CALL_BARE) {
        r->at++;
        r->in_list = true;
        r->stage = LIST;
    } else if (r->form == TOOL_CALL_MISTRAL) {
        r->stage = NAME;
    } else {
        return TOOL_CALL_BROKEN;
    }
    return TOOL_CALL_GO_ON;
}

static tool_call_event read_name(tool_call_reader *r, const char *text, size_t length, bool ended)
{
    const size_t first = r->at;
    size_t end = first;
    while (end < length && end - first < LONGEST_NAME && !strchr("{[>( \n", text[end]))
        end++;
    if (end == length && end - first < LONGEST_NAME) return needs_more(r, length, ended);
    if (end == first || end - first == LONGEST_NAME) return TOOL_CALL_BROKEN;
    r->name = copy_name(text + first, end - first);
    r->at = end;
    r->stage = BETWEEN;
    return r->name ? TOOL_CALL_GO_ON : TOOL_CALL_BROKEN;
}

static tool_call_event read_between(tool_call_reader *r, const char *text, size_t length,
                                    bool ended)
{
    const char *word = r->form == TOOL_CALL_FUNCTION ? ">" : ARGUMENTS_MARK;
    if (!skip_word(r, text, length, ended, word)) return TOOL_CALL_MORE;
    skip_blanks(r, text, length);
    if (r->at == length) return needs_more(r, length, ended);
    if (text[r->at] != '{') return TOOL_CALL_BROKEN;
    begin_value(r, true);
    return TOOL_CALL_GO_ON;
}

static tool_call_event read_list(tool_call_reader *r, const char *text, size_t length, bool ended)
{
    while (r->at < length && (is_blank(text[r->at]) || text[r->at] == ','))
        r->at++;
    if (r->at == length) return needs_more(r, length, ended);
    if (text[r->at] == ']') {
        r->at++;
        return TOOL_CALL_OVER;
    }
    if (text[r->at] != '{') return TOOL_CALL_BROKEN;
    begin_value(r, false);
    return TOOL_CALL_GO_ON;
}

static tool_call_event read_value(tool_call_reader *r, const tool_names *tools, const char *text,
                                  size_t length, bool ended)
{
    while (r->at < length && !r->complete) {
        if (!look_at(r, text, &r->complete) || is_other_object(r, tools)) return TOOL_CALL_BROKEN;
        if (may_announce(r)) return TOOL_CALL_GO_ON;
    }
    if (!r->complete) return needs_more(r, length, ended);
    r->good = check_value(r, text);
    return TOOL_CALL_GO_ON;
}

static tool_call_event read_stage(tool_call_reader *r, const tool_names *tools, const char *text,
                                  size_t length, bool ended)
{
    switch ((enum stage)r->stage) {
    case START:
        return read_start(r, text, length, ended);
    case NAME:
        return read_name(r, text, length, ended);
    case BETWEEN:
        return read_between(r, text, length, ended);
    case LIST:
        return read_list(r, text, length, ended);
    case VALUE:
        return read_value(r, tools, text, length, ended);
    case CLOSE:
        break;
    }
    return TOOL_CALL_OVER;
}

/* Makes the reader one of the text after the call. */
static void go_past(tool_call_reader *r)
{
    const tool_call_form form = r->form;
    const bool in_list = r->in_list;
    tool_call_free(r);
    *r = (tool_call_reader){.form = form, .in_list = in_list, .stage = in_list ? LIST : CLOSE};
}

/* The arguments that were not handed out yet. */
static bool hand_out(tool_call_reader *r, const char *text, const char **out, size_t *length)
{
    if (!r->announced) return false;
    if (r->has_arguments && text[r->arguments] == '{' && r->arguments_end > r->sent) {
        *out = text + r->sent;
        *length = r->arguments_end - r->sent;
        r->sent = r->arguments_end;
        return true;
    }
    if (!r->complete || !r->good || r->own.length == 0 || r->own_sent) return false;
    *out = strbuf_text(&r->own);
    *length = r->own.length;
    return r->own_sent = true;
}

tool_call_event tool_call_next(tool_call_reader *r, const tool_names *tools, const char *text,
                               size_t length, bool ended, const char **out, size_t *out_length)
{
    tool_call_event event = TOOL_CALL_GO_ON;
    while (event == TOOL_CALL_GO_ON) {
        if (may_announce(r)) {
            r->announced = true;
            *out = r->name;
            *out_length = strlen(r->name);
            return TOOL_CALL_NAMED;
        }
        if (hand_out(r, text, out, out_length)) return TOOL_CALL_ARGUMENTS;
        if (r->complete) {
            event = r->good ? TOOL_CALL_DONE : TOOL_CALL_BROKEN;
            continue;
        }
        event = read_stage(r, tools, text, length, ended);
        if (event != TOOL_CALL_BROKEN) continue;
        r->complete = true; /* its arguments are handed out as far as they came */
        event = TOOL_CALL_GO_ON;
    }
    *out = text;
    *out_length = r->at;
    if (event == TOOL_CALL_DONE) go_past(r);
    return event;
}
