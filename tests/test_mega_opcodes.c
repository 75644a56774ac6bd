/* The megakernel's table of opcodes: what each row says, written down here once more by hand with
 * the operands' names, and what schedules need of it. */
#include "test.h"
#include "lower/lower.h"
#include "vm/mega/opcodes.h"

#include "schedule/schedule.h"
#include "vm/mega/parts.h"

/* Appends " ROLE NAME" where a row has an operand. */
static void say(strbuf *out, const op_info *op, const char *role, int operand)
{
    if (operand != MEGA_NO_OPERAND) strbuf_printf(out, " %s %s", role, op->tensors[operand].name);
}

static void print_row(op_code code, const mega_opcode *row, strbuf *out)
{
    static const char *const splits[] = {"whole", "by head", "by part"};
    static const char *const carriers[] = {"nothing", "counts", "tags"};
    const op_info *op = op_get(code);
    strbuf_printf(out, "%s %s, waits by %s", op->name, splits[row->split], carriers[row->carrier]);
    if (row->carrier == MEGA_TAGS) strbuf_printf(out, " of %s", op_get(row->writer)->name);
    strbuf_puts(out, ":");
    say(out, op, "x", row->x);
    say(out, op, "sums", row->sums);
    say(out, op, "norm", row->norm);
    say(out, op, "cache", row->k_cache);
    for (int i = 0; i < row->n_matrices; i++)
        say(out, op, "matrix", row->matrices[i]);
    strbuf_printf(out, "%s%s\n", row->first ? " first" : "", row->last ? " last" : "");
}

static void rows_say_what_kernels_do(void **state)
{
    (void)state;
    static const char expected[] =
        "embedding_clear whole, waits by nothing: sums x first\n"
        "norm_qkv_rope whole, waits by counts: x x norm norm_weight cache k_cache matrix q_weight "
        "matrix k_weight matrix v_weight\n"
        "attention_partial by part, waits by tags of norm_qkv_rope: cache k_cache\n"
        "attention_output by head, waits by tags of attention_partial: x x sums x_out cache "
        "k_cache "
        "matrix weight\n"
        "norm_mlp whole, waits by counts: x x sums x_out norm norm_weight matrix gate_weight "
        "matrix "
        "up_weight matrix down_weight\n"
        "norm_linear whole, waits by counts: x x norm norm_weight matrix weight last\n";
    static const op_code order[] = {OP_EMBEDDING_CLEAR,  OP_NORM_QKV_ROPE, OP_ATTENTION_PARTIAL,
                                    OP_ATTENTION_OUTPUT, OP_NORM_MLP,      OP_NORM_LINEAR};
    enum { ROWS = sizeof order / sizeof *order };
    strbuf text = {0};
    int known = 0;
    for (int i = 0; i < ROWS; i++) {
        const mega_opcode *row = mega_opcode_of(order[i]);
        print_row(order[i], row, &text);
        assert_int_equal(mega_operator_of(row->code), order[i]);
    }
    assert_string_equal(strbuf_text(&text), expected);
    for (int code = 0; code < OP_COUNT; code++)
        known += mega_opcode_of((op_code)code)->code != 0;
    assert_int_equal(known, ROWS);
    strbuf_free(&text);
}

/* What it has no code for, and what is no operator, has nothing to wait for and nothing to add. */
static void others_have_no_operands(void **state)
{
    (void)state;
    const int others[] = {OP_RMS_NORM, OP_LINEAR, OP_COUNT, INSTRUCTION_NOOP};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const mega_opcode *row = mega_opcode_of((op_code)others[i]);
        assert_int_equal(row->code, 0);
        assert_int_equal(row->x, MEGA_NO_OPERAND);
        assert_int_equal(row->sums, MEGA_NO_OPERAND);
        assert_int_equal(row->carrier, MEGA_NOTHING);
    }
}

/* Every operator that its schedules have is one of the table's. */
static void it_knows_all_of_its_schedules(void **state)
{
    (void)state;
    qp_error error;
    model *m;
    program p, sums;
    schedule s;
    model_options sizes_only = {.sizes_only = true};
    assert_ok(model_open("synthetic:tiny:BF16", &sizes_only, &m, &error));
    plan_options of = plan_default_options(model_get_config(m));
    assert_ok(lower_build(model_get_config(m), m, &of, &p, &error));
    const mega_schedule_options options = {.n_blocks = 8};
    assert_ok(mega_build_sums(&p, options.n_blocks, &sums, &error));
    assert_ok(mega_schedule(&sums, &options, &s, &error));
    for (int b = 0; b < options.n_blocks; b++)
        for (int i = 0; i < s.length[b]; i++)
            assert_true(mega_opcode_of((op_code)schedule_queue(&s, b)[i].opcode)->code);
    schedule_free(&s);
    program_free(&sums);
    program_free(&p);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_say_what_kernels_do),
        cmocka_unit_test(others_have_no_operands),
        cmocka_unit_test(it_knows_all_of_its_schedules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
