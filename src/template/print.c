/* Values as text: Python's str() and repr(). See run.h. */
#include "template/run.h"

#include "template/pychar.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static qp_status repr_at(builder *out, value item, int depth);

/* Writes the shortest digits that read back as |number| to `digits`; returns the exponent of ten of
 * the first. Removes the locale's decimal point. */
static int shortest_digits(double number, char digits[24])
{
    char text[40];
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, number);
        if (strtod(text, NULL) == number) break;
    }
    size_t n = 0;
    const char *at = text;
    for (; *at && *at != 'e'; at++) {
        if (*at >= '0' && *at <= '9') digits[n++] = *at;
    }
    while (n > 1 && digits[n - 1] == '0')
        n--;
    digits[n] = '\0';
    return atoi(at + 1);
}

size_t print_float(double number, char out[32])
{
    char digits[24];
    const char *sign = signbit(number) && !isnan(number) ? "-" : "";
    if (isnan(number)) return (size_t)snprintf(out, 32, "nan");
    if (isinf(number)) return (size_t)snprintf(out, 32, "%sinf", sign);
    int exponent = shortest_digits(fabs(number), digits), n = (int)strlen(digits);
    if (exponent < -4 || exponent >= 16)
        return (size_t)snprintf(out, 32, "%s%c%s%se%c%02d", sign, digits[0], n > 1 ? "." : "",
                                digits + 1, exponent < 0 ? '-' : '+', abs(exponent));
    if (exponent < 0)
        return (size_t)snprintf(out, 32, "%s0.%.*s%s", sign, -exponent - 1, "0000", digits);
    if (n <= exponent + 1)
        return (size_t)snprintf(out, 32, "%s%s%.*s.0", sign, digits, exponent + 1 - n,
                                "0000000000000000");
    return (size_t)snprintf(out, 32, "%s%.*s.%s", sign, exponent + 1, digits,
                            digits + exponent + 1);
}

static qp_status repr_code(builder *out, uint32_t code, char quote)
{
    static const char names[] = "t\tn\nr\r\\\\";
    char text[16];
    if (code == (uint32_t)quote) {
        snprintf(text, sizeof text, "\\%c", quote);
        return builder_text(out, text);
    }
    for (const char *name = names; *name; name += 2) {
        if (code != (uint32_t)(unsigned char)name[1]) continue;
        snprintf(text, sizeof text, "\\%c", name[0]);
        return builder_text(out, text);
    }
    if (pychar_is(PYCHAR_PRINTABLE, code)) return builder_code(out, code);
    snprintf(text, sizeof text,
             code < 0x100     ? "\\x%02x"
             : code < 0x10000 ? "\\u%04x"
                              : "\\U%08x",
             code);
    return builder_text(out, text);
}

static qp_status repr_text(builder *out, const string *text)
{
    bool single = memchr(text->data, '\'', text->length) != NULL;
    bool twice = memchr(text->data, '"', text->length) != NULL;
    char quote = single && !twice ? '"' : '\'';
    TRY(builder_put(out, &quote, 1));
    for (size_t at = 0; at < text->length;) {
        uint32_t code;
        size_t size = pychar_decode(text->data + at, text->length - at, &code);
        TRY(code == PYCHAR_INVALID ? builder_put(out, text->data + at, size)
                                   : repr_code(out, code, quote));
        at += size;
    }
    TRY(run_step(out->run, text->length / 8));
    return builder_put(out, &quote, 1);
}

static qp_status repr_items(builder *out, const list *items, int depth)
{
    static const char *const shapes[][2] = {
        [LIST_LIST] = {"[", "]"},
        [LIST_TUPLE] = {"(", ")"},
        [LIST_KEYS] = {"dict_keys([", "])"},
        [LIST_VALUES] = {"dict_values([", "])"},
        [LIST_ITEMS] = {"dict_items([", "])"},
    };
    char text[96];
    if (items->kind == LIST_ITERATOR) return builder_text(out, "<generator object>");
    if (items->kind == LIST_RANGE) {
        snprintf(text, sizeof text,
                 items->step == 1 ? "range(%lld, %lld)" : "range(%lld, %lld, %lld)",
                 (long long)items->start, (long long)items->stop, (long long)items->step);
        return builder_text(out, text);
    }
    if (items->kind == LIST_BYTES) return print_bytes(out, items);
    TRY(builder_text(out, shapes[items->kind][0]));
    for (size_t i = 0; i < items->count; i++) {
        if (i) TRY(builder_text(out, ", "));
        TRY(repr_at(out, items->items[i], depth + 1));
    }
    if (items->kind == LIST_TUPLE && items->count == 1) TRY(builder_text(out, ","));
    return builder_text(out, shapes[items->kind][1]);
}

static qp_status repr_dict(builder *out, const dict *members, int depth)
{
    TRY(builder_text(out, "{"));
    for (size_t i = 0; i < members->count; i++) {
        if (i) TRY(builder_text(out, ", "));
        TRY(repr_at(out, members->keys[i], depth + 1));
        TRY(builder_text(out, ": "));
        TRY(repr_at(out, members->values[i], depth + 1));
    }
    return builder_text(out, "}");
}

static qp_status repr_other(builder *out, value item, int depth)
{
    switch (item.kind) {
    case VALUE_NAMESPACE:
        TRY(builder_text(out, "<Namespace "));
        TRY(repr_dict(out, item.as.members, depth));
        return builder_text(out, ">");
    case VALUE_MACRO:
        TRY(builder_text(out, "<Macro "));
        TRY(macro_name(item.as.macro) ? repr_text(out, macro_name(item.as.macro))
                                      : builder_text(out, "anonymous"));
        return builder_text(out, ">");
    case VALUE_BUILTIN:
        TRY(builder_text(out, "<function "));
        TRY(builder_text(out, item.as.callable->builtin->name));
        return builder_text(out, ">");
    default:
        return builder_text(out, item.kind == VALUE_LOOP ? "<LoopContext>" : "Undefined");
    }
}

static qp_status repr_at(builder *out, value item, int depth)
{
    char text[40];
    TRY(run_step(out->run, 1));
    if (depth > VALUE_MAX_DEPTH)
        return run_fail(out->run, "data is nested too deeply to print (more than %d levels)",
                        VALUE_MAX_DEPTH);
    switch (item.kind) {
    case VALUE_NONE:
        return builder_text(out, "None");
    case VALUE_BOOL:
        return builder_text(out, item.as.boolean ? "True" : "False");
    case VALUE_INT:
        snprintf(text, sizeof text, "%lld", (long long)item.as.integer);
        return builder_text(out, text);
    case VALUE_FLOAT:
        return builder_put(out, text, print_float(item.as.number, text));
    case VALUE_STRING:
        return repr_text(out, item.as.text);
    case VALUE_LIST:
        return repr_items(out, item.as.items, depth);
    case VALUE_DICT:
        return repr_dict(out, item.as.members, depth);
    default:
        return repr_other(out, item, depth);
    }
}

qp_status print_repr(builder *out, value item)
{
    return repr_at(out, item, 0);
}

qp_status print_str(builder *out, value item)
{
    if (item.kind == VALUE_UNDEFINED) return QP_OK;
    if (item.kind == VALUE_STRING)
        return builder_put(out, item.as.text->data, item.as.text->length);
    return repr_at(out, item, 0);
}

qp_status run_str(run *run, value item, value *out)
{
    builder text = {.run = run};
    if (item.kind == VALUE_STRING) {
        *out = item;
        return QP_OK;
    }
    TRY(print_str(&text, item));
    return builder_finish(&text, out);
}
