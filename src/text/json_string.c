/* Text as a JSON string: see json_string.h. */
#include "text/json_string.h"

#include "text/utf8.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put_escaped(strbuf *out, unsigned char c)
{
    if (c == '"' || c == '\\')
        strbuf_printf(out, "\\%c", c);
    else if (c == '\n')
        strbuf_puts(out, "\\n");
    else
        strbuf_printf(out, "\\u%04x", c);
}

static bool is_escaped(unsigned char c)
{
    return c < 0x20 || c == 0x7f || c == '"' || c == '\\';
}

void json_put_string(strbuf *out, const char *text, size_t length)
{
    strbuf_putc(out, '"');
    for (size_t i = 0; i < length; i++) {
        size_t plain = i;
        while (plain < length && !is_escaped((unsigned char)text[plain]))
            plain++;
        utf8_put_valid(out, text + i, plain - i);
        i = plain;
        if (i < length) put_escaped(out, (unsigned char)text[i]);
    }
    strbuf_putc(out, '"');
}

/* ---- Formats ------------------------------------------------------------------------------- */

static void put_tree(strbuf *out, const cJSON *tree)
{
    char *text = tree ? json_print(tree) : NULL;
    if (tree && !text) out->failed = true;
    strbuf_puts(out, text ? text : "null");
    cJSON_free(text);
}

static void put_number(strbuf *out, double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.15g", value);
    if (strtod(text, NULL) != value) snprintf(text, sizeof text, "%.17g", value);
    strbuf_puts(out, isfinite(value) ? text : "null");
}

static void put_text(strbuf *out, const char *text, size_t length)
{
    if (text)
        json_put_string(out, text, length);
    else
        strbuf_puts(out, "null");
}

void json_vput(strbuf *out, const char *format, va_list args)
{
    for (const char *at = format; *at; at++) {
        const size_t plain = strcspn(at, "'%");
        const char *text;
        const strbuf *buf;
        strbuf_append(out, at, plain);
        at += plain;
        if (!*at) return;
        switch (*at == '%' ? *++at : *at) {
        case '\'':
            strbuf_putc(out, '"');
            break;
        case 'q':
            text = va_arg(args, const char *);
            put_text(out, text, text ? strlen(text) : 0);
            break;
        case 'Q':
            text = va_arg(args, const char *);
            put_text(out, text, va_arg(args, size_t));
            break;
        case 's':
            strbuf_puts(out, va_arg(args, const char *));
            break;
        case 't':
            buf = va_arg(args, const strbuf *);
            strbuf_append(out, buf->data, buf->length);
            out->failed |= buf->failed;
            break;
        case 'j':
            put_tree(out, va_arg(args, const cJSON *));
            break;
        case 'b':
            strbuf_puts(out, va_arg(args, int) ? "true" : "false");
            break;
        case 'd':
            strbuf_printf(out, "%d", va_arg(args, int));
            break;
        case 'z':
            strbuf_printf(out, "%zu", va_arg(args, size_t));
            break;
        case 'i':
            strbuf_printf(out, "%lld", (long long)va_arg(args, int64_t));
            break;
        case 'g':
            put_number(out, va_arg(args, double));
            break;
        default:
            assert(!"a conversion of json_put()");
        }
    }
}

void json_put(strbuf *out, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    json_vput(out, format, args);
    va_end(args);
}

cJSON *json_make(const char *format, ...)
{
    strbuf text = {0};
    cJSON *tree = NULL;
    va_list args;
    va_start(args, format);
    json_vput(&text, format, args);
    va_end(args);
    if (!text.failed) json_parse_exact(strbuf_text(&text), text.length, "JSON", &tree, NULL);
    strbuf_free(&text);
    return tree;
}
