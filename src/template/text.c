/* What methods and filters do with a text: strip, replace, map, split into lines. See run.h. */
#include "template/pychar.h"
#include "template/run.h"

#include <string.h>

static bool in_chars(const string *chars, const char *one, size_t size, uint32_t code)
{
    if (!chars) return pychar_is_space(code);
    for (size_t at = 0; at < chars->length;) {
        uint32_t other;
        size_t length = pychar_decode(chars->data + at, chars->length - at, &other);
        if (length == size && memcmp(chars->data + at, one, size) == 0) return true;
        at += length;
    }
    return false;
}

qp_status text_strip(run *run, const string *text, const string *chars, int side, value *out)
{
    size_t from = 0, to = 0;
    bool leading = true;
    TRY(run_step(run, text->length / 8 * (1 + (chars ? chars->length / 8 : 0))));
    for (size_t at = 0; at < text->length;) {
        uint32_t code;
        size_t size = pychar_decode(text->data + at, text->length - at, &code);
        bool strip = in_chars(chars, text->data + at, size, code);
        leading = leading && strip;
        at += size;
        if (leading && side & STRIP_LEFT) from = at;
        if (!strip) to = at;
    }
    if (!(side & STRIP_RIGHT)) to = text->length;
    return run_view(run, text->data + (from < to ? from : to), from < to ? to - from : 0, out);
}

qp_status text_replace(run *run, const string *text, const string *old, const string *new,
                       int64_t count, value *out)
{
    builder made = {.run = run};
    size_t from = 0;        /* not yet copied */
    if (old->length == 0) { /* between all characters */
        for (size_t at = 0; count != 0 && at <= text->length; count -= count > 0) {
            uint32_t code;
            TRY(builder_put(&made, new->data, new->length));
            size_t size =
                at < text->length ? pychar_decode(text->data + at, text->length - at, &code) : 1;
            if (at < text->length) TRY(builder_put(&made, text->data + at, size));
            TRY(run_step(run, 1));
            at += size;
            from = at < text->length ? at : text->length;
        }
    }
    while (old->length && count != 0) {
        int64_t found = text_find(run, text, old, from, text->length);
        TRY(run_step(run, 1));
        if (found < 0) break;
        TRY(builder_put(&made, text->data + from, (size_t)found - from));
        TRY(builder_put(&made, new->data, new->length));
        from = (size_t)found + old->length;
        count -= count > 0;
    }
    TRY(builder_put(&made, text->data + from, text->length - from));
    return builder_finish(&made, out);
}

qp_status text_put_case(builder *made, const string *text, size_t at, size_t size, uint32_t code,
                        int to)
{
    uint32_t mapped[PYCHAR_MAX_MAPPING];
    if (code == PYCHAR_INVALID) return builder_put(made, text->data + at, size);
    size_t n = pychar_map((pychar_case)to, code, mapped);
    for (size_t i = 0; i < n; i++)
        TRY(builder_code(made, mapped[i]));
    return QP_OK;
}

qp_status text_case(run *run, const string *text, int to, value *out)
{
    builder made = {.run = run};
    TRY(run_step(run, text->length / 8));
    for (size_t at = 0; at < text->length;) {
        uint32_t code;
        size_t size = pychar_decode(text->data + at, text->length - at, &code);
        TRY(text_put_case(&made, text, at, size, code, to));
        at += size;
    }
    return builder_finish(&made, out);
}

qp_status text_capitalize(run *run, const string *text, value *out)
{
    builder made = {.run = run};
    TRY(run_step(run, text->length / 8));
    for (size_t at = 0; at < text->length;) {
        uint32_t code;
        size_t size = pychar_decode(text->data + at, text->length - at, &code);
        TRY(text_put_case(&made, text, at, size, code, at ? PYCHAR_LOWER : PYCHAR_TITLE));
        at += size;
    }
    return builder_finish(&made, out);
}

qp_status text_add_piece(run *run, list *pieces, const string *text, size_t from, size_t to)
{
    TRY(run_step(run, 1));
    return run_view(run, text->data + from, to - from, &pieces->items[pieces->count++]);
}

qp_status text_piece_list(run *run, size_t room, value *out)
{
    TRY(run_list(run, LIST_LIST, room, out));
    out->as.items->count = 0;
    return QP_OK;
}

static bool is_line_end(uint32_t code)
{
    return (code >= 0x0a && code <= 0x0d) || (code >= 0x1c && code <= 0x1e) || code == 0x85 ||
           code == 0x2028 || code == 0x2029;
}

qp_status text_lines(run *run, const string *text, bool keep_ends, value *out)
{
    size_t lines = 1, from = 0;
    uint32_t code;
    TRY(run_step(run, text->length / 8));
    for (size_t at = 0; at < text->length; lines += is_line_end(code))
        at += pychar_decode(text->data + at, text->length - at, &code);
    TRY(text_piece_list(run, lines, out));
    for (size_t at = 0; at < text->length;) {
        size_t end = at;
        at += pychar_decode(text->data + at, text->length - at, &code);
        if (!is_line_end(code)) continue;
        if (code == '\r' && at < text->length && text->data[at] == '\n') at++;
        TRY(text_add_piece(run, out->as.items, text, from, keep_ends ? at : end));
        from = at;
    }
    if (from < text->length) TRY(text_add_piece(run, out->as.items, text, from, text->length));
    return QP_OK;
}
