/* Values written as a specification says: see format_spec.h. */
#include "template/format_spec.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_NUMBER = 512 };

const string format_blank = {" ", 1, 1}, format_zero = {"0", 1, 1};

qp_status format_put_padded(builder *out, const format_spec *spec, char align, const char *prefix,
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

static const char *sign_of(const format_spec *spec, bool negative)
{
    return negative ? "-" : spec->sign == '+' ? "+" : spec->sign == ' ' ? " " : "";
}

qp_status format_put_int(builder *out, const format_spec *spec, int64_t number)
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
    return format_put_padded(out, spec, '>', prefix, text, strlen(text), strlen(text));
}

qp_status format_put_float(builder *out, const format_spec *spec, double number)
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
    return format_put_padded(out, spec, '>', sign_of(spec, negative), text, strlen(text),
                             strlen(text));
}

qp_status format_put_string(builder *out, const format_spec *spec, const string *text)
{
    value cut = value_text(text);
    if (spec->precision >= 0 && (uint64_t)spec->precision < text->points)
        TRY(text_part(out->run, text, 0, (size_t)spec->precision, &cut));
    text = cut.as.text;
    return format_put_padded(out, spec, '<', "", text->data, text->length, text->points);
}

bool format_read_number(const string *text, size_t *at, int64_t *out)
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

qp_status format_check_precision(run *run, const format_spec *spec)
{
    if (spec->precision > FORMAT_MAX_PRECISION && spec->type != 's' && spec->type != 0)
        return run_fail(run, "a precision of more than %d digits", FORMAT_MAX_PRECISION);
    return QP_OK;
}
