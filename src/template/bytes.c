/* The type bytes: str.encode() returns it, a sequence of whole numbers that prints as b'...'. See
 * run.h.
 */
#include "template/run.h"

#include "template/pychar.h"

#include <stdio.h>
#include <string.h>

typedef enum encoding { ENCODING_UTF8, ENCODING_ASCII, ENCODING_LATIN1 } encoding;

/* Python's names; case, - and _ are ignored. */
static qp_status find_encoding(run *run, value given, encoding *out)
{
    static const struct {
        const char *name;
        encoding encoding;
    } known[] = {{"utf8", ENCODING_UTF8},       {"ascii", ENCODING_ASCII},
                 {"usascii", ENCODING_ASCII},   {"latin1", ENCODING_LATIN1},
                 {"iso88591", ENCODING_LATIN1}, {"utf", ENCODING_UTF8}};
    const string *text;
    char name[16];
    size_t used = 0;
    *out = ENCODING_UTF8;
    if (given.kind == VALUE_MISSING) return QP_OK;
    TRY(need_text(run, given, &text));
    for (size_t i = 0; i < text->length && used + 1 < sizeof name; i++) {
        char c = text->data[i];
        if (c != '-' && c != '_') name[used++] = c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
    }
    name[used] = '\0';
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        *out = known[i].encoding;
        if (strcmp(name, known[i].name) == 0) return QP_OK;
    }
    return run_fail(run, "unknown encoding: %s", name);
}

qp_status method_encode(run *run, call *call, value *out)
{
    const string *text = call->self.as.text;
    encoding to;
    TRY(find_encoding(run, call->bound[0], &to));
    TRY(run_step(run, text->length / 8));
    TRY(run_list(run, LIST_BYTES, to == ENCODING_UTF8 ? text->length : text->points, out));
    value *items = out->as.items->items;
    for (size_t at = 0, n = 0; at < text->length; n++) {
        uint32_t code = (unsigned char)text->data[at];
        at += to == ENCODING_UTF8 ? 1 : pychar_decode(text->data + at, text->length - at, &code);
        if (to != ENCODING_UTF8 && code >= (to == ENCODING_ASCII ? 0x80u : 0x100u))
            return run_fail(run, "a character cannot be encoded: U+%04X", (unsigned)code);
        items[n] = value_int(code);
    }
    return QP_OK;
}

qp_status method_decode(run *run, call *call, value *out)
{
    const list *bytes = call->self.as.items;
    builder made = {.run = run};
    encoding from;
    TRY(find_encoding(run, call->bound[0], &from));
    TRY(run_step(run, bytes->count / 8));
    for (size_t i = 0; i < bytes->count; i++) {
        uint32_t code = (uint32_t)bytes->items[i].as.integer;
        char byte = (char)code;
        if (from == ENCODING_ASCII && code >= 0x80)
            return run_fail(run, "a byte cannot be decoded: 0x%02x", (unsigned)code);
        TRY(from == ENCODING_LATIN1 ? builder_code(&made, code) : builder_put(&made, &byte, 1));
    }
    if (pychar_valid_prefix(made.data, made.length) < made.length)
        return run_fail(run, "bytes cannot be decoded: not UTF-8");
    return builder_finish(&made, out);
}

qp_status print_bytes(builder *out, const list *bytes)
{
    static const char from[] = "\t\n\r\\", to[] = "tnr\\";
    bool single = false, twice = false;
    for (size_t i = 0; i < bytes->count; i++) {
        single |= bytes->items[i].as.integer == '\'';
        twice |= bytes->items[i].as.integer == '"';
    }
    char quote = single && !twice ? '"' : '\'';
    TRY(run_step(out->run, bytes->count / 8));
    TRY(builder_text(out, quote == '"' ? "b\"" : "b'"));
    for (size_t i = 0; i < bytes->count; i++) {
        int byte = (int)bytes->items[i].as.integer;
        const char *simple = byte ? strchr(from, byte) : NULL;
        char text[8];
        if (simple)
            snprintf(text, sizeof text, "\\%c", to[simple - from]);
        else if (byte == quote)
            snprintf(text, sizeof text, "\\%c", quote);
        else
            snprintf(text, sizeof text, byte < 0x20 || byte >= 0x7f ? "\\x%02x" : "%c", byte);
        TRY(builder_text(out, text));
    }
    return builder_put(out, &quote, 1);
}
