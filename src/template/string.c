/* Methods of strings, as Python defines them: see run.h. Positions count characters. */
#include "template/run.h"

#include "template/pychar.h"

#include <string.h>

static bool given(value item)
{
    return item.kind != VALUE_MISSING && item.kind != VALUE_NONE;
}

enum { FROM_LEFT, FROM_RIGHT };

static qp_status option_int(run *run, value from, int64_t absent, int64_t *out)
{
    *out = absent;
    return given(from) ? need_int(run, from, out) : QP_OK;
}

static qp_status method_case(run *run, call *call, value *out)
{
    return text_case(run, call->self.as.text, call->builtin->detail, out);
}

static qp_status method_capitalize(run *run, call *call, value *out)
{
    return text_capitalize(run, call->self.as.text, out);
}

/* title and swapcase */
static qp_status method_recase(run *run, call *call, value *out)
{
    const string *text = call->self.as.text;
    builder made = {.run = run};
    bool swap = call->builtin->detail, inside = false;
    TRY(run_step(run, text->length / 8));
    for (size_t at = 0; at < text->length;) {
        uint32_t code;
        size_t size = pychar_decode(text->data + at, text->length - at, &code);
        bool upper = pychar_is_upper(code), lower = pychar_is_lower(code);
        pychar_case to =
            swap ? (upper ? PYCHAR_LOWER : PYCHAR_UPPER) : (inside ? PYCHAR_LOWER : PYCHAR_TITLE);
        TRY(text_put_case(&made, text, at, size, code, to));
        inside = upper || lower;
        at += size;
    }
    return builder_finish(&made, out);
}

static qp_status method_strip(run *run, call *call, value *out)
{
    const string *chars = NULL;
    if (given(call->bound[0])) TRY(need_text(run, call->bound[0], &chars));
    return text_strip(run, call->self.as.text, chars, call->builtin->detail, out);
}

/* The next run of white space (or of other characters) from `at` on; returns its end. */
static size_t skip_run(const string *text, size_t at, bool space)
{
    uint32_t code;
    while (at < text->length) {
        size_t size = pychar_decode(text->data + at, text->length - at, &code);
        if (pychar_is_space(code) != space) break;
        at += size;
    }
    return at;
}

/* Splits at white space: a run counts once, and none at the ends. After `most` words (< 0: any
 * number) the rest is one piece, with the white space at its end. */
static qp_status split_space(run *run, const string *text, int64_t most, value *out)
{
    TRY(run_step(run, text->length / 8));
    TRY(text_piece_list(run, text->points / 2 + 1, out));
    for (size_t from = skip_run(text, 0, true); from < text->length;) {
        bool rest = most >= 0 && out->as.items->count == (uint64_t)most;
        size_t to = rest ? text->length : skip_run(text, from, false);
        TRY(text_add_piece(run, out->as.items, text, from, to));
        from = skip_run(text, to, true);
    }
    return QP_OK;
}

/* Splits off the last `most` words; the rest before them is one piece, with its leading white
 * space. */
static qp_status rsplit_space(run *run, const string *text, int64_t most, value *out)
{
    TRY(split_space(run, text, -1, out));
    const list *words = out->as.items;
    if (most < 0 || (uint64_t)most >= words->count) return QP_OK;
    size_t front = words->count - (size_t)most; /* the words that are not split */
    const string *last = words->items[front - 1].as.text;
    TRY(text_piece_list(run, (size_t)most + 1, out));
    TRY(text_add_piece(run, out->as.items, text, 0,
                       (size_t)(last->data - text->data) + last->length));
    for (size_t i = front; i < words->count; i++)
        out->as.items->items[out->as.items->count++] = words->items[i];
    return QP_OK;
}

/* The offset of the last `what` that ends by `to`, or -1. */
static int64_t find_last(run *run, const string *text, const string *what, size_t from, size_t to)
{
    if (what->length > to - from) return -1;
    for (size_t at = to - what->length + 1; at-- > from;) {
        if ((to - at) % 64 == 0) heap_spend(&run->heap, 1 + what->length / 64);
        if (memcmp(text->data + at, what->data, what->length) == 0) return (int64_t)at;
    }
    return -1;
}

static qp_status split_at(run *run, const string *text, const string *separator, int64_t most,
                          value *out)
{
    size_t pieces = 1, from = 0;
    for (int64_t at = 0; most < 0 || pieces <= (uint64_t)most; pieces++) {
        at = text_find(run, text, separator, (size_t)at, text->length);
        TRY(run_step(run, 1));
        if (at < 0) break;
        at += (int64_t)separator->length;
    }
    TRY(text_piece_list(run, pieces, out));
    while (--pieces > 0) {
        size_t at = (size_t)text_find(run, text, separator, from, text->length);
        TRY(text_add_piece(run, out->as.items, text, from, at));
        from = at + separator->length;
    }
    return text_add_piece(run, out->as.items, text, from, text->length);
}

static qp_status rsplit_at(run *run, const string *text, const string *separator, int64_t most,
                           value *out)
{
    value reversed;
    size_t end = text->length, room = 1;
    int64_t at;
    for (size_t to = text->length; most < 0 || room <= (uint64_t)most; room++) {
        at = find_last(run, text, separator, 0, to);
        TRY(run_step(run, 1));
        if (at < 0) break;
        to = (size_t)at;
    }
    TRY(text_piece_list(run, room, &reversed));
    for (size_t i = 1; i < room; i++) {
        at = find_last(run, text, separator, 0, end);
        TRY(text_add_piece(run, reversed.as.items, text, (size_t)at + separator->length, end));
        end = (size_t)at;
    }
    TRY(text_add_piece(run, reversed.as.items, text, 0, end));
    TRY(run_list(run, LIST_LIST, room, out));
    for (size_t i = 0; i < room; i++)
        out->as.items->items[i] = reversed.as.items->items[room - 1 - i];
    return QP_OK;
}

static qp_status method_split(run *run, call *call, value *out)
{
    const string *text = call->self.as.text, *separator;
    int64_t most;
    bool right = call->builtin->detail == FROM_RIGHT;
    TRY(option_int(run, call->bound[1], -1, &most));
    if (!given(call->bound[0]))
        return right ? rsplit_space(run, text, most, out) : split_space(run, text, most, out);
    TRY(need_text(run, call->bound[0], &separator));
    if (separator->length == 0) return run_fail(run, "empty separator");
    return right ? rsplit_at(run, text, separator, most, out)
                 : split_at(run, text, separator, most, out);
}

static qp_status method_splitlines(run *run, call *call, value *out)
{
    return text_lines(run, call->self.as.text, value_truth(call->bound[0]), out);
}

static qp_status method_partition(run *run, call *call, value *out)
{
    const string *text = call->self.as.text, *separator;
    bool right = call->builtin->detail == FROM_RIGHT;
    TRY(need_text(run, call->bound[0], &separator));
    if (separator->length == 0) return run_fail(run, "empty separator");
    int64_t at = right ? find_last(run, text, separator, 0, text->length)
                       : text_find(run, text, separator, 0, text->length);
    size_t start = at >= 0 ? (size_t)at : right ? 0 : text->length;
    size_t end = at >= 0 ? start + separator->length : start;
    TRY(run_list(run, LIST_TUPLE, 3, out));
    out->as.items->count = 0;
    TRY(text_add_piece(run, out->as.items, text, 0, start));
    TRY(text_add_piece(run, out->as.items, text, start, end));
    return text_add_piece(run, out->as.items, text, end, text->length);
}

/* The optional start and end of find() and similar methods, as byte offsets; false if nothing can
 * be found between them. */
static qp_status find_range(run *run, const string *text, call *call, size_t *from, size_t *to,
                            bool *possible)
{
    int64_t count = (int64_t)text->points, start, end;
    TRY(option_int(run, call->bound[1], 0, &start));
    TRY(option_int(run, call->bound[2], count, &end));
    if (start < 0) start = start < -count ? 0 : start + count;
    if (end < 0) end = end < -count ? 0 : end + count;
    if (end > count) end = count;
    *possible = start <= end;
    if (!*possible) return QP_OK;
    *from = pychar_offset(text->data, text->length, (size_t)start);
    *to = pychar_offset(text->data, text->length, (size_t)end);
    return run_step(run, start || end < count ? text->length / 16 : 0);
}

/* find, rfind, index, rindex: the latter two fail where the former give -1. */
enum { FIND_RIGHT = 1, FIND_INDEX = 2 };

static qp_status method_find(run *run, call *call, value *out)
{
    const string *text = call->self.as.text, *what;
    size_t from, to;
    bool possible;
    int64_t at = -1;
    TRY(need_text(run, call->bound[0], &what));
    TRY(find_range(run, text, call, &from, &to, &possible));
    if (possible)
        at = call->builtin->detail & FIND_RIGHT ? find_last(run, text, what, from, to)
                                                : text_find(run, text, what, from, to);
    TRY(run_step(run, 1));
    if (at < 0 && call->builtin->detail & FIND_INDEX) return run_fail(run, "substring not found");
    if (at > 0) {
        TRY(run_step(run, (uint64_t)at / 16));
        at = (int64_t)pychar_count(text->data, (size_t)at);
    }
    *out = value_int(at);
    return QP_OK;
}

static qp_status method_count(run *run, call *call, value *out)
{
    const string *text = call->self.as.text, *what;
    size_t from, to;
    bool possible;
    int64_t count = 0, at;
    TRY(need_text(run, call->bound[0], &what));
    TRY(find_range(run, text, call, &from, &to, &possible));
    if (possible && what->length == 0)
        count = (int64_t)pychar_count(text->data + from, to - from) + 1;
    while (possible && what->length && (at = text_find(run, text, what, from, to)) >= 0) {
        TRY(run_step(run, 1));
        from = (size_t)at + what->length;
        count++;
    }
    *out = value_int(count);
    return run_step(run, 1);
}

static bool affix_is(const string *text, size_t from, size_t to, const string *affix, bool end)
{
    if (affix->length > to - from) return false;
    size_t at = end ? to - affix->length : from;
    return memcmp(text->data + at, affix->data, affix->length) == 0;
}

/* startswith and endswith: of a string or of any of a tuple */
static qp_status method_affix(run *run, call *call, value *out)
{
    const string *text = call->self.as.text, *affix;
    size_t from, to;
    bool possible, found = false, end = call->builtin->detail == FROM_RIGHT;
    TRY(find_range(run, text, call, &from, &to, &possible));
    if (value_is_list(call->bound[0], LIST_TUPLE)) {
        const list *any = call->bound[0].as.items;
        for (size_t i = 0; i < any->count; i++) {
            TRY(need_text(run, any->items[i], &affix));
            TRY(run_step(run, 1 + affix->length / 64));
            found = found || (possible && affix_is(text, from, to, affix, end));
        }
    } else {
        TRY(need_text(run, call->bound[0], &affix));
        TRY(run_step(run, affix->length / 64));
        found = possible && affix_is(text, from, to, affix, end);
    }
    *out = value_bool(found);
    return QP_OK;
}

/* removeprefix and removesuffix */
static qp_status method_remove(run *run, call *call, value *out)
{
    const string *text = call->self.as.text, *affix;
    bool end = call->builtin->detail == FROM_RIGHT;
    TRY(need_text(run, call->bound[0], &affix));
    *out = call->self;
    if (!affix_is(text, 0, text->length, affix, end)) return QP_OK;
    return run_view(run, text->data + (end ? 0 : affix->length), text->length - affix->length, out);
}

static qp_status method_replace(run *run, call *call, value *out)
{
    const string *old, *new;
    int64_t count;
    TRY(need_text(run, call->bound[0], &old));
    TRY(need_text(run, call->bound[1], &new));
    TRY(option_int(run, call->bound[2], -1, &count));
    return text_replace(run, call->self.as.text, old, new, count, out);
}

static qp_status method_join(run *run, call *call, value *out)
{
    const string *separator = call->self.as.text;
    list *items;
    builder made = {.run = run};
    TRY(run_iterate(run, call->bound[0], &items));
    for (size_t i = 0; i < items->count; i++) {
        const string *item;
        if (i) TRY(builder_put(&made, separator->data, separator->length));
        TRY(need_text(run, items->items[i], &item));
        TRY(builder_put(&made, item->data, item->length));
        TRY(run_step(run, 1));
    }
    return builder_finish(&made, out);
}

/* center, ljust, rjust */
enum { PAD_BOTH, PAD_AFTER, PAD_BEFORE };

static qp_status method_pad(run *run, call *call, value *out)
{
    static const string blank = {" ", 1, 1};
    const string *text = call->self.as.text, *fill = &blank;
    int64_t width;
    builder made = {.run = run};
    TRY(need_int(run, call->bound[0], &width));
    if (given(call->bound[1])) TRY(need_text(run, call->bound[1], &fill));
    if (fill->points != 1) return run_fail(run, "the fill must be one character");
    int64_t count = (int64_t)text->points, pad = width > count ? width - count : 0, before = 0;
    if (call->builtin->detail == PAD_BEFORE) before = pad;
    if (call->builtin->detail == PAD_BOTH) before = pad / 2 + (pad & width & 1);
    TRY(builder_repeat(&made, fill, (size_t)before));
    TRY(builder_put(&made, text->data, text->length));
    TRY(builder_repeat(&made, fill, (size_t)(pad - before)));
    return builder_finish(&made, out);
}

static qp_status method_zfill(run *run, call *call, value *out)
{
    static const string zero = {"0", 1, 1};
    const string *text = call->self.as.text;
    int64_t width;
    builder made = {.run = run};
    TRY(need_int(run, call->bound[0], &width));
    size_t sign = text->length && (text->data[0] == '-' || text->data[0] == '+');
    TRY(builder_put(&made, text->data, sign));
    if (width > (int64_t)text->points)
        TRY(builder_repeat(&made, &zero, (size_t)width - text->points));
    TRY(builder_put(&made, text->data + sign, text->length - sign));
    return builder_finish(&made, out);
}

/* isdigit and similar methods: true if it holds for all characters, of which there is at least
 * one */
enum { IS_SPACE = 100, IS_ALNUM, IS_ASCII, IS_UPPER, IS_LOWER };

static qp_status method_is(run *run, call *call, value *out)
{
    const string *text = call->self.as.text;
    int what = call->builtin->detail;
    bool all = true, cased = false;
    TRY(run_step(run, text->length / 8));
    for (size_t at = 0; at < text->length;) {
        uint32_t code;
        at += pychar_decode(text->data + at, text->length - at, &code);
        bool upper = pychar_is_upper(code), lower = pychar_is_lower(code);
        cased = cased || upper || lower;
        all = all &&
              (what == IS_SPACE   ? pychar_is_space(code)
               : what == IS_ASCII ? code < 0x80
               : what == IS_UPPER ? !lower
               : what == IS_LOWER ? !upper
               : what == IS_ALNUM ? pychar_is(PYCHAR_ALPHA, code) || pychar_is(PYCHAR_NUMERIC, code)
                                  : pychar_is((pychar_class)what, code));
    }
    bool empty = what == IS_ASCII || what == PYCHAR_PRINTABLE; /* the result for "" */
    *out = value_bool(text->length == 0                      ? empty
                      : what == IS_UPPER || what == IS_LOWER ? all && cased
                                                             : all);
    return QP_OK;
}

static qp_status method_format(run *run, call *call, value *out)
{
    return format_braces(run, call->self.as.text, call, out);
}

/* A parameter named . cannot be given by name, as in Python. */
static const builtin methods[] = {
    {"capitalize", "", 0, method_capitalize, 0},
    {"casefold", "", 0, method_case, PYCHAR_FOLD},
    {"center", ". .", 1, method_pad, PAD_BOTH},
    {"count", ". . .", 1, method_count, 0},
    {"encode", "encoding", 0, method_encode, 0},
    {"endswith", ". . .", 1, method_affix, FROM_RIGHT},
    {"find", ". . .", 1, method_find, 0},
    {"format", NULL, 0, method_format, 0},
    {"index", ". . .", 1, method_find, FIND_INDEX},
    {"isalnum", "", 0, method_is, IS_ALNUM},
    {"isalpha", "", 0, method_is, PYCHAR_ALPHA},
    {"isascii", "", 0, method_is, IS_ASCII},
    {"isdecimal", "", 0, method_is, PYCHAR_DECIMAL},
    {"isdigit", "", 0, method_is, PYCHAR_DIGIT},
    {"islower", "", 0, method_is, IS_LOWER},
    {"isnumeric", "", 0, method_is, PYCHAR_NUMERIC},
    {"isprintable", "", 0, method_is, PYCHAR_PRINTABLE},
    {"isspace", "", 0, method_is, IS_SPACE},
    {"isupper", "", 0, method_is, IS_UPPER},
    {"join", ".", 1, method_join, 0},
    {"ljust", ". .", 1, method_pad, PAD_AFTER},
    {"lower", "", 0, method_case, PYCHAR_LOWER},
    {"lstrip", ".", 0, method_strip, STRIP_LEFT},
    {"partition", ".", 1, method_partition, FROM_LEFT},
    {"removeprefix", ".", 1, method_remove, FROM_LEFT},
    {"removesuffix", ".", 1, method_remove, FROM_RIGHT},
    {"replace", ". . .", 2, method_replace, 0},
    {"rfind", ". . .", 1, method_find, FIND_RIGHT},
    {"rindex", ". . .", 1, method_find, FIND_RIGHT | FIND_INDEX},
    {"rjust", ". .", 1, method_pad, PAD_BEFORE},
    {"rpartition", ".", 1, method_partition, FROM_RIGHT},
    {"rsplit", "sep maxsplit", 0, method_split, FROM_RIGHT},
    {"rstrip", ".", 0, method_strip, STRIP_RIGHT},
    {"split", "sep maxsplit", 0, method_split, FROM_LEFT},
    {"splitlines", "keepends", 0, method_splitlines, 0},
    {"startswith", ". . .", 1, method_affix, FROM_LEFT},
    {"strip", ".", 0, method_strip, STRIP_BOTH},
    {"swapcase", "", 0, method_recase, 1},
    {"title", "", 0, method_recase, 0},
    {"upper", "", 0, method_case, PYCHAR_UPPER},
    {"zfill", ".", 1, method_zfill, 0},
};

const builtin *find_string_method(const string *name)
{
    return find_in(methods, sizeof methods / sizeof methods[0], name);
}
