/* embedding with rows converted in vectors; quantised rows are decoded by their codec. */
#include "op/embedding/embedding.h"

#include "op/convert_simd.inc"
#include "tensor/codec.h"

SIMD_KERNEL(embedding)(const op_call *call)
{
    const int32_t *ids = call->tensors[EMBEDDING_IDS].data; /* (n_tokens) */
    const tensor *table = &call->tensors[EMBEDDING_TABLE];  /* (vocab_size, hidden_size) */
    const tensor *out = &call->tensors[EMBEDDING_OUT];      /* (n_tokens, hidden_size) */
    int64_t hidden_size = table->shape[1];
    for (int64_t t = call->begin; t < call->end; t++) {
        const void *row = tensor_row(table, ids[t]);
        void *to = tensor_row(out, t);
        if (!dtype_is_quantized(table->type)) {
            convert_row(table->type, row, out->type, to, hidden_size);
            continue;
        }
        float *decoded = out->type == DTYPE_F32 ? to : call->scratch;
        dtype_decode(table->type, row, decoded, hidden_size);
        if (decoded != to) convert_row(DTYPE_F32, decoded, out->type, to, hidden_size);
    }
}
