/* Text as a JSON string: see json_string.h. */
#include "text/json_string.h"

#include "text/utf8.h"

#include <stdbool.h>

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
