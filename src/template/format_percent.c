/* Python's "..." % values: see run.h. */
#include "template/format_spec.h"

#include <math.h>
#include <string.h>

typedef struct percent {
    run *run;
    const string *format;
    size_t at;
    value arguments;
    size_t next; /* next item of a tuple, or whether the single value was used */
    bool by_name;
} percent;

static qp_status percent_next(percent *percent, value *out)
{
    value all = percent->arguments;
    bool tuple = value_is_list(all, LIST_TUPLE);
    if (percent->next >= (tuple ? all.as.items->count : 1))
        return run_fail(percent->run, "not enough arguments for the format");
    *out = tuple ? all.as.items->items[percent->next] : all;
    percent->next++;
    return QP_OK;
}

/* %(name)... */
static qp_status percent_key(percent *percent, value *out)
{
    const string *format = percent->format;
    const char *from = format->data + percent->at + 1;
    const char *end = memchr(from, ')', format->length - percent->at - 1);
    value key;
    if (!end) return run_fail(percent->run, "incomplete key in the format");
    if (percent->arguments.kind != VALUE_DICT)
        return run_fail(percent->run, "the format needs a mapping");
    TRY(run_view(percent->run, from, (size_t)(end - from), &key));
    const value *found = dict_get(&percent->run->heap, percent->arguments.as.members, key);
    if (!found) return run_fail(percent->run, "the format's mapping lacks a key");
    *out = *found;
    percent->by_name = true;
    percent->at = (size_t)(end - format->data) + 1;
    return QP_OK;
}

/* A number or * (the next argument). */
static qp_status percent_number(percent *percent, int64_t *out)
{
    value given;
    if (percent->at >= percent->format->length || percent->format->data[percent->at] != '*') {
        format_read_number(percent->format, &percent->at, out);
        return QP_OK;
    }
    percent->at++;
    TRY(percent_next(percent, &given));
    return need_int(percent->run, given, out);
}

static qp_status percent_spec(percent *percent, format_spec *spec)
{
    const string *format = percent->format;
    bool left = false;
    *spec = (format_spec){.fill = &format_blank, .precision = -1};
    for (; percent->at < format->length; percent->at++) {
        char c = format->data[percent->at];
        if (c == '-') left = true;
        if (c == '0') spec->zero = true;
        if (c == '#') spec->alternate = true;
        if (c == '+' || (c == ' ' && !spec->sign)) spec->sign = c;
        if (!c || !strchr("-0#+ ", c)) break;
    }
    TRY(percent_number(percent, &spec->width));
    if (spec->width < 0) {
        left = true;
        spec->width = spec->width == INT64_MIN ? 0 : -spec->width;
    }
    if (percent->at < format->length && format->data[percent->at] == '.') {
        percent->at++;
        spec->precision = 0;
        TRY(percent_number(percent, &spec->precision));
        if (spec->precision < 0) spec->precision = 0;
    }
    while (percent->at < format->length && format->data[percent->at] &&
           strchr("hlL", format->data[percent->at]))
        percent->at++;
    if (percent->at >= format->length) return run_fail(percent->run, "incomplete format");
    spec->type = format->data[percent->at++];
    spec->align = left ? '<' : '>';
    return QP_OK;
}

/* %d with a precision: at least that many digits. */
static qp_status percent_int(builder *out, format_spec *spec, value item)
{
    int64_t number;
    if (item.kind == VALUE_FLOAT && strchr("diu", spec->type) && fabs(item.as.number) < 0x1p63)
        item = value_int((int64_t)item.as.number);
    TRY(need_int(out->run, item, &number));
    if (spec->type == 'i' || spec->type == 'u') spec->type = 'd';
    if (spec->precision > 0) {
        builder digits = {.run = out->run};
        format_spec inner = {.fill = &format_zero,
                             .align = '=',
                             .sign = spec->sign,
                             .type = spec->type,
                             .alternate = spec->alternate};
        bool prefixed = number < 0 || spec->sign;
        inner.width = spec->precision + prefixed + (spec->alternate && spec->type != 'd' ? 2 : 0);
        TRY(format_put_int(&digits, &inner, number));
        return format_put_padded(out, spec, '>', "", digits.data, digits.length, digits.length);
    }
    if (spec->zero && spec->align == '>') {
        spec->fill = &format_zero;
        spec->align = '=';
    }
    return format_put_int(out, spec, number);
}

static qp_status percent_item(builder *out, format_spec *spec, value item)
{
    builder text = {.run = out->run};
    value made;
    double number;
    switch (spec->type) {
    case 's':
    case 'r':
    case 'a':
        TRY(spec->type == 's' ? print_str(&text, item) : print_repr(&text, item));
        TRY(builder_finish(&text, &made));
        return format_put_string(out, spec, made.as.text);
    case 'c':
        if (item.kind == VALUE_STRING && item.as.text->points == 1)
            return format_put_string(out, spec, item.as.text);
        if (item.kind != VALUE_INT || item.as.integer < 0 || item.as.integer >= 0xd800)
            return run_fail(out->run, "%%c needs a character");
        TRY(builder_code(&text, (uint32_t)item.as.integer));
        TRY(builder_finish(&text, &made));
        return format_put_string(out, spec, made.as.text);
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        if (!value_is_number(item))
            return run_fail(out->run, "must be real number, not %s", value_type(item));
        TRY(format_check_precision(out->run, spec));
        number = value_as_float(item);
        if (spec->zero && spec->align == '>' && isfinite(number)) {
            spec->fill = &format_zero;
            spec->align = '=';
        }
        return format_put_float(out, spec, number);
    case 'd':
    case 'i':
    case 'u':
    case 'o':
    case 'x':
    case 'X':
        return percent_int(out, spec, item);
    default:
        return run_fail(out->run, "unsupported format character '%c'", spec->type);
    }
}

qp_status format_percent(run *run, const string *format, value arguments, value *out)
{
    percent percent = {.run = run, .format = format, .arguments = arguments};
    builder made = {.run = run};
    while (percent.at < format->length) {
        const char *from = format->data + percent.at;
        const char *next = memchr(from, '%', format->length - percent.at);
        size_t plain = next ? (size_t)(next - from) : format->length - percent.at;
        value item = {.kind = VALUE_MISSING};
        format_spec spec;
        TRY(builder_put(&made, from, plain));
        percent.at += plain;
        if (!next) break;
        percent.at++;
        if (percent.at < format->length && format->data[percent.at] == '(')
            TRY(percent_key(&percent, &item));
        TRY(percent_spec(&percent, &spec));
        if (spec.type == '%') {
            TRY(builder_text(&made, "%"));
            continue;
        }
        if (item.kind == VALUE_MISSING) TRY(percent_next(&percent, &item));
        TRY(percent_item(&made, &spec, item));
        TRY(run_step(run, 1));
    }
    /* Values that Python could index by a key need not be used up; undefined is one of them. */
    bool mapping = arguments.kind == VALUE_DICT || arguments.kind == VALUE_UNDEFINED ||
                   (arguments.kind == VALUE_LIST && arguments.as.items->kind != LIST_TUPLE);
    size_t count = value_is_list(arguments, LIST_TUPLE) ? arguments.as.items->count : 1;
    if (percent.next < count && !mapping && !percent.by_name)
        return run_fail(run, "not all arguments converted during string formatting");
    return builder_finish(&made, out);
}
