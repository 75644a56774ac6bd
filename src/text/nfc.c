/* Normalization Form C: see nfc.h.
 *
 * Characters are decomposed one by one into a run: a starter (combining class 0) and the marks
 * after it. When the next starter comes, the marks are sorted by class and composed with their
 * starter.
 */
#include "text/nfc.h"

#include "text/utf8.h"

#include <stdlib.h>

typedef struct nfc_decomposition {
    uint32_t character, first, second;
} nfc_decomposition;

typedef struct nfc_composition {
    uint32_t first, second, character;
} nfc_composition;

typedef struct nfc_class {
    uint32_t first, last, combining;
} nfc_class;

static const nfc_decomposition decompositions[] = {
#define NFD(character, first, second) {character, first, second},
#include "text/nfc.def"
#undef NFD
};

static const nfc_composition compositions[] = {
#define NFC(first, second, character) {first, second, character},
#include "text/nfc.def"
#undef NFC
};

static const nfc_class classes[] = {
#define CCC(first, last, combining) {first, last, combining},
#include "text/nfc.def"
#undef CCC
};

/* Hangul syllables, by the names of the Unicode Standard, section 3.12. */
enum {
    S_BASE = 0xAC00,
    L_BASE = 0x1100,
    V_BASE = 0x1161,
    T_BASE = 0x11A7,
    L_COUNT = 19,
    V_COUNT = 21,
    T_COUNT = 28,
    S_COUNT = L_COUNT * V_COUNT * T_COUNT,
};

enum {
    FIRST_AFFECTED = 0x300
}; /* first character that normalization may change; those before it change only if a mark follows
    */

static int compare_decomposition(const void *key, const void *item)
{
    uint32_t a = *(const uint32_t *)key, b = ((const nfc_decomposition *)item)->character;
    return (a > b) - (a < b);
}

static int compare_composition(const void *key, const void *item)
{
    const nfc_composition *a = key, *b = item;
    if (a->first != b->first) return a->first < b->first ? -1 : 1;
    return (a->second > b->second) - (a->second < b->second);
}

static int compare_class(const void *key, const void *item)
{
    uint32_t a = *(const uint32_t *)key;
    const nfc_class *range = item;
    return (a > range->last) - (a < range->first);
}

#define FIND(key, table, compare)                                                                  \
    bsearch(key, table, sizeof(table) / sizeof *(table), sizeof *(table), compare)

static uint32_t class_of(uint32_t c)
{
    const nfc_class *range = c < FIRST_AFFECTED ? NULL : FIND(&c, classes, compare_class);
    return range ? range->combining : 0;
}

/* The composition of two characters; 0: none. */
static uint32_t compose(uint32_t first, uint32_t second)
{
    if (first - L_BASE < L_COUNT && second - V_BASE < V_COUNT)
        return S_BASE + ((first - L_BASE) * V_COUNT + (second - V_BASE)) * T_COUNT;
    if (first - S_BASE < S_COUNT && (first - S_BASE) % T_COUNT == 0 && second > T_BASE &&
        second - T_BASE < T_COUNT)
        return first + (second - T_BASE);
    const nfc_composition key = {first, second, 0};
    const nfc_composition *found = FIND(&key, compositions, compare_composition);
    return found ? found->character : 0;
}

/* A starter and the marks after it, in their original order. */
typedef struct nfc_run {
    strbuf *out;
    bool has_starter;
    uint32_t starter;
    uint64_t *marks; /* [count]: class, place and character, so that they sort as numbers */
    size_t count, capacity;
    bool failed; /* memory ran out */
} nfc_run;

enum { PLACE_BITS = 32, CHARACTER_BITS = 21 };

static void put(nfc_run *run, uint32_t c)
{
    char text[4];
    strbuf_append(run->out, text, utf8_encode(c, text));
}

static int compare_marks(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Sorts the marks, and composes those that can be composed with the starter; the others stay in
 * `marks`. A mark is blocked by one of the same class that stays before it. */
static void compose_marks(nfc_run *run)
{
    if (run->count > 1) qsort(run->marks, run->count, sizeof *run->marks, compare_marks);
    size_t kept = 0;
    for (size_t i = 0; run->has_starter && i < run->count; i++) {
        uint32_t c = (uint32_t)(run->marks[i] & ((1u << CHARACTER_BITS) - 1));
        const int shift = PLACE_BITS + CHARACTER_BITS;
        bool blocked = kept > 0 && run->marks[kept - 1] >> shift == run->marks[i] >> shift;
        uint32_t composed = blocked ? 0 : compose(run->starter, c);
        if (composed)
            run->starter = composed;
        else
            run->marks[kept++] = run->marks[i];
    }
    if (run->has_starter) run->count = kept;
}

static void flush(nfc_run *run)
{
    if (run->has_starter) put(run, run->starter);
    for (size_t i = 0; i < run->count; i++)
        put(run, (uint32_t)(run->marks[i] & ((1u << CHARACTER_BITS) - 1)));
    run->has_starter = false;
    run->count = 0;
}

static void add_mark(nfc_run *run, uint32_t c, uint32_t combining)
{
    if (run->count == run->capacity) {
        size_t wanted = run->capacity ? 2 * run->capacity : 16;
        uint64_t *grown = realloc(run->marks, wanted * sizeof *grown);
        if (!grown) {
            run->failed = true;
            return;
        }
        run->marks = grown;
        run->capacity = wanted;
    }
    uint64_t place = run->count;
    run->marks[run->count++] =
        (uint64_t)combining << (PLACE_BITS + CHARACTER_BITS) | place << CHARACTER_BITS | c;
}

static void add_starter(nfc_run *run, uint32_t c)
{
    compose_marks(run);
    uint32_t composed = run->has_starter && run->count == 0 ? compose(run->starter, c) : 0;
    if (!composed) flush(run);
    run->starter = composed ? composed : c;
    run->has_starter = true;
}

/* Adds a character, fully decomposed. */
static void add(nfc_run *run, uint32_t c)
{
    if (c - S_BASE < S_COUNT) { /* fully composed, unless a T follows */
        add_starter(run, c);
        return;
    }
    const nfc_decomposition *parts =
        c < 0xC0 ? NULL : FIND(&c, decompositions, compare_decomposition);
    if (parts) {
        add(run, parts->first);
        if (parts->second) add(run, parts->second);
        return;
    }
    uint32_t combining = class_of(c);
    if (combining)
        add_mark(run, c, combining);
    else
        add_starter(run, c);
}

/* Bytes at the start of `text` that no later character changes: all are below FIRST_AFFECTED, and
 * so is the next character, if there is one. */
static size_t untouched(const char *text, size_t length)
{
    static const unsigned char first_lead = 0xC0 | FIRST_AFFECTED >> 6;
    size_t i = 0, last = 0;
    for (; i < length && (unsigned char)text[i] < first_lead; i++) {
        if (((unsigned char)text[i] & 0xC0) != 0x80) last = i;
    }
    return i == length ? length : last;
}

static void append_valid(nfc_run *run, const char *text, size_t length)
{
    for (size_t i = 0; i < length && !run->failed;) {
        size_t same = run->has_starter || run->count ? 0 : untouched(text + i, length - i);
        strbuf_append(run->out, text + i, same);
        i += same;
        if (i == length) break;
        size_t bytes = utf8_sequence(text + i, length - i);
        add(run, utf8_decode(text + i, bytes));
        i += bytes;
    }
    compose_marks(run);
    flush(run);
}

qp_status nfc_append(const char *text, size_t length, strbuf *out, qp_error *error)
{
    nfc_run run = {.out = out};
    for (size_t i = 0; i < length && !run.failed;) {
        size_t valid = utf8_valid_run(text + i, length - i);
        append_valid(&run, text + i, valid);
        i += valid;
        size_t invalid = utf8_invalid_run(text + i, length - i);
        strbuf_append(out, text + i, invalid);
        i += invalid;
    }
    free(run.marks);
    return run.failed || out->failed ? error_no_memory(error, "a normalized text", length) : QP_OK;
}
