/* Filters for web pages and for sizes: escape, urlencode, xmlattr, filesizeformat. See run.h.
 *
 * escape and safe return a string that is marked as markup (MarkupSafe's Markup): it is not escaped
 * again, and text that is added to it with + is escaped first. Chat templates run without automatic
 * escaping, so nothing else depends on it.
 */
#include "template/run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static qp_status put_escaped(builder *out, const string *text)
{
    static const char from[] = "&<>\"'";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    TRY(run_step(out->run, text->length / 8));
    for (size_t at = 0; at < text->length; at++) {
        const char *found = text->data[at] ? strchr(from, text->data[at]) : NULL;
        TRY(found ? builder_text(out, to[found - from]) : builder_put(out, text->data + at, 1));
    }
    return QP_OK;
}

qp_status text_escape(run *run, value item, value *out)
{
    value text;
    builder made = {.run = run};
    *out = item;
    if (item.kind == VALUE_STRING && item.markup) return QP_OK;
    TRY(run_str(run, item, &text));
    TRY(put_escaped(&made, text.as.text));
    TRY(builder_finish(&made, out));
    out->markup = true;
    return QP_OK;
}

static qp_status filter_escape(run *run, call *call, value *out)
{
    return text_escape(run, call->self, out);
}

static qp_status filter_force_escape(run *run, call *call, value *out)
{
    value plain = call->self;
    plain.markup = false;
    return text_escape(run, plain, out);
}

static qp_status filter_safe(run *run, call *call, value *out)
{
    TRY(run_str(run, call->self, out));
    out->markup = true;
    return QP_OK;
}

/* --- URLs. --- */

/* As urllib.parse.quote(): UTF-8 bytes as %XX, except letters, digits, _.-~ and the characters in
 * `safe`. In a query a blank becomes a plus sign. */
static qp_status put_quoted(builder *out, value item, const char *safe, bool is_query)
{
    value text;
    TRY(run_str(out->run, item, &text));
    TRY(run_step(out->run, text.as.text->length / 8));
    for (size_t at = 0; at < text.as.text->length; at++) {
        unsigned char c = (unsigned char)text.as.text->data[at];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     (c && strchr("_.-~", c)) || (c && strchr(safe, c));
        char coded[4] = {(char)c};
        if (is_query && c == ' ')
            coded[0] = '+';
        else if (!plain)
            snprintf(coded, sizeof coded, "%%%02X", c);
        TRY(builder_put(out, coded, coded[0] == '%' ? 3 : 1));
    }
    return QP_OK;
}

static qp_status put_pair(builder *out, value key, value item)
{
    if (out->length) TRY(builder_text(out, "&"));
    TRY(put_quoted(out, key, "", true));
    TRY(builder_text(out, "="));
    return put_quoted(out, item, "", true);
}

static qp_status filter_urlencode(run *run, call *call, value *out)
{
    builder made = {.run = run};
    value self = call->self;
    if (self.kind == VALUE_DICT) {
        for (size_t i = 0; i < self.as.members->count; i++)
            TRY(put_pair(&made, self.as.members->keys[i], self.as.members->values[i]));
    } else if (self.kind == VALUE_LIST || self.kind == VALUE_UNDEFINED) {
        list *pairs, *pair;
        TRY(run_iterate(run, self, &pairs));
        for (size_t i = 0; i < pairs->count; i++) {
            TRY(run_iterate(run, pairs->items[i], &pair));
            if (pair->count != 2) return run_fail(run, "urlencode needs pairs of key and value");
            TRY(put_pair(&made, pair->items[0], pair->items[1]));
        }
    } else {
        TRY(put_quoted(&made, self, "/", false));
    }
    return builder_finish(&made, out);
}

/* --- Attributes of elements. --- */

static qp_status put_attribute(builder *out, value key, value item)
{
    value text;
    const string *name;
    TRY(need_text(out->run, key, &name));
    for (size_t i = 0; i < name->length; i++) {
        char c = name->data[i];
        if (c == ' ' || (c >= '\t' && c <= '\r') || (c && strchr("/>=", c)))
            return run_fail(out->run, "an attribute's name must not hold white space, /, > or =");
    }
    if (out->length) TRY(builder_text(out, " "));
    TRY(text_escape(out->run, key, &text));
    TRY(print_str(out, text));
    TRY(builder_text(out, "=\""));
    TRY(text_escape(out->run, item, &text));
    TRY(print_str(out, text));
    return builder_text(out, "\"");
}

static qp_status filter_xmlattr(run *run, call *call, value *out)
{
    builder made = {.run = run}, spaced = {.run = run};
    value autospace = call->bound[0];
    if (call->self.kind != VALUE_DICT)
        return run_fail(run, "xmlattr needs a dict, found '%s'", value_type(call->self));
    const dict *members = call->self.as.members;
    for (size_t i = 0; i < members->count; i++) {
        value item = members->values[i];
        if (item.kind == VALUE_NONE || item.kind == VALUE_UNDEFINED) continue;
        TRY(put_attribute(&made, members->keys[i], item));
    }
    bool space = autospace.kind == VALUE_MISSING || value_truth(autospace);
    if (space && made.length) TRY(builder_text(&spaced, " "));
    TRY(builder_put(&spaced, made.data, made.length));
    return builder_finish(&spaced, out);
}

/* --- Sizes. --- */

static qp_status number_of(run *run, value item, double *out)
{
    static const string name = {"float", 5, 5};
    struct call call = {.self = item};
    value number;
    if (value_is_number(item)) {
        *out = value_as_float(item);
        return QP_OK;
    }
    if (item.kind != VALUE_STRING)
        return run_fail(run, "filesizeformat needs a number, found '%s'", value_type(item));
    value absent = value_none();
    call.positional = &absent;
    call.n_positional = 1;
    TRY(run_filter(run, &name, &call, &number));
    if (number.kind == VALUE_NONE) return run_fail(run, "could not convert string to float");
    *out = value_as_float(number);
    return QP_OK;
}

/* "13 kB", "4.1 MB"; with binary "4.1 MiB". */
static qp_status filter_size(run *run, call *call, value *out)
{
    static const char *const decimal[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
    static const char *const binary[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
    bool is_binary = value_truth(call->bound[0]);
    double bytes = 0, base = is_binary ? 1024 : 1000;
    char text[400];
    TRY(number_of(run, call->self, &bytes));
    if (isnan(bytes) || bytes == -INFINITY)
        return run_fail(run, "filesizeformat needs a finite number");
    if (bytes == 1) {
        snprintf(text, sizeof text, "1 Byte");
    } else if (bytes < base) {
        snprintf(text, sizeof text, "%.0f Bytes", trunc(bytes) + 0.0);
    } else {
        int i = 0;
        double unit = base * base;
        for (; i < 7 && !(bytes < unit); i++)
            unit *= base;
        snprintf(text, sizeof text, "%.1f %s", base * bytes / unit,
                 (is_binary ? binary : decimal)[i]);
    }
    return run_text(run, text, strlen(text), out);
}

static const builtin markups[] = {
    {"e", "", 0, filter_escape, 0},
    {"escape", "", 0, filter_escape, 0},
    {"filesizeformat", "binary", 0, filter_size, 0},
    {"forceescape", "", 0, filter_force_escape, 0},
    {"pprint", "", 0, filter_pprint, 0},
    {"safe", "", 0, filter_safe, 0},
    {"urlencode", "", 0, filter_urlencode, 0},
    {"xmlattr", "autospace", 0, filter_xmlattr, 0},
};

const builtin *find_markup(const string *name)
{
    return find_in(markups, sizeof markups / sizeof markups[0], name);
}
