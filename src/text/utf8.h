/* UTF-8, strictly: shortest forms only, no surrogates, nothing above U+10FFFF. */
#pragma once

#include "base/strbuf.h"

#include <stddef.h>
#include <stdint.h>

/* Bytes of the valid sequence at `text`, 1 to 4; 0 if there is none (or length is 0). */
size_t utf8_sequence(const char *text, size_t length);

/* Bytes from the start of `text` that are valid sequences; all of them if nothing is invalid. */
size_t utf8_valid_run(const char *text, size_t length);

/* Bytes from the start of `text` before the next valid sequence. */
size_t utf8_invalid_run(const char *text, size_t length);

/* Bytes at the end of `text`, 0 to 3, that are the beginning of a sequence. */
size_t utf8_unfinished(const char *text, size_t length);

#define UTF8_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD, for what is no text */

/* Appends the text, with U+FFFD for each byte that begins no valid sequence. */
void utf8_put_valid(strbuf *out, const char *text, size_t length);

/* The number of characters, counted by the bytes that begin one. */
size_t utf8_characters(const char *text, size_t length);

/* The code point of a sequence that utf8_sequence() found. */
uint32_t utf8_decode(const char *text, size_t sequence);

/* Writes the code point's bytes and returns their number, 1 to 4. */
size_t utf8_encode(uint32_t code_point, char text[4]);
