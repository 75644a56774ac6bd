/* Decodes what a terminal sends into keys: see edit_keys.h.
 *
 * The sequences are those of xterm, which today's terminals send. A lone Escape is recognised by
 * the pause after it.
 */
#include "cli/edit_keys.h"

#include "cli/edit_text.h"
#include "text/utf8.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { SEQUENCE_MS = 50, PASTE_MS = 1000, SEQUENCE_MOST = 32, PASTE_MOST = 64 << 20 };

static int key_of_letter(char letter)
{
    switch (letter) {
    case 'A':
        return KEY_UP;
    case 'B':
        return KEY_DOWN;
    case 'C':
        return KEY_RIGHT;
    case 'D':
        return KEY_LEFT;
    case 'H':
        return KEY_HOME;
    case 'F':
        return KEY_END;
    default:
        return KEY_UNKNOWN;
    }
}

/* ESC [ NUMBER ~ */
static int key_of_number(long number)
{
    switch (number) {
    case 1:
    case 7:
        return KEY_HOME;
    case 4:
    case 8:
        return KEY_END;
    case 3:
        return KEY_DELETE;
    case 200:
        return KEY_PASTE;
    default:
        return KEY_UNKNOWN;
    }
}

/* Reads all text up to the closing bracket. A second of silence ends it too, so that a lost bracket
 * does not block the terminal. */
static int read_paste(key_source *source, void *context, strbuf *text)
{
    static const char end[] = "\x1b[201~";
    const size_t size = sizeof end - 1;
    strbuf raw = {0};
    bool ended = false;
    while (!ended && raw.length < PASTE_MOST) {
        int byte = source(context, PASTE_MS);
        if (byte == BYTE_SIGNAL) continue;
        if (byte < 0 || !strbuf_putc(&raw, (char)byte)) break;
        ended = raw.length >= size && memcmp(raw.data + raw.length - size, end, size) == 0;
    }
    if (ended) raw.length -= size;
    edit_clean(strbuf_text(&raw), raw.length, text);
    strbuf_free(&raw);
    return KEY_PASTE;
}

/* The parameters and the last byte of ESC [ ... */
static int key_of_sequence(const char *parameters, char last)
{
    long number = strtol(parameters, NULL, 10);
    const char *second = strchr(parameters, ';');
    long modifier = second ? strtol(second + 1, NULL, 10) : 1;
    if (last == 'u' && number == 13 && modifier > 1) return KEY_NEWLINE;
    if (last == '~') return key_of_number(number);
    int key = key_of_letter(last);
    if (modifier > 1 && key == KEY_LEFT) return KEY_WORD_LEFT;
    if (modifier > 1 && key == KEY_RIGHT) return KEY_WORD_RIGHT;
    return key;
}

static int read_sequence(key_source *source, void *context, strbuf *text)
{
    char parameters[SEQUENCE_MOST] = "";
    for (size_t i = 0; i + 1 < sizeof parameters; i++) {
        int byte = source(context, SEQUENCE_MS);
        if (byte < 0) return KEY_UNKNOWN;
        if (byte >= 0x40 && byte <= 0x7e) {
            int key = key_of_sequence(parameters, (char)byte);
            return key == KEY_PASTE ? read_paste(source, context, text) : key;
        }
        parameters[i] = (char)byte;
    }
    return KEY_UNKNOWN;
}

static int read_escape(key_source *source, void *context, strbuf *text)
{
    int byte = source(context, SEQUENCE_MS);
    if (byte < 0) return KEY_ESCAPE;
    if (byte == '[') return read_sequence(source, context, text);
    if (byte == 'O') {
        byte = source(context, SEQUENCE_MS);
        return byte < 0 ? KEY_UNKNOWN : key_of_letter((char)byte);
    }
    if (byte == '\r' || byte == '\n') return KEY_NEWLINE;
    return KEY_ALT + byte;
}

/* Reads the rest of the UTF-8 sequence that `byte` begins; invalid sequences are skipped. */
static int read_text(key_source *source, void *context, int byte, strbuf *text)
{
    strbuf_putc(text, (char)byte);
    while (!text->failed && utf8_unfinished(text->data, text->length) == text->length) {
        byte = source(context, SEQUENCE_MS);
        if (byte < 0) return KEY_UNKNOWN;
        strbuf_putc(text, (char)byte);
    }
    bool valid = !text->failed && utf8_sequence(text->data, text->length) == text->length;
    return valid ? KEY_TEXT : KEY_UNKNOWN;
}

int key_read(key_source *source, void *context, strbuf *text)
{
    strbuf_clear(text);
    int byte = source(context, -1);
    if (byte == BYTE_SIGNAL) return KEY_SIGNAL;
    if (byte < 0) return KEY_INPUT_ENDED;
    if (byte == KEY_ESCAPE) return read_escape(source, context, text);
    if (byte == 0) return KEY_UNKNOWN;
    if (byte < 0x20 || byte == KEY_BACKSPACE) return byte;
    return read_text(source, context, byte, text);
}
