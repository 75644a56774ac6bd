/* Patterns: see pattern.h. */
#include "grammar/pattern.h"

#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

/* How many characters texts have; `most`: GRAMMAR_UNBOUNDED for any number. */
typedef struct width {
    uint32_t least, most;
} width;

/* The one repetition of the pattern whose count says how long a text is. */
typedef struct stretch {
    size_t item;     /* of the list */
    grammar_expr of; /* what is repeated, */
    uint32_t each;   /* with so many characters, */
    width counts;    /* so often */
    int n;           /* how many items have no fixed width */
} stretch;

typedef struct reader {
    json_parts *parts;
    width width;     /* of what was read last */
    stretch stretch; /* of the outermost items */
    width wanted;    /* of texts; most 0: any */
    bool fits;       /* the pattern's texts have the wanted width */
    bool fitted;     /* those of a group that is an alternative have */
    grammar *g;
    const char *pattern, *at;
    int nesting;
    bool is_text; /* of its own, and all of it: not a part of a string of JSON */
    qp_error *error;
} reader;

static uint32_t times(uint32_t a, uint32_t b)
{
    const uint64_t product = (uint64_t)a * b;
    if (a == 0 || b == 0) return 0;
    return a == GRAMMAR_UNBOUNDED || b == GRAMMAR_UNBOUNDED || product >= GRAMMAR_UNBOUNDED
               ? GRAMMAR_UNBOUNDED
               : (uint32_t)product;
}

static uint32_t plus(uint32_t a, uint32_t b)
{
    return a > GRAMMAR_UNBOUNDED - b ? GRAMMAR_UNBOUNDED : a + b;
}

static qp_status refuse(const reader *r, const char *what)
{
    return error_set(r->error, QP_UNSUPPORTED, "the pattern \"%.100s\" has %s at character %zu",
                     r->pattern, what, (size_t)(r->at - r->pattern) + 1);
}

static bool take(reader *r, char c)
{
    if (*r->at != c) return false;
    r->at++;
    return true;
}

static qp_status take_code_point(reader *r, uint32_t *out)
{
    const size_t length = utf8_sequence(r->at, strlen(r->at));
    if (length == 0) return refuse(r, *r->at ? "bytes that are no UTF-8" : "no end");
    *out = utf8_decode(r->at, length);
    r->at += length;
    return QP_OK;
}

static qp_status take_hex(reader *r, int digits, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < digits; i++) {
        const char *all = "0123456789abcdef", c = *r->at;
        const char *at = c ? strchr(all, c >= 'A' && c <= 'F' ? c + 32 : c) : NULL;
        if (!at) return refuse(r, "an escape without its hexadecimal digits");
        *out = *out * 16 + (uint32_t)(at - all);
        r->at++;
    }
    return QP_OK;
}

/* ---- Sets of characters -------------------------------------------------------------------- */

static void add_named(code_set *set, char name)
{
    static const code_range space[] = {
        {9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
        {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    switch (name) {
    case 'w':
        code_set_add(set, 'a', 'z');
        code_set_add(set, 'A', 'Z');
        code_set_add(set, '_', '_');
        code_set_add(set, '0', '9');
        break;
    case 'd':
        code_set_add(set, '0', '9');
        break;
    default:
        for (size_t i = 0; i < sizeof space / sizeof *space; i++)
            code_set_add(set, space[i].low, space[i].high);
    }
}

/* After a backslash: adds what is escaped. *single: it is one character, *c. */
static qp_status take_escape(reader *r, code_set *set, bool *single, uint32_t *c)
{
    static const char from[] = "tnvfr", to[] = "\t\n\v\f\r";
    const char name = *r->at;
    const char *control = name ? strchr(from, name) : NULL;
    *single = true;
    *c = (uint8_t)name;
    if (!name) return refuse(r, "a backslash without a character");
    if (strchr("dws", name) || strchr("DWS", name)) {
        code_set named = {0};
        *single = false;
        r->at++;
        add_named(&named, (char)(name | 32));
        if (name < 'a') code_set_invert(&named);
        for (size_t i = 0; i < named.count; i++)
            code_set_add(set, named.ranges[i].low, named.ranges[i].high);
        set->failed |= named.failed;
        free(named.ranges);
        return QP_OK;
    }
    r->at++;
    if (control)
        *c = (uint8_t)to[control - from];
    else if (name == 'x')
        TRY(take_hex(r, 2, c));
    else if (name == 'u')
        TRY(take_hex(r, 4, c));
    else if ((name >= '0' && name <= '9') || (name >= 'a' && name <= 'z') ||
             (name >= 'A' && name <= 'Z') || (name & 0x80))
        return r->at--, refuse(r, "an escape that is not supported");
    code_set_add(set, *c, *c);
    return QP_OK;
}

static qp_status take_class_item(reader *r, code_set *set, bool *single, uint32_t *c)
{
    if (take(r, '\\')) {
        if (*r->at != 'b') return take_escape(r, set, single, c);
        r->at++;
        *c = '\b';
    } else {
        TRY(take_code_point(r, c));
    }
    *single = true;
    code_set_add(set, *c, *c);
    return QP_OK;
}

/* After "[". */
static qp_status take_class(reader *r, code_set *set)
{
    const bool inverted = take(r, '^');
    while (!take(r, ']')) {
        uint32_t low, high;
        bool single, last;
        if (!*r->at) return refuse(r, "a class without an end");
        TRY(take_class_item(r, set, &single, &low));
        if (!single || r->at[0] != '-' || r->at[1] == ']') continue;
        r->at++;
        TRY(take_class_item(r, set, &last, &high));
        if (!last || low > high) return refuse(r, "a range that is none");
        code_set_add(set, low, high);
    }
    code_set_normalize(set);
    if (inverted) code_set_invert(set);
    return QP_OK;
}

static grammar_expr characters(reader *r, code_set *set)
{
    code_set_normalize(set);
    const grammar_expr e =
        r->is_text ? grammar_code_points(r->g, set) : json_character_of(r->parts, set);
    free(set->ranges);
    *set = (code_set){0};
    return e;
}

/* ---- Expressions --------------------------------------------------------------------------- */

static qp_status take_choice(reader *r, bool outermost, grammar_expr *out);

/* Whether a group, which begins here, is all of an alternative; then it may have anchors. */
static bool group_is_alternative(const char *at)
{
    int depth = 0;
    bool class = false;
    for (; *at; at++) {
        if (*at == '\\' && at[1])
            at++;
        else if (class || *at == '[')
            class = *at != ']';
        else if (*at == '(')
            depth++;
        else if (*at == ')' && --depth == 0)
            return !at[1] || at[1] == '|' || at[1] == ')';
    }
    return false;
}

static qp_status take_group(reader *r, bool outermost, grammar_expr *out)
{
    if (take(r, '?') && !take(r, ':'))
        return refuse(r, "a group that is neither (...) nor (?:...)");
    if (++r->nesting > PATTERN_MAX_NESTING) return refuse(r, "too many groups in each other");
    TRY(take_choice(r, outermost, out));
    r->nesting--;
    return take(r, ')') ? QP_OK : refuse(r, "a group without an end");
}

static qp_status take_atom(reader *r, grammar_expr *out)
{
    code_set set = {0};
    uint32_t c = 0;
    bool single;
    qp_status status = QP_OK;
    if (take(r, '(')) return take_group(r, false, out);
    if (*r->at == '^' || *r->at == '$') return refuse(r, "an anchor inside");
    if (*r->at && strchr("*+?{", *r->at)) return refuse(r, "nothing to repeat");
    if (take(r, '[')) {
        status = take_class(r, &set);
    } else if (take(r, '.')) {
        code_set_add(&set, '\n', '\n');
        code_set_add(&set, '\r', '\r');
        code_set_add(&set, 0x2028, 0x2029);
        code_set_invert(&set);
    } else if (take(r, '\\')) {
        status = take_escape(r, &set, &single, &c);
    } else {
        status = take_code_point(r, &c);
        if (status == QP_OK) code_set_add(&set, c, c);
    }
    *out = characters(r, &set);
    r->width = (width){1, 1};
    return status;
}

static qp_status take_count(reader *r, uint32_t *out)
{
    uint64_t value = 0;
    if (*r->at < '0' || *r->at > '9') return refuse(r, "a repetition without a count");
    for (; *r->at >= '0' && *r->at <= '9'; r->at++) {
        value = value * 10 + (uint64_t)(*r->at - '0');
        if (value > GRAMMAR_MAX_COUNT) return refuse(r, "a count that is too large");
    }
    *out = (uint32_t)value;
    return QP_OK;
}

static void note_stretch(reader *r, size_t item, grammar_expr of, width each, width counts)
{
    if (counts.least == counts.most && each.least == each.most) return;
    const bool countable = each.least == each.most && each.least > 0;
    r->stretch = (stretch){item, of, countable ? each.least : 0, counts, r->stretch.n + 1};
}

/* `item`: the place of the expression among the outermost ones. */
static qp_status take_repetition(reader *r, size_t item, bool outermost, grammar_expr *e)
{
    uint32_t min = 0, max = GRAMMAR_UNBOUNDED;
    if (take(r, '{')) {
        TRY(take_count(r, &min));
        max = min;
        if (take(r, ',')) {
            max = GRAMMAR_UNBOUNDED;
            if (*r->at != '}') TRY(take_count(r, &max));
        }
        if (!take(r, '}') || max < min) return refuse(r, "a repetition that is none");
    } else if (take(r, '+')) {
        min = 1;
    } else if (take(r, '?')) {
        max = 1;
    } else {
        r->at++; /* "*" */
    }
    take(r, '?'); /* which match is preferred does not matter */
    if (*r->at && strchr("*+?{", *r->at)) return refuse(r, "a repetition of a repetition");
    const width each = r->width;
    if (outermost) note_stretch(r, item, *e, each, (width){min, max});
    r->width = (width){times(each.least, min), times(each.most, max)};
    *e = grammar_repeat(r->g, *e, min, max);
    return QP_OK;
}

static grammar_expr anything(reader *r)
{
    return grammar_repeat(r->g, json_character(r->parts), 0, GRAMMAR_UNBOUNDED);
}

static void add_anything(reader *r, expr_list *list, width *sum)
{
    note_stretch(r, list->count, json_character(r->parts), (width){1, 1},
                 (width){0, GRAMMAR_UNBOUNDED});
    sum->most = GRAMMAR_UNBOUNDED;
    expr_list_add(r->g, list, anything(r));
}

static qp_status take_items(reader *r, bool outermost, expr_list *list)
{
    bool open = true; /* no "$" was met */
    width sum = {0, 0};
    if (outermost && *r->at == '(' && group_is_alternative(r->at)) {
        grammar_expr group = GRAMMAR_EMPTY;
        r->at++;
        TRY(take_group(r, true, &group));
        r->fitted = r->fits; /* each of its alternatives */
        return expr_list_add(r->g, list, group), QP_OK;
    }
    if (outermost && !take(r, '^') && !r->is_text) add_anything(r, list, &sum);
    while (*r->at && *r->at != '|' && *r->at != ')') {
        if (r->g->failed != QP_OK) return refuse(r, "makes the form too large");
        grammar_expr e = GRAMMAR_EMPTY;
        if (outermost && r->at[0] == '$' && (!r->at[1] || strchr("|)", r->at[1]))) {
            r->at++;
            open = false;
            break;
        }
        TRY(take_atom(r, &e));
        if (*r->at && strchr("*+?{", *r->at))
            TRY(take_repetition(r, list->count, outermost, &e));
        else if (outermost)
            note_stretch(r, list->count, e, r->width, (width){1, 1});
        sum = (width){plus(sum.least, r->width.least), plus(sum.most, r->width.most)};
        expr_list_add(r->g, list, e);
    }
    if (outermost && open && !r->is_text) add_anything(r, list, &sum);
    r->width = sum;
    return QP_OK;
}

/* Bounds the count of the only stretch, so that texts have the wanted width. */
static void fit(reader *r, expr_list *list)
{
    const stretch *s = &r->stretch;
    const width wanted = r->wanted, all = r->width;
    r->fits = r->fitted || (all.least >= wanted.least && all.most <= wanted.most);
    if (r->fits || s->n != 1 || s->each == 0) return;
    const uint32_t others = all.least - times(s->each, s->counts.least);
    if (wanted.most < others) return;
    uint32_t least = wanted.least > others ? (wanted.least - others + s->each - 1) / s->each : 0;
    uint32_t most =
        wanted.most == GRAMMAR_UNBOUNDED ? wanted.most : (wanted.most - others) / s->each;
    if (least < s->counts.least) least = s->counts.least;
    if (most > s->counts.most) most = s->counts.most;
    if (least > most) return;
    list->items[s->item] = grammar_repeat(r->g, s->of, least, most);
    r->fits = true;
}

static qp_status take_choice(reader *r, bool outermost, grammar_expr *out)
{
    expr_list choices = {0};
    qp_status status = QP_OK;
    width both = {GRAMMAR_UNBOUNDED, 0};
    bool fit_all = true;
    do {
        expr_list items = {0};
        r->fitted = false;
        if (outermost) r->stretch = (stretch){0};
        status = take_items(r, outermost, &items);
        if (status == QP_OK && outermost && r->wanted.most) {
            fit(r, &items);
            fit_all = fit_all && r->fits;
        }
        if (r->width.least < both.least) both.least = r->width.least;
        if (r->width.most > both.most) both.most = r->width.most;
        expr_list_add(r->g, &choices, grammar_sequence_of(r->g, &items));
    } while (status == QP_OK && take(r, '|'));
    r->width = both;
    if (outermost) r->fits = fit_all;
    *out = grammar_choice_of(r->g, &choices);
    return status;
}

qp_status pattern_compile_within(json_parts *parts, const char *pattern, uint32_t least,
                                 uint32_t most, bool *fits, grammar_expr *out, qp_error *error)
{
    reader r = {.parts = parts, .g = parts->g, .pattern = pattern, .at = pattern, .error = error};
    r.wanted = (width){least, most};
    TRY(take_choice(&r, true, out));
    *fits = r.fits;
    return *r.at ? refuse(&r, "a closing bracket without an opening one") : QP_OK;
}

qp_status pattern_compile(json_parts *parts, const char *pattern, grammar_expr *out,
                          qp_error *error)
{
    bool fits;
    return pattern_compile_within(parts, pattern, 0, GRAMMAR_UNBOUNDED, &fits, out, error);
}

qp_status pattern_read(const char *pattern, grammar *out, qp_error *error)
{
    static const char name[] = "root";
    grammar_expr all = GRAMMAR_EMPTY;
    json_parts parts = {.g = out};
    reader r = {.parts = &parts,
                .g = out,
                .pattern = pattern,
                .at = pattern,
                .is_text = true,
                .error = error};
    const uint32_t root = grammar_add_rule(out, name, sizeof name - 1);
    TRY(take_choice(&r, true, &all));
    if (*r.at) return refuse(&r, "a closing bracket without an opening one");
    grammar_set_rule(out, root, all);
    return QP_OK;
}
