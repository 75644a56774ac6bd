/* Numbers as they were written: see json.h.
 *
 * cJSON keeps a double. Integers beyond 2^53 lose digits there, 1.0 becomes 1, and 10^15 is printed
 * as 1e+15, which readers take for a float. So a number whose text matters has it as its
 * valuestring, which cJSON copies and frees with the item, and uses for no number.
 */
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DIGITS = 63 }; /* of cJSON */

/* The rest of a text of JSON. */
typedef struct scan {
    const char *at, *end;
} scan;

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Goes over the rest of a string, after its first quote. */
static void skip_string(scan *s)
{
    while (s->at < s->end && *s->at != '"')
        s->at += *s->at == '\\' && s->end - s->at > 1 ? 2 : 1;
    if (s->at < s->end) s->at++;
}

/* The text of the next number outside of strings. */
static const char *next_number(scan *s, size_t *length)
{
    while (s->at < s->end && !is_digit(*s->at) && *s->at != '-') {
        if (*s->at++ == '"') skip_string(s);
    }
    const char *begin = s->at;
    while (s->at < s->end && (is_digit(*s->at) || strchr("+-.eE", *s->at ? *s->at : ' ')))
        s->at++;
    *length = (size_t)(s->at - begin);
    return begin;
}

/* Whether a text is a number by JSON's grammar, which cJSON does not hold to. *fraction: it has a
 * point or an exponent. */
static bool is_number(const char *text, size_t length, bool *fraction)
{
    const char *at = text, *end = text + length;
    *fraction = false;
    if (at < end && *at == '-') at++;
    if (at == end || !is_digit(*at) || (*at == '0' && end - at > 1 && is_digit(at[1])))
        return false;
    while (at < end && is_digit(*at))
        at++;
    if (at < end && *at == '.') {
        *fraction = true;
        if (++at == end || !is_digit(*at)) return false;
        while (at < end && is_digit(*at))
            at++;
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
        *fraction = true;
        at++;
        if (at < end && (*at == '+' || *at == '-')) at++;
        if (at == end || !is_digit(*at)) return false;
        while (at < end && is_digit(*at))
            at++;
    }
    return at == end;
}

static bool set_text(cJSON *number, const char *text, size_t length)
{
    number->valuestring = cJSON_malloc(length + 1);
    if (!number->valuestring) return false;
    memcpy(number->valuestring, text, length);
    number->valuestring[length] = '\0';
    return true;
}

static bool keep_number(cJSON *number, scan *s)
{
    size_t length;
    bool fraction;
    const char *text = next_number(s, &length);
    const double value = number->valuedouble;
    if (length > MAX_DIGITS || !is_number(text, length, &fraction)) return true;
    if (fraction ? value != floor(value) : fabs(value) < 0x1p53) return true;
    return set_text(number, text, length);
}

static bool keep_all(cJSON *item, scan *s)
{
    for (; item; item = item->next) {
        if (cJSON_IsNumber(item) && !keep_number(item, s)) return false;
        if (item->child && !keep_all(item->child, s)) return false;
    }
    return true;
}

qp_status json_keep_numbers(cJSON *tree, const char *text, size_t length, qp_error *error)
{
    scan s = {text, text + length};
    return keep_all(tree, &s) ? QP_OK : error_no_memory(error, "numbers of a JSON text", length);
}

const char *json_number_text(const cJSON *number)
{
    return cJSON_IsNumber(number) ? number->valuestring : NULL;
}

/* Numbers that cJSON would print otherwise become texts that it prints as they are. */
static bool make_raw(cJSON *item)
{
    for (; item; item = item->next) {
        const double value = item->valuedouble;
        if (item->child && !make_raw(item->child)) return false;
        if (!cJSON_IsNumber(item)) continue;
        if (!item->valuestring && fabs(value) >= 1e15 && fabs(value) <= 0x1p53) {
            char digits[32];
            const int n = snprintf(digits, sizeof digits, "%.0f", value);
            if (!set_text(item, digits, (size_t)n)) return false;
        }
        if (item->valuestring) item->type = cJSON_Raw;
    }
    return true;
}

char *json_print(const cJSON *tree)
{
    cJSON *copy = cJSON_Duplicate(tree, true);
    char *text = copy && make_raw(copy) ? cJSON_PrintUnformatted(copy) : NULL;
    cJSON_Delete(copy);
    return text;
}
