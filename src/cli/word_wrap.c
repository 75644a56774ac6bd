/* Text for a terminal, wrapped at words: see word_wrap.h. */
#include "cli/word_wrap.h"

#include "cli/edit_text.h"
#include "text/utf8.h"

#include <string.h>

static void end_word(word_wrap *w)
{
    strbuf_clear(&w->word);
    w->word_width = 0;
}

static void break_line(word_wrap *w, strbuf *out)
{
    strbuf_putc(out, '\n');
    w->column = 0;
}

/* Continues the line below, where it is indented. */
static void wrap_line(word_wrap *w, strbuf *out)
{
    break_line(w, out);
    strbuf_printf(out, "%*s", w->indent, "");
    w->column = w->indent;
}

/* Three backquotes at the start of a line open or close code. */
static void watch_fence(word_wrap *w, char c)
{
    if (c == '\n') {
        w->fence = 0;
        w->in_line = false;
    } else if (c == '`' && !w->in_line) {
        if (++w->fence == 3) w->code = !w->code;
    } else if (c != ' ' || w->fence) {
        w->in_line = true;
    }
}

/* Erases the word at the end of this line, and writes it at the start of the next. */
static void move_word(word_wrap *w, strbuf *out)
{
    strbuf_printf(out, "\x1b[%dD\x1b[K", w->word_width);
    wrap_line(w, out);
    strbuf_append(out, w->word.data, w->word.length);
    w->column += w->word_width;
}

static void put_character(word_wrap *w, const char *text, size_t size, int width, int columns,
                          strbuf *out)
{
    if (width > 1) end_word(w); /* scripts with wide characters break between them */
    if (!w->code && w->column + width > columns) {
        if (w->word_width && w->indent + w->word_width < w->column) {
            move_word(w, out);
        } else {
            end_word(w);
            wrap_line(w, out);
        }
    }
    strbuf_append(out, text, size);
    strbuf_append(&w->word, text, size);
    w->word_width += width;
    w->column += width;
    if (width > 1) end_word(w);
}

static void put_blank(word_wrap *w, char blank, int columns, strbuf *out)
{
    end_word(w);
    if (!w->code && w->column + 1 > columns) {
        wrap_line(w, out); /* the line break replaces the blank */
        return;
    }
    strbuf_putc(out, blank);
    w->column += blank == '\t' ? 8 - w->column % 8 : 1;
}

/* The last column stays free, because terminals differ in where the cursor is after it. */
void word_wrap_put(word_wrap *w, const char *text, size_t length, int columns, strbuf *out)
{
    for (size_t i = 0; i < length;) {
        size_t size = utf8_sequence(text + i, length - i);
        uint32_t c = size ? utf8_decode(text + i, size) : 0xfffd;
        watch_fence(w, text[i]);
        if (c == '\n') {
            end_word(w);
            break_line(w, out);
        } else if (c == ' ' || c == '\t') {
            put_blank(w, (char)c, columns - 1, out);
        } else if (c < 0x20 || (c >= 0x7f && c < 0xa0) || !size) {
            put_character(w, UTF8_REPLACEMENT, strlen(UTF8_REPLACEMENT), 1, columns - 1, out);
        } else {
            put_character(w, text + i, size, edit_width(c), columns - 1, out);
        }
        i += size ? size : 1;
    }
}

void word_wrap_style(word_wrap *w, const char *sequence, strbuf *out)
{
    strbuf_puts(out, sequence);
    strbuf_puts(&w->word, sequence); /* the word takes it along */
}

void word_wrap_free(word_wrap *w)
{
    strbuf_free(&w->word);
}
