/* Arithmetic over named sizes: see expression.h. A recursive descent over the text. */
#include "op/expression.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

typedef struct parser {
    const char *at, *end;
    expression_lookup *lookup;
    void *context;
    bool failed;
} parser;

static double parse_sum(parser *p);

static char peek(parser *p)
{
    while (p->at < p->end && *p->at == ' ')
        p->at++;
    return p->at < p->end ? *p->at : '\0';
}

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

static double parse_value(parser *p)
{
    char c = peek(p);
    double value = 0;
    if (c == '(') {
        p->at++;
        value = parse_sum(p);
        if (peek(p) == ')')
            p->at++;
        else
            p->failed = true;
        return value;
    }
    const char *begin = p->at;
    if (isdigit((unsigned char)c)) {
        while (p->at < p->end && (is_name(*p->at) || *p->at == '.'))
            p->at++;
        char number[32], *stop;
        size_t length = (size_t)(p->at - begin);
        if (length >= sizeof number) return p->failed = true, 0;
        memcpy(number, begin, length);
        number[length] = '\0';
        value = strtod(number, &stop);
        if (*stop) p->failed = true;
        return value;
    }
    while (p->at < p->end && is_name(*p->at))
        p->at++;
    if (p->at == begin || !p->lookup(p->context, begin, (size_t)(p->at - begin), &value))
        p->failed = true;
    return value;
}

static double parse_product(parser *p)
{
    double value = parse_value(p);
    while (!p->failed && (peek(p) == '*' || peek(p) == '/')) {
        char sign = *p->at++;
        double right = parse_value(p);
        value = sign == '*' ? value * right : value / right;
    }
    return value;
}

static double parse_sum(parser *p)
{
    double value = parse_product(p);
    while (!p->failed && (peek(p) == '+' || peek(p) == '-')) {
        char sign = *p->at++;
        double right = parse_product(p);
        value = sign == '+' ? value + right : value - right;
    }
    return value;
}

bool expression_evaluate(const char *text, size_t length, expression_lookup *lookup, void *context,
                         double *value)
{
    parser p = {.at = text, .end = text + length, .lookup = lookup, .context = context};
    *value = parse_sum(&p);
    return !p.failed && peek(&p) == '\0';
}
