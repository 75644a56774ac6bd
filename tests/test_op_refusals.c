/* Calls of operators that are refused: by the text of a case, by the shapes that it gives, or after
 * one thing of a good call was changed. */
#include "test.h"

#include "op/harness/fixture.h"
#include "op/table.h"

/* What is changed in a call: an element of a tensor of whole numbers, a tensor's type, its number
 * of dimensions. */
enum { NOTHING, ELEMENT, TYPE, RANK };

static const struct {
    const char *op, *text;
    int change;
    const char *tensor;
    int at, value;
    const char *said;
} cases[] = {
    {"linear", "n_rows=1 in_features=48 out_features=4 weight:Q8_0", NOTHING, NULL, 0, 0,
     "rows of 48 in weight are not whole blocks of Q8_0"},
    {"norm_linear",
     "n_rows=1 n_outputs=1 hidden_size=64 out_features=8 rows:- bias:- x:I64 norm_weight=x",
     NOTHING, NULL, 0, 0, "norm_linear: norm_weight cannot be of type I64"},
    {"exp",
     "n_rows=1 n_columns=000000000000000000000000000000000000000000000000000000000000000000000000"
     "00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000004",
     NOTHING, NULL, 0, 0, "a word of a case is longer than "},
    {"exp", "n_rows=1 n_columns=4 scale=-1", NOTHING, NULL, 0, 0,
     "exp: scale must be positive, found -1"},
    {"exp", "n_rows=1 n_columns=64", TYPE, "max", 0, DTYPE_Q8_0, "exp: max cannot be of type Q8_0"},
    {"exp", "n_rows=1 n_columns=64", RANK, "x", 0, 1,
     "exp: x must be [n_rows, n_columns], found 1 dimensions"},
    {"all_gather", "n_rows=1 n_own=32 n_columns=64 first=33", NOTHING, NULL, 0, 0,
     "columns 33 to 64 of this rank are not among the 64 of out"},
    {"embedding", "n_tokens=1 vocab_size=7 hidden_size=111", TYPE, "table", 0, DTYPE_Q8_0,
     "embedding: hidden_size 111 is not whole blocks of Q8_0"},
    {"embedding_clear", "n_tokens=1 vocab_size=7 hidden_size=64 n_rows=1 n_next=65", NOTHING, NULL,
     0, 0, "embedding_clear: rows of x_next must be whole ones of x, of 64, found 65"},
    {"causal_mask", "bs=3 max_q_len=7 max_kv_len=11", ELEMENT, "q_lens", 1, 8,
     "causal_mask: q_lens[1] is 8, expected 0 .. 7"},
    {"causal_mask", "bs=3 max_q_len=7 max_kv_len=11", ELEMENT, "history", 2, 12,
     "new tokens are more than max_kv_len = 11"},
    {"adjust_logits", "n_rows=2 vocab_size=64 n_words=3 n_slots=2", NOTHING, NULL, 0, 0,
     "adjust_logits: allowed must have 2 words for 64 tokens, found 3"},
    {"adjust_logits", "n_rows=2 vocab_size=64 n_words=2 n_slots=2", ELEMENT, "uses", 0, 255,
     "adjust_logits: row 0 reads a proposed token, so the row before it must have its slot"},
    {"norm_linear", "n_rows=2 n_outputs=1 hidden_size=64 out_features=8 rows:- bias:-", NOTHING,
     NULL, 0, 0, "without rows there must be as many rows of out as of x, found 1 and 2"},
    {"norm_linear", "n_rows=2 n_outputs=1 hidden_size=64 out_features=8 bias:-", ELEMENT, "rows", 0,
     2, "norm_linear: rows[0] = 2 is outside the 2 rows of x"},
    {"norm_mlp", "n_tokens=1 hidden_size=64 intermediate_size=48 gate_bias:- up_bias:- down_bias:-",
     TYPE, "down_weight", 0, DTYPE_Q8_0, "intermediate_size 48 is not whole blocks of Q8_0"},
    {"repeat_kv",
     "bs=2 n_slots=2 n_layers=3 n_kv_heads=2 n_heads=6 max_kv_len=11 max_seq_len=19 head_size=16 "
     "layer=3",
     NOTHING, NULL, 0, 0, "repeat_kv: layer is 3, the cache has 3"},
    {"repeat_kv",
     "bs=2 n_slots=2 n_layers=3 n_kv_heads=2 n_heads=6 max_kv_len=11 max_seq_len=19 head_size=16",
     ELEMENT, "kv_lens", 1, 12, "repeat_kv: kv_lens[1] is 12, with max_kv_len = 11 and "},
    {"repeat_kv",
     "bs=3 n_slots=2 n_layers=3 n_kv_heads=2 n_heads=6 max_kv_len=11 max_seq_len=19 head_size=16 "
     "slots:-",
     NOTHING, NULL, 0, 0,
     "without slots the cache must have room for all 3 sequences, it has room for 2"},
    {"bias_pad_rope",
     "n_tokens=1 bs=1 max_q_len=1 n_heads=1 n_kv_heads=1 head_size=4 rotary_dim=6 max_positions=4",
     NOTHING, NULL, 0, 0, "rotary_dim must be even and at most head_size = 4, found 6"},
    {"attention_output",
     "n_tokens=1 n_sequences=1 n_heads=4 n_kv_heads=4 n_states=3 head_dim=16 n_pages=20 "
     "page_size=16 n_kv_indices=17 hidden_size=48 bias:- v:-",
     NOTHING, NULL, 0, 0, "attention_output: v and s must both be present, or both absent"},
    {"attention_output",
     "n_tokens=1 n_sequences=1 n_heads=3 n_kv_heads=3 n_states=3 head_dim=16 n_pages=20 "
     "page_size=16 n_kv_indices=17 hidden_size=48 bias:-",
     TYPE, "weight", 0, DTYPE_Q8_0, "a weight row of 48 is not whole blocks of Q8_0"},
    {"norm_qkv_rope",
     "n_tokens=1 hidden_size=64 n_heads=4 n_kv_heads=2 head_dim=15 rotary_dim=14 n_positions=40 "
     "n_sequences=1 n_pages=3 page_size=16 n_kv_indices=2 q_bias:- k_bias:- v_bias:- q_norm:- "
     "k_norm:-",
     NOTHING, NULL, 0, 0, "norm_qkv_rope: head_dim must be even, found 15"},
    {"linear_experts",
     "n_tokens=1 n_experts=8 top_k=2 x_each=1 out_each=2 in_features=48 out_features=48 bias:- "
     "up_bias:- shares:- residual:-",
     TYPE, "weight", 0, DTYPE_Q8_0, "linear_experts: in_features 48 is not whole blocks of Q8_0"},
    {"linear_experts",
     "n_tokens=1 n_experts=8 top_k=2 x_each=1 out_each=2 in_features=48 out_features=48 bias:- "
     "up_bias:- shares:- residual:-",
     ELEMENT, "ids", 1, 8, "linear_experts: ids[0, 1] = 8 is none of 8 experts, and not -1"},
    {"linear_experts",
     "n_tokens=1 n_experts=8 top_k=2 x_each=3 out_each=2 in_features=48 out_features=48 bias:- "
     "up_bias:- shares:- residual:-",
     NOTHING, NULL, 0, 0, "a token has 1 row of x or top_k = 2, found 3"},
    {"linear_experts",
     "n_tokens=1 n_experts=8 top_k=2 x_each=1 out_each=1 in_features=48 out_features=48 bias:- "
     "up_bias:- shares:- residual:-",
     NOTHING, NULL, 0, 0, "a token has 2 rows of out, without shares, found 1"},
    {"linear_experts",
     "n_tokens=1 n_experts=8 top_k=2 x_each=1 out_each=2 in_features=48 out_features=48 bias:- "
     "up_bias:- shares:-",
     NOTHING, NULL, 0, 0, "linear_experts: a residual needs shares"},
    {"chain_speculative_sampling", "n_sequences=1 n_speculative=1 vocab_size=4194305", NOTHING,
     NULL, 0, 0, "chain_speculative_sampling: vocab_size must be 1 .. 4194304, found 4194305"},
    {"renorm_probs", "n_rows=1 vocab_size=4194305 top_ks:- top_ps:-", NOTHING, NULL, 0, 0,
     "renorm_probs: vocab_size must be 1 .. 4194304, found 4194305"},
    {"sampling", "n_rows=1 vocab_size=4194305 candidates:-", NOTHING, NULL, 0, 0,
     "sampling: vocab_size must be 1 .. 4194304, found 4194305"},
};

/* Changes the call as the case says; `type` and `rank` stay within what memory there is. */
static void change_call(const op_info *op, op_call *call, int change, const char *tensor_name,
                        int at, int value)
{
    const int t = tensor_name ? op_tensor_index(op, tensor_name) : 0;
    assert_true(t >= 0);
    tensor *view = &call->tensors[t];
    if (change == ELEMENT) ((int32_t *)view->data)[at] = value;
    if (change == TYPE) view->type = (dtype)value;
    if (change == RANK) view->rank = value;
}

static void calls_that_cannot_be_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const op_info *op = op_find(cases[i].op);
        op_case about;
        fixture made = {0};
        qp_error error = {0};
        assert_non_null(op);
        qp_status status = op_case_parse(op, cases[i].text, &about, &error);
        if (status == QP_OK) {
            assert_ok(fixture_create(&made, op, NULL, &about, 0, &error));
            status = fixture_fill(&made, FILL_NORMAL, 1, &error);
        }
        if (cases[i].change) {
            if (status != QP_OK) fail_msg("%s: %s", cases[i].text, error.message);
            change_call(op, &made.call, cases[i].change, cases[i].tensor, cases[i].at,
                        cases[i].value);
            status = op_bind(op, &made.call, NULL, &error);
        }
        if (status != QP_INVALID) fail_msg("%s %s: not refused", op->name, cases[i].text);
        if (!strstr(error.message, cases[i].said))
            fail_msg("%s, expected %s", error.message, cases[i].said);
        fixture_destroy(&made);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(calls_that_cannot_be_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
