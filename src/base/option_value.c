/* Texts of options into values and back: see option_value.h. */
#include "base/option_value.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void expected_choice(const char *const *choices, strbuf *out)
{
    for (int i = 0; choices[i]; i++) {
        if (i) strbuf_puts(out, choices[i + 1] ? ", " : " or ");
        strbuf_puts(out, choices[i]);
    }
}

void option_expected(const option_spec *option, strbuf *out)
{
    bool bounded = option->minimum || option->maximum;
    switch (option->type) {
    case OPTION_FLAG:
        strbuf_puts(out, "1, 0, true, false, yes, no, on or off");
        break;
    case OPTION_STRING:
    case OPTION_STRINGS:
        strbuf_puts(out, "a text");
        break;
    case OPTION_INTEGER:
        strbuf_puts(out, "an integer");
        if (!bounded) break;
        if (option->maximum == INT64_MAX)
            strbuf_printf(out, " of at least %" PRId64, option->minimum);
        else
            strbuf_printf(out, " from %" PRId64 " to %" PRId64, option->minimum, option->maximum);
        break;
    case OPTION_NUMBER:
        strbuf_puts(out, "a number");
        if (option->low != 0 || option->high != 0)
            strbuf_printf(out, " from %g to %g", option->low, option->high);
        break;
    case OPTION_SIZE:
        strbuf_puts(out, "a size such as 512M or 2G");
        if (bounded)
            strbuf_printf(out, " from %" PRId64 " to %" PRId64 " bytes", option->minimum,
                          option->maximum);
        break;
    case OPTION_CHOICE:
        expected_choice(option->choices, out);
        break;
    }
}

static bool parse_flag(const char *text, bool *out)
{
    static const char *const words[] = {"0", "1", "false", "true", "no", "yes", "off", "on"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(text, words[i]) != 0) continue;
        *out = i % 2;
        return true;
    }
    return false;
}

static bool parse_integer(const option_spec *option, const char *text, int64_t *out)
{
    if (!isdigit((unsigned char)text[0]) && text[0] != '-' && text[0] != '+') return false;
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end) return false;
    if ((option->minimum || option->maximum) &&
        (value < option->minimum || value > option->maximum))
        return false;
    *out = value;
    return true;
}

/* Decimal notation only: strtod's hexadecimal, "inf" and "nan" are refused. */
static bool parse_decimal(const char *text, char **end, double *out)
{
    if (text[0] == '\0' || strspn(text, "0123456789+-.") == 0) return false;
    if (strpbrk(text, "xX")) return false;
    *out = strtod(text, end);
    return *end != text && isfinite(*out);
}

static bool parse_number(const option_spec *option, const char *text, double *out)
{
    char *end;
    double value;
    if (!parse_decimal(text, &end, &value) || *end) return false;
    if ((option->low != 0 || option->high != 0) && (value < option->low || value > option->high))
        return false;
    *out = value;
    return true;
}

/* Whole bytes, exact: a plain integer is not converted through a double. */
static bool parse_size(const option_spec *option, const char *text, uint64_t *out)
{
    static const char units[] = "KMGT";
    char *end;
    double value;
    if (!isdigit((unsigned char)text[0]) || !parse_decimal(text, &end, &value)) return false;
    int shift = 0;
    const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    if (unit) {
        shift = 10 * (int)(unit - units + 1);
        end++;
    }
    if (*end && strcmp(end, "B") != 0 && !(unit && strcmp(end, "iB") == 0)) return false;
    double bytes = ldexp(value, shift);
    if (bytes >= 0x1p63 || bytes != floor(bytes)) return false;
    uint64_t size = (uint64_t)bytes;
    if (!shift) {
        errno = 0;
        size = strtoull(text, &end, 10);
        if (errno || (*end && strcmp(end, "B") != 0)) return false;
    }
    if ((option->minimum || option->maximum) &&
        (size < (uint64_t)option->minimum || size > (uint64_t)option->maximum))
        return false;
    *out = size;
    return true;
}

static bool parse_choice(const option_spec *option, const char *text, int *out)
{
    for (int i = 0; option->choices[i]; i++) {
        if (strcmp(text, option->choices[i]) != 0) continue;
        *out = i;
        return true;
    }
    return false;
}

static qp_status append_string(option_strings *list, const char *text, arena *memory,
                               qp_error *error)
{
    size_t count = (size_t)list->count + 1;
    const char **items = arena_alloc(memory, count, sizeof *items);
    if (!items) return error_no_memory(error, "options", count * sizeof *items);
    if (list->count) memcpy(items, list->items, (count - 1) * sizeof *items);
    items[count - 1] = text;
    *list = (option_strings){items, (int)count};
    return QP_OK;
}

/* The answer to a former name of a choice; NULL if it is none. */
static const char *renamed(const option_spec *option, const char *text)
{
    for (int i = 0; option->renamed && option->renamed[i][0]; i++)
        if (strcmp(option->renamed[i][0], text) == 0) return option->renamed[i][1];
    return NULL;
}

qp_status option_store(const option_spec *option, const char *where, const char *text, void *field,
                       arena *memory, qp_error *error)
{
    bool good = true;
    switch (option->type) {
    case OPTION_FLAG:
        good = parse_flag(text, field);
        break;
    case OPTION_STRING:
        *(const char **)field = text;
        break;
    case OPTION_STRINGS:
        return append_string(field, text, memory, error);
    case OPTION_INTEGER:
        good = parse_integer(option, text, field);
        break;
    case OPTION_NUMBER:
        good = parse_number(option, text, field);
        break;
    case OPTION_SIZE:
        good = parse_size(option, text, field);
        break;
    case OPTION_CHOICE:
        good = parse_choice(option, text, field);
        break;
    }
    if (good) return QP_OK;
    const char *now = renamed(option, text);
    strbuf expected = {0};
    option_expected(option, &expected);
    error_set(error, QP_INVALID, "%s: expected %s, found '%.100s'%s%s", where,
              strbuf_text(&expected), text, now ? ": " : "", now ? now : "");
    strbuf_free(&expected);
    return QP_INVALID;
}
