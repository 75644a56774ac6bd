/* The definitions: see definitions.h. Names, axes and the order of inputs follow FlashInfer-Bench;
 * the references are our own. */
#include "workbench/definitions.h"

#include <stddef.h>

#define NORM_HEAD                                                                                  \
    "import torch\n\n\n"                                                                           \
    "@torch.no_grad()\n"

static const char rms_norm_python[] =
    NORM_HEAD "def run(hidden_states, weight):\n"
              "    x = hidden_states.to(torch.float32)\n"
              "    scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-5)\n"
              "    return (x * scale * weight.to(torch.float32)).to(hidden_states.dtype)\n";

static const char add_rms_norm_python[] =
    NORM_HEAD "def run(hidden_states, residual, weight):\n"
              "    x = hidden_states.to(torch.float32) + residual.to(torch.float32)\n"
              "    scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-5)\n"
              "    return (x * scale * weight.to(torch.float32)).to(hidden_states.dtype)\n";

static const char gemm_python[] = "import torch\n\n\n"
                                  "@torch.no_grad()\n"
                                  "def run(A, B):\n"
                                  "    return torch.matmul(A, B.T)\n";

/* Rows without visible positions give 0 and -inf. */
#define ATTEND_PYTHON                                                                              \
    "import math\n\n"                                                                              \
    "import torch\n\n\n"                                                                           \
    "def attend(q, k, v, n_visible, sm_scale):\n"                                                  \
    "    \"\"\"q [n, heads, d]; k, v [m, kv_heads, d]; query i sees n_visible[i] "                 \
    "positions.\"\"\"\n"                                                                           \
    "    group = q.shape[1] // k.shape[1]\n"                                                       \
    "    k = k.to(torch.float32).repeat_interleave(group, dim=1)\n"                                \
    "    v = v.to(torch.float32).repeat_interleave(group, dim=1)\n"                                \
    "    scores = torch.einsum(\"nhd,mhd->nhm\", q.to(torch.float32), k) * float(sm_scale)\n"      \
    "    hidden = torch.arange(k.shape[0], device=q.device)[None, :] >= n_visible[:, None]\n"      \
    "    scores = scores.masked_fill(hidden[:, None, :], float(\"-inf\"))\n"                       \
    "    lse = torch.logsumexp(scores, dim=-1)\n"                                                  \
    "    weights = torch.nan_to_num(torch.exp(scores - lse[..., None]))\n"                         \
    "    return torch.einsum(\"nhm,mhd->nhd\", weights, v).to(q.dtype), lse / math.log(2.0)\n\n\n"

static const char paged_decode_python[] = ATTEND_PYTHON
    "@torch.no_grad()\n"
    "def run(q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale):\n"
    "    output = torch.zeros_like(q)\n"
    "    lse = torch.full(q.shape[:2], float(\"-inf\"), dtype=torch.float32, device=q.device)\n"
    "    for b in range(q.shape[0]):\n"
    "        first, last = int(kv_indptr[b]), int(kv_indptr[b + 1])\n"
    "        if first == last:\n"
    "            continue\n"
    "        pages = kv_indices[first:last].long()\n"
    "        k, v = k_cache[pages].flatten(0, 1), v_cache[pages].flatten(0, 1)\n"
    "        visible = torch.tensor([k.shape[0]], device=q.device)\n"
    "        output[b : b + 1], lse[b : b + 1] = attend(q[b : b + 1], k, v, visible, sm_scale)\n"
    "    return output, lse\n";

static const char paged_prefill_python[] = ATTEND_PYTHON
    "@torch.no_grad()\n"
    "def run(q, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, sm_scale):\n"
    "    output = torch.zeros_like(q)\n"
    "    lse = torch.full(q.shape[:2], float(\"-inf\"), dtype=torch.float32, device=q.device)\n"
    "    for b in range(qo_indptr.shape[0] - 1):\n"
    "        begin, end = int(qo_indptr[b]), int(qo_indptr[b + 1])\n"
    "        first, last = int(kv_indptr[b]), int(kv_indptr[b + 1])\n"
    "        if begin == end or first == last:\n"
    "            continue\n"
    "        pages = kv_indices[first:last].long()\n"
    "        k, v = k_cache[pages].flatten(0, 1), v_cache[pages].flatten(0, 1)\n"
    "        n = end - begin\n"
    "        visible = torch.arange(n, device=q.device) + 1 + k.shape[0] - n\n"
    "        output[begin:end], lse[begin:end] = attend(q[begin:end], k, v, visible, sm_scale)\n"
    "    return output, lse\n";

/* Pages of 64: the last page of a sequence is not full. */
#define JOIN_PYTHON                                                                                \
    "def join(cache, pages, last):\n"                                                              \
    "    rows = cache[pages.long()].flatten(0, 1)\n"                                               \
    "    return rows[: (len(pages) - 1) * cache.shape[1] + int(last)]\n\n\n"                       \
    "@torch.no_grad()\n"

static const char paged_decode_64_python[] = ATTEND_PYTHON JOIN_PYTHON
    "def run(q, k_cache, v_cache, kv_indptr, kv_indices, kv_last_page_len, sm_scale):\n"
    "    output = torch.zeros_like(q)\n"
    "    lse = torch.full(q.shape[:2], float(\"-inf\"), dtype=torch.float32, device=q.device)\n"
    "    for b in range(q.shape[0]):\n"
    "        pages = kv_indices[int(kv_indptr[b]) : int(kv_indptr[b + 1])]\n"
    "        if len(pages) == 0:\n"
    "            continue\n"
    "        k = join(k_cache, pages, kv_last_page_len[b])\n"
    "        v = join(v_cache, pages, kv_last_page_len[b])\n"
    "        visible = torch.tensor([k.shape[0]], device=q.device)\n"
    "        output[b : b + 1], lse[b : b + 1] = attend(q[b : b + 1], k, v, visible, sm_scale)\n"
    "    return output, lse\n";

static const char paged_prefill_64_python[] = ATTEND_PYTHON JOIN_PYTHON
    "def run(q, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, kv_last_page_len, sm_scale):\n"
    "    output = torch.zeros_like(q)\n"
    "    lse = torch.full(q.shape[:2], float(\"-inf\"), dtype=torch.float32, device=q.device)\n"
    "    for b in range(qo_indptr.shape[0] - 1):\n"
    "        begin, end = int(qo_indptr[b]), int(qo_indptr[b + 1])\n"
    "        pages = kv_indices[int(kv_indptr[b]) : int(kv_indptr[b + 1])]\n"
    "        if begin == end or len(pages) == 0:\n"
    "            continue\n"
    "        k = join(k_cache, pages, kv_last_page_len[b])\n"
    "        v = join(v_cache, pages, kv_last_page_len[b])\n"
    "        n = end - begin\n"
    "        visible = torch.arange(n, device=q.device) + 1 + k.shape[0] - n\n"
    "        output[begin:end], lse[begin:end] = attend(q[begin:end], k, v, visible, sm_scale)\n"
    "    return output, lse\n";

static const char ragged_prefill_python[] = ATTEND_PYTHON
    "@torch.no_grad()\n"
    "def run(q, k, v, qo_indptr, kv_indptr, sm_scale):\n"
    "    output = torch.zeros_like(q)\n"
    "    lse = torch.full(q.shape[:2], float(\"-inf\"), dtype=torch.float32, device=q.device)\n"
    "    for b in range(qo_indptr.shape[0] - 1):\n"
    "        begin, end = int(qo_indptr[b]), int(qo_indptr[b + 1])\n"
    "        first, last = int(kv_indptr[b]), int(kv_indptr[b + 1])\n"
    "        if begin == end or first == last:\n"
    "            continue\n"
    "        n, m = end - begin, last - first\n"
    "        visible = torch.arange(n, device=q.device) + 1 + m - n\n"
    "        output[begin:end], lse[begin:end] = attend(\n"
    "            q[begin:end], k[first:last], v[first:last], visible, sm_scale\n"
    "        )\n"
    "    return output, lse\n";

/* Pairs (i, i + rotary_dim / 2) of each head turn; FlashInfer's cos_sin_cache has cosines, then
 * sines. */
static const char rope_python[] =
    "import torch\n\n\n"
    "def turn(x, cos, sin):\n"
    "    half = cos.shape[-1]\n"
    "    a, b = x[..., :half].to(torch.float32), x[..., half : 2 * half].to(torch.float32)\n"
    "    cos, sin = cos[:, None, :], sin[:, None, :]\n"
    "    turned = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)\n"
    "    return torch.cat([turned.to(x.dtype), x[..., 2 * half :]], dim=-1)\n\n\n"
    "@torch.no_grad()\n"
    "def run(q, k, cos_sin_cache, positions):\n"
    "    cos, sin = cos_sin_cache[positions.long()].chunk(2, dim=-1)\n"
    "    return turn(q, cos, sin), turn(k, cos, sin)\n";

static const char silu_and_mul_python[] =
    NORM_HEAD "def run(input):\n"
              "    gate, up = input.to(torch.float32).chunk(2, dim=-1)\n"
              "    return (torch.nn.functional.silu(gate) * up).to(input.dtype)\n";

/* Probabilities of the tokens that a bound keeps, divided by their sum. */
#define SAMPLE_PYTHON                                                                              \
    "import torch\n\n\n"                                                                           \
    "def keep_top_k(probs, top_k):\n"                                                              \
    "    ranked = probs.sort(dim=-1, descending=True).values\n"                                    \
    "    least = ranked.gather(-1, (top_k.long().clamp(1, probs.shape[-1]) - 1)[:, None])\n"       \
    "    kept = torch.where(probs >= least, probs, torch.zeros_like(probs))\n"                     \
    "    return kept / kept.sum(dim=-1, keepdim=True)\n\n\n"                                       \
    "def keep_top_p(probs, top_p):\n"                                                              \
    "    ranked, order = probs.sort(dim=-1, descending=True)\n"                                    \
    "    before = ranked.cumsum(dim=-1) - ranked\n"                                                \
    "    kept = torch.where(before < top_p[:, None], ranked, torch.zeros_like(ranked))\n"          \
    "    kept = torch.zeros_like(probs).scatter(-1, order, kept)\n"                                \
    "    return kept / kept.sum(dim=-1, keepdim=True)\n\n\n"                                       \
    "@torch.no_grad()\n"

static const char top_k_python[] =
    SAMPLE_PYTHON "def run(probs, top_k):\n"
                  "    return torch.multinomial(keep_top_k(probs.float(), top_k), 1).squeeze(-1)\n";

static const char top_p_python[] =
    SAMPLE_PYTHON "def run(probs, top_p):\n"
                  "    return torch.multinomial(keep_top_p(probs.float(), top_p), 1).squeeze(-1)\n";

static const char top_k_top_p_python[] =
    SAMPLE_PYTHON "def run(probs, top_k, top_p):\n"
                  "    kept = keep_top_p(keep_top_k(probs.float(), top_k), top_p)\n"
                  "    return torch.multinomial(kept, 1).squeeze(-1)\n";

#define GEMM(n, k, what)                                                                           \
    {                                                                                              \
        .name = "gemm_n" #n "_k" #k, .op_type = "gemm", .op = "linear",                            \
        .description = what " of Llama-3.1-8B: C = A B^T.", .axes = "M N=" #n " K=" #k,            \
        .inputs = "A:float16[M,K] B:float16[N,K]", .outputs = "C:float16[M,N]",                    \
        .reference = gemm_python,                                                                  \
        .call = "n_rows={M} in_features=" #k " out_features=" #n                                   \
                " x:F16 weight:F16 out:F16 bias:- residual:-",                                     \
        .tensors = "x=A weight=B out=C", .workloads = {"M=1", "M=16"},                             \
    }

/* Workloads need probabilities, which random numbers are not: FlashInfer-Bench's data set has some.
 */
#define SAMPLING(title, bounds, inputs_of, python)                                                 \
    {                                                                                              \
        .name = title, .op_type = "sampling", .op = "sampling",                                    \
        .description = "A token by its probability, among those that " bounds " keeps.",           \
        .axes = "batch_size vocab_size=128256",                                                    \
        .inputs = "probs:float32[batch_size,vocab_size] " inputs_of,                               \
        .outputs = "samples:int64[batch_size]", .reference = python,                               \
    }

#define PAGED_CALL(size)                                                                           \
    " n_heads=32 n_kv_heads=8 head_dim=128 n_pages={num_pages} page_size=" #size " "               \
    "n_kv_indices={num_kv_indices} q:BF16 k_cache:BF16 v_cache:BF16 out:BF16 "                     \
    "sm_scale=0.08838834764831845"

#define PAGED_TENSORS                                                                              \
    "q=q k_cache=k_cache v_cache=v_cache kv_indptr=kv_indptr kv_indices=kv_indices "               \
    "kv_last_page_len=1 out=output lse=lse"

#define PAGED_TENSORS_64                                                                           \
    "q=q k_cache=k_cache v_cache=v_cache kv_indptr=kv_indptr kv_indices=kv_indices "               \
    "kv_last_page_len=kv_last_page_len out=output lse=lse"

#define PAGED_CACHE                                                                                \
    "k_cache:bfloat16[num_pages,page_size,num_kv_heads,head_dim] "                                 \
    "v_cache:bfloat16[num_pages,page_size,num_kv_heads,head_dim] "

const definition definitions[] = {
    {.name = "rmsnorm_h4096",
     .op_type = "rmsnorm",
     .op = "rms_norm",
     .description = "RMS normalisation, eps = 1e-5.",
     .axes = "batch_size hidden_size=4096",
     .inputs = "hidden_states:bfloat16[batch_size,hidden_size] weight:bfloat16[hidden_size]",
     .outputs = "output:bfloat16[batch_size,hidden_size]",
     .reference = rms_norm_python,
     .call = "n_tokens={batch_size} hidden_size=4096 x:BF16 weight:BF16 out:BF16 eps=1e-5",
     .tensors = "x=hidden_states weight=weight out=output",
     .workloads = {"batch_size=7", "batch_size=1", "batch_size=512"}},
    {.name = "fused_add_rmsnorm_h4096",
     .op_type = "rmsnorm",
     .op = "add_rms_norm",
     .description = "Adds the residual, then RMS normalisation, eps = 1e-5.",
     .axes = "batch_size hidden_size=4096",
     .inputs = "hidden_states:bfloat16[batch_size,hidden_size] "
               "residual:bfloat16[batch_size,hidden_size] weight:bfloat16[hidden_size]",
     .outputs = "output:bfloat16[batch_size,hidden_size]",
     .reference = add_rms_norm_python,
     .call = "n_tokens={batch_size} hidden_size=4096 x:BF16 residual:BF16 weight:BF16 eps=1e-5",
     .workloads = {"batch_size=7", "batch_size=1", "batch_size=512"}},
    {.name = "silu_and_mul_i14336",
     .op_type = "silu_and_mul",
     .op = "silu_and_mul",
     .description = "SiLU of the first half of a row times the second half.",
     .axes = "batch_size two_intermediate_size=28672 intermediate_size=14336",
     .inputs = "input:bfloat16[batch_size,two_intermediate_size]",
     .outputs = "output:bfloat16[batch_size,intermediate_size]",
     .reference = silu_and_mul_python,
     .call = "n_tokens={batch_size} intermediate_size=14336 x:BF16 out:BF16",
     .tensors = "x=input out=output",
     .workloads = {"batch_size=7", "batch_size=1", "batch_size=512"}},
    {.name = "rope_h32_kv8_d128",
     .op_type = "rope",
     .op = "rope",
     .description = "Rotary position embedding of q and k, in NeoX's pairs.",
     .axes = "num_tokens num_qo_heads=32 num_kv_heads=8 head_dim=128 max_positions=4096",
     .inputs = "q:bfloat16[num_tokens,num_qo_heads,head_dim] "
               "k:bfloat16[num_tokens,num_kv_heads,head_dim] "
               "cos_sin_cache:float32[max_positions,head_dim] positions:int32[num_tokens]",
     .outputs = "q_out:bfloat16[num_tokens,num_qo_heads,head_dim] "
                "k_out:bfloat16[num_tokens,num_kv_heads,head_dim]",
     .reference = rope_python,
     .call = "n_tokens={num_tokens} n_heads=32 n_kv_heads=8 head_dim=128 max_positions=4096 "
             "rotary_dim=128 q:BF16 k:BF16",
     .workloads = {"num_tokens=7", "num_tokens=1", "num_tokens=512"},
     .fixed = "positions"},
    SAMPLING("top_k_sampling_from_probs_v128256", "top_k", "top_k:int32[batch_size]", top_k_python),
    SAMPLING("top_p_sampling_from_probs_v128256", "top_p", "top_p:float32[batch_size]",
             top_p_python),
    SAMPLING("top_k_top_p_sampling_from_probs_v128256", "top_k, then top_p",
             "top_k:int32[batch_size] top_p:float32[batch_size]", top_k_top_p_python),
    GEMM(6144, 4096, "attn_qkv"),
    GEMM(4096, 4096, "attn_output"),
    GEMM(28672, 4096, "ffn_up"),
    GEMM(4096, 14336, "ffn_down"),
    {.name = "gqa_paged_decode_h32_kv8_d128_ps1",
     .op_type = "gqa_paged",
     .op = "paged_decode",
     .description = "Attention of one token a sequence over a paged cache; lse in base 2.",
     .axes = "batch_size num_qo_heads=32 num_kv_heads=8 head_dim=128 num_pages page_size=1 "
             "len_indptr num_kv_indices",
     .inputs = "q:bfloat16[batch_size,num_qo_heads,head_dim] " PAGED_CACHE
               "kv_indptr:int32[len_indptr] kv_indices:int32[num_kv_indices] sm_scale:float32",
     .outputs = "output:bfloat16[batch_size,num_qo_heads,head_dim] "
                "lse:float32[batch_size,num_qo_heads]",
     .constraints = {"len_indptr == batch_size + 1", "num_kv_indices == kv_indptr[-1].item()"},
     .reference = paged_decode_python,
     .call = "n_sequences={batch_size}" PAGED_CALL(1),
     .tensors = PAGED_TENSORS,
     .workloads = {"batch_size=3 num_pages=200 len_indptr=4 num_kv_indices=150",
                   "batch_size=1 num_pages=2048 len_indptr=2 num_kv_indices=2048",
                   "batch_size=16 num_pages=16384 len_indptr=17 num_kv_indices=16384"},
     .fixed = "kv_indptr kv_indices sm_scale=0.08838834764831845"},
    {.name = "gqa_paged_prefill_causal_h32_kv8_d128_ps1",
     .op_type = "gqa_paged",
     .op = "paged_prefill",
     .description = "Causal attention of new tokens over a paged cache; lse in base 2.",
     .axes = "total_q num_qo_heads=32 num_kv_heads=8 head_dim=128 num_pages page_size=1 "
             "len_indptr num_kv_indices",
     .inputs = "q:bfloat16[total_q,num_qo_heads,head_dim] " PAGED_CACHE
               "qo_indptr:int32[len_indptr] kv_indptr:int32[len_indptr] "
               "kv_indices:int32[num_kv_indices] sm_scale:float32",
     .outputs = "output:bfloat16[total_q,num_qo_heads,head_dim] lse:float32[total_q,num_qo_heads]",
     .constraints = {"total_q == qo_indptr[-1].item()", "num_kv_indices == kv_indptr[-1].item()"},
     .reference = paged_prefill_python,
     .call = "n_tokens={total_q} n_sequences={len_indptr-1}" PAGED_CALL(1),
     .tensors = "qo_indptr=qo_indptr " PAGED_TENSORS,
     .workloads = {"total_q=20 num_pages=128 len_indptr=4 num_kv_indices=120",
                   "total_q=128 num_pages=512 len_indptr=2 num_kv_indices=512"},
     .fixed = "qo_indptr kv_indptr kv_indices sm_scale=0.08838834764831845"},
    {.name = "gqa_paged_decode_h32_kv8_d128_ps64",
     .op_type = "gqa_paged",
     .op = "paged_decode",
     .description = "Attention of one token a sequence over pages of 64; lse in base 2.",
     .axes = "batch_size num_qo_heads=32 num_kv_heads=8 head_dim=128 num_pages page_size=64 "
             "len_indptr num_kv_indices",
     .inputs = "q:bfloat16[batch_size,num_qo_heads,head_dim] " PAGED_CACHE
               "kv_indptr:int32[len_indptr] kv_indices:int32[num_kv_indices] "
               "kv_last_page_len:int32[batch_size] sm_scale:float32",
     .outputs = "output:bfloat16[batch_size,num_qo_heads,head_dim] "
                "lse:float32[batch_size,num_qo_heads]",
     .constraints = {"len_indptr == batch_size + 1", "num_kv_indices == kv_indptr[-1].item()"},
     .reference = paged_decode_64_python,
     .call = "n_sequences={batch_size}" PAGED_CALL(64),
     .tensors = PAGED_TENSORS_64,
     .workloads = {"batch_size=3 num_pages=20 len_indptr=4 num_kv_indices=12",
                   "batch_size=1 num_pages=32 len_indptr=2 num_kv_indices=32",
                   "batch_size=16 num_pages=256 len_indptr=17 num_kv_indices=256"},
     .fixed = "kv_indptr kv_indices kv_last_page_len sm_scale=0.08838834764831845"},
    {.name = "gqa_paged_prefill_causal_h32_kv8_d128_ps64",
     .op_type = "gqa_paged",
     .op = "paged_prefill",
     .description = "Causal attention of new tokens over pages of 64; lse in base 2.",
     .axes = "total_q num_qo_heads=32 num_kv_heads=8 head_dim=128 num_pages page_size=64 "
             "len_indptr num_sequences num_kv_indices",
     .inputs = "q:bfloat16[total_q,num_qo_heads,head_dim] " PAGED_CACHE
               "qo_indptr:int32[len_indptr] kv_indptr:int32[len_indptr] "
               "kv_indices:int32[num_kv_indices] kv_last_page_len:int32[num_sequences] "
               "sm_scale:float32",
     .outputs = "output:bfloat16[total_q,num_qo_heads,head_dim] lse:float32[total_q,num_qo_heads]",
     .constraints = {"total_q == qo_indptr[-1].item()", "len_indptr == num_sequences + 1"},
     .reference = paged_prefill_64_python,
     .call = "n_tokens={total_q} n_sequences={num_sequences}" PAGED_CALL(64),
     .tensors = "qo_indptr=qo_indptr " PAGED_TENSORS_64,
     .workloads = {"total_q=20 num_pages=16 len_indptr=4 num_sequences=3 num_kv_indices=12",
                   "total_q=128 num_pages=8 len_indptr=2 num_sequences=1 num_kv_indices=8"},
     .fixed = "qo_indptr kv_indptr kv_indices kv_last_page_len sm_scale=0.08838834764831845"},
    {.name = "gqa_ragged_prefill_causal_h32_kv8_d128",
     .op_type = "gqa_ragged",
     .op = "ragged_prefill",
     .description = "Causal attention over keys and values that lie in one piece; lse in base 2.",
     .axes = "total_q total_kv num_qo_heads=32 num_kv_heads=8 head_dim=128 len_indptr",
     .inputs = "q:bfloat16[total_q,num_qo_heads,head_dim] "
               "k:bfloat16[total_kv,num_kv_heads,head_dim] "
               "v:bfloat16[total_kv,num_kv_heads,head_dim] qo_indptr:int32[len_indptr] "
               "kv_indptr:int32[len_indptr] sm_scale:float32",
     .outputs = "output:bfloat16[total_q,num_qo_heads,head_dim] lse:float32[total_q,num_qo_heads]",
     .constraints = {"total_q == qo_indptr[-1].item()", "total_kv == kv_indptr[-1].item()"},
     .reference = ragged_prefill_python,
     .call = "n_tokens={total_q} n_kv_tokens={total_kv} n_sequences={len_indptr-1} n_heads=32 "
             "n_kv_heads=8 head_dim=128 q:BF16 k:BF16 v:BF16 out:BF16 "
             "sm_scale=0.08838834764831845",
     .tensors = "q=q k=k v=v qo_indptr=qo_indptr kv_indptr=kv_indptr out=output lse=lse",
     .workloads = {"total_q=20 total_kv=40 len_indptr=4", "total_q=128 total_kv=128 len_indptr=2"},
     .fixed = "qo_indptr kv_indptr sm_scale=0.08838834764831845"},
    {0},
};
