/* Escapes text from files for a terminal: see printable.h. */
#include "base/printable.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { MAX_PIECE = 8 };

/* Bytes of the valid UTF-8 sequence at text[0 .. length), and its character; 0: not valid. */
static size_t decode(const unsigned char *text, size_t length, uint32_t *code)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = text[0] < 0x80   ? 1
               : text[0] < 0xc2 ? 0
               : text[0] < 0xe0 ? 2
               : text[0] < 0xf0 ? 3
                                : 4;
    if (n == 0 || n > length || text[0] > 0xf4) return 0;
    *code = n == 1 ? text[0] : text[0] & (0x7f >> n);
    for (size_t i = 1; i < n; i++) {
        if ((text[i] & 0xc0) != 0x80) return 0;
        *code = *code << 6 | (text[i] & 0x3f);
    }
    bool valid = *code >= least[n] && *code <= 0x10ffff && !(*code >= 0xd800 && *code < 0xe000);
    return valid ? n : 0;
}

static bool is_harmless(uint32_t c)
{
    if (c < 0x20) return c == '\n' || c == '\t';
    bool turns_text = c == 0x61c || c == 0x200e || c == 0x200f || (c >= 0x202a && c <= 0x202e) ||
                      (c >= 0x2066 && c <= 0x2069);
    return !turns_text && !(c >= 0x7f && c < 0xa0);
}

/* The escaped form of the text's first character; *used: how many bytes of the text it covers. */
static size_t piece_of(const char *text, size_t length, char piece[MAX_PIECE], size_t *used)
{
    uint32_t code = 0;
    size_t n = decode((const unsigned char *)text, length, &code);
    *used = n ? n : 1;
    if (n == 0 || (n == 1 && !is_harmless(code)))
        return (size_t)snprintf(piece, MAX_PIECE, "\\x%02x", (unsigned char)*text);
    if (!is_harmless(code)) return (size_t)snprintf(piece, MAX_PIECE, "\\u%04x", code & 0xffff);
    memcpy(piece, text, n);
    return n;
}

bool strbuf_put_printable(strbuf *out, const char *text, size_t length)
{
    char piece[MAX_PIECE];
    for (size_t at = 0, used; at < length && !out->failed; at += used) {
        size_t n = piece_of(text + at, length - at, piece, &used);
        strbuf_append(out, piece, n);
    }
    return !out->failed;
}

void printable_copy(const char *text, char *out, size_t size)
{
    char piece[MAX_PIECE];
    size_t length = strlen(text), written = 0;
    for (size_t at = 0, used; at < length; at += used) {
        size_t n = piece_of(text + at, length - at, piece, &used);
        if (written + n >= size) break;
        memcpy(out + written, piece, n);
        written += n;
    }
    out[written] = '\0';
}
