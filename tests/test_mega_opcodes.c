/* The megakernel's table of opcodes, compared with the operators' descriptions: operands have the
 * names, directions and types that the table assumes, and every matrix, norm, cache and sum of an
 * operator is in its row. */
#include "test.h"
#include "lower/lower.h"
#include "vm/mega/opcodes.h"

#include "schedule/schedule.h"
#include "vm/mega/parts.h"

/* The operator's tensor of that name; MEGA_NO_OPERAND: it has none. */
static int find(const op_info *op, const char *name)
{
    for (int i = 0; i < op_n_tensors(op); i++)
        if (strcmp(op->tensors[i].name, name) == 0) return i;
    return MEGA_NO_OPERAND;
}

static void check_sums(const op_info *op, const mega_opcode *row)
{
    int x_out = find(op, "x_out"), x = find(op, "x");
    if (x_out != MEGA_NO_OPERAND) assert_int_equal(op->tensors[x_out].direction, OP_ACCUMULATE);
    if (x_out == MEGA_NO_OPERAND && x != MEGA_NO_OPERAND && op_writes(op->tensors[x].direction))
        x_out = x, x = MEGA_NO_OPERAND;
    assert_int_equal(row->sums, x_out);
    assert_int_equal(row->x, x);
}

/* All of its matrices, in the operator's order. */
static void check_matrices(const op_info *op, const mega_opcode *row)
{
    int n = 0;
    for (int i = 0; i < op_n_tensors(op); i++) {
        const char *name = op->tensors[i].name, *ending = strstr(name, "weight");
        if (!ending || strcmp(name, "norm_weight") == 0) continue;
        assert_true(n < row->n_matrices);
        assert_int_equal(row->matrices[n++], i);
    }
    assert_int_equal(row->n_matrices, n);
}

static void rows_are_what_operators_say(void **state)
{
    (void)state;
    int known = 0, first = 0, last = 0;
    for (int code = 0; code < OP_COUNT; code++) {
        const mega_opcode *row = mega_opcode_of((op_code)code);
        const op_info *op = op_get((op_code)code);
        if (!row->code) continue;
        assert_int_equal(mega_operator_of(row->code), code);
        known++;
        first += row->first;
        last += row->last;
        check_sums(op, row);
        check_matrices(op, row);
        assert_int_equal(row->norm, find(op, "norm_weight"));
        assert_int_equal(row->k_cache, find(op, "k_cache"));
        assert_true(row->carrier != MEGA_COUNTS || row->x != MEGA_NO_OPERAND);
        assert_true(row->carrier != MEGA_TAGS || mega_opcode_of(row->writer)->code);
        assert_true(row->split == MEGA_WHOLE || row->k_cache != MEGA_NO_OPERAND);
    }
    assert_true(known > 0);
    assert_int_equal(first, 1);
    assert_int_equal(last, 1);
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
        cmocka_unit_test(rows_are_what_operators_say),
        cmocka_unit_test(others_have_no_operands),
        cmocka_unit_test(it_knows_all_of_its_schedules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
