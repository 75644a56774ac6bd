#include "load/prompt.h"

#include <string.h>

/* In most vocabularies each of these words, with the space before it, is one token. */
static const char *const words[] = {
    "the",   "of",    "and",   "to",    "in",   "that",  "was",  "he",    "it",   "with", "as",
    "his",   "on",    "be",    "at",    "by",   "had",   "not",  "are",   "but",  "from", "or",
    "have",  "an",    "they",  "which", "one",  "you",   "were", "her",   "all",  "she",  "there",
    "would", "their", "we",    "him",   "been", "has",   "when", "who",   "will", "more", "no",
    "if",    "out",   "so",    "said",  "what", "up",    "its",  "about", "into", "than", "them",
    "can",   "only",  "other", "new",   "some", "could", "time", "these", "two"};
enum { WORDS = sizeof words / sizeof *words, BYTES_PER_TOKEN = 4 };

/* The finaliser of splitmix64 (Steele, Lea and Flood 2014) over both numbers. */
uint64_t prompt_mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * 0x9e3779b97f4a7c15u + b;
    for (int i = 0; i < 2; i++) {
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        x ^= x >> 31;
        x += a;
    }
    return x;
}

static void append_number(strbuf *out, uint64_t number)
{
    char digits[24], *at = digits + sizeof digits;
    do
        *--at = (char)('0' + number % 10);
    while (number /= 10);
    strbuf_append(out, at, (size_t)(digits + sizeof digits - at));
}

void prompt_ids(const prompt_source *source, const prompt_part *parts, size_t n_parts, strbuf *out)
{
    uint64_t margin = (uint64_t)source->vocab_size / 16;
    uint64_t range = (uint64_t)source->vocab_size - 2 * margin;
    char separator = '[';
    for (size_t i = 0; i < n_parts; i++) {
        uint64_t key = prompt_mix(source->seed, parts[i].key);
        for (int64_t p = 0; p < parts[i].n_tokens; p++) {
            strbuf_putc(out, separator);
            append_number(out, margin + prompt_mix(key, (uint64_t)p) % range);
            separator = ',';
        }
    }
    strbuf_puts(out, separator == '[' ? "[]" : "]");
}

static void append_words(uint64_t key, int64_t n, strbuf *out)
{
    for (int64_t p = 0; p < n; p++) {
        strbuf_putc(out, ' ');
        strbuf_puts(out, words[prompt_mix(key, (uint64_t)p) % WORDS]);
    }
}

/* Appends one byte of a text inside a JSON string. */
static void append_escaped(strbuf *out, char c)
{
    static const char hex[] = "0123456789abcdef";
    if (c == '"' || c == '\\') {
        strbuf_putc(out, '\\');
        strbuf_putc(out, c);
    } else if ((unsigned char)c < 0x20) {
        char escaped[] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
        strbuf_append(out, escaped, sizeof escaped);
    } else {
        strbuf_putc(out, c);
    }
}

static bool inside_character(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

/* Starts at the first byte of a character and stops after the last byte of one. Continues at the
 * beginning of the text when it reaches the end. */
static void append_piece(const prompt_source *source, uint64_t key, int64_t n_tokens, strbuf *out)
{
    size_t at = prompt_mix(key, 0) % source->text_length;
    size_t left = (size_t)n_tokens * BYTES_PER_TOKEN;
    while (at < source->text_length && inside_character(source->text[at]))
        at++;
    while (left || (at < source->text_length && inside_character(source->text[at]))) {
        if (at >= source->text_length) at = 0;
        append_escaped(out, source->text[at++]);
        if (left) left--;
    }
}

void prompt_text(const prompt_source *source, const prompt_part *parts, size_t n_parts, strbuf *out)
{
    strbuf_putc(out, '"');
    for (size_t i = 0; i < n_parts; i++) {
        uint64_t key = prompt_mix(source->seed, parts[i].key);
        if (source->text_length)
            append_piece(source, key, parts[i].n_tokens, out);
        else
            append_words(key, parts[i].n_tokens, out);
    }
    strbuf_putc(out, '"');
}
