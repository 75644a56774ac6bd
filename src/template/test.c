/* Tests (`x is ...`), as jinja2 defines them: see run.h. */
#include "template/run.h"

#include "template/pychar.h"

/* Tests that depend only on the kind of a value. */
typedef enum kind_test {
    IS_DEFINED,
    IS_UNDEFINED,
    IS_NONE,
    IS_BOOLEAN,
    IS_TRUE,
    IS_FALSE,
    IS_INTEGER,
    IS_FLOAT,
    IS_NUMBER,
    IS_STRING,
    IS_MAPPING,
    IS_SEQUENCE,
    IS_ITERABLE,
    IS_CALLABLE,
    IS_ESCAPED,
} kind_test;

static bool is_sized_list(value item)
{
    return item.kind == VALUE_LIST && item.as.items->kind <= LIST_RANGE;
}

static qp_status test_kind(run *run, call *call, value *out)
{
    value item = call->self;
    value_kind kind = item.kind;
    bool text_or_dict = kind == VALUE_STRING || kind == VALUE_DICT || kind == VALUE_UNDEFINED;
    bool holds = false;
    (void)run;
    switch ((kind_test)call->builtin->detail) {
    case IS_DEFINED:
        holds = kind != VALUE_UNDEFINED;
        break;
    case IS_UNDEFINED:
        holds = kind == VALUE_UNDEFINED;
        break;
    case IS_NONE:
        holds = kind == VALUE_NONE;
        break;
    case IS_BOOLEAN:
        holds = kind == VALUE_BOOL;
        break;
    case IS_TRUE:
        holds = kind == VALUE_BOOL && item.as.boolean;
        break;
    case IS_FALSE:
        holds = kind == VALUE_BOOL && !item.as.boolean;
        break;
    case IS_INTEGER:
        holds = kind == VALUE_INT;
        break;
    case IS_FLOAT:
        holds = kind == VALUE_FLOAT;
        break;
    case IS_NUMBER:
        holds = value_is_number(item);
        break;
    case IS_STRING:
        holds = kind == VALUE_STRING;
        break;
    case IS_MAPPING:
        holds = kind == VALUE_DICT;
        break;
    case IS_SEQUENCE:
        holds = text_or_dict || is_sized_list(item);
        break;
    case IS_ITERABLE:
        holds = text_or_dict || kind == VALUE_LIST || kind == VALUE_LOOP;
        break;
    case IS_CALLABLE:
        holds = kind == VALUE_MACRO || kind == VALUE_BUILTIN || kind == VALUE_LOOP ||
                kind == VALUE_UNDEFINED;
        break;
    case IS_ESCAPED:
        holds = kind == VALUE_STRING && item.markup;
        break;
    }
    *out = value_bool(holds);
    return QP_OK;
}

static qp_status remainder_of(run *run, value item, value by, int64_t wanted, value *out)
{
    value rest;
    TRY(op_binary(run, TOKEN_MOD, item, by, &rest));
    *out = value_bool(value_equal(&run->heap, rest, value_int(wanted)));
    return QP_OK;
}

static qp_status test_parity(run *run, call *call, value *out)
{
    return remainder_of(run, call->self, value_int(2), call->builtin->detail, out);
}

static qp_status test_divisible(run *run, call *call, value *out)
{
    return remainder_of(run, call->self, call->bound[0], 0, out);
}

static qp_status test_compare(run *run, call *call, value *out)
{
    bool holds;
    TRY(op_compare(run, (compare_kind)call->builtin->detail, call->self, call->bound[0], &holds));
    *out = value_bool(holds);
    return QP_OK;
}

/* Python's `is`: true for singletons and equal small values; data must be the same object. */
static qp_status test_same(run *run, call *call, value *out)
{
    value a = call->self, b = call->bound[0];
    bool same = a.kind == b.kind;
    if (same && (a.kind == VALUE_LIST || a.kind == VALUE_DICT))
        same = a.kind == VALUE_LIST ? a.as.items == b.as.items : a.as.members == b.as.members;
    *out = value_bool(same && value_equal(&run->heap, a, b));
    return QP_OK;
}

static qp_status test_letters(run *run, call *call, value *out)
{
    value text;
    bool cased = false, all = true;
    TRY(run_str(run, call->self, &text));
    TRY(run_step(run, text.as.text->length / 8));
    for (size_t at = 0; at < text.as.text->length;) {
        uint32_t code;
        at += pychar_decode(text.as.text->data + at, text.as.text->length - at, &code);
        bool upper = pychar_is_upper(code), lower = pychar_is_lower(code);
        cased = cased || upper || lower;
        all = all && !(call->builtin->detail == PYCHAR_UPPER ? lower : upper);
    }
    *out = value_bool(cased && all);
    return QP_OK;
}

static qp_status test_exists(run *run, call *call, value *out)
{
    bool found = false;
    (void)run;
    if (call->self.kind == VALUE_STRING)
        found = call->builtin->detail
                    ? find_test(call->self.as.text) != NULL
                    : find_filter(call->self.as.text) || find_sequence(call->self.as.text) ||
                          find_markup(call->self.as.text);
    *out = value_bool(found);
    return QP_OK;
}

static const builtin tests[] = {
    {"!=", "other", 1, test_compare, COMPARE_NE},
    {"<", "other", 1, test_compare, COMPARE_LT},
    {"<=", "other", 1, test_compare, COMPARE_LE},
    {"==", "other", 1, test_compare, COMPARE_EQ},
    {">", "other", 1, test_compare, COMPARE_GT},
    {">=", "other", 1, test_compare, COMPARE_GE},
    {"boolean", "", 0, test_kind, IS_BOOLEAN},
    {"callable", "", 0, test_kind, IS_CALLABLE},
    {"defined", "", 0, test_kind, IS_DEFINED},
    {"divisibleby", "num", 1, test_divisible, 0},
    {"eq", "other", 1, test_compare, COMPARE_EQ},
    {"equalto", "other", 1, test_compare, COMPARE_EQ},
    {"escaped", "", 0, test_kind, IS_ESCAPED},
    {"even", "", 0, test_parity, 0},
    {"false", "", 0, test_kind, IS_FALSE},
    {"filter", "", 0, test_exists, 0},
    {"float", "", 0, test_kind, IS_FLOAT},
    {"ge", "other", 1, test_compare, COMPARE_GE},
    {"greaterthan", "other", 1, test_compare, COMPARE_GT},
    {"gt", "other", 1, test_compare, COMPARE_GT},
    {"in", "seq", 1, test_compare, COMPARE_IN},
    {"integer", "", 0, test_kind, IS_INTEGER},
    {"iterable", "", 0, test_kind, IS_ITERABLE},
    {"le", "other", 1, test_compare, COMPARE_LE},
    {"lessthan", "other", 1, test_compare, COMPARE_LT},
    {"lower", "", 0, test_letters, PYCHAR_LOWER},
    {"lt", "other", 1, test_compare, COMPARE_LT},
    {"mapping", "", 0, test_kind, IS_MAPPING},
    {"ne", "other", 1, test_compare, COMPARE_NE},
    {"none", "", 0, test_kind, IS_NONE},
    {"number", "", 0, test_kind, IS_NUMBER},
    {"odd", "", 0, test_parity, 1},
    {"sameas", "other", 1, test_same, 0},
    {"sequence", "", 0, test_kind, IS_SEQUENCE},
    {"string", "", 0, test_kind, IS_STRING},
    {"test", "", 0, test_exists, 1},
    {"true", "", 0, test_kind, IS_TRUE},
    {"undefined", "", 0, test_kind, IS_UNDEFINED},
    {"upper", "", 0, test_letters, PYCHAR_UPPER},
};

const builtin *find_test(const string *name)
{
    return find_in(tests, sizeof tests / sizeof tests[0], name);
}
