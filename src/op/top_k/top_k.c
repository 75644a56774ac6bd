/* top_k: the k largest logits of each block of a row, in descending order, with their ids.
 *
 * One operator serves both rounds of a top-k over a vocabulary. The first round cuts each row into
 * blocks and takes k of each: most of the work is here, and the blocks are divided among the
 * workers even when there is one row. The second round takes k of the survivors of all blocks, with
 * their ids. The order is total (value, then id), so the answer does not depend on how the row was
 * cut.
 */
#include "op/top_k/top_k.h"

#include "base/threads.h"
#include "op/element.h"
#include "op/top_k/heap.h"
#include "op/variants.h"
#include "op/cuda_ops.h"

#include <assert.h>
#include <math.h>

static int64_t units(const op_call *call)
{
    const tensor *values = &call->tensors[TOP_K_VALUES];
    return values->shape[0] * values->shape[1];
}

static size_t scratch_bytes(const op_call *call)
{
    return (size_t)call->tensors[TOP_K_VALUES].shape[2] * sizeof(entry);
}

/* The first k of elements [begin, end) of a row, in order, in heap (k). */
static void select_block(const op_call *call, int64_t row, int64_t begin, int64_t end, entry *heap,
                         int64_t k)
{
    const tensor *logits = &call->tensors[TOP_K_LOGITS];
    const tensor *candidates = &call->tensors[TOP_K_CANDIDATES];
    const void *in = tensor_row(logits, row);
    const int32_t *ids = candidates->rank ? tensor_row(candidates, row) : NULL;
    for (int64_t i = 0; i < k; i++)
        heap[i] = (entry){-INFINITY, -1};
    for (int64_t i = begin; k > 0 && i < end; i++) {
        entry next = {element_load(logits->type, in, i), ids ? ids[i] : (int32_t)i};
        if (isnan(next.value)) next.value = -INFINITY;
        if (next.id < 0 || !entry_before(next, heap[0])) continue;
        heap[0] = next;
        heap_sift(heap, k, 0);
    }
    heap_order(heap, k);
}

void top_k_reference(const op_call *call)
{
    const tensor *values = &call->tensors[TOP_K_VALUES]; /* (n_rows, n_blocks, k) */
    const tensor *ids = &call->tensors[TOP_K_IDS];       /* (n_rows, n_blocks, k) */
    int64_t n_blocks = values->shape[1], k = values->shape[2];
    entry *best = call->scratch;
    for (int64_t unit = call->begin; unit < call->end; unit++) {
        int64_t row = unit / n_blocks, block = unit % n_blocks, begin, end;
        thread_share(call->tensors[TOP_K_LOGITS].shape[1], (int)block, (int)n_blocks, &begin, &end);
        select_block(call, row, begin, end, best, k);
        void *value = tensor_row2(values, row, block);
        int32_t *id = tensor_row2(ids, row, block);
        for (int64_t i = 0; i < k; i++) {
            element_store(values->type, value, i, best[i].value);
            id[i] = best[i].id;
        }
    }
}

op_call top_k_second_round(const op_call *first, tensor values, tensor ids)
{
    const tensor *from = &first->tensors[TOP_K_VALUES];
    assert(tensor_is_contiguous(from) && tensor_is_contiguous(&first->tensors[TOP_K_IDS]));
    int64_t n_rows = from->shape[0], n_candidates = from->shape[1] * from->shape[2];
    op_call call = {.end = n_rows};
    call.tensors[TOP_K_LOGITS] = tensor_2d(from->data, from->type, n_rows, n_candidates);
    call.tensors[TOP_K_CANDIDATES] =
        tensor_2d(first->tensors[TOP_K_IDS].data, DTYPE_I32, n_rows, n_candidates);
    call.tensors[TOP_K_VALUES] = values;
    call.tensors[TOP_K_IDS] = ids;
    return call;
}

/* Ids for a second round: they differ from the column numbers, and some are missing. */
static void prepare(op_call *call, uint64_t seed)
{
    const tensor *candidates = &call->tensors[TOP_K_CANDIDATES];
    if (!candidates->rank) return;
    int64_t n = candidates->shape[1];
    for (int64_t row = 0; row < candidates->shape[0]; row++) {
        int32_t *ids = tensor_row(candidates, row);
        for (int64_t i = 0; i < n; i++)
            ids[i] = i % 7 == 3 ? -1 : (int32_t)((n - i) * 5 + (int64_t)(seed % 5));
    }
}

OP_SIMD8_TABLE(top_k, .accepts = op_call_has_no_f64)

static const char *const cases[] = {
    "n_rows=1 n_values=111 n_blocks=1 k=10 candidates:-",
    "n_rows=3 n_values=1000 n_blocks=8 k=40 candidates:-",
    "n_rows=2 n_values=320 n_blocks=1 k=40",
    "n_rows=3 n_values=501 n_blocks=4 k=5 candidates:- logits:BF16 values:BF16",
    "n_rows=3 n_values=501 n_blocks=4 k=5 logits:F16 logits+12 values+3 ids+1 candidates+2",
    "n_rows=2 n_values=7 n_blocks=3 k=5 candidates:-",
    "n_rows=2 n_values=0 n_blocks=1 k=5 candidates:-",
    "n_rows=2 n_values=50 n_blocks=2 k=1 candidates:-",
    "n_rows=0 n_values=111 n_blocks=1 k=10 candidates:-",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b first: n_rows=1 n_values=128256 n_blocks=8 k=50 candidates:-",
    "internlm2-1.8b first: n_rows=4 n_values=92544 n_blocks=8 k=5 candidates:-",
    "internlm2-1.8b second: n_rows=4 n_values=40 n_blocks=1 k=5",
    NULL,
};

const op_info op_top_k = {
    .name = "top_k",
    .summary = "the k largest logits of each block of a row, with their ids",
    .place = "Between the logits and sampling, run twice: over blocks of the vocabulary, then over "
             "the blocks' survivors with n_blocks = 1 and their ids as candidates.",
    .formula =
        "values[r, b, :], ids[r, b, :] = the first k of the pairs (logits[r, i], id(i)), i in "
        "block b, ordered by falling value, then by rising id; id(i) = candidates[r, i], or "
        "i in the whole row without candidates",
    .precision = "Exact where the types are the same, else one rounding to the type of values "
                 "after the choice.",
    .edge_cases =
        "Ties go to the lowest id. NaN counts, and is returned, as minus infinity; rows "
        "of negative or infinite logits are nothing special. Candidates with id -1 are "
        "not there. A block of fewer than k ends in minus infinity with id -1. "
        "Block b of n values holds n / n_blocks of them, the first n % n_blocks one more.",
    .source = "topK in two rounds of a teaching engine for Llama, which marked empty places with "
              "-1e-20 and lost the rows' offsets in the second round",
    .unit = "a block of a row",
    .flops = "n_rows * n_values",
    .axes = {{"n_rows", AXIS_VARIABLE, "sequences that need a token"},
             {"n_values", AXIS_VARIABLE, "vocab_size, or candidates in a row"},
             {"n_blocks", AXIS_VARIABLE, "parts that a row is cut into"},
             {"k", AXIS_VARIABLE, "how many to keep of each"}},
    .tensors = {{"logits", OP_IN, OP_FLOATS, "n_rows, n_values", false, "rows may be strided"},
                {"candidates", OP_IN, OP_TYPE(I32), "n_rows, n_values", true,
                 "token ids of the logits, all different but for -1"},
                {"values", OP_OUT, OP_FLOATS, "n_rows, n_blocks, k", false, "in falling order"},
                {"ids", OP_OUT, OP_TYPE(I32), "n_rows, n_blocks, k", false, "of the values"}},
    .units = units,
    .scratch_bytes = scratch_bytes,
    .prepare = prepare,
    .reference = top_k_reference,
    .variants = variants,
    .cuda = top_k_cuda,
    .cases = cases,
    .workloads = workloads,
    .fills = OP_FILL_HUGE | OP_FILL_INFINITY | OP_FILL_NAN,
};
