/* Python's two ways to format text: "..." % values and "...".format(values). See run.h.
 *
 * Both produce one specification of how to write a value; the first form can express only a part of
 * it.
 */
#include "template/run.h"

#include "template/pychar.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_PRECISION = 100, MAX_NUMBER = 512 };

typedef struct spec {
    const string *fill; /* one character */
    char align;         /* < > ^ = or 0 for the type's default */
    char sign;          /* + - or blank */
    char group;         /* , or _ between thousands, or 0 */
    bool alternate, zero;
    int64_t width, precision; /* precision < 0: not given */
    char type;                /* 0: not given */
} spec;

static const string blank = {" ", 1, 1}, zero = {"0", 1, 1};

/* Pads prefix and body to the width; `align` is the default alignment. */
static qp_status put_padded(builder *out, const spec *spec, char align, const char *prefix,
                            const char *body, size_t length, size_t points)
{
    int64_t used = (int64_t)(strlen(prefix) + points);
    size_t pad = spec->width > used ? (size_t)(spec->width - used) : 0;
    if (spec->align) align = spec->align;
    size_t before = align == '>' ? pad : align == '^' ? pad / 2 : 0;
    TRY(builder_repeat(out, spec->fill, before));
    TRY(builder_text(out, prefix));
    if (align == '=') TRY(builder_repeat(out, spec->fill, pad));
    TRY(builder_put(out, body, length));
    return builder_repeat(out, spec->fill, align == '=' ? 0 : pad - before);
}

/* Inserts the group separator every `every` digits in front of the first `digits` digits. */
static void insert_groups(char *text, size_t digits, char group, size_t every)
{
    for (size_t at = digits; group && at > every; at -= every)
        memmove(text + at - every + 1, text + at - every, strlen(text + at - every) + 1),
            text[at - every] = group;
}

static const char *sign_of(const spec *spec, bool negative)
{
    return negative ? "-" : spec->sign == '+' ? "+" : spec->sign == ' ' ? " " : "";
}

static qp_status put_int(builder *out, const spec *spec, int64_t number)
{
    char text[160], prefix[4];
    uint64_t left = number < 0 ? -(uint64_t)number : (uint64_t)number;
    unsigned base = 10;
    const char *mark = "", *digits = "0123456789abcdef";
    if (spec->type == 'b') base = 2, mark = "0b";
    if (spec->type == 'o') base = 8, mark = "0o";
    if (spec->type == 'x') base = 16, mark = "0x";
    if (spec->type == 'X') base = 16, mark = "0X", digits = "0123456789ABCDEF";
    char reversed[72];
    size_t n = 0;
    do {
        reversed[n++] = digits[left % base];
        left /= base;
    } while (left > 0);
    for (size_t i = 0; i < n; i++)
        text[i] = reversed[n - 1 - i];
    text[n] = '\0';
    insert_groups(text, n, spec->group, base == 10 ? 3 : 4);
    snprintf(prefix, sizeof prefix, "%s%s", sign_of(spec, number < 0), spec->alternate ? mark : "");
    return put_padded(out, spec, '>', prefix, text, strlen(text), strlen(text));
}

static qp_status put_float(builder *out, const spec *spec, double number)
{
    char text[MAX_NUMBER + 256], format[] = "%#.*f";
    char type = spec->type ? spec->type : 'g';
    double magnitude = fabs(number);
    int precision = spec->precision < 0 ? 6 : (int)spec->precision;
    if (type == '%') magnitude *= 100;
    format[4] = type == '%' ? 'f' : type == 'n' ? 'g' : type;
    if (spec->type == 0 && spec->precision < 0) {
        text[print_float(magnitude, text)] = '\0';
    } else {
        if (!spec->alternate) memmove(format + 1, format + 2, strlen(format + 2) + 1);
        snprintf(text, MAX_NUMBER, format, precision, magnitude);
        char *point = strchr(text, *localeconv()->decimal_point);
        if (point) *point = '.';
        /* Without a type, a float is written with a point or an exponent. */
        bool plain = spec->type == 0 && isfinite(number) && !strpbrk(text, ".e");
        if (plain) strcat(text, ".0");
    }
    if (isfinite(number)) insert_groups(text, strspn(text, "0123456789"), spec->group, 3);
    if (type == '%') strcat(text, "%");
    bool negative = signbit(number) && !isnan(number);
    return put_padded(out, spec, '>', sign_of(spec, negative), text, strlen(text), strlen(text));
}

static qp_status put_string(builder *out, const spec *spec, const string *text)
{
    value cut = value_text(text);
    if (spec->precision >= 0 && (uint64_t)spec->precision < text->points)
        TRY(text_part(out->run, text, 0, (size_t)spec->precision, &cut));
    text = cut.as.text;
    return put_padded(out, spec, '<', "", text->data, text->length, text->points);
}

/* An optional number at *at. */
static bool read_number(const string *text, size_t *at, int64_t *out)
{
    size_t from = *at;
    int64_t number = 0;
    while (*at < text->length && text->data[*at] >= '0' && text->data[*at] <= '9') {
        if (number < INT32_MAX / 10) number = number * 10 + (text->data[*at] - '0');
        ++*at;
    }
    if (*at > from) *out = number;
    return *at > from;
}

static qp_status check_precision(run *run, const spec *spec)
{
    if (spec->precision > MAX_PRECISION && spec->type != 's' && spec->type != 0)
        return run_fail(run, "a precision of more than %d digits", MAX_PRECISION);
    return QP_OK;
}

/* --- "..." % values --- */

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
        read_number(percent->format, &percent->at, out);
        return QP_OK;
    }
    percent->at++;
    TRY(percent_next(percent, &given));
    return need_int(percent->run, given, out);
}

static qp_status percent_spec(percent *percent, spec *spec)
{
    const string *format = percent->format;
    bool left = false;
    *spec = (struct spec){.fill = &blank, .precision = -1};
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
static qp_status percent_int(builder *out, spec *spec, value item)
{
    int64_t number;
    if (item.kind == VALUE_FLOAT && strchr("diu", spec->type) && fabs(item.as.number) < 0x1p63)
        item = value_int((int64_t)item.as.number);
    TRY(need_int(out->run, item, &number));
    if (spec->type == 'i' || spec->type == 'u') spec->type = 'd';
    if (spec->precision > 0) {
        builder digits = {.run = out->run};
        struct spec inner = {.fill = &zero,
                             .align = '=',
                             .sign = spec->sign,
                             .type = spec->type,
                             .alternate = spec->alternate};
        bool prefixed = number < 0 || spec->sign;
        inner.width = spec->precision + prefixed + (spec->alternate && spec->type != 'd' ? 2 : 0);
        TRY(put_int(&digits, &inner, number));
        return put_padded(out, spec, '>', "", digits.data, digits.length, digits.length);
    }
    if (spec->zero && spec->align == '>') {
        spec->fill = &zero;
        spec->align = '=';
    }
    return put_int(out, spec, number);
}

static qp_status percent_item(builder *out, spec *spec, value item)
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
        return put_string(out, spec, made.as.text);
    case 'c':
        if (item.kind == VALUE_STRING && item.as.text->points == 1)
            return put_string(out, spec, item.as.text);
        if (item.kind != VALUE_INT || item.as.integer < 0 || item.as.integer >= 0xd800)
            return run_fail(out->run, "%%c needs a character");
        TRY(builder_code(&text, (uint32_t)item.as.integer));
        TRY(builder_finish(&text, &made));
        return put_string(out, spec, made.as.text);
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        if (!value_is_number(item))
            return run_fail(out->run, "must be real number, not %s", value_type(item));
        TRY(check_precision(out->run, spec));
        number = value_as_float(item);
        if (spec->zero && spec->align == '>' && isfinite(number)) {
            spec->fill = &zero;
            spec->align = '=';
        }
        return put_float(out, spec, number);
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
        spec spec;
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

/* --- "...".format(values) --- */

/* [[fill]align][sign][#][0][width][,][.precision][type] */
static qp_status parse_spec(run *run, const string *text, spec *spec)
{
    size_t at = 0, first = 0;
    uint32_t code;
    *spec = (struct spec){.fill = &blank, .precision = -1};
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
            spec->fill = &zero;
            spec->align = '=';
        }
    }
    read_number(text, &at, &spec->width);
    if (at < text->length && (text->data[at] == ',' || text->data[at] == '_'))
        spec->group = text->data[at++];
    if (at < text->length && text->data[at] == '.') {
        at++;
        if (!read_number(text, &at, &spec->precision))
            return run_fail(run, "format specifier missing precision");
    }
    if (at < text->length) spec->type = text->data[at++];
    if (at < text->length) return run_fail(run, "invalid format specifier");
    return QP_OK;
}

/* format(item, spec) */
static qp_status put_spec(builder *out, const string *text, value item)
{
    spec spec;
    run *run = out->run;
    value shown;
    if (text->length == 0) return print_str(out, item);
    TRY(parse_spec(run, text, &spec));
    bool is_int = item.kind == VALUE_INT || item.kind == VALUE_BOOL;
    if (is_int && (!spec.type || strchr("bdoxXn", spec.type))) {
        if (spec.precision >= 0)
            return run_fail(run, "precision not allowed in an integer's format");
        return put_int(out, &spec, value_as_int(item));
    }
    if (value_is_number(item) && (!spec.type || strchr("eEfFgGn%", spec.type))) {
        if (spec.precision > MAX_PRECISION)
            return run_fail(run, "a precision of more than %d digits", MAX_PRECISION);
        return put_float(out, &spec, value_as_float(item));
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
    return put_string(out, &spec, shown.as.text);
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
    bool numbered = name.length == 0 || (read_number(&name, &at, &number) && at == name.length);
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
        if (index && read_number(&digits, &end, &number) && end == digits.length)
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
