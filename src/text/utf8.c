/* UTF-8: see utf8.h. */
#include "text/utf8.h"

#include <stdbool.h>

/* For each lead byte: the length of the sequence, and the range of the second byte, which excludes
 * overlong forms, surrogates and values above the upper end (Unicode, table 3-7). */
static size_t lead_length(uint8_t lead, uint8_t *low, uint8_t *high)
{
    *low = 0x80;
    *high = 0xBF;
    if (lead < 0x80) return 1;
    if (lead < 0xC2) return 0;
    if (lead < 0xE0) return 2;
    if (lead < 0xF0) {
        if (lead == 0xE0) *low = 0xA0;
        if (lead == 0xED) *high = 0x9F;
        return 3;
    }
    if (lead > 0xF4) return 0;
    if (lead == 0xF0) *low = 0x90;
    if (lead == 0xF4) *high = 0x8F;
    return 4;
}

/* Whether bytes 1 .. count-1 may follow the lead byte. */
static bool continues(const uint8_t *bytes, size_t count, uint8_t low, uint8_t high)
{
    if (count > 1 && (bytes[1] < low || bytes[1] > high)) return false;
    for (size_t i = 2; i < count; i++) {
        if ((bytes[i] & 0xC0) != 0x80) return false;
    }
    return true;
}

size_t utf8_sequence(const char *text, size_t length)
{
    const uint8_t *bytes = (const uint8_t *)text;
    if (length == 0) return 0;
    if (bytes[0] < 0x80) return 1;
    uint8_t low, high;
    size_t count = lead_length(bytes[0], &low, &high);
    return count <= length && continues(bytes, count, low, high) ? count : 0;
}

size_t utf8_valid_run(const char *text, size_t length)
{
    size_t at = 0;
    while (at < length) {
        size_t sequence = utf8_sequence(text + at, length - at);
        if (sequence == 0) break;
        at += sequence;
    }
    return at;
}

size_t utf8_invalid_run(const char *text, size_t length)
{
    size_t at = 0;
    while (at < length && utf8_sequence(text + at, length - at) == 0)
        at++;
    return at;
}

void utf8_put_valid(strbuf *out, const char *text, size_t length)
{
    while (length > 0) {
        const size_t good = utf8_valid_run(text, length), taken = good + (good < length);
        strbuf_append(out, text, good);
        if (taken > good) strbuf_puts(out, UTF8_REPLACEMENT);
        text += taken;
        length -= taken;
    }
}

size_t utf8_unfinished(const char *text, size_t length)
{
    for (size_t tail = 1; tail <= 3 && tail <= length; tail++) {
        const uint8_t *bytes = (const uint8_t *)text + length - tail;
        if ((bytes[0] & 0xC0) == 0x80) continue;
        uint8_t low, high;
        size_t count = lead_length(bytes[0], &low, &high);
        return count > tail && continues(bytes, tail, low, high) ? tail : 0;
    }
    return 0;
}

uint32_t utf8_decode(const char *text, size_t sequence)
{
    const uint8_t *bytes = (const uint8_t *)text;
    if (sequence == 1) return bytes[0];
    uint32_t code_point = bytes[0] & (0x7Fu >> sequence);
    for (size_t i = 1; i < sequence; i++)
        code_point = code_point << 6 | (bytes[i] & 0x3Fu);
    return code_point;
}

size_t utf8_characters(const char *text, size_t length)
{
    size_t count = 0;
    for (size_t i = 0; i < length; i++)
        count += ((unsigned char)text[i] & 0xC0) != 0x80;
    return count;
}

size_t utf8_encode(uint32_t code_point, char text[4])
{
    static const uint8_t lead[5] = {0, 0, 0xC0, 0xE0, 0xF0};
    size_t count = code_point < 0x80 ? 1 : code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
    for (size_t i = count - 1; i > 0; i--) {
        text[i] = (char)(0x80 | (code_point & 0x3F));
        code_point >>= 6;
    }
    text[0] = (char)(lead[count] | code_point);
    return count;
}
