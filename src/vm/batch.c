/* The batch state: see batch.h. */
#include "vm/batch.h"

#include "base/checked.h"
#include "op/adjust_logits/adjust_logits.h"
#include "op/padding.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { INPUT_ALIGNMENT = 16 };

static size_t count_inputs(const program *program)
{
    size_t total = 0;
    for (int id = 0; id < PLAN_NAMED; id++)
        if (program->tensors[id].kind == PLAN_INPUT)
            total += round_up(program->tensors[id].bytes, INPUT_ALIGNMENT);
    return total;
}

static size_t count_angles(const program *program)
{
    if (!program_has_dynamic_rope(program)) return 0;
    return (size_t)(program->capacity.of[AXIS_TOKENS] * program->config.rope.dim) * sizeof(float);
}

size_t batch_count_bytes(const program *program)
{
    return count_inputs(program) + count_angles(program);
}

qp_status batch_init(batch *b, const program *program, qp_error *error)
{
    const size_t total = count_inputs(program), angles = count_angles(program);
    *b = (batch){.program = program, .sizes = program->capacity};
    b->memory = calloc(1, total);
    if (!b->memory) return error_no_memory(error, "the batch state", total);
    b->memory_bytes = total;
    if (angles) {
        b->angles = calloc(1, angles);
        if (!b->angles) return error_no_memory(error, "the batch's angles", angles);
    }
    char *next = b->memory;
    for (int id = 0; id < PLAN_NAMED; id++) {
        if (program->tensors[id].kind != PLAN_INPUT) continue;
        b->of[id] = next;
        next += round_up(program->tensors[id].bytes, INPUT_ALIGNMENT);
    }
    batch_clear(b);
    return QP_OK;
}

void batch_free(batch *b)
{
    free(b->memory);
    free(b->angles);
    *b = (batch){0};
}

void batch_clear(batch *b)
{
    b->sizes.of[AXIS_TOKENS] = 0;
    b->sizes.of[AXIS_SEQUENCES] = 0;
    b->sizes.of[AXIS_SEQUENCE_ENDS] = 1;
    b->sizes.of[AXIS_PAGE_REFS] = 0;
    program_set_outputs(b->sizes.of, 0);
    b->sizes.of[AXIS_PAST_REFS] = 0;
    b->sizes.of[AXIS_LONGEST_Q] = b->sizes.of[AXIS_LONGEST_KV] = 0;
    program_set_phase(&b->sizes);
    batch_i32(b, PLAN_QO_INDPTR)[0] = batch_i32(b, PLAN_KV_INDPTR)[0] = 0;
}

int64_t batch_room(const batch *b)
{
    const int64_t *most = b->program->capacity.of;
    if (b->sizes.of[AXIS_SEQUENCES] == most[AXIS_SEQUENCES]) return 0;
    return most[AXIS_TOKENS] - batch_tokens(b);
}

/* The page table of the positions before the batch. */
static void add_past(batch *b, int64_t past, const int32_t *pages)
{
    if (!b->of[PLAN_PAST_INDPTR]) return;
    const int64_t page_size = b->program->options.page_size;
    const int64_t n_pages = (past + page_size - 1) / page_size;
    const int64_t sequence = b->sizes.of[AXIS_SEQUENCES], refs = b->sizes.of[AXIS_PAST_REFS];
    for (int64_t i = 0; i < n_pages; i++)
        batch_i32(b, PLAN_PAST_INDICES)[refs + i] = pages[i];
    batch_i32(b, PLAN_PAST_INDPTR)[0] = 0;
    batch_i32(b, PLAN_PAST_INDPTR)[sequence + 1] = (int32_t)(refs + n_pages);
    batch_i32(b, PLAN_PAST_LAST_PAGE_LEN)[sequence] =
        (int32_t)(n_pages ? past - (n_pages - 1) * page_size : 0);
    b->sizes.of[AXIS_PAST_REFS] += n_pages;
}

/* The sequence's place in the rectangle of a padded batch. */
static void add_padding(batch *b, int64_t count, int64_t past)
{
    int64_t *of = b->sizes.of;
    const int64_t sequence = of[AXIS_SEQUENCES];
    if (count > of[AXIS_LONGEST_Q]) of[AXIS_LONGEST_Q] = count;
    if (past + count > of[AXIS_LONGEST_KV]) of[AXIS_LONGEST_KV] = past + count;
    if (!b->of[PLAN_Q_LENS]) return;
    batch_i32(b, PLAN_Q_LENS)[sequence] = (int32_t)count;
    batch_i32(b, PLAN_PAST_LENS)[sequence] = (int32_t)past;
    padding_offsets(batch_i32(b, PLAN_Q_LENS), sequence + 1, of[AXIS_LONGEST_Q],
                    batch_i32(b, PLAN_PADDING_OFFSETS));
}

void batch_set_adapters(batch *b, int64_t row, int64_t count, const batch_adapter *adapters,
                        int64_t n)
{
    if (!b->of[PLAN_ADAPTER_IDS]) return;
    const int64_t at_once = b->program->tensors[PLAN_ADAPTER_IDS].dims[1].size;
    int32_t *id = batch_i32(b, PLAN_ADAPTER_IDS) + row * at_once;
    float *share = (float *)b->of[PLAN_ADAPTER_SHARES] + row * at_once;
    assert(n <= at_once);
    for (int64_t i = 0; i < count * at_once; i++) {
        const int64_t k = i % at_once;
        id[i] = k < n ? adapters[k].adapter : -1;
        share[i] = k < n ? adapters[k].share : 0;
    }
}

/* Adds a sequence of `count` new tokens with the pages of `positions`. */
static void add(batch *b, const int32_t *tokens, int64_t count, int64_t past, int64_t positions,
                const int32_t *pages)
{
    assert(count > 0 && count <= batch_room(b));
    int64_t *of = b->sizes.of;
    int64_t row = of[AXIS_TOKENS], sequence = of[AXIS_SEQUENCES], refs = of[AXIS_PAGE_REFS];
    bool own_rows = program_has_dynamic_rope(b->program);
    for (int64_t i = 0; i < count; i++) {
        batch_i32(b, PLAN_TOKEN_IDS)[row + i] = tokens[i];
        batch_i32(b, PLAN_POSITION_IDS)[row + i] = (int32_t)(past + i);
        batch_i32(b, PLAN_ROPE_ROWS)[row + i] = (int32_t)(own_rows ? row + i : past + i);
    }
    int64_t page_size = b->program->options.page_size;
    int64_t n_pages = (positions + page_size - 1) / page_size;
    for (int64_t i = 0; i < n_pages; i++)
        batch_i32(b, PLAN_KV_INDICES)[refs + i] = pages[i];
    batch_i32(b, PLAN_KV_LAST_PAGE_LEN)[sequence] =
        (int32_t)(positions - (n_pages - 1) * page_size);
    batch_i32(b, PLAN_QO_INDPTR)[sequence + 1] = (int32_t)(row + count);
    batch_i32(b, PLAN_KV_INDPTR)[sequence + 1] = (int32_t)(refs + n_pages);
    add_past(b, past, pages);
    add_padding(b, count, past);
    batch_set_adapters(b, row, count, NULL, 0);
    of[AXIS_TOKENS] += count;
    of[AXIS_SEQUENCES]++;
    of[AXIS_SEQUENCE_ENDS]++;
    of[AXIS_PAGE_REFS] += n_pages;
    program_set_phase(&b->sizes);
}

void batch_add(batch *b, const int32_t *tokens, int64_t count, int64_t past, const int32_t *pages)
{
    add(b, tokens, count, past, past + count, pages);
}

void batch_add_ahead(batch *b, int32_t token, int64_t past, int64_t positions, const int32_t *pages)
{
    add(b, &token, 1, past, positions, pages);
}

void batch_want(batch *b, int64_t row)
{
    int64_t *outputs = &b->sizes.of[AXIS_OUTPUTS];
    assert(*outputs < b->program->capacity.of[AXIS_OUTPUTS]);
    batch_i32(b, PLAN_LAST)[*outputs] = batch_i32(b, PLAN_TOKEN_IDS)[row];
    batch_i32(b, PLAN_USES)[*outputs] = 0; /* no adjustment of the logits */
    batch_i32(b, PLAN_OUTPUT_ROWS)[*outputs] = (int32_t)row;
    program_set_outputs(b->sizes.of, *outputs + 1);
}

void batch_want_hidden(batch *b, int64_t row)
{
    int64_t *wanted = &b->sizes.of[AXIS_WANTED];
    assert(*wanted < b->program->capacity.of[AXIS_WANTED]);
    batch_i32(b, PLAN_OUTPUT_ROWS)[(*wanted)++] = (int32_t)row;
}

void batch_set_angles(batch *b, int64_t row, int64_t past, int64_t count, int64_t length)
{
    if (!b->angles) return;
    float *const rows = b->angles + row * b->program->config.rope.dim;
    program_make_angles(b->program, PLAN_ROPE_TABLE, length, past, count, rows);
}

bool batch_decodes(const batch *b)
{
    int64_t n = batch_tokens(b);
    if (n == 0 || b->sizes.of[AXIS_SEQUENCES] != n || batch_outputs(b) != n) return false;
    for (int64_t i = 0; i < n; i++)
        if (batch_i32(b, PLAN_OUTPUT_ROWS)[i] != i) return false;
    return true;
}

bool batch_adjusts(const batch *b)
{
    for (int64_t i = 0; i < batch_outputs(b); i++)
        if (batch_i32(b, PLAN_USES)[i]) return true;
    return false;
}

/* Copies the rows of sampling settings. */
static void copy_settings(const batch *from, batch *to)
{
    static const plan_tensor_id of_rows[] = {
        PLAN_SEEDS,  PLAN_SAMPLE_POSITIONS, PLAN_TEMPERATURES, PLAN_SLOTS,
        PLAN_USES,   PLAN_REPETITIONS,      PLAN_PRESENCES,    PLAN_FREQUENCIES,
        PLAN_TOP_KS, PLAN_TOP_PS,           PLAN_MIN_PS};
    for (size_t i = 0; i < sizeof of_rows / sizeof *of_rows; i++) {
        const plan_tensor *t = &from->program->tensors[of_rows[i]];
        memcpy(to->of[of_rows[i]], from->of[of_rows[i]],
               (size_t)batch_outputs(from) * dtype_block_bytes(t->type));
    }
}

/* Copies an input, if the program has it, of as many rows as both batches have. */
static void copy_rows(const batch *from, batch *to, plan_tensor_id id)
{
    if (from->of[id])
        memcpy(to->of[id], from->of[id], program_tensor_bytes(from->program, id, &from->sizes));
}

void batch_make_later(const batch *first, int pass, const int32_t *tokens, batch *out)
{
    assert(batch_decodes(first));
    batch_clear(out);
    for (int64_t i = 0; i < batch_tokens(first); i++) {
        int32_t from = batch_i32(first, PLAN_KV_INDPTR)[i];
        const int32_t *pages = batch_i32(first, PLAN_KV_INDICES) + from;
        int64_t past = batch_i32(first, PLAN_POSITION_IDS)[i] + pass;
        int32_t token = tokens ? tokens[i] : batch_i32(first, PLAN_TOKEN_IDS)[i];
        batch_add(out, &token, 1, past, pages);
        batch_set_angles(out, i, past, 1, past + 1);
        batch_want(out, i);
    }
    copy_settings(first, out);
    copy_rows(first, out, PLAN_ADAPTER_IDS);
    copy_rows(first, out, PLAN_ADAPTER_SHARES);
    for (int64_t i = 0; i < batch_outputs(out); i++) {
        batch_i32(out, PLAN_SAMPLE_POSITIONS)[i] += pass;
        /* The pass reads the token that the previous pass chose. */
        int32_t *uses = &batch_i32(out, PLAN_USES)[i];
        if (pass > 0 && *uses & ADJUST_PENALISE) *uses |= ADJUST_COUNT;
    }
}
