/* Converts pieces and texts between the notations of files and bytes: see tokenizer_build.h. */
#include "text/tokenizer_build.h"

#include "text/nfc.h"
#include "text/utf8.h"

#include <string.h>

static const char space_mark[] = "\xE2\x96\x81"; /* U+2581 */
enum { SPACE_MARK_LENGTH = 3 };

static bool starts_with_mark(const char *text, size_t length)
{
    return length >= SPACE_MARK_LENGTH && memcmp(text, space_mark, SPACE_MARK_LENGTH) == 0;
}

size_t piece_unmark_spaces(const char *piece, size_t length, char *out, bool *is_reachable)
{
    size_t count = 0;
    *is_reachable = true;
    for (size_t i = 0; i < length;) {
        if (starts_with_mark(piece + i, length - i)) {
            out[count++] = ' ';
            i += SPACE_MARK_LENGTH;
        } else {
            if (piece[i] == ' ') *is_reachable = false;
            out[count++] = piece[i++];
        }
    }
    return count;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

int piece_byte(const char *piece, size_t length)
{
    if (length != 6 || memcmp(piece, "<0x", 3) != 0 || piece[5] != '>') return -1;
    int high = hex_digit(piece[3]), low = hex_digit(piece[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* GPT-2 writes each byte as a letter: printable Latin-1 as itself, the other 68 in order from
 * U+0100. Returns the byte of a letter, -1 for any other character. */
static int letter_byte(uint32_t letter)
{
    if ((letter >= 0x21 && letter <= 0x7E) || (letter >= 0xA1 && letter <= 0xAC) ||
        (letter >= 0xAE && letter <= 0xFF))
        return (int)letter;
    if (letter < 0x100 || letter >= 0x100 + 68) return -1;
    int rest = (int)letter - 0x100;
    if (rest < 33) return rest;             /* 0x00 .. 0x20 */
    if (rest < 33 + 34) return rest + 0x5E; /* 0x7F .. 0xA0 */
    return 0xAD;
}

size_t piece_undo_letters(const char *piece, size_t length, char *out)
{
    size_t count = 0;
    for (size_t i = 0, n; i < length; i += n) {
        n = utf8_sequence(piece + i, length - i);
        int byte = n ? letter_byte(utf8_decode(piece + i, n)) : -1;
        if (byte < 0) return SIZE_MAX;
        out[count++] = (char)byte;
    }
    return count;
}

/* The letter of a byte, as letter_byte() reads it. */
static uint32_t byte_letter(uint8_t byte)
{
    if (letter_byte(byte) == byte) return byte;
    if (byte == 0xAD) return 0x100 + 67;
    return 0x100u + (byte <= 0x20 ? byte : byte - 0x5Eu);
}

void piece_put_letters(const char *bytes, size_t length, strbuf *out)
{
    for (size_t i = 0; i < length; i++) {
        char letter[4];
        strbuf_append(out, letter, utf8_encode(byte_letter((uint8_t)bytes[i]), letter));
    }
}

void piece_mark_spaces(const char *bytes, size_t length, strbuf *out)
{
    for (size_t i = 0; i < length; i++) {
        if (bytes[i] == ' ')
            strbuf_append(out, space_mark, SPACE_MARK_LENGTH);
        else
            strbuf_putc(out, bytes[i]);
    }
}

/* --- Normalizing. --- */

bool normalizer_is_identity(const normalizer *normalizer)
{
    return !normalizer->nfc && !normalizer->spaces_are_marked && !normalizer->remove_extra &&
           normalizer->prefix == SPACE_PREFIX_NEVER;
}

/* Appends the text with marks as spaces; with `remove_extra`, one for several spaces. Marks in the
 * text do not count as spaces in that, because sentencepiece first removes spaces and then replaces
 * marks. */
static void append_unmarked(const normalizer *normalizer, const char *text, size_t length,
                            strbuf *out)
{
    bool after_space = normalizer->remove_extra;
    for (size_t i = 0; i < length;) {
        bool is_mark = normalizer->spaces_are_marked && starts_with_mark(text + i, length - i);
        bool is_space = text[i] == ' ';
        if (!(is_space && after_space)) strbuf_putc(out, is_mark ? ' ' : text[i]);
        after_space = is_space && normalizer->remove_extra;
        i += is_mark ? SPACE_MARK_LENGTH : 1;
    }
}

qp_status normalize(const normalizer *normalizer, const char *text, size_t length, bool is_first,
                    strbuf *out, qp_error *error)
{
    size_t start = out->length;
    if (normalizer->nfc) return nfc_append(text, length, out, error);
    while (normalizer->remove_extra && length > 0 && *text == ' ') {
        text++;
        length--;
    }
    if (length == 0) return QP_OK;
    bool prefix = normalizer->prefix == SPACE_PREFIX_ALWAYS ||
                  (normalizer->prefix == SPACE_PREFIX_FIRST && is_first);
    if (prefix) strbuf_putc(out, ' ');
    append_unmarked(normalizer, text, length, out);
    if (out->failed) return error_no_memory(error, "a normalized text", length);
    while (normalizer->remove_extra && out->length > start && out->data[out->length - 1] == ' ')
        out->data[--out->length] = '\0';
    return QP_OK;
}
