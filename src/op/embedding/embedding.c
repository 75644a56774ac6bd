/* embedding: out[t] = table[ids[t]], each row decoded from the table's type.
 *
 * With activations as the table it gathers rows: the last token of every sequence before lm_head.
 */
#include "op/embedding/embedding.h"

#include "base/checked.h"
#include "base/hash.h"
#include "op/element.h"
#include "op/variants.h"
#include "tensor/codec.h"
#include "op/cuda_ops.h"

static int64_t units(const op_call *call)
{
    return call->tensors[EMBEDDING_IDS].shape[0];
}

static qp_status check(const op_call *call, qp_error *error)
{
    const tensor *ids = &call->tensors[EMBEDDING_IDS];
    const tensor *table = &call->tensors[EMBEDDING_TABLE];
    if (table->shape[1] % dtype_block_elements(table->type) != 0)
        return error_set(error, QP_INVALID, "embedding: hidden_size %lld is not whole blocks of %s",
                         (long long)table->shape[1], dtype_name(table->type));
    const int32_t *id = ids->data;
    for (int64_t t = 0; id && t < ids->shape[0]; t++) {
        if (id[t] < 0 || id[t] >= table->shape[0])
            return error_set(error, QP_INVALID,
                             "embedding: ids[%lld] = %d is outside the table of %lld rows",
                             (long long)t, id[t], (long long)table->shape[0]);
    }
    return QP_OK;
}

static void prepare(op_call *call, uint64_t seed)
{
    const tensor *ids = &call->tensors[EMBEDDING_IDS];
    uint64_t vocab_size = (uint64_t)call->tensors[EMBEDDING_TABLE].shape[0];
    int32_t *id = ids->data;
    for (int64_t t = 0; t < ids->shape[0]; t++)
        id[t] = (int32_t)(hash_random(seed, 0, (uint64_t)t) % vocab_size);
}

static size_t scratch_bytes(const op_call *call)
{
    const tensor *table = &call->tensors[EMBEDDING_TABLE];
    return round_up((size_t)table->shape[1] * sizeof(float), 64);
}

void embedding_reference(const op_call *call)
{
    const int32_t *ids = call->tensors[EMBEDDING_IDS].data; /* (n_tokens) */
    const tensor *table = &call->tensors[EMBEDDING_TABLE];  /* (vocab_size, hidden_size) */
    const tensor *out = &call->tensors[EMBEDDING_OUT];      /* (n_tokens, hidden_size) */
    int64_t hidden_size = table->shape[1];

    for (int64_t t = call->begin; t < call->end; t++) {
        const void *row = tensor_row(table, ids[t]);
        dtype type = table->type;
        if (type != DTYPE_F64) {
            dtype_decode(type, row, call->scratch, hidden_size);
            row = call->scratch;
            type = DTYPE_F32;
        }
        void *to = tensor_row(out, t);
        for (int64_t i = 0; i < hidden_size; i++)
            element_store(out->type, to, i, element_load(type, row, i));
    }
}

OP_SIMD_TABLE(embedding, .accepts = op_call_has_no_f64)

static const char *const cases[] = {
    "n_tokens=1 vocab_size=7 hidden_size=111",
    "n_tokens=19 vocab_size=50 hidden_size=64 table:F16 out:BF16",
    "n_tokens=5 vocab_size=33 hidden_size=96 table:Q4_1",
    "n_tokens=4 vocab_size=9 hidden_size=512 table:Q6_K out:F16 out+8",
    "n_tokens=4 vocab_size=9 hidden_size=512 table:IQ3_S",
    "n_tokens=3 vocab_size=12 hidden_size=576 table:BF16 table+24",
    "n_tokens=6 vocab_size=10 hidden_size=384 table:F8_128",
    "n_tokens=0 vocab_size=4 hidden_size=32 table:Q8_0",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b: n_tokens=512 vocab_size=128256 hidden_size=4096 table:BF16 out:BF16",
    "llama-3.2-1b: n_tokens=1 vocab_size=128256 hidden_size=2048 table:BF16 out:BF16",
    "internlm2-1.8b: n_tokens=512 vocab_size=92544 hidden_size=2048 table:BF16 out:BF16",
    "smollm2-135m: n_tokens=512 vocab_size=49152 hidden_size=576 table:Q8_0",
    NULL,
};

const op_info op_embedding = {
    .name = "embedding",
    .summary = "rows of a table, picked by index",
    .place = "The first step: token ids become rows of hidden_size. It also gathers rows of "
             "activations, such as each sequence's last before the final projection.",
    .formula = "out[t, i] = table[ids[t], i]",
    .precision = "The stored value is decoded exactly as its format defines and rounded once, to "
                 "the type of out; between equal types it is a copy.",
    .edge_cases = "Ids may repeat, in any order. An id outside 0 .. vocab_size - 1 is refused "
                  "before the call. No tokens: nothing is written.",
    .source = "FlashInfer leaves it to torch.nn.functional.embedding",
    .unit = "a token",
    .flops = "0",
    .bytes = "n_tokens * (4 + hidden_size * (sizeof_table + sizeof_out))",
    .axes = {{"n_tokens", AXIS_VARIABLE, "rows to pick"},
             {"vocab_size", AXIS_CONSTANT, "rows of the table"},
             {"hidden_size", AXIS_CONSTANT, "elements in a row"}},
    .tensors = {{"ids", OP_IN, OP_TYPE(I32), "n_tokens", false, "row of the table for each token"},
                {"table", OP_IN, OP_WEIGHTS | OP_TYPE(F64), "vocab_size, hidden_size", false,
                 "any weight type; rows may be strided"},
                {"out", OP_OUT, OP_FLOATS, "n_tokens, hidden_size", false,
                 "rows may be strided; must not overlap table"}},
    .units = units,
    .check = check,
    .scratch_bytes = scratch_bytes,
    .prepare = prepare,
    .reference = embedding_reference,
    .variants = variants,
    .cuda = embedding_cuda,
    .fills = OP_FILL_HUGE | OP_FILL_INFINITY | OP_FILL_NAN,
    .cases = cases,
    .workloads = workloads,
};
