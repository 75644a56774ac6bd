/* Characters as Python's str methods see them, over UTF-8.
 *
 * Templates are written for Python, so strip(), upper() and repr() must treat every character as
 * Python does. Bytes that are not valid UTF-8 count as one character each, so that no text can make
 * a scan go wrong. There is one difference: lower() maps a final capital sigma like any other.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PYCHAR_MAX_MAPPING = 3,    /* most code points that one code point maps to */
    PYCHAR_INVALID = 0x110000, /* the result of pychar_decode for a byte that is not valid UTF-8 */
};

typedef enum pychar_case { PYCHAR_UPPER, PYCHAR_LOWER, PYCHAR_TITLE, PYCHAR_FOLD } pychar_case;

typedef enum pychar_class {
    PYCHAR_ALPHA,
    PYCHAR_NUMERIC,
    PYCHAR_DIGIT,
    PYCHAR_DECIMAL,
    PYCHAR_PRINTABLE,
} pychar_class;

/* Bytes of the character at `text` (1..4; `length` > 0 bytes are left), its code point in *code. */
size_t pychar_decode(const char *text, size_t length, uint32_t *code);

/* Writes `code` as UTF-8; returns the number of bytes. */
size_t pychar_encode(uint32_t code, char out[4]);

/* Characters in `length` bytes. */
size_t pychar_count(const char *text, size_t length);

/* Byte offset of character number `index` (at most the count). */
size_t pychar_offset(const char *text, size_t length, size_t index);

/* The offset of the first byte that is not valid UTF-8, or `length`. */
size_t pychar_valid_prefix(const char *text, size_t length);

bool pychar_is(pychar_class class, uint32_t code);
bool pychar_is_space(uint32_t code);
bool pychar_is_upper(uint32_t code);
bool pychar_is_lower(uint32_t code);

/* The full case mapping; returns how many code points were written (1..3). */
size_t pychar_map(pychar_case to, uint32_t code, uint32_t out[PYCHAR_MAX_MAPPING]);
