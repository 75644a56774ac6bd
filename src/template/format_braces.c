/* Python's "...".format(values): see run.h. */
#include "template/format_spec.h"

#include "template/pychar.h"

#include <string.h>

/* [[fill]align][sign][#][0][width][,][.precision][type] */
static qp_status parse_spec(run *run, const string *text, format_spec *spec)
{
    size_t at = 0, first = 0;
    uint32_t code;
    *spec = (format_spec){.fill = &format_blank, .precision = -1};
    if (text->length) first = pychar_decode(text->data, text->length, &code);
    if (first < text->length && text->data[first] && strchr("<>^=", text->data[first])) {
        spec->fill = string_view(&run->heap, text->data, first);
        TRY(run_check(run, spec->fill));
        spec->align = text->data[first];
        at = first + 1;
    } else if (text->length && text->data[0] && strchr("<>^=", text->data[0])) {
        spec->align = text->data[at++];
    }
    if (at < text->length && text->data[at] && strchr("+- ", text->data[at]))
        spec->sign = text->data[at++];
    if (at < text->length && text->data[at] == '#') spec->alternate = ++at > 0;
    if (at < text->length && text->data[at] == '0') {
        at++;
        spec->zero = true;
        if (!spec->align) {
            spec->fill = &format_zero;
            spec->align = '=';
        }
    }
    format_read_number(text, &at, &spec->width);
    if (at < text->length && (text->data[at] == ',' || text->data[at] == '_'))
        spec->group = text->data[at++];
    if (at < text->length && text->data[at] == '.') {
        at++;
        if (!format_read_number(text, &at, &spec->precision))
            return run_fail(run, "format specifier missing precision");
    }
    if (at < text->length) spec->type = text->data[at++];
    if (at < text->length) return run_fail(run, "invalid format specifier");
    return QP_OK;
}

/* format(item, spec) */
static qp_status put_spec(builder *out, const string *text, value item)
{
    format_spec spec;
    run *run = out->run;
    value shown;
    if (text->length == 0) return print_str(out, item);
    TRY(parse_spec(run, text, &spec));
    bool is_int = item.kind == VALUE_INT || item.kind == VALUE_BOOL;
    if (is_int && (!spec.type || strchr("bdoxXn", spec.type))) {
        if (spec.precision >= 0)
            return run_fail(run, "precision not allowed in an integer's format");
        return format_put_int(out, &spec, value_as_int(item));
    }
    if (value_is_number(item) && (!spec.type || strchr("eEfFgGn%", spec.type))) {
        if (spec.precision > FORMAT_MAX_PRECISION)
            return run_fail(run, "a precision of more than %d digits", FORMAT_MAX_PRECISION);
        return format_put_float(out, &spec, value_as_float(item));
    }
    bool wrong = (spec.type && spec.type != 's') || spec.sign || spec.group;
    if (item.kind != VALUE_STRING || wrong)
        return run_fail(run, "a format of '%.*s' does not go with '%s'", (int)(text->length % 40),
                        text->data, value_type(item));
    if (spec.align == '=') {
        if (!spec.zero) return run_fail(run, "'=' alignment is for numbers");
        spec.align = '<';
    }
    TRY(run_str(run, item, &shown));
    return format_put_string(out, &spec, shown.as.text);
}

typedef struct braces {
    run *run;
    call *call;
    size_t next; /* the next automatic number of {} */
} braces;

/* name.attribute[index]... */
static qp_status find_field(braces *braces, const char *field, size_t length, value *out)
{
    run *run = braces->run;
    call *call = braces->call;
    string name = {field, 0, 0};
    int64_t number = (int64_t)braces->next;
    while (name.length < length && field[name.length] != '.' && field[name.length] != '[')
        name.length++;
    size_t at = 0;
    bool numbered =
        name.length == 0 || (format_read_number(&name, &at, &number) && at == name.length);
    *out = (value){.kind = VALUE_MISSING};
    if (name.length == 0) braces->next++;
    if (numbered && (uint64_t)number < call->n_positional) *out = call->positional[number];
    for (size_t i = 0; i < call->n_named && !numbered; i++)
        if (string_equal(call->named[i].name, &name)) *out = call->named[i].item;
    if (out->kind == VALUE_MISSING)
        return run_fail(run, "format: no argument for '{%.*s}'", (int)(name.length % 100), field);
    for (at = name.length; at < length;) {
        bool index = field[at] == '[';
        size_t from = ++at;
        while (at < length && (index ? field[at] != ']' : field[at] != '.' && field[at] != '['))
            at++;
        value key;
        string digits = {field + from, at - from, 0};
        size_t end = 0;
        TRY(run_view(run, field + from, at - from, &key));
        if (index && format_read_number(&digits, &end, &number) && end == digits.length)
            key = value_int(number);
        TRY(index ? run_item(run, *out, key, out) : run_attribute(run, *out, key.as.text, out));
        at += index;
    }
    return QP_OK;
}

/* Parses the text between { and }. */
static qp_status put_field(braces *braces, builder *out, const char *text, size_t length)
{
    const char *colon = memchr(text, ':', length);
    size_t field = colon ? (size_t)(colon - text) : length;
    char conversion = 0;
    value item, shown;
    string spec = {colon ? colon + 1 : "", colon ? length - field - 1 : 0, 0};
    if (field >= 2 && text[field - 2] == '!') {
        conversion = text[field - 1];
        field -= 2;
    }
    if (memchr(spec.data, '{', spec.length))
        return run_fail(braces->run, "format: fields inside of a format are not supported");
    TRY(find_field(braces, text, field, &item));
    if (conversion == 'r') {
        builder repr = {.run = braces->run};
        TRY(print_repr(&repr, item));
        TRY(builder_finish(&repr, &shown));
        item = shown;
    } else if (conversion == 's') {
        TRY(run_str(braces->run, item, &item));
    } else if (conversion) {
        return run_fail(braces->run, "format: unknown conversion '!%c'", conversion);
    }
    return put_spec(out, &spec, item);
}

qp_status format_braces(run *run, const string *format, call *call, value *out)
{
    braces braces = {.run = run, .call = call};
    builder made = {.run = run};
    for (size_t at = 0; at < format->length; at++) {
        char c = format->data[at];
        bool twice = at + 1 < format->length && format->data[at + 1] == c;
        if ((c != '{' && c != '}') || twice) {
            TRY(builder_put(&made, format->data + at, 1));
            at += (c == '{' || c == '}') && twice;
            continue;
        }
        const char *end = memchr(format->data + at, '}', format->length - at);
        if (c == '}' || !end) return run_fail(run, "format: a single '%c'", c);
        size_t length = (size_t)(end - format->data) - at - 1;
        TRY(put_field(&braces, &made, format->data + at + 1, length));
        TRY(run_step(run, 1));
        at += length + 1;
    }
    return builder_finish(&made, out);
}
