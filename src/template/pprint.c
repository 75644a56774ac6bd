/* pprint: Python's pprint.pformat(), 80 columns wide. See run.h.
 *
 * A value that fits into the rest of a line is printed like repr(), with the keys of dicts sorted.
 * Otherwise each item gets a line; a long string is cut after blanks.
 */
#include "template/run.h"

#include "template/pychar.h"

#include <string.h>

enum { WIDTH = 80 };

static qp_status format(builder *out, value item, int64_t indent, int64_t allowance, int level);

static qp_status put_blanks(builder *out, const char *before, int64_t count)
{
    static const string blank = {" ", 1, 1};
    TRY(builder_text(out, before));
    return builder_repeat(out, &blank, count > 0 ? (size_t)count : 0);
}

/* repr() of the item; its length is counted in characters. */
static qp_status repr(builder *out, value item, const string **text)
{
    builder made = {.run = out->run};
    value result;
    TRY(print_repr(&made, item));
    TRY(builder_finish(&made, &result));
    *text = result.as.text;
    return QP_OK;
}

/* A copy in which the entries of all dicts are sorted by key. */
static qp_status sorted_copy(run *run, value item, int depth, value *out)
{
    *out = item;
    TRY(run_step(run, 1));
    if (depth > VALUE_MAX_DEPTH) return run_fail(run, "data is nested too deeply to print");
    if (value_is_list(item, LIST_LIST) || value_is_list(item, LIST_TUPLE)) {
        TRY(run_list(run, item.as.items->kind, item.as.items->count, out));
        for (size_t i = 0; i < item.as.items->count; i++)
            TRY(sorted_copy(run, item.as.items->items[i], depth + 1, &out->as.items->items[i]));
    } else if (item.kind == VALUE_DICT) {
        const dict *from = item.as.members;
        dict *to = dict_new(&run->heap);
        value order, copy;
        TRY(run_check(run, to));
        TRY(run_list(run, LIST_LIST, from->count, &order));
        for (size_t i = 0; i < from->count; i++)
            order.as.items->items[i] = value_int((int64_t)i);
        TRY(sort_by(run, order.as.items->items, from->keys, from->count, false));
        for (size_t i = 0; i < from->count; i++) {
            size_t at = (size_t)order.as.items->items[i].as.integer;
            TRY(sorted_copy(run, from->values[at], depth + 1, &copy));
            TRY(run_check(run, dict_set(&run->heap, to, from->keys[at], copy) ? to : NULL));
        }
        *out = (value){.kind = VALUE_DICT, .as.members = to};
    }
    return QP_OK;
}

static qp_status format_items(builder *out, const list *items, int64_t indent, int64_t allowance,
                              int level)
{
    bool is_list = items->kind == LIST_LIST;
    const char *end = is_list ? "]" : items->count == 1 ? ",)" : ")";
    allowance += (int64_t)strlen(end);
    TRY(builder_text(out, is_list ? "[" : "("));
    for (size_t i = 0; i < items->count; i++) {
        bool last = i + 1 == items->count;
        if (i) TRY(put_blanks(out, ",\n", indent + 1));
        TRY(format(out, items->items[i], indent + 1, last ? allowance : 1, level));
    }
    return builder_text(out, end);
}

static qp_status format_dict(builder *out, const dict *members, int64_t indent, int64_t allowance,
                             int level)
{
    TRY(builder_text(out, "{"));
    for (size_t i = 0; i < members->count; i++) {
        const string *key;
        bool last = i + 1 == members->count;
        if (i) TRY(put_blanks(out, ",\n", indent + 1));
        TRY(repr(out, members->keys[i], &key));
        TRY(builder_put(out, key->data, key->length));
        TRY(builder_text(out, ": "));
        TRY(format(out, members->values[i], indent + 1 + (int64_t)key->points + 2,
                   last ? allowance + 1 : 1, level));
    }
    return builder_text(out, "}");
}

/* --- Strings that are too long for their line. --- */

typedef struct pieces {
    builder *out;
    int64_t indent;
    size_t count;        /* pieces so far */
    const string *first; /* held back until it is known whether it is the only piece */
    bool brackets;
} pieces;

static qp_status add_piece(pieces *lines, const string *piece)
{
    if (lines->count++ == 0) {
        lines->first = piece;
        return QP_OK;
    }
    if (lines->count == 2) {
        if (lines->brackets) TRY(builder_text(lines->out, "("));
        TRY(builder_put(lines->out, lines->first->data, lines->first->length));
    }
    TRY(put_blanks(lines->out, "\n", lines->indent));
    return builder_put(lines->out, piece->data, piece->length);
}

/* Bytes of text that are not white space, and of the white space after them. */
static size_t word_length(const string *text, size_t from)
{
    size_t at = from;
    bool in_space = false;
    while (at < text->length) {
        uint32_t code;
        size_t size = pychar_decode(text->data + at, text->length - at, &code);
        bool space = pychar_is_space(code);
        if (in_space && !space) break;
        in_space = space;
        at += size;
    }
    return at - from;
}

static qp_status add_words(pieces *lines, const string *line, int64_t width, int64_t last_width)
{
    size_t from = 0, at = 0; /* the current piece begins at `from` and ends at `at` */
    const string *piece = NULL, *candidate;
    while (at < line->length) {
        value text;
        size_t next = at + word_length(line, at);
        TRY(run_view(lines->out->run, line->data + from, next - from, &text));
        TRY(repr(lines->out, text, &candidate));
        if ((int64_t)candidate->points > (next == line->length ? last_width : width) && at > from) {
            TRY(add_piece(lines, piece));
            from = at;
            TRY(run_view(lines->out->run, line->data + from, next - from, &text));
            TRY(repr(lines->out, text, &candidate));
        }
        piece = candidate;
        at = next;
    }
    return piece ? add_piece(lines, piece) : QP_OK;
}

static qp_status format_text(builder *out, const string *text, int64_t indent, int64_t allowance,
                             int level)
{
    pieces lines = {.out = out, .indent = indent, .brackets = level == 1};
    value split;
    if (level == 1) {
        lines.indent++;
        allowance++;
    }
    int64_t width = WIDTH - lines.indent;
    TRY(text_lines(out->run, text, true, &split));
    const list *items = split.as.items;
    for (size_t i = 0; i < items->count; i++) {
        const string *line;
        int64_t last_width = i + 1 == items->count ? width - allowance : width;
        TRY(repr(out, items->items[i], &line));
        TRY((int64_t)line->points <= last_width
                ? add_piece(&lines, line)
                : add_words(&lines, items->items[i].as.text, width, last_width));
    }
    if (lines.count == 1) return builder_put(out, lines.first->data, lines.first->length);
    return lines.brackets ? builder_text(out, ")") : QP_OK;
}

static qp_status format(builder *out, value item, int64_t indent, int64_t allowance, int level)
{
    const string *text;
    TRY(repr(out, item, &text));
    bool fits = (int64_t)text->points <= WIDTH - indent - allowance;
    if (!fits && (value_is_list(item, LIST_LIST) || value_is_list(item, LIST_TUPLE)))
        return format_items(out, item.as.items, indent, allowance, level + 1);
    if (!fits && item.kind == VALUE_DICT)
        return format_dict(out, item.as.members, indent, allowance, level + 1);
    if (!fits && item.kind == VALUE_STRING && item.as.text->length)
        return format_text(out, item.as.text, indent, allowance, level + 1);
    return builder_put(out, text->data, text->length);
}

qp_status filter_pprint(run *run, call *call, value *out)
{
    builder made = {.run = run};
    value sorted;
    TRY(sorted_copy(run, call->self, 0, &sorted));
    TRY(format(&made, sorted, 0, 0, 0));
    return builder_finish(&made, out);
}
