/* Forms of answers: a schema of JSON if the text begins with "{", else a grammar. What compiles
 * makes a text of a few bytes that are chosen by the input's own. */
#include "grammar/gbnf.h"
#include "grammar/json_schema.h"
#include "grammar/stacks.h"

#include <stdlib.h>

enum { TEXT = 64 };

/* A byte that the form allows after `config`, beginning with a wanted one; -1: none. */
static int next_byte(stacks *s, uint32_t config, uint8_t wanted)
{
    for (int i = 0; i < 256; i++)
        if (stacks_step(s, config, (uint8_t)(wanted + i)) != CONFIG_DEAD)
            return (uint8_t)(wanted + i);
    return -1;
}

static void make_text(const automaton *m, const uint8_t *data, size_t size)
{
    qp_error error;
    stacks s;
    if (stacks_open(&s, m, 16, &error) != QP_OK) abort();
    uint32_t config = stacks_root(&s);
    if (config == CONFIG_DEAD && s.failed == QP_OK) abort(); /* a form has a text */
    for (size_t i = 0; i < TEXT && s.failed == QP_OK; i++) {
        const int byte = next_byte(&s, config, size ? data[i % size] : 0);
        if (byte < 0 && s.failed == QP_OK && !s.too_deep && !s.configs[config].ends) abort();
        if (byte < 0) break;
        config = stacks_step(&s, config, (uint8_t)byte);
        if (i == TEXT / 2) {
            uint32_t *kept = &config;
            if (s.failed == QP_OK && stacks_compact(&s, &kept, 1, &error) != QP_OK) abort();
        }
    }
    stacks_free(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qp_error error = {0};
    grammar g = {0};
    automaton m = {0};
    const bool schema = size && data[0] == '{';
    qp_status status = schema ? json_schema_parse((const char *)data, size, &g, &error)
                              : gbnf_read((const char *)data, size, &g, &error);
    if (status == QP_OK) status = automaton_compile(&g, &m, &error);
    if (status != QP_OK && !error.message[0]) abort(); /* failures say what they are */
    if (status == QP_OK) make_text(&m, data, size);
    automaton_free(&m);
    grammar_free(&g);
    return 0;
}
