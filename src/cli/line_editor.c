/* Edits a message at a terminal: see line_editor.h. */
#include "cli/line_editor.h"

#include "cli/cli.h"
#include "cli/edit_keys.h"
#include "cli/edit_screen.h"
#include "cli/edit_text.h"
#include "cli/line_history.h"
#include "cli/terminal.h"

#include <stdlib.h>
#include <string.h>

static const char PROMPT[] = "> ";

struct line_editor {
    edit_text message;
    edit_screen screen;
    line_history history;
    line_completer *complete;
    int shown;      /* index in the history; history.count is the new message */
    strbuf draft;   /* the new message while an old one is shown */
    strbuf killed;  /* what Ctrl-Y inserts */
    strbuf carried; /* set by the key that was read last */
    bool done;
    line_result result;
};

/* ---- Drawing ------------------------------------------------------------------------------- */

static void draw_with(line_editor *e, const char *prompt)
{
    strbuf out = {0};
    int columns, lines;
    terminal_size(&columns, &lines);
    screen_draw(&e->screen, &e->message, prompt, columns, lines, &out);
    if (!out.failed) terminal_write(out.data, out.length);
    strbuf_free(&out);
}

static void draw(line_editor *e)
{
    draw_with(e, PROMPT);
}

/* Moves the cursor below the message, which stays visible. */
static void leave(line_editor *e)
{
    strbuf out = {0};
    e->message.cursor = e->message.text.length;
    draw(e);
    screen_leave(&e->screen, &out);
    terminal_write(strbuf_text(&out), out.length);
    strbuf_free(&out);
}

static void beep(void)
{
    terminal_write("\a", 1);
}

/* ---- Actions of keys ---------------------------------------------------------------------- */

static void finish(line_editor *e, line_result result)
{
    e->done = true;
    e->result = result;
}

/* After a backslash, and in a message that """ began, Enter breaks the line instead. */
static void send_message(line_editor *e)
{
    strbuf *text = &e->message.text;
    if (edit_is_quoted(strbuf_text(text))) {
        edit_insert(&e->message, "\n", 1);
        return;
    }
    if (!text->length || text->data[text->length - 1] != '\\') {
        finish(e, LINE_SENT);
        return;
    }
    text->data[text->length - 1] = '\n';
    e->message.cursor = text->length;
}

static void interrupt(line_editor *e)
{
    finish(e, LINE_INTERRUPTED);
}

static void insert_carried(line_editor *e)
{
    edit_insert(&e->message, strbuf_text(&e->carried), e->carried.length);
}

/* Lines are often copied with their last line break, which the person did not mean to send. */
static void insert_pasted(line_editor *e)
{
    const char *text = strbuf_text(&e->carried);
    size_t length = e->carried.length;
    edit_insert(&e->message, text, length && text[length - 1] == '\n' ? length - 1 : length);
}

static void insert_line_break(line_editor *e)
{
    edit_insert(&e->message, "\n", 1);
}

static void go_left(line_editor *e)
{
    e->message.cursor = edit_previous(&e->message, e->message.cursor);
}

static void go_right(line_editor *e)
{
    e->message.cursor = edit_next(&e->message, e->message.cursor);
}

static void go_word_left(line_editor *e)
{
    e->message.cursor = edit_word_left(&e->message, e->message.cursor);
}

static void go_word_right(line_editor *e)
{
    e->message.cursor = edit_word_right(&e->message, e->message.cursor);
}

static void go_home(line_editor *e)
{
    e->message.cursor = edit_line_start(&e->message, e->message.cursor);
}

static void go_end(line_editor *e)
{
    e->message.cursor = edit_line_end(&e->message, e->message.cursor);
}

static void erase_left(line_editor *e)
{
    edit_remove(&e->message, edit_previous(&e->message, e->message.cursor), e->message.cursor);
}

static void erase_right(line_editor *e)
{
    edit_remove(&e->message, e->message.cursor, edit_next(&e->message, e->message.cursor));
}

static void erase_or_end(line_editor *e)
{
    if (e->message.text.length)
        erase_right(e);
    else
        finish(e, LINE_ENDED);
}

/* Removes [from, to) and keeps it for Ctrl-Y. */
static void kill_range(line_editor *e, size_t from, size_t to)
{
    if (to <= from) return;
    strbuf_clear(&e->killed);
    strbuf_append(&e->killed, e->message.text.data + from, to - from);
    edit_remove(&e->message, from, to);
}

static void kill_to_end(line_editor *e)
{
    size_t at = e->message.cursor, end = edit_line_end(&e->message, at);
    kill_range(e, at, end > at ? end : edit_next(&e->message, at));
}

static void kill_to_start(line_editor *e)
{
    kill_range(e, edit_line_start(&e->message, e->message.cursor), e->message.cursor);
}

static void kill_word_right(line_editor *e)
{
    kill_range(e, e->message.cursor, edit_word_right(&e->message, e->message.cursor));
}

static void kill_word_left(line_editor *e)
{
    kill_range(e, edit_word_left(&e->message, e->message.cursor), e->message.cursor);
}

/* Back to the previous blank, as Ctrl-W in shells. */
static void kill_blank_word(line_editor *e)
{
    const char *text = strbuf_text(&e->message.text);
    size_t from = e->message.cursor;
    while (from > 0 && strchr(" \n\t", text[from - 1]))
        from--;
    while (from > 0 && !strchr(" \n\t", text[from - 1]))
        from--;
    kill_range(e, from, e->message.cursor);
}

static void yank(line_editor *e)
{
    edit_insert(&e->message, strbuf_text(&e->killed), e->killed.length);
}

static void transpose(line_editor *e)
{
    edit_transpose(&e->message);
}

static void clear_screen(line_editor *e)
{
    terminal_write("\x1b[H\x1b[2J", 7);
    screen_forget(&e->screen);
}

static void suspend(line_editor *e)
{
    strbuf out = {0};
    screen_leave(&e->screen, &out);
    terminal_write(strbuf_text(&out), out.length);
    strbuf_free(&out);
    terminal_suspend();
}

/* ---- History ------------------------------------------------------------------------------- */

static void show_message(line_editor *e, int index)
{
    if (index < 0 || index > e->history.count) return;
    if (e->shown == e->history.count) {
        strbuf_clear(&e->draft);
        strbuf_append(&e->draft, strbuf_text(&e->message.text), e->message.text.length);
    }
    const char *text = index == e->history.count ? strbuf_text(&e->draft) : e->history.items[index];
    e->shown = index;
    edit_set(&e->message, text, strlen(text));
}

static void show_older(line_editor *e)
{
    show_message(e, e->shown - 1);
}

static void show_newer(line_editor *e)
{
    show_message(e, e->shown + 1);
}

static void go_up(line_editor *e)
{
    if (!edit_up(&e->message)) show_older(e);
}

static void go_down(line_editor *e)
{
    if (!edit_down(&e->message)) show_newer(e);
}

/* Shows the prompt of a search, and the message found with the cursor at the match. */
static void show_match(line_editor *e, const char *wanted, int found)
{
    strbuf prompt = {0};
    if (found >= 0) {
        const char *text = e->history.items[found];
        edit_set(&e->message, text, strlen(text));
        e->message.cursor = (size_t)(strstr(text, wanted) - text);
    }
    strbuf_printf(&prompt, "(%s '%.40s') ", found < 0 && *wanted ? "not found:" : "search", wanted);
    draw_with(e, strbuf_text(&prompt));
    strbuf_free(&prompt);
}

static void drop_last_character(strbuf *text)
{
    while (text->length && ((unsigned char)text->data[--text->length] & 0xc0) == 0x80) {
    }
    if (text->data) text->data[text->length] = '\0';
}

static void handle_key(line_editor *e, int key);

/* Ctrl-R: searches older messages for the typed text. Ctrl-R again searches further, Ctrl-G and
 * Escape restore the message, and any other key acts on the message found. */
static void search_history(line_editor *e)
{
    strbuf wanted = {0}, before = {0};
    strbuf_append(&before, strbuf_text(&e->message.text), e->message.text.length);
    int found = -1, key;
    for (;;) {
        show_match(e, strbuf_text(&wanted), found);
        key = key_read(terminal_read_byte, NULL, &e->carried);
        int from = e->history.count - 1;
        if (key == KEY_TEXT)
            strbuf_append(&wanted, e->carried.data, e->carried.length);
        else if (key == KEY_BACKSPACE || key == KEY_CTRL_H)
            drop_last_character(&wanted);
        else if (key == KEY_CTRL_R)
            from = found > 0 ? found - 1 : from;
        else if (key != KEY_SIGNAL || cli_interrupted)
            break;
        found = wanted.length ? history_find(&e->history, from, strbuf_text(&wanted)) : -1;
    }
    bool cancelled = key == KEY_CTRL_G || key == KEY_ESCAPE;
    if (cancelled) edit_set(&e->message, strbuf_text(&before), before.length);
    if (!cancelled && found >= 0) e->shown = found;
    strbuf_free(&wanted);
    strbuf_free(&before);
    if (!cancelled) handle_key(e, key);
}

/* ---- Completion ---------------------------------------------------------------------------- */

void completions_add(completions *c, const char *word)
{
    strbuf_append(&c->words, word, strlen(word) + 1);
    c->count++;
}

/* Bytes of the common prefix of all candidates. */
static size_t common_length(const completions *c)
{
    const char *first = strbuf_text(&c->words), *word = first;
    size_t common = strlen(first);
    for (int i = 0; i < c->count; i++, word += strlen(word) + 1) {
        size_t same = 0;
        while (same < common && word[same] == first[same])
            same++;
        common = same;
    }
    while (common && ((unsigned char)first[common] & 0xc0) == 0x80)
        common--; /* not within a UTF-8 sequence */
    return common;
}

static void list_candidates(line_editor *e, const completions *c)
{
    enum { LISTED = 40 };
    strbuf out = {0};
    const char *word = strbuf_text(&c->words);
    screen_leave(&e->screen, &out);
    for (int i = 0; i < c->count && i < LISTED; i++, word += strlen(word) + 1)
        strbuf_printf(&out, "%s%s", i ? "  " : "", word);
    if (c->count > LISTED) strbuf_printf(&out, "  and %d more", c->count - LISTED);
    strbuf_puts(&out, "\r\n");
    terminal_write(strbuf_text(&out), out.length);
    strbuf_free(&out);
}

static void complete(line_editor *e)
{
    completions found = {0};
    strbuf before = {0};
    strbuf_append(&before, strbuf_text(&e->message.text), e->message.cursor);
    e->complete(strbuf_text(&before), &found);
    size_t typed = e->message.cursor - found.start;
    size_t common = found.count && !found.words.failed ? common_length(&found) : 0;
    if (common > typed || found.count == 1) {
        edit_remove(&e->message, found.start, e->message.cursor);
        edit_insert(&e->message, found.words.data, common);
    } else if (found.count > 1) {
        list_candidates(e, &found);
    } else {
        beep();
    }
    strbuf_free(&before);
    strbuf_free(&found.words);
}

/* ---- Reading ------------------------------------------------------------------------------- */

static const struct {
    int key;
    void (*act)(line_editor *e);
} bindings[] = {
    {KEY_TEXT, insert_carried},
    {KEY_PASTE, insert_pasted},
    {KEY_ENTER, send_message},
    {KEY_CTRL_J, send_message},
    {KEY_NEWLINE, insert_line_break},
    {KEY_CTRL_C, interrupt},
    {KEY_CTRL_D, erase_or_end},
    {KEY_LEFT, go_left},
    {KEY_CTRL_B, go_left},
    {KEY_RIGHT, go_right},
    {KEY_CTRL_F, go_right},
    {KEY_WORD_LEFT, go_word_left},
    {KEY_ALT + 'b', go_word_left},
    {KEY_WORD_RIGHT, go_word_right},
    {KEY_ALT + 'f', go_word_right},
    {KEY_HOME, go_home},
    {KEY_CTRL_A, go_home},
    {KEY_END, go_end},
    {KEY_CTRL_E, go_end},
    {KEY_UP, go_up},
    {KEY_DOWN, go_down},
    {KEY_CTRL_P, show_older},
    {KEY_CTRL_N, show_newer},
    {KEY_CTRL_R, search_history},
    {KEY_BACKSPACE, erase_left},
    {KEY_CTRL_H, erase_left},
    {KEY_DELETE, erase_right},
    {KEY_CTRL_K, kill_to_end},
    {KEY_CTRL_U, kill_to_start},
    {KEY_CTRL_W, kill_blank_word},
    {KEY_ALT + KEY_BACKSPACE, kill_word_left},
    {KEY_ALT + 'd', kill_word_right},
    {KEY_CTRL_Y, yank},
    {KEY_CTRL_T, transpose},
    {KEY_CTRL_L, clear_screen},
    {KEY_CTRL_Z, suspend},
    {KEY_TAB, complete},
};

static void handle_key(line_editor *e, int key)
{
    if (key == KEY_INPUT_ENDED) finish(e, LINE_ENDED);
    if (key == KEY_SIGNAL && cli_interrupted) finish(e, LINE_INTERRUPTED);
    for (size_t i = 0; i < sizeof bindings / sizeof *bindings; i++)
        if (bindings[i].key == key) bindings[i].act(e);
}

line_result line_editor_read(line_editor *e, strbuf *out)
{
    edit_set(&e->message, "", 0);
    e->shown = e->history.count;
    e->done = false;
    screen_forget(&e->screen);
    terminal_set_mode(TERMINAL_EDITING);
    while (!e->done) {
        draw(e);
        handle_key(e, key_read(terminal_read_byte, NULL, &e->carried));
    }
    leave(e);
    terminal_set_mode(TERMINAL_ANSWERING);
    strbuf_clear(out);
    if (e->result != LINE_SENT) return e->result;
    if (e->message.text.failed ||
        !strbuf_append(out, strbuf_text(&e->message.text), e->message.text.length))
        out->failed = true;
    if (out->length) history_add(&e->history, strbuf_text(out));
    return LINE_SENT;
}

bool line_editor_confirm(line_editor *e, const char *question)
{
    int key;
    terminal_set_mode(TERMINAL_EDITING);
    terminal_write(question, strlen(question));
    do {
        key = key_read(terminal_read_byte, NULL, &e->carried);
    } while (key == KEY_SIGNAL && !cli_interrupted);
    bool yes = key == KEY_TEXT && strchr("yY", e->carried.data[0]);
    terminal_write(yes ? "yes\r\n" : "no\r\n", yes ? 5 : 4);
    terminal_set_mode(TERMINAL_ANSWERING);
    return yes;
}

qp_status line_editor_open(const char *history, line_completer *complete, line_editor **out,
                           qp_error *error)
{
    line_editor *e = calloc(1, sizeof *e);
    *out = e;
    if (!e) return error_no_memory(error, "the editor", sizeof *e);
    e->complete = complete;
    terminal_use_utf8();
    if (history) history_open(&e->history, history);
    return terminal_open(error);
}

void line_editor_close(line_editor *e)
{
    if (!e) return;
    terminal_close();
    history_free(&e->history);
    screen_free(&e->screen);
    strbuf_free(&e->message.text);
    strbuf_free(&e->draft);
    strbuf_free(&e->killed);
    strbuf_free(&e->carried);
    free(e);
}
