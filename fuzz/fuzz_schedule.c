/* Files of schedules: whatever is read is sound, and is written again as it was read.
 *
 * The input's first byte decides what the rest is. If it is even, the rest is the file. If it is
 * odd, each six bytes of the rest change one word of a good file (where, how, with what), whose
 * checksum is then right.
 */
#include "base/hash.h"
#include "lower/lower.h"
#include "plan/plan.h"
#include "schedule/build.h"
#include "schedule/verify.h"

#include <stdlib.h>
#include <string.h>

enum { CHANGE = 6, MOST_CHANGES = 16, SUM_AT = 32 };

static struct {
    model *model;
    program program;
    strbuf good;
} state;

static void must(bool good)
{
    if (!good) abort();
}

static void open_state(void)
{
    qp_error error;
    schedule s;
    const model_options options = {0};
    must(model_open("synthetic:tiny", &options, &state.model, &error) == QP_OK);
    plan_options o = plan_default_options(model_get_config(state.model));
    o.max_tokens = 4;
    o.max_sequences = o.max_outputs = 1;
    o.context = 16;
    must(lower_build(model_get_config(state.model), state.model, &o, &state.program, &error) ==
         QP_OK);
    const schedule_options how = {.workers = 2};
    must(schedule_build(&state.program, &how, &s, &error) == QP_OK);
    schedule_write(&s, &state.good);
    must(!state.good.failed);
    schedule_free(&s);
}

/* As the format has it: of all words, with 0 at its own place. */
static void forge_checksum(char *bytes, size_t size)
{
    uint64_t hash = 0;
    memset(bytes + SUM_AT, 0, sizeof hash);
    for (size_t i = 0; i < size; i += sizeof(uint32_t)) {
        uint32_t word;
        memcpy(&word, bytes + i, sizeof word);
        hash = hash_mix(hash ^ word);
    }
    memcpy(bytes + SUM_AT, &hash, sizeof hash);
}

static void change(char *file, const uint8_t c[CHANGE])
{
    const size_t words = state.good.length / sizeof(uint32_t);
    const size_t at = (size_t)(c[0] | c[1] << 8) % words * sizeof(uint32_t);
    uint32_t word, by = (uint32_t)c[5] << 24 | (uint32_t)c[4] << 8 | c[3];
    memcpy(&word, file + at, sizeof word);
    word = c[2] % 3 == 0 ? word + (uint32_t)(int8_t)c[3] : c[2] % 3 == 1 ? word ^ by : by;
    memcpy(file + at, &word, sizeof word);
}

static void check(const void *bytes, size_t size)
{
    qp_error error = {0};
    schedule s;
    strbuf again = {0};
    if (schedule_read("input", bytes, size, &state.program, &s, &error) == QP_OK) {
        must(schedule_verify(&s, &error) == QP_OK);
        schedule_write(&s, &again);
        must(again.length == size && memcmp(again.data, bytes, size) == 0);
    } else {
        must(error.message[0] != '\0');
    }
    strbuf_free(&again);
    schedule_free(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!state.model) open_state();
    if (size == 0) return 0;
    if (data[0] % 2 == 0) {
        check(data + 1, size - 1);
        return 0;
    }
    char *file = malloc(state.good.length);
    must(file != NULL);
    memcpy(file, state.good.data, state.good.length);
    for (size_t i = 0; i < MOST_CHANGES && 1 + (i + 1) * CHANGE <= size; i++)
        change(file, data + 1 + i * CHANGE);
    forge_checksum(file, state.good.length);
    check(file, state.good.length);
    free(file);
    return 0;
}
