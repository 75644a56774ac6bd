/* kv_append: writes the new tokens' keys and values into their sequences' pages of the KV cache.
 *
 * The page table is the one that attention reads afterwards: it already includes the new tokens.
 */
#include "op/kv_append/kv_append.h"

#include "op/attention/ragged.h"
#include "op/element.h"
#include "op/variants.h"
#include "op/cuda_ops.h"

static int64_t units(const op_call *call)
{
    return call->tensors[KV_APPEND_K].shape[0];
}

page_table kv_append_table(const op_call *call)
{
    return (page_table){.kv_indptr = &call->tensors[KV_APPEND_KV_INDPTR],
                        .kv_indices = &call->tensors[KV_APPEND_KV_INDICES],
                        .kv_last_page_len = &call->tensors[KV_APPEND_KV_LAST_PAGE_LEN],
                        .k_cache = &call->tensors[KV_APPEND_K_CACHE]};
}

static qp_status check(const op_call *call, qp_error *error)
{
    const tensor *qo_indptr = &call->tensors[KV_APPEND_QO_INDPTR];
    const int32_t *positions = call->tensors[KV_APPEND_POSITIONS].data;
    page_table table = kv_append_table(call);
    int64_t n_tokens = call->tensors[KV_APPEND_K].shape[0];
    TRY(indptr_check("kv_append", "qo_indptr", qo_indptr, n_tokens, error));
    TRY(page_table_check("kv_append", &table, error));
    if (!positions || !qo_indptr->data || !page_table_has_data(&table)) return QP_OK;
    for (int64_t t = 0; t < n_tokens; t++) {
        int64_t length = page_table_length(&table, indptr_find(qo_indptr, t));
        if (positions[t] < 0 || positions[t] >= length)
            return error_set(error, QP_INVALID,
                             "kv_append: positions[%lld] = %d is outside its sequence's pages, "
                             "which hold %lld positions",
                             (long long)t, positions[t], (long long)length);
    }
    return QP_OK;
}

static void prepare(op_call *call, uint64_t seed)
{
    const tensor *qo_indptr = &call->tensors[KV_APPEND_QO_INDPTR];
    const int32_t *border = qo_indptr->data;
    int32_t *positions = call->tensors[KV_APPEND_POSITIONS].data;
    page_table table = kv_append_table(call);
    int64_t n_tokens = call->tensors[KV_APPEND_K].shape[0];
    indptr_fill(qo_indptr, n_tokens, seed);
    page_table_fill(&table, qo_indptr, seed + 1);
    for (int64_t t = 0; t < n_tokens; t++) {
        int64_t b = indptr_find(qo_indptr, t);
        positions[t] = (int32_t)(page_table_length(&table, b) - (border[b + 1] - t));
    }
}

/* Copies a token's heads into the slot of a page. */
static void append(const tensor *from, int64_t token, const tensor *cache, int64_t page,
                   int64_t slot)
{
    for (int64_t head = 0; head < from->shape[1]; head++) {
        const void *row = tensor_row2(from, token, head);
        char *to = (char *)tensor_row2(cache, page, slot) + head * cache->stride[2];
        for (int64_t i = 0; i < from->shape[2]; i++)
            element_store(cache->type, to, i, element_load(from->type, row, i));
    }
}

void kv_append_reference(const op_call *call)
{
    const tensor *qo_indptr = &call->tensors[KV_APPEND_QO_INDPTR];
    const int32_t *positions = call->tensors[KV_APPEND_POSITIONS].data;
    page_table table = kv_append_table(call);
    int64_t page_size = table.k_cache->shape[1];

    for (int64_t t = call->begin; t < call->end; t++) {
        const int32_t *pages = page_table_pages(&table, indptr_find(qo_indptr, t));
        int64_t page = pages[positions[t] / page_size], slot = positions[t] % page_size;
        append(&call->tensors[KV_APPEND_K], t, &call->tensors[KV_APPEND_K_CACHE], page, slot);
        append(&call->tensors[KV_APPEND_V], t, &call->tensors[KV_APPEND_V_CACHE], page, slot);
    }
}

OP_SIMD_TABLE(kv_append, .accepts = op_call_has_no_f64)

static const char *const cases[] = {
    "n_tokens=1 n_sequences=1 n_kv_heads=2 head_dim=64 n_pages=3 page_size=16 n_kv_indices=2",
    "n_tokens=37 n_sequences=3 n_kv_heads=3 head_dim=64 n_pages=40 page_size=5 n_kv_indices=19 "
    "k_cache:F16 v_cache:F16",
    "n_tokens=17 n_sequences=4 n_kv_heads=1 head_dim=48 n_pages=54 page_size=1 n_kv_indices=54 "
    "k:BF16 v:BF16 k_cache:BF16 v_cache:BF16 k+8 v+16",
    "n_tokens=9 n_sequences=2 n_kv_heads=4 head_dim=32 n_pages=7 page_size=16 n_kv_indices=6 "
    "k_cache:F16 v_cache:BF16 k_cache@0213 v_cache@0213",
    "n_tokens=23 n_sequences=2 n_kv_heads=2 head_dim=64 n_pages=9 page_size=16 n_kv_indices=6 "
    "k_cache:F8 v_cache:F8",
    "n_tokens=6 n_sequences=2 n_kv_heads=3 head_dim=20 n_pages=7 page_size=16 n_kv_indices=6 "
    "k:BF16 v:F16 k_cache:F8 v_cache:F8 k_cache@0213 v_cache@0213",
    "n_tokens=0 n_sequences=2 n_kv_heads=4 head_dim=32 n_pages=7 page_size=16 n_kv_indices=6",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b: n_tokens=512 n_sequences=1 n_kv_heads=8 head_dim=128 n_pages=128 page_size=16 "
    "n_kv_indices=128 k:BF16 v:BF16 k_cache:BF16 v_cache:BF16",
    "llama-3.2-1b: n_tokens=1 n_sequences=1 n_kv_heads=8 head_dim=64 n_pages=128 page_size=16 "
    "n_kv_indices=128 k:BF16 v:BF16 k_cache:BF16 v_cache:BF16",
    "internlm2-1.8b: n_tokens=128 n_sequences=128 n_kv_heads=8 head_dim=128 n_pages=1024 "
    "page_size=16 n_kv_indices=1024 k:BF16 v:BF16 k_cache:BF16 v_cache:BF16",
    "smollm2-135m: n_tokens=512 n_sequences=1 n_kv_heads=3 head_dim=64 n_pages=32 page_size=16 "
    "n_kv_indices=32 k_cache:F16 v_cache:F16",
    NULL,
};

const op_info op_kv_append = {
    .name = "kv_append",
    .summary = "writes keys and values of new tokens into a paged KV cache",
    .place = "After rope and before attention, which then finds every key and value in the cache.",
    .formula = "for each token t of sequence b: k_cache[p, s, h, i] <- k[t, h, i] and v_cache[p, "
               "s, h, i] <- v[t, h, i], with p = kv_indices[kv_indptr[b] + positions[t] / "
               "page_size] and s = positions[t] % page_size",
    .precision =
        "One rounding to the type of the cache; between equal types it is a copy. F8 saturates: "
        "beyond 448 lies 448, for infinities too.",
    .edge_cases = "A position that its sequence's pages and kv_last_page_len do not hold is "
                  "refused before the call, and two tokens must not have the same slot. Slots that "
                  "no token goes to are not touched. Sequences may have no new tokens.",
    .source = "FlashInfer append_paged_kv_cache; the sequence of a token comes from qo_indptr "
              "instead of batch_indices",
    .unit = "a token",
    .flops = "0",
    .bytes = "n_tokens * (4 + n_kv_heads * head_dim * (sizeof_k + sizeof_v + sizeof_k_cache + "
             "sizeof_v_cache))",
    .axes = {{"n_tokens", AXIS_VARIABLE, "new tokens of all sequences"},
             {"n_kv_heads", AXIS_CONSTANT, "heads of keys and values"},
             {"head_dim", AXIS_CONSTANT, "elements of a head"},
             {"n_sequences", AXIS_VARIABLE, "sequences"},
             {"n_kv_indices", AXIS_VARIABLE, "pages in use, over all sequences"},
             {"n_pages", AXIS_CONSTANT, "pages of the cache"},
             {"page_size", AXIS_CONSTANT, "positions in a page"}},
    .tensors = {{"k", OP_IN, OP_FLOATS, "n_tokens, n_kv_heads, head_dim", false,
                 "rotated keys; any strides of tokens and heads"},
                {"v", OP_IN, OP_FLOATS, "n_tokens, n_kv_heads, head_dim", false, "as k"},
                TENSOR_QO_INDPTR,
                {"positions", OP_IN, OP_TYPE(I32), "n_tokens", false,
                 "each token's position in its sequence"},
                TENSOR_KV_INDPTR,
                TENSOR_KV_INDICES,
                TENSOR_KV_LAST_PAGE_LEN("the new tokens counted"),
                TENSOR_K_CACHE(OP_INOUT),
                TENSOR_V_CACHE(OP_INOUT)},
    .units = units,
    .check = check,
    .prepare = prepare,
    .reference = kv_append_reference,
    .variants = variants,
    .cuda = kv_append_cuda,
    .cases = cases,
    .workloads = workloads,
    .fills = OP_FILL_HUGE | OP_FILL_INFINITY | OP_FILL_NAN,
};
