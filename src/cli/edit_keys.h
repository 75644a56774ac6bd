/* Decodes what a terminal sends into keys: text, control characters, escape sequences, pasted
 * text. */
#pragma once

#include "base/strbuf.h"

/* Control characters are keys by their own codes, 1 to 31 and 127; KEY_ALT is added to the code of
 * a character that was typed with Alt. */
typedef enum key_code {
    KEY_CTRL_A = 1,
    KEY_CTRL_B,
    KEY_CTRL_C,
    KEY_CTRL_D,
    KEY_CTRL_E,
    KEY_CTRL_F,
    KEY_CTRL_G,
    KEY_CTRL_H,
    KEY_TAB,
    KEY_CTRL_J,
    KEY_CTRL_K,
    KEY_CTRL_L,
    KEY_ENTER,
    KEY_CTRL_N,
    KEY_CTRL_P = 16,
    KEY_CTRL_R = 18,
    KEY_CTRL_T = 20,
    KEY_CTRL_U,
    KEY_CTRL_W = 23,
    KEY_CTRL_Y = 25,
    KEY_CTRL_Z,
    KEY_ESCAPE,
    KEY_BACKSPACE = 127,
    KEY_TEXT = 256, /* typed: one code point, in `text` */
    KEY_PASTE, /* pasted between the terminal's brackets; in `text`, without control characters */
    KEY_LEFT,
    KEY_RIGHT,
    KEY_UP,
    KEY_DOWN,
    KEY_HOME,
    KEY_END,
    KEY_DELETE,
    KEY_WORD_LEFT,
    KEY_WORD_RIGHT,
    KEY_NEWLINE,     /* a line break within the message: Alt-Enter */
    KEY_UNKNOWN,     /* an unknown sequence */
    KEY_INPUT_ENDED, /* the terminal was closed */
    KEY_SIGNAL,      /* a signal arrived: the terminal was resized, or SIGINT */
    KEY_ALT = 1024,
} key_code;

/* Values that a key_source returns in place of a byte. */
enum { BYTE_END = -1, BYTE_SIGNAL = -2, BYTE_TIMEOUT = -3 };

/* Returns the next byte, 0 to 255, or one of the above; `timeout_ms` < 0 waits without limit. */
typedef int key_source(void *context, int timeout_ms);

/* Reads the next key; its text goes into `text`, which is emptied first. */
int key_read(key_source *source, void *context, strbuf *text);
