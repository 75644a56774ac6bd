/* tojson: Python's json.dumps(). See run.h. */
#include "template/run.h"

#include "template/pychar.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct dump {
    builder out;
    bool ascii, sort_keys;
    const string *indent; /* NULL: all on one line */
    const string *item_separator, *key_separator;
} dump;

static qp_status dump_value(dump *dump, value item, int depth);

static qp_status dump_escape(dump *dump, uint32_t code)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    char text[16];
    const char *simple = code && code < 0x80 ? strchr(from, (int)code) : NULL;
    if (simple)
        snprintf(text, sizeof text, "\\%c", to[simple - from]);
    else if (code < 0x10000)
        snprintf(text, sizeof text, "\\u%04x", code);
    else
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + ((code - 0x10000) >> 10),
                 0xdc00 + ((code - 0x10000) & 0x3ff));
    return builder_text(&dump->out, text);
}

static qp_status dump_text(dump *dump, const string *text)
{
    TRY(run_step(dump->out.run, text->length / 8));
    TRY(builder_text(&dump->out, "\""));
    size_t plain = 0; /* the text from here to `at` needs no escapes */
    for (size_t at = 0; at < text->length;) {
        uint32_t code;
        size_t size = pychar_decode(text->data + at, text->length - at, &code);
        bool escape = code < 0x20 || code == '"' || code == '\\' ||
                      (dump->ascii && code >= 0x7f && code != PYCHAR_INVALID);
        if (escape) {
            TRY(builder_put(&dump->out, text->data + plain, at - plain));
            TRY(dump_escape(dump, code));
            plain = at + size;
        }
        at += size;
    }
    TRY(builder_put(&dump->out, text->data + plain, text->length - plain));
    return builder_text(&dump->out, "\"");
}

static qp_status dump_line(dump *dump, int depth)
{
    if (!dump->indent) return QP_OK;
    TRY(builder_text(&dump->out, "\n"));
    return builder_repeat(&dump->out, dump->indent, (size_t)depth);
}

static qp_status dump_list(dump *dump, const list *items, int depth)
{
    if (items->count == 0) return builder_text(&dump->out, "[]");
    TRY(builder_text(&dump->out, "["));
    for (size_t i = 0; i < items->count; i++) {
        if (i)
            TRY(builder_put(&dump->out, dump->item_separator->data, dump->item_separator->length));
        TRY(dump_line(dump, depth + 1));
        TRY(dump_value(dump, items->items[i], depth + 1));
    }
    TRY(dump_line(dump, depth));
    return builder_text(&dump->out, "]");
}

static qp_status dump_float(dump *dump, double number)
{
    char text[32];
    if (isnan(number)) return builder_text(&dump->out, "NaN");
    if (isinf(number)) return builder_text(&dump->out, number < 0 ? "-Infinity" : "Infinity");
    return builder_put(&dump->out, text, print_float(number, text));
}

static qp_status dump_key(dump *dump, value key)
{
    if (key.kind == VALUE_STRING) return dump_text(dump, key.as.text);
    if (!value_is_number(key) && key.kind != VALUE_NONE)
        return run_fail(dump->out.run, "keys must be str, int, float, bool or None, not %s",
                        value_type(key));
    TRY(builder_text(&dump->out, "\""));
    TRY(dump_value(dump, key, 0));
    return builder_text(&dump->out, "\"");
}

/* The entries in order: of insertion, or by key. */
static qp_status dump_order(dump *dump, const dict *members, value *order)
{
    run *run = dump->out.run;
    for (size_t i = 0; i < members->count; i++)
        order[i] = value_int((int64_t)i);
    return dump->sort_keys ? sort_by(run, order, members->keys, members->count, false) : QP_OK;
}

static qp_status dump_dict(dump *dump, const dict *members, int depth)
{
    value order;
    if (members->count == 0) return builder_text(&dump->out, "{}");
    TRY(run_list(dump->out.run, LIST_LIST, members->count, &order));
    TRY(dump_order(dump, members, order.as.items->items));
    TRY(builder_text(&dump->out, "{"));
    for (size_t i = 0; i < members->count; i++) {
        size_t at = (size_t)order.as.items->items[i].as.integer;
        if (i)
            TRY(builder_put(&dump->out, dump->item_separator->data, dump->item_separator->length));
        TRY(dump_line(dump, depth + 1));
        TRY(dump_key(dump, members->keys[at]));
        TRY(builder_put(&dump->out, dump->key_separator->data, dump->key_separator->length));
        TRY(dump_value(dump, members->values[at], depth + 1));
    }
    TRY(dump_line(dump, depth));
    return builder_text(&dump->out, "}");
}

static qp_status dump_value(dump *dump, value item, int depth)
{
    run *run = dump->out.run;
    TRY(run_step(run, 1));
    if (depth > VALUE_MAX_DEPTH)
        return run_fail(run, "data is nested too deeply for tojson (more than %d levels)",
                        VALUE_MAX_DEPTH);
    switch (item.kind) {
    case VALUE_NONE:
        return builder_text(&dump->out, "null");
    case VALUE_BOOL:
        return builder_text(&dump->out, item.as.boolean ? "true" : "false");
    case VALUE_INT:
        return print_str(&dump->out, item);
    case VALUE_FLOAT:
        return dump_float(dump, item.as.number);
    case VALUE_STRING:
        return dump_text(dump, item.as.text);
    case VALUE_DICT:
        return dump_dict(dump, item.as.members, depth);
    default:
        if (item.kind == VALUE_LIST && item.as.items->kind <= LIST_TUPLE)
            return dump_list(dump, item.as.items, depth);
        return run_fail(run, "Object of type %s is not JSON serializable", value_type(item));
    }
}

/* indent: None, a number of spaces or a text. */
static qp_status dump_indent(run *run, dump *dump, value indent)
{
    static const char blanks[] = "                                ";
    int64_t width;
    if (indent.kind == VALUE_MISSING || indent.kind == VALUE_NONE) return QP_OK;
    if (indent.kind == VALUE_STRING) {
        dump->indent = indent.as.text;
        return QP_OK;
    }
    TRY(need_int(run, indent, &width));
    if (width > (int64_t)sizeof blanks - 1)
        return run_fail(run, "an indent of more than %zu blanks", sizeof blanks - 1);
    dump->indent = string_view(&run->heap, blanks, width > 0 ? (size_t)width : 0);
    return run_check(run, dump->indent);
}

/* tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False) */
qp_status filter_tojson(run *run, call *call, value *out)
{
    static const string comma = {",", 1, 1}, comma_blank = {", ", 2, 2}, colon = {": ", 2, 2};
    dump dump = {.out = {.run = run}, .key_separator = &colon};
    dump.ascii = value_truth(call->bound[0]);
    dump.sort_keys = value_truth(call->bound[3]);
    TRY(dump_indent(run, &dump, call->bound[1]));
    dump.item_separator = dump.indent ? &comma : &comma_blank;
    value separators = call->bound[2];
    if (separators.kind != VALUE_MISSING && separators.kind != VALUE_NONE) {
        list *pair;
        TRY(run_iterate(run, separators, &pair));
        if (pair->count != 2) return run_fail(run, "separators must be a pair of strings");
        TRY(need_text(run, pair->items[0], &dump.item_separator));
        TRY(need_text(run, pair->items[1], &dump.key_separator));
    }
    TRY(dump_value(&dump, call->self, 0));
    return builder_finish(&dump.out, out);
}
