/* Characters as Python's str methods see them: see pychar.h.
 *
 * The tables are sorted, and searched by bisection.
 */
#include "template/pychar.h"

typedef struct mapping {
    uint32_t first, last, stride;
    int32_t delta;
} mapping;

typedef struct special {
    uint32_t from, to[PYCHAR_MAX_MAPPING]; /* 0 ends `to` */
} special;

#define CLASS(name, ...)   static const uint32_t name##_points[] = {__VA_ARGS__};
#define MAPPING(name, ...) static const mapping name##_mappings[] = {__VA_ARGS__};
#define SPECIAL(name, ...) static const special name##_specials[] = {__VA_ARGS__};
#include "template/pychar.def"
#undef CLASS
#undef MAPPING
#undef SPECIAL

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static const struct {
    const uint32_t *points;
    size_t count;
} classes[] = {
    [PYCHAR_ALPHA] = {alpha_points, COUNT(alpha_points)},
    [PYCHAR_NUMERIC] = {numeric_points, COUNT(numeric_points)},
    [PYCHAR_DIGIT] = {digit_points, COUNT(digit_points)},
    [PYCHAR_DECIMAL] = {decimal_points, COUNT(decimal_points)},
    [PYCHAR_PRINTABLE] = {printable_points, COUNT(printable_points)},
};

static const struct {
    const mapping *mappings;
    size_t n_mappings;
    const special *specials;
    size_t n_specials;
} cases[] = {
    [PYCHAR_UPPER] = {upper_mappings, COUNT(upper_mappings), upper_specials, COUNT(upper_specials)},
    [PYCHAR_LOWER] = {lower_mappings, COUNT(lower_mappings), lower_specials, COUNT(lower_specials)},
    [PYCHAR_TITLE] = {title_mappings, COUNT(title_mappings), title_specials, COUNT(title_specials)},
    [PYCHAR_FOLD] = {fold_mappings, COUNT(fold_mappings), fold_specials, COUNT(fold_specials)},
};

size_t pychar_decode(const char *text, size_t length, uint32_t *code)
{
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *bytes = (const unsigned char *)text;
    unsigned char lead = bytes[0];
    if (lead < 0x80) {
        *code = lead;
        return 1;
    }
    size_t size = lead >= 0xf0 && lead < 0xf8 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 0;
    *code = PYCHAR_INVALID;
    if (size == 0 || lead >= 0xf8 || size > length) return 1;
    uint32_t value = lead & (0x7fu >> size);
    for (size_t i = 1; i < size; i++) {
        if ((bytes[i] & 0xc0) != 0x80) return 1;
        value = value << 6 | (bytes[i] & 0x3fu);
    }
    if (value < smallest[size] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) return 1;
    *code = value;
    return size;
}

size_t pychar_encode(uint32_t code, char out[4])
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    size_t size = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char leads[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = size; i-- > 1; code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3f));
    out[0] = (char)(leads[size] | code);
    return size;
}

size_t pychar_count(const char *text, size_t length)
{
    size_t count = 0;
    uint32_t code;
    for (size_t at = 0; at < length; count++)
        at += pychar_decode(text + at, length - at, &code);
    return count;
}

size_t pychar_offset(const char *text, size_t length, size_t index)
{
    size_t at = 0;
    uint32_t code;
    while (index-- > 0 && at < length)
        at += pychar_decode(text + at, length - at, &code);
    return at;
}

size_t pychar_valid_prefix(const char *text, size_t length)
{
    uint32_t code;
    for (size_t at = 0; at < length;) {
        size_t size = pychar_decode(text + at, length - at, &code);
        if (code == PYCHAR_INVALID) return at;
        at += size;
    }
    return length;
}

bool pychar_is(pychar_class class, uint32_t code)
{
    size_t low = 0, high = classes[class].count; /* points below `low` are <= code */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (classes[class].points[middle] <= code)
            low = middle + 1;
        else
            high = middle;
    }
    return low % 2 == 1;
}

bool pychar_is_space(uint32_t code)
{
    return (code >= 0x09 && code <= 0x0d) || (code >= 0x1c && code <= 0x20) || code == 0x85 ||
           code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

static const special *find_special(pychar_case to, uint32_t code)
{
    size_t low = 0, high = cases[to].n_specials;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (cases[to].specials[middle].from < code)
            low = middle + 1;
        else
            high = middle;
    }
    const special *found = cases[to].specials + low;
    return low < cases[to].n_specials && found->from == code ? found : NULL;
}

static const mapping *find_mapping(pychar_case to, uint32_t code)
{
    size_t low = 0, high = cases[to].n_mappings;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (cases[to].mappings[middle].last < code)
            low = middle + 1;
        else
            high = middle;
    }
    const mapping *found = cases[to].mappings + low;
    bool inside = low < cases[to].n_mappings && code >= found->first &&
                  (code - found->first) % found->stride == 0;
    return inside ? found : NULL;
}

size_t pychar_map(pychar_case to, uint32_t code, uint32_t out[PYCHAR_MAX_MAPPING])
{
    out[0] = code;
    if (code < 0x80) {
        bool lower = to == PYCHAR_LOWER || to == PYCHAR_FOLD;
        if (lower && code >= 'A' && code <= 'Z') out[0] = code + 32;
        if (!lower && code >= 'a' && code <= 'z') out[0] = code - 32;
        return 1;
    }
    const special *many = find_special(to, code);
    const mapping *one = many ? NULL : find_mapping(to, code);
    if (!many && !one && to == PYCHAR_TITLE) return pychar_map(PYCHAR_UPPER, code, out);
    if (!many && !one && to == PYCHAR_FOLD) return pychar_map(PYCHAR_LOWER, code, out);
    if (!many && !one) return 1;
    if (one) {
        out[0] = (uint32_t)((int64_t)code + one->delta);
        return 1;
    }
    size_t count = 0;
    for (; count < PYCHAR_MAX_MAPPING && many->to[count]; count++)
        out[count] = many->to[count];
    return count;
}

bool pychar_is_upper(uint32_t code)
{
    return find_mapping(PYCHAR_LOWER, code) != NULL || find_special(PYCHAR_LOWER, code) != NULL;
}

bool pychar_is_lower(uint32_t code)
{
    return find_mapping(PYCHAR_UPPER, code) != NULL || find_special(PYCHAR_UPPER, code) != NULL;
}
