/* Text as a JSON string: see json_string.h. */
#include "text/json_string.h"

#include "text/utf8.h"

static void put_escaped(strbuf *out, unsigned char c)
{
    if (c == '"' || c == '\\')
        strbuf_printf(out, "\\%c", c);
    else if (c == '\n')
        strbuf_puts(out, "\\n");
    else
        strbuf_printf(out, "\\u%04x", c);
}

void json_put_string(strbuf *out, const char *text, size_t length)
{
    strbuf_putc(out, '"');
    for (size_t i = 0; i < length;) {
        size_t plain = i;
        while (plain < length && (unsigned char)text[plain] >= 0x20 &&
               (unsigned char)text[plain] < 0x7f && text[plain] != '"' && text[plain] != '\\')
            plain++;
        strbuf_append(out, text + i, plain - i);
        i = plain;
        if (i == length) break;
        unsigned char c = (unsigned char)text[i];
        size_t n = utf8_sequence(text + i, length - i);
        if (c < 0x80)
            put_escaped(out, c);
        else if (n > 0)
            strbuf_append(out, text + i, n);
        else
            strbuf_puts(out, "\xef\xbf\xbd");
        i += n ? n : 1;
    }
    strbuf_putc(out, '"');
}
