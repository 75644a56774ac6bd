/* quipu: an inference engine for models of the Llama family.
 *
 * A program includes this header; it includes quipu_status.h itself. A vocabulary turns text into
 * tokens and conversations into prompts. An engine is a loaded model with its plan and all its
 * memory. A session is one sequence of an engine: its tokens and their pages of the KV cache. Every
 * function that can fail returns a qp_status and writes a sentence into the caller's qp_error,
 * which may be NULL.
 *
 * An engine has one owner at a time: a call with it, its sessions, samplers or trace runs alone. A
 * call that another thread makes meanwhile returns QP_BUSY and changes nothing; functions without a
 * status wait for the end of the call that is under way. Callbacks of a call may open, fork and
 * close sessions and samplers, and set masks; other calls with the engine return QP_BUSY there.
 * Vocabularies and grammars may be shared; other objects belong to one thread at a time.
 *
 * Callbacks have one convention. The context that the caller gave comes first. A callback that can
 * end something returns a status: QP_OK goes on, and any other ends the call with that status, and
 * with the message that the callback wrote into the call's qp_error, if it wrote one. Only a
 * receiver of tokens may also end its own sequence or answer and nothing else, by QP_CANCELLED.
 * Callbacks that only inform return nothing.
 *
 * Structs that begin with `size` may get more members at their end in later versions. The caller
 * sets `size` and may leave all other members zero, which is their default:
 *
 *     qp_engine_options options = {.size = sizeof options, .model = "model.gguf"};
 *
 * A program also runs with a newer library. It runs with an older one if the members that the older
 * library does not know are zero; otherwise, and if `size` is not set, functions return QP_INVALID.
 * The layout of other structs is final.
 */
#ifndef QUIPU_H
#define QUIPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quipu_status.h"

#define QP_VERSION_MAJOR 0
#define QP_VERSION_MINOR 2
#define QP_VERSION_PATCH 0
#define QP_VERSION       "0.2.0"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* The version of the running library; QP_VERSION is that of the header. */
const char *qp_version(void);

/* Frees memory whose description says "to qp_free()". NULL is allowed. */
void qp_free(void *memory);

/* ---- Vocabulary ---------------------------------------------------------------------------- */

typedef struct qp_vocabulary qp_vocabulary;

/* `path`: a GGUF file (it may hold only a vocabulary) or a directory with tokenizer files. */
qp_status qp_vocabulary_open(const char *path, qp_vocabulary **out, qp_error *error);
void qp_vocabulary_close(qp_vocabulary *vocabulary);

/* A growing list of token ids. Zero-initialise; qp_tokens_free() at the end. */
typedef struct qp_tokens {
    int32_t *data;
    size_t count, capacity;
} qp_tokens;
void qp_tokens_free(qp_tokens *tokens);

enum {
    QP_BOS_DEFAULT = 0, /* begin with BOS where the model wants it on plain text */
    QP_BOS_ALWAYS = 1,
    QP_BOS_NEVER = 2,
    QP_SPECIAL = 4, /* tokenize: control tokens written in the text become their ids;
                     * detokenize: control tokens appear as their text */
};

/* Ids of the vocabulary are 0 .. qp_vocabulary_size() - 1. Some ids may have no token; their piece
 * is empty. A model can have more rows of logits than the vocabulary has ids
 * (qp_engine_info.vocab_size). For these four functions, NULL is an empty vocabulary. */
int32_t qp_vocabulary_size(const qp_vocabulary *vocabulary);

/* The bytes of a token in a text, owned by the vocabulary: a space as a space, a byte token as its
 * byte, a control token as its name. *length bytes without a NUL, which need not be whole UTF-8
 * sequences; NULL and 0 for an id outside the vocabulary. */
const char *qp_token_piece(const qp_vocabulary *vocabulary, int32_t id, size_t *length);

/* Whether a token is markup and never text: BOS, EOS, "<|im_start|>", ... */
bool qp_token_is_control(const qp_vocabulary *vocabulary, int32_t id);

typedef enum qp_role {
    QP_ROLE_BOS,     /* begins a text */
    QP_ROLE_EOS,     /* ends a text */
    QP_ROLE_EOT,     /* ends a turn of a conversation */
    QP_ROLE_UNKNOWN, /* replaces text that has no token */
    QP_ROLE_PADDING, /* fills batches in training */
} qp_role;

/* The id of the token with a role; -1 if the model's files name none. */
int32_t qp_special_token(const qp_vocabulary *vocabulary, qp_role role);

/* Appends the ids of text[0 .. length) (any bytes) to `tokens`. */
qp_status qp_tokenize(const qp_vocabulary *vocabulary, const char *text, size_t length,
                      unsigned flags, qp_tokens *tokens, qp_error *error);

/* The text of `ids`, to qp_free(). NUL-terminated; *length (may be NULL) does not count the NUL. */
qp_status qp_detokenize(const qp_vocabulary *vocabulary, const int32_t *ids, size_t count,
                        unsigned flags, char **text, size_t *length, qp_error *error);

/* Renders a conversation with the model's chat template. `json` is an array of messages [{"role":
 * "user", "content": "..."}, ...], or an object of template variables that holds such an array
 * under "messages" (with "tools", ...). The text, to qp_free(), holds the special tokens of the
 * template, and those that are written in messages. Tokenized with QP_BOS_NEVER | QP_SPECIAL, both
 * become control tokens, so use qp_tokenize_chat() for messages that are not trusted.
 * QP_UNSUPPORTED without a template. */
qp_status qp_render_chat(const qp_vocabulary *vocabulary, const char *json, size_t length,
                         bool add_generation_prompt, char **text, qp_error *error);

/* Renders a conversation like qp_render_chat() and appends its tokens. Control tokens that are
 * written in messages ("<|im_end|>") stay text, unless `flags` has QP_SPECIAL; other flags have no
 * effect. Use it for messages from people. */
qp_status qp_tokenize_chat(const qp_vocabulary *vocabulary, const char *json, size_t length,
                           bool add_generation_prompt, unsigned flags, qp_tokens *tokens,
                           qp_error *error);

/* The template's source, or NULL; owned by the vocabulary. */
const char *qp_chat_template(const qp_vocabulary *vocabulary);

/* ---- Engine -------------------------------------------------------------------------------- */

typedef struct qp_engine qp_engine;

typedef enum qp_log_level {
    QP_LOG_INFO,
    QP_LOG_NOTICE, /* a choice that the person should know, such as the device */
    QP_LOG_WARNING
} qp_log_level;

struct op_call; /* of quipu_kernel.h */

/* A kernel that takes the place of an operator's own in every forward pass. Its functions are those
 * that quipu_kernel.h and `quipu ops describe` ask for; they are called from all threads of the
 * engine. It is not checked: see `quipu ops check`. */
typedef struct qp_kernel {
    const char *op;   /* the operator, "rms_norm" */
    const char *name; /* what messages call the kernel; default: "candidate" */
    void (*kernel)(const struct op_call *call);
    bool (*accepts)(const struct op_call *call); /* types and shapes that it takes; default: all.
                                                  * Other calls run the operator's own kernels */
    size_t (*scratch_bytes)(const struct op_call *call); /* for a slice; default: as many as the
                                                          * operator's reference needs */
} qp_kernel;

/* A kernel for a GPU that takes the place of an operator's own in every forward pass. */
typedef struct qp_cuda_kernel {
    const char *op;   /* the operator, "rms_norm" */
    const char *name; /* what messages call the kernel; default: "candidate" */
    /* Launches units [begin, end) of the call on `stream`, a cudaStream_t, and returns 0 or CUDA's
     * error. The call lies in the host's memory, its tensors and scratch on the GPU. Launches are
     * captured in CUDA graphs, so that it may only launch kernels; the call's addresses are those
     * of this launch alone. */
    int (*launch)(const struct op_call *call, void *stream);
    bool (*accepts)(const struct op_call *call);         /* as for qp_kernel */
    size_t (*scratch_bytes)(const struct op_call *call); /* on the GPU; default: none */
} qp_cuda_kernel;

/* How a forward pass becomes queues of instructions, one queue for each worker: for the machines
 * "threads" and "serial", and with "assignment" alone for "megakernel". The logits are the same, to
 * the bit, whatever is chosen. Set `size`; any other field that is zero (or NULL) takes its
 * default.
 */
typedef struct qp_schedule_options {
    size_t size;            /* sizeof(qp_schedule_options) */
    const char *setting;    /* "latency" (default): for few tokens; "throughput": for many, in
                             * tiles, without "fuse" */
    const char *assignment; /* "rr" (default): in turn; "zz": there and back; "wave": largest first
                             * onto the least loaded; "dag": the critical path first; "pool":
                             * memory-bound and compute-bound work apart */
    double memory_fraction; /* of "pool": share of the workers that get memory-bound work, 0 to 1;
                             * default: from the costs */
    const char *file; /* queues that `quipu schedule --save` wrote for the same model, context,
                       * chunk and number of threads; then the fields above have their
                       * defaults */
} qp_schedule_options;

enum { QP_MAX_RANK = 4 };

/* A tensor of a forward pass, as one of its steps left it; valid during the call. */
typedef struct qp_tensor {
    size_t size;      /* size of the struct as this library knows it; later members are absent */
    const char *name; /* "layers.3.attn_qkv.qkv": layer, step and tensor */
    const char *type; /* "F32", "BF16", ... */
    int rank;
    int64_t dims[QP_MAX_RANK]; /* [rank] */
    const void *data;          /* [bytes], row by row */
    size_t bytes;
    uint64_t pass; /* number of the pass, from 0 on */
} qp_tensor;

/* A LoRA adapter of the model: a GGUF file as llama.cpp's converter writes it, or a directory with
 * adapter_config.json and adapter_model.safetensors as PEFT does. It adds scale * alpha / rank * B
 * A to the weights of attention and of the feed-forward network that it has matrices A and B for.
 */
typedef struct qp_adapter {
    const char *path;
    double scale; /* 0: 1 */
    bool waits;   /* sessions begin without it: see qp_session_adapt() */
} qp_adapter;

/* Set `size`; any other field that is zero (or NULL) takes its default. */
typedef struct qp_engine_options {
    size_t size;          /* sizeof(qp_engine_options) */
    const char *model;    /* a .gguf file, a Hugging Face directory,
                             "synthetic:PRESET[:TYPE[+OTHER][:SEED]]" */
    int threads;          /* default: the processors this process may use */
    int64_t context;      /* most positions of a session; default: the model's, up to 8,192 */
    int64_t max_sessions; /* default 1 */
    int64_t chunk;        /* most new tokens in one forward pass; default 512, on a
                           * GPU 2,048 */
    int64_t max_outputs;  /* most rows of logits in one forward pass; default: max_sessions */
    int64_t page_size;    /* positions in a page of the KV cache; default 16 */
    int64_t pages;        /* of the KV cache, for all sessions; at least those of one context.
                           * Default: enough for every session's context */
    const char *kv_type;  /* "F16" (default), "BF16", "F32" or "F8" (E4M3, scale 1) */
    /* "auto" (default): an NVIDIA GPU if it can be used and the model fits, with a notice that says
     * so, else the CPU; "cpu"; "cuda": the GPU, or an error. */
    const char *device;
    /* The machine that runs passes; "auto" is the default.
     * On the CPU: "threads" (default), a schedule with a queue of instructions for each thread;
     * "operators", one operator after the other; "reference", the same with reference kernels;
     * "serial", a schedule, one instruction at a time, with reference kernels.
     * On a GPU, which these names imply: "megakernel", many tokens in one kernel, and prompts as
     * with "cuda" (default if the kernel supports the model); "cuda", one operator after the other.
     */
    const char *exec;
    int workers; /* thread blocks of "megakernel"; default: one for each multiprocessor */
    /* For "serial": seed of a random order of instructions that the schedule allows; default: each
     * worker in turn, as far as it can go. */
    uint64_t order;
    /* Fuses operators that need no results of other threads: fewer waits, for few tokens on many
     * threads. On the CPU the logits have the same bits. */
    bool fuse;
    /* On a GPU: the logits of a sequence have the same bits whatever the other sequences are. Each
     * pass that continues sequences then has max_sessions rows; with 10 to 63 sessions (64 if
     * weights are stored in BF16) 9 rows are enough, since passes of 9 to 64 rows have the same
     * bits. Each pass that reads prompts has `chunk` rows (by default 2,048, or 1,024 with fewer
     * than 16 sessions). Rows that are not needed are computed all the same. A CPU gives such
     * logits without this. */
    bool batch_invariant;
    /* How products on the CPU round activations:
     *   "8", "16"  with quantised weights to so many bits, with a scale for every 32 values;
     *   "bf16"     with BF16 weights to BF16, where the processor has AVX-512 BF16 or AMX; with
     *              quantised weights to 8 bits;
     *   "float"    not at all: quantised weights are decoded to float32 when the model is opened;
     *   "auto"     (default) as "16" if a token reads at most 256 MiB of weights; else as "bf16" on
     *              processors with AMX and on AMD's with AVX-512 BF16; else as "8".
     * BF16 weights meet float32 except with "bf16". On a Hopper GPU "8" keeps matrices in FP8, and
     * rounds their inputs to FP8 in passes of more than 64 tokens; "auto" does so where they have
     * one scale, or one for each row; otherwise GPUs read these matrices as BF16. Other GPUs and
     * the machines "reference" and "serial" do not round: "8", "16" and "bf16" give a warning. */
    const char *activations;
    const char *cpu_mask; /* CPU features not to use, such as "avx512f,avx_vnni" */
    /* [n_kernels]: run in place of operators' own, on the CPU by "threads" and "operators". Their
     * functions and names outlive the engine. QP_INVALID where the model has no call for one. */
    const qp_kernel *kernels;
    size_t n_kernels;
    void (*log)(void *context, qp_log_level level, const char *message); /* may be NULL */
    void *log_context;
    /* Called during long work, such as making weights or reading a prompt, with one line of text,
     * repeatedly until `finished`. May be NULL. */
    void (*progress)(void *context, const char *text, bool finished);
    void *progress_context;
    const qp_schedule_options *schedule; /* may be NULL: the defaults */
    /* Proposes tokens that one pass verifies together, where that is faster: "off" (default), or
     * "lookup", the tokens that followed the last time that the text read the same. Tokens are
     * chosen as always, so they are the same, to the bit. On a GPU the machine "megakernel"
     * verifies where weights are in BF16 or F16 and the hidden size is at most 4096, else "cuda"
     * alone. QP_UNSUPPORTED for models whose RoPE angles depend on the length of the text. */
    const char *speculate;
    /* Another model with the same vocabulary, a smaller one, that proposes tokens, in place of
     * `speculate`. It runs on the same device and has as many sessions. QP_INVALID if a token
     * differs. */
    const char *draft;
    /* Tensor parallelism: each rank holds a part of the model and computes its part of every pass.
     * With `cut` "gather" (default on a CPU) the logits have the bits of one rank; with "reduce"
     * (default on GPUs) ranks add partial sums, in half as many exchanges. `transport` says what
     * ranks are: "threads" of this process (default), or "mpi": the processes that
     * mpirun has started, of which all but the first call qp_rank_follow(). Processes of one host
     * share memory, unless it is "messages". `threads` is the number
     * of each rank's, by default an equal share of the processors. On GPUs each rank has one of its
     * own, and the machine is "cuda", or "megakernel" for one sequence where GPUs can read each
     * other's memory. */
    int ranks; /* default 1, or the number of `gpus`; for "mpi" as many as mpirun has started */
    const char *transport, *cut;
    /* Numbers of the ranks' GPUs, such as "0,2", which imply the device "cuda"; default: the first
     * ones. */
    const char *gpus;
    /* On the CPU: a folder, which is made where it is missing, for files of weights in the form
     * that kernels read, so that the next engine maps them instead of making them. A file is used
     * only for the same model, build and kernels, and after its checksums were verified; it is as
     * large as the weights. NULL: weights are arranged each time. */
    const char *cache_packed;
    uint64_t cache_packed_size; /* most bytes of these files; default 64 GiB. The least recently
                                 * used are removed */
    /* On a GPU: whether matrices in other types than BF16 are also kept in BF16, which prompts and
     * passes of several sequences read faster and round otherwise. "auto" (default): if as much
     * memory as all weights take twice stays free, with a notice that says so; "on", or else
     * QP_NO_MEMORY; "off". */
    const char *bf16_copies;
    /* The operators of the forward pass. "paged" (default): attention over pages. "flashinfer":
     * FlashInfer's, with fused_add_rmsnorm, ragged prefill and paged decode. "padded": those of a
     * padded-batch engine, whose cache has one page for each session; a token is drawn from the 64
     * likeliest, and top_p applies to what top_k keeps; it has no schedule, so "operators"
     * (default) or "reference" run it. Both run on the CPU, without "fuse" and ranks. Their bits
     * depend on how a text is cut into passes. */
    const char *plan;
    /* The element type of what layers work on, and of what they add to: "F32" (default), or on the
     * CPU "BF16", to which each operator of the plan "paged" rounds its output; without "fuse" and
     * ranks. Logits are float32. */
    const char *act_type;
    /* [n_cuda_kernels]: run in place of operators' own, by the machine "cuda" of one GPU, which
     * they imply; the megakernel is not used. Operators that quipu fuses with others run by
     * themselves where such a kernel accepts their call. Their functions and names outlive the
     * engine. QP_INVALID where the model has no call for one. */
    const qp_cuda_kernel *cuda_kernels;
    size_t n_cuda_kernels;
    /* How ranks on GPUs exchange rows. "peers": kernels write to the memory of the other GPUs,
     * which are those of one process with peer access. "nccl": NCCL, opened at run time, for
     * different GPUs of any processes and hosts. "host": through the host's memory, wherever ranks
     * run, also if they share a GPU. "auto" (default): the first of these that is possible. */
    const char *exchange;
    /* Rules of the plan to take or to leave out besides the usual ones, such as "+norm_up,-parts":
     * `quipu plan -v` lists them. QP_INVALID names an unknown one. */
    const char *rules;
    /* Receives the tensors of every pass whose names match one of the patterns in `tensors`, which
     * are separated by commas ("layers.3.*"; * stands for any text; NULL: all tensors), after the
     * step that made them; K and V are among them before they are stored. The values are those that
     * `quipu diff` compares. On a GPU the machine is "cuda". A pass then stops after each of these
     * steps; without a receiver this costs nothing. QP_INVALID: no tensor has such a name. */
    const char *tensors;
    qp_status (*on_tensor)(void *context, const qp_tensor *tensor);
    void *tensor_context;
    /* [n_adapters], at most 64; numbered from 0 on. They are applied as the model runs, on the CPU
     * and by the machine "cuda", to the rows of the sessions that have them; logits differ by
     * rounding from those of weights that they were added to in float32, and do not depend on the
     * adapters of other sessions. QP_FORMAT and QP_UNSUPPORTED: something is wrong with an adapter,
     * or it is of another model; the message names it. */
    const qp_adapter *adapters;
    size_t n_adapters;
    /* Adds all adapters to the weights, which must be in F32, F16 or BF16 and stay so, when the
     * engine is opened: passes then cost nothing more, on every machine, and sessions cannot
     * choose. */
    bool merge_adapters;
    int64_t adapters_at_once; /* most adapters of a session; default: those that it begins with,
                               * and at least 4 of them */
} qp_engine_options;

qp_status qp_engine_open(const qp_engine_options *options, qp_engine **out, qp_error *error);

/* May be called while another thread's call is under way: its sequences make no more progress, it
 * ends as if it were cancelled, and this call waits for it. In a callback the engine is closed when
 * the callback's call ends. Sessions, samplers and traces may be closed before or after their
 * engine; calls with these return QP_INVALID once it is closed. NULL is allowed. */
void qp_engine_close(qp_engine *engine);

/* The rank of this process among those that mpirun has started; -1: it has not started this one. */
int qp_rank(void);

/* For processes whose qp_rank() is above 0: opens the rank's part of the model, and computes until
 * the first rank's engine is closed. The options are those of the first rank's engine. QP_IO if a
 * rank ends or fails. */
qp_status qp_rank_follow(const qp_engine_options *options, qp_error *error);

typedef struct qp_engine_info {
    size_t size;        /* size of the struct as this library knows it; later members are absent */
    int64_t vocab_size; /* logits in a row */
    int64_t context;    /* positions of a session */
    int64_t model_context; /* positions that the model was trained for */
    int64_t max_outputs;   /* rows of logits in one forward pass */
    int64_t chunk;         /* new tokens in one forward pass */
    uint64_t weight_bytes; /* bytes of all weights, as stored */
    uint64_t read_bytes;   /* bytes of them that a forward pass of one token reads */
    int threads;
    int workers;          /* blocks of the GPU's megakernel, if it runs; else the threads */
    const char *device;   /* "cpu", or the GPU's name */
    int64_t hidden_size;  /* floats of a hidden state */
    int64_t page_size;    /* positions in a page of the KV cache */
    int64_t max_sessions; /* sessions at once */
    int64_t n_adapters;   /* that sessions can have; 0 if they are merged */
} qp_engine_info;

/* Owned by the engine. */
const qp_engine_info *qp_engine_get_info(const qp_engine *engine);

/* Gives an engine whose machine is "threads" or "serial" another schedule, between two passes.
 * After a failure the old one stays. QP_UNSUPPORTED names the machine where it is another one,
 * QP_FORMAT says what is wrong with a file, QP_INVALID what contradicts itself. */
qp_status qp_engine_reschedule(qp_engine *engine, const qp_schedule_options *schedule,
                               qp_error *error);

/* The schedule that the machine asked first runs, in the form of `quipu schedule --save`
 * (doc/SCHEDULES.md); to qp_free(). QP_UNSUPPORTED: it runs none. */
qp_status qp_engine_schedule(qp_engine *engine, char **bytes, size_t *length, qp_error *error);

/* Measures the bytes per second that the engine's GPU reads now: a kernel that only reads the
 * weights, the best of several runs. QP_UNSUPPORTED on a CPU. */
qp_status qp_measure_read(qp_engine *engine, double *bytes_per_second, qp_error *error);

/* The model's vocabulary, owned by the engine. NULL if it has none (synthetic models); functions
 * that need a vocabulary then return QP_INVALID. */
const qp_vocabulary *qp_engine_vocabulary(const qp_engine *engine);

/* Describes a model's sizes, tensors by type, vocabulary and metadata as text or as JSON; to
 * qp_free(). A vocabulary without weights (a GGUF file without tensors, a directory with tokenizer
 * files) is enough. */
qp_status qp_describe_model(const char *path, bool json, char **text, qp_error *error);

/* Set `size`; any other field that is zero (or NULL) takes its default. */
typedef struct qp_plan_options {
    size_t size;          /* sizeof(qp_plan_options) */
    const char *model;    /* as qp_engine_options has it; a directory with config.json will do */
    const char *kv_type;  /* "F16" (default), "BF16", "F32" or "F8" */
    int64_t tokens;       /* new tokens in the forward pass; default 512 */
    int64_t context;      /* positions of a sequence; default: the model's */
    int64_t sessions;     /* sequences at once; default 1 */
    int64_t page_size;    /* positions in a page of the KV cache; default 16 */
    uint64_t memory;      /* bytes that the largest context is computed for; default: those
                           * available now */
    const char *act_type; /* as qp_engine_options has it */
} qp_plan_options;

/* A forward pass before anything runs, from the model's sizes alone: its steps, the tensors with
 * their shapes and lifetimes, the exact bytes of every part and the largest context that fits, as
 * text or as JSON; to qp_free(). */
qp_status qp_describe_plan(const qp_plan_options *options, bool json, char **text, qp_error *error);

/* ---- Conversion ---------------------------------------------------------------------------- */

/* Set `size`; any other field that is zero (or NULL) takes its default. */
typedef struct qp_convert_options {
    size_t size;       /* sizeof(qp_convert_options) */
    const char *model; /* as in qp_engine_options */
    const char *out;   /* the .gguf file to write */
    const char *type;  /* "BF16", "Q8_0", "Q4_K_M", ...: llama.cpp's names and mixes; NULL: types
                        * stay as they are */
    bool pure;         /* all matrices in the usual type of the mix, as far as their rows allow */
    bool clamp;        /* where a row has values that the new type cannot hold, those beyond 65504
                        * become that, with a warning; else QP_UNSUPPORTED */
    int threads;       /* default: the processors this process may use */
    const volatile int *cancel; /* set from a signal handler or another thread; may be NULL */
    void (*log)(void *context, qp_log_level level, const char *message); /* may be NULL */
    void *log_context;
    void (*progress)(void *context, const char *text, bool finished); /* may be NULL */
    void *progress_context;
    const qp_adapter *adapters; /* [n_adapters]: LoRA adapters that are added to the weights, which
                                 * must be in F32, F16 or BF16, before these are converted */
    size_t n_adapters;
} qp_convert_options;

/* Writes a model with its sizes, vocabulary and chat template as a GGUF file that llama.cpp can
 * read too. The file appears whole or not at all. Something that GGUF cannot express is
 * QP_UNSUPPORTED if it would change results everywhere, and a warning otherwise. */
qp_status qp_convert(const qp_convert_options *options, qp_error *error);

/* ---- Sessions ------------------------------------------------------------------------------ */

typedef struct qp_session qp_session;

qp_status qp_session_open(qp_engine *engine, qp_session **out, qp_error *error);

/* NULL is allowed. In a callback the session is closed when the callback's call ends. */
void qp_session_close(qp_session *session);

/* The tokens of the session, in order, and their number; valid until the session changes. */
const int32_t *qp_session_tokens(const qp_session *session, size_t *count);

/* Forgets all but the first `keep` tokens; nothing happens if it holds no more. */
qp_status qp_session_truncate(qp_session *session, size_t keep, qp_error *error);

/* An adapter of the engine, by its number, and a factor of what it adds. */
typedef struct qp_adapter_use {
    size_t adapter;
    double scale;
} qp_adapter_use;

/* Gives an empty session these adapters, [n], in place of those that it began with; n 0: none. A
 * fork of the session has them too. QP_INVALID: there is no such adapter, one is named twice, they
 * are more than qp_engine_options.adapters_at_once, a scale is 0 or not finite, or the session has
 * tokens, which were read with other adapters. */
qp_status qp_session_adapt(qp_session *session, const qp_adapter_use *uses, size_t n,
                           qp_error *error);

/* Opens another session of the same engine with the same tokens. Both share the pages of the KV
 * cache that these tokens fill. Each takes its own pages for later tokens, and a copy of the last
 * page if that is only partly filled. QP_INVALID when all of the engine's sessions are in use. */
qp_status qp_session_fork(const qp_session *session, qp_session **out, qp_error *error);

/* Writes the session's tokens and their pages of the KV cache to a file, from which a session of
 * the same model, settings and build goes on without reading the tokens again. The file appears
 * whole or not at all; its size is that of the pages. QP_IO says what failed. */
qp_status qp_session_save(qp_session *session, const char *path, qp_error *error);

/* Makes an empty session hold what qp_session_save() wrote. QP_FORMAT: the file is no session,
 * damaged, cut off, or of another model, other settings or another build of quipu; QP_INVALID: the
 * session is not empty, or its context has no room; QP_NO_MEMORY: pages are missing. The session
 * then stays empty. The file need not be trusted: each page has a checksum, but whoever may write
 * the file decides what the model has read. */
qp_status qp_session_load(qp_session *session, const char *path, qp_error *error);

/* New tokens for one session. */
typedef struct qp_input {
    qp_session *session;
    const int32_t *tokens;
    size_t count;
    bool every_row; /* logits after every token, not only after the last */
} qp_input;

/* Receives the logits after token `token` of input `input`: float32 [vocab_size], valid during the
 * call. */
typedef qp_status qp_logits_callback(void *context, size_t input, size_t token,
                                     const float *logits);

/* Runs the model over the new tokens of all inputs, batched, in chunks. On a CPU, the bits of an
 * input's logits do not depend on the other inputs or on the chunks. On a GPU this holds within
 * chunks of 2 to 64 tokens; with one session, within chunks of up to 8 tokens, and within chunks of
 * 9 to 63. QP_INVALID names a token outside the vocabulary, a session that would outgrow its
 * context, or one that is given twice; nothing is evaluated then. `cancel` (may be NULL) is checked
 * between chunks; chunks that are done stay in the sessions. */
qp_status qp_eval(qp_engine *engine, const qp_input *inputs, size_t n_inputs,
                  qp_logits_callback *on_logits, void *context, const volatile int *cancel,
                  qp_error *error);

/* Greedy decoding of sessions side by side. In each of `count` forward passes every session
 * reads one token: first its token in row 0 of `tokens` (count + 1, n_sessions), then always the
 * likeliest next token, which is stored in the next row. The sessions have not read the last
 * row. A GPU keeps logits and tokens to itself and runs up to 16 passes ahead of the tokens that
 * it returns. QP_INVALID as for qp_eval(), and if the engine has fewer than n_sessions rows of
 * logits. */
qp_status qp_decode(qp_engine *engine, qp_session *const *sessions, size_t n_sessions, size_t count,
                    int32_t *tokens, const volatile int *cancel, qp_error *error);

/* ---- Forms of answers ---------------------------------------------------------------------- */

/* A form that answers have: every answer that is bound to it, and ends by itself, is a text of the
 * form. It belongs to a vocabulary, which must outlive it. Threads and engines may share it. */
typedef struct qp_grammar qp_grammar;

typedef enum qp_grammar_kind {
    QP_GRAMMAR_JSON,        /* any object of JSON; the text is not read */
    QP_GRAMMAR_JSON_SCHEMA, /* what a JSON Schema allows */
    QP_GRAMMAR_GBNF,        /* a grammar in llama.cpp's notation */
} qp_grammar_kind;

/* Reads a schema or a grammar, which need not be trusted: time and memory are limited. QP_FORMAT
 * and QP_INVALID: there is a mistake in it. QP_UNSUPPORTED names a keyword that is not supported,
 * with its path, or a limit. The first grammar of a vocabulary takes longer, about a tenth of a
 * second for 128,000 tokens. */
qp_status qp_grammar_open(const qp_vocabulary *vocabulary, qp_grammar_kind kind, const char *text,
                          size_t length, qp_grammar **out, qp_error *error);

/* Answers that are under way keep what they need. NULL is allowed. */
void qp_grammar_close(qp_grammar *grammar);

/* ---- Sampling ------------------------------------------------------------------------------ */

/* Where a setting's value came from, in rising order of precedence. */
typedef enum qp_source {
    QP_FROM_NEUTRAL,
    QP_FROM_MODEL,   /* generation_config.json, or MODEL.generation_config.json beside MODEL.gguf */
    QP_FROM_PROGRAM, /* what the program was started with */
    QP_FROM_REQUEST, /* what one answer was asked for with */
} qp_source;

typedef enum qp_setting {
    QP_TEMPERATURE,        /* 0: always the likeliest token; neutral 1 */
    QP_TOP_K,              /* among the K likeliest; 0: all */
    QP_TOP_P,              /* among the likeliest whose probabilities add up to this; neutral 1 */
    QP_MIN_P,              /* at least this fraction of the likeliest's probability; neutral 0 */
    QP_REPETITION_PENALTY, /* logits of tokens seen are divided (or multiplied) by it; neutral 1 */
    QP_PRESENCE_PENALTY,   /* subtracted once from tokens seen in the answer; neutral 0 */
    QP_FREQUENCY_PENALTY,  /* subtracted for each time in the answer; neutral 0 */
    QP_SEED, /* the same seed makes the same choices from the same logits, on every machine; neutral
                0. Logits of quantised weights are the same on all CPUs with AVX2; CPUs without it
                do not round x to 8 bits and give other logits */
    /* Those below choose on the CPU, from the logits of each pass: on a GPU, passes then come one
     * by one. 0 turns each of them off. */
    QP_TYPICAL_P,       /* tokens of typical information that have this probability; 0 and 1: all */
    QP_TOP_N_SIGMA,     /* logits at most so many standard deviations below the largest; 0: all */
    QP_MIN_KEEP,        /* filters leave so many tokens, if there are any; neutral 0 */
    QP_XTC_PROBABILITY, /* with this probability, of the tokens that have the threshold only the
                         * least likely stays */
    QP_XTC_THRESHOLD,   /* neutral 0.1; above 0.5 nothing is left out */
    /* A token that goes on with a repetition of n tokens loses multiplier * base^(n - allowed),
     * from n = allowed on. */
    QP_DRY_MULTIPLIER,
    QP_DRY_BASE,           /* neutral 1.75 */
    QP_DRY_ALLOWED_LENGTH, /* neutral 2 */
    QP_DRY_PENALTY_LAST_N, /* among the last tokens; -1, which is neutral: all */
    QP_MIROSTAT,           /* 2: surprise is held at tau, without the filters above; 0: off */
    QP_MIROSTAT_TAU,       /* bits; neutral 5 */
    QP_MIROSTAT_ETA,       /* how quickly it adapts; neutral 0.1 */
    QP_SETTING_COUNT
} qp_setting;

typedef struct qp_logit_bias {
    int32_t token;
    float bias;
} qp_logit_bias;

enum {
    QP_MAX_STOP_TOKENS = 16,
    QP_MAX_SETTINGS = 32, /* capacity, with room for settings of later versions */
};

/* Set `size`, then call qp_sampling_defaults(). */
typedef struct qp_sampling {
    size_t size;                       /* sizeof(qp_sampling) */
    double value[QP_MAX_SETTINGS];     /* by qp_setting */
    qp_source source[QP_MAX_SETTINGS]; /* of each value */
    const qp_logit_bias *logit_bias;   /* [n_logit_bias], owned by the caller */
    size_t n_logit_bias;
    const char *const *stops; /* [n_stops] texts that end the answer and do not appear in it */
    size_t n_stops;
    qp_source stop_tokens_source;
    int32_t stop_tokens[QP_MAX_STOP_TOKENS]; /* the model's ends of text and of turn */
    size_t n_stop_tokens;
    /* The form of the answer, for qp_generate(); NULL: any text. With it, a stop token is chosen
     * where the form may end, and other control tokens never. Callers of qp_step() use
     * qp_matcher_open(). */
    qp_grammar *grammar;
    /* [n_dry_breakers] texts that no repetition of DRY's goes across; NULL: a line end, ":", a
     * quote and "*". */
    const char *const *dry_breakers;
    size_t n_dry_breakers;
} qp_sampling;

/* Neutral values, replaced by those in the model's files; no biases, no stop texts. */
qp_status qp_sampling_defaults(const qp_engine *engine, qp_sampling *out, qp_error *error);

/* "temperature", "top_k", ...; NULL if this library has no such setting. */
const char *qp_setting_name(qp_setting setting);

/* Sets a value, unless one of higher precedence is set. QP_INVALID names the allowed range. */
qp_status qp_sampling_set(qp_sampling *sampling, qp_setting setting, double value, qp_source source,
                          qp_error *error);

/* ---- Decoding ------------------------------------------------------------------------------ */

/* Chooses the tokens of one sequence. It holds the settings, the biases, the tokens of the answer
 * so far (for penalties), and the set of allowed tokens. The answer begins with the first token
 * that it chooses. It belongs to its engine, and to one session. */
typedef struct qp_sampler qp_sampler;

/* Copies the settings, biases and stop tokens, at which a GPU stops by itself; stop texts are not
 * used. QP_INVALID names a bias that is neither finite nor minus infinity, or a token outside the
 * vocabulary. */
qp_status qp_sampler_open(qp_engine *engine, const qp_sampling *sampling, qp_sampler **out,
                          qp_error *error);
void qp_sampler_close(qp_sampler *sampler);

/* Sets which tokens may be chosen from now on: bits [(vocab_size + 31) / 32], the lowest first,
 * which are copied; NULL allows all. With such a mask, a call of qp_step() chooses one token. */
qp_status qp_sampler_allow(qp_sampler *sampler, const uint32_t *allowed, qp_error *error);

/* The place of one text in a form, which says what may come next: for callers of qp_step(). It
 * belongs to one thread at a time.
 *
 *     before each call:  qp_matcher_allowed(matcher, &bits), qp_sampler_allow(sampler, bits)
 *     in on_token():     a stop token ends the answer; else qp_matcher_take(matcher, token)
 */
typedef struct qp_matcher qp_matcher;

/* A text at its beginning, whose form is sampling->grammar. QP_INVALID if there is no stop token,
 * with which it could end, or if the grammar is of a vocabulary with other texts than the model's.
 */
qp_status qp_matcher_open(const qp_engine *engine, const qp_sampling *sampling, qp_matcher **out,
                          qp_error *error);
void qp_matcher_close(qp_matcher *matcher);

/* The tokens that may come next, as qp_sampler_allow() takes them; valid until the next call for
 * the matcher. Stop tokens are among them where the text may end. QP_UNSUPPORTED if the form is too
 * ambiguous here, or the vocabulary has no token that goes on. */
qp_status qp_matcher_allowed(qp_matcher *matcher, const uint32_t **allowed, qp_error *error);

/* Appends a token that was allowed; QP_INVALID for another one. */
qp_status qp_matcher_take(qp_matcher *matcher, int32_t token, qp_error *error);

/* A sequence in a call of qp_step(). Set `size`, to the same value for all sequences of a call; any
 * other field that is zero (or NULL) takes its default. */
typedef struct qp_sequence {
    size_t size; /* sizeof(qp_sequence) */
    qp_session *session;
    const int32_t *tokens; /* [count]: new tokens, which are read first. A sequence that continues
                              reads the token that was chosen last. */
    size_t count;
    /* Another sequence of the call. When that one has read all its new tokens, this session, which
     * must be empty, becomes a fork of its session, and the sampler below chooses from the same
     * logits. `read` is then the number of its tokens; `tokens` and `count` are ignored. */
    const struct qp_sequence *like;
    qp_sampler *sampler; /* chooses the tokens that follow; NULL: they are only read */
    size_t max_tokens; /* most tokens to choose from here on, in all calls; 0: until the context is
                          full */
    size_t interval;   /* about how many of them at a time; 0: as many as cost no speed */
    bool every_row;    /* on_logits and on_hidden after every new token, not only after the last */
    /* Set by another thread or a signal handler: the sequence makes no progress. May be NULL. */
    const volatile int *cancel;
    /* Receives the logits after new token `token`: float32 [vocab_size], valid until on_token() of
     * the same sequence has returned; the token is chosen from them. */
    qp_status (*on_logits)(void *context, size_t token, const float *logits);
    /* Receives the last hidden state after new token `token`, of which the logits are made: float32
     * [hidden_size], after the final norm, valid during the call. */
    qp_status (*on_hidden)(void *context, size_t token, const float *hidden);
    /* Receives each token when it is chosen. The session holds all tokens before it; this token is
     * read next. */
    qp_status (*on_token)(void *context, int32_t token);
    void *context;
    /* Results of the call: how many new tokens were read (pass the others to the next call), how
     * many tokens were chosen, and in how many forward passes the sequence took part. */
    size_t read, chosen, passes;
    /* And how many proposed tokens were verified and accepted: see qp_engine_options.speculate. */
    size_t proposed, accepted;
} qp_sequence;

/* Makes progress for all sequences; each has a session of its own. Servers, and all functions of
 * this header that make tokens, are built on this call. A batch is filled with the sequences that
 * continue, then with new tokens of the others in their order. Sequences may join and leave from
 * call to call. If all of them continue, one call makes several passes.
 *
 * A GPU then runs ahead: when the call returns, it already runs the passes of the next call,
 * assuming that the next call has the same sequences in the same order and that each continues from
 * its last token. If the next call has other sequences, the sequences that stayed first receive the
 * tokens that were already computed, and a sequence that has just joined may have to wait for the
 * call after that.
 *
 * On a CPU the bits of a sequence's logits do not depend on the other sequences; on a GPU they are
 * as stable as qp_eval() says. QP_INVALID names a token outside the vocabulary, a session or a
 * sampler of another engine, a session that would outgrow its context, or one that is given twice;
 * QP_NO_MEMORY says that pages are missing. Nothing is run then, and `read`, `chosen` and `passes`
 * are 0. */
qp_status qp_step(qp_engine *engine, qp_sequence *sequences, size_t n_sequences, qp_error *error);

/* ---- Text of an answer --------------------------------------------------------------------- */

/* Turns the tokens of one answer into text: whole UTF-8 sequences, never the beginning of a stop
 * text, with thoughts and calls of tools apart from what the answer says. For callers of qp_step();
 * qp_generate() and the server are built on it. It belongs to one thread at a time, and its
 * vocabulary must outlive it.
 *
 *     in on_token():  qp_text_stream_add(stream, token, error), and at the end of the answer
 *                     qp_text_stream_end(stream, error); after each of them
 *                     while (qp_text_stream_next(stream, &piece)) ...
 *     return qp_text_stream_ended(stream, &finish, &stop) ? QP_CANCELLED : QP_OK;
 */
typedef struct qp_text_stream qp_text_stream;

typedef enum qp_text_kind {
    QP_TEXT_CONTENT,   /* what the answer says */
    QP_TEXT_THINKING,  /* thoughts, without their marks and the white space beside these */
    QP_TEXT_CALL,      /* a call of a tool begins: `text` is the tool's name */
    QP_TEXT_ARGUMENTS, /* the next bytes of that call's arguments, an object of JSON as the model
                        * writes it */
    QP_TEXT_CALL_END,  /* the call ends: `text` is all that the model wrote for it */
} qp_text_kind;

/* Set `size`. */
typedef struct qp_text_piece {
    size_t size;      /* sizeof(qp_text_piece) */
    const char *text; /* [length], without a NUL; valid until the next call for the stream */
    size_t length;
    size_t call; /* number of the call, from 0 on */
    qp_text_kind kind;
    int broken; /* of QP_TEXT_CALL_END: not 0: the call is cut off, or is not JSON */
} qp_text_piece;

/* Set `size`; any other field that is zero (or NULL) takes its default. What pointers lead to is
 * copied. */
typedef struct qp_text_stream_options {
    size_t size;                 /* sizeof(qp_text_stream_options) */
    const qp_sampling *sampling; /* its stop texts and stop tokens end the answer; NULL: nothing */
    /* [n_tools]: names of the tools that may be called. With some, calls in the forms of Llama 3,
     * Qwen, Hermes and Mistral are found; a form without marks only if it names one of these. */
    const char *const *tools;
    size_t n_tools;
    /* Thoughts are found by the marks that the model's chat template has, such as <think> and
     * </think>. Without marks in the template, all is content. */
    bool thinking;
    bool special; /* control tokens appear in the text */
    /* [n_prompt]: the tokens before the answer. If they end with the mark that opens a thought, the
     * answer begins inside one. */
    const int32_t *prompt;
    size_t n_prompt;
} qp_text_stream_options;

/* `vocabulary`: NULL has no texts, and only stop tokens have an effect. QP_INVALID: a stop text is
 * empty. */
qp_status qp_text_stream_open(const qp_vocabulary *vocabulary,
                              const qp_text_stream_options *options, qp_text_stream **out,
                              qp_error *error);
void qp_text_stream_close(qp_text_stream *stream);

/* Adds the next token. Once the answer has ended it does nothing. */
qp_status qp_text_stream_add(qp_text_stream *stream, int32_t token, qp_error *error);

/* There are no further tokens: what was held back becomes certain. */
qp_status qp_text_stream_end(qp_text_stream *stream, qp_error *error);

/* The next piece that is certain; false: none without another token. */
bool qp_text_stream_next(qp_text_stream *stream, qp_text_piece *piece);

/* ---- Generation ---------------------------------------------------------------------------- */

typedef enum qp_finish {
    QP_FINISH_STOP_TOKEN, /* the model ended its answer */
    QP_FINISH_STOP_TEXT,  /* a stop text appeared */
    QP_FINISH_LENGTH,     /* max_tokens were made */
    QP_FINISH_CONTEXT,    /* the session is full */
    QP_FINISH_CANCELLED,
} qp_finish;

/* Whether the answer has ended at a stop token or a stop text, which *stop (may be NULL) is: the
 * caller's copy in the stream, or NULL. *finish (may be NULL) is set if it has. */
bool qp_text_stream_ended(const qp_text_stream *stream, qp_finish *finish, const char **stop);

enum { QP_MAX_EOS_INTERVAL = 256 };

/* Set `size`; any other field that is zero (or NULL) takes its default. */
typedef struct qp_generate_options {
    size_t size;           /* sizeof(qp_generate_options) */
    const int32_t *prompt; /* [n_prompt], appended to the session first; at least 1 token */
    size_t n_prompt;
    const qp_sampling *sampling; /* NULL: those of qp_sampling_defaults() */
    int64_t max_tokens;          /* 0: until the context is full */
    /* Tokens that a GPU makes at a time, at most QP_MAX_EOS_INTERVAL; 0: as many as cost no speed.
     * The megakernel returns each token when it is made and stops by itself after a stop token. A
     * CPU makes and returns one at a time. Tokens that were made past the end are discarded: the
     * answer is the same.
     */
    int64_t eos_interval;
    bool special;               /* control tokens appear in the text */
    const volatile int *cancel; /* set from a signal handler or another thread; may be NULL */
    /* Receives each new token and the text that is certain by then: whole UTF-8 sequences, never
     * the beginning of a stop text, `length` bytes, possibly none. May be NULL. After QP_CANCELLED
     * the answer's finish is QP_FINISH_CANCELLED. */
    qp_status (*on_token)(void *context, int32_t token, const char *text, size_t length);
    void *context;
    /* Receives the answer in pieces, with thoughts and calls of tools apart; on_token() then gets
     * no text. May be NULL. The names of the tools that may be called, [n_tools]: see
     * qp_text_stream_options. */
    qp_status (*on_text)(void *context, const qp_text_piece *piece);
    const char *const *tools;
    size_t n_tools;
} qp_generate_options;

typedef struct qp_generate_result {
    size_t size; /* sizeof(qp_generate_result), set by the caller */
    qp_finish finish;
    size_t prompt_tokens, generated_tokens;
    size_t shared_tokens; /* tokens of the prompt whose pages are shared with another answer */
    double prompt_seconds, generate_seconds;
    uint64_t prompt_passes, generate_passes; /* forward passes: each reads all weights once */
    size_t proposed_tokens, accepted_tokens; /* see qp_engine_options.speculate */
} qp_generate_result;

/* Appends the prompt, then generates tokens until the answer ends. The generated tokens become part
 * of the session, except the last one, which the model has not read yet. */
qp_status qp_generate(qp_session *session, const qp_generate_options *options,
                      qp_generate_result *result, qp_error *error);

/* One of several answers, with the arguments and results of qp_generate(). */
typedef struct qp_answer {
    qp_session *session;
    const qp_generate_options *options;
    qp_generate_result *result; /* may be NULL */
} qp_answer;

/* Makes several answers side by side, each with its own settings, as qp_generate() makes one. The
 * prompts are read together; a common prompt of several empty sessions is read once. Each forward
 * pass reads a token of every answer that continues. The engine needs as many sessions and rows of
 * logits. On a CPU each answer is the same as if it were made alone; on a GPU it is as stable as
 * qp_eval() says, and tokens are chosen there unless an answer has biases or penalties. Tokens
 * arrive in groups: the smallest eos_interval given; 0: as many as cost no speed. A cancelled
 * answer ends alone. An error, also of a callback, ends all of them and names the answer. */
qp_status qp_generate_together(const qp_answer *answers, size_t n_answers, qp_error *error);

/* "stop", "length", ...: the usual name of a finish reason. */
const char *qp_finish_name(qp_finish finish);

/* ---- Conversations ------------------------------------------------------------------------- */

/* A conversation with the model: its messages, and a session that holds what the model has read of
 * them, so that each answer reads only what is new. It takes one of the engine's sessions. */
typedef struct qp_chat qp_chat;

/* Set `size`; any other field that is zero (or NULL) takes its default. What pointers lead to must
 * outlive the chat. */
typedef struct qp_chat_options {
    size_t size;                 /* sizeof(qp_chat_options) */
    const qp_sampling *sampling; /* NULL: those of qp_sampling_defaults() */
    int64_t max_tokens;          /* of an answer; 0: until the context is full */
    /* JSON: an object of further variables of the chat template, such as {"enable_thinking":
     * false}. "tools", an array of {"type": "function", "function": {"name": ...}}, are offered to
     * the model. */
    const char *variables;
    const volatile int *cancel; /* ends an answer; may be NULL */
    /* Receives the answer in pieces: see qp_text_stream. May be NULL. */
    qp_status (*on_text)(void *context, const qp_text_piece *piece);
    void *context;
    unsigned flags;       /* QP_SPECIAL: see qp_tokenize_chat() */
    int64_t eos_interval; /* see qp_generate_options */
} qp_chat_options;

/* QP_UNSUPPORTED: the model has no chat template. */
qp_status qp_chat_open(qp_engine *engine, const qp_chat_options *options, qp_chat **out,
                       qp_error *error);
void qp_chat_close(qp_chat *chat);

/* Gives the answers that follow other options. */
qp_status qp_chat_set(qp_chat *chat, const qp_chat_options *options, qp_error *error);

/* Adds a message, such as {"role": "system", "content": "Be brief."}, or an array of messages, as
 * JSON in qp_tokenize_chat()'s form; control tokens in them stay text. */
qp_status qp_chat_add(qp_chat *chat, const char *json, size_t length, qp_error *error);

/* Makes the model's answer to the messages, and adds it to them: its text, its thoughts as
 * "reasoning_content", and its calls as "tool_calls". A cancelled answer is added as far as it
 * came. QP_INVALID: the context has no room for the messages, if the result's finish is
 * QP_FINISH_CONTEXT; nothing is cut. `result` may be NULL; its prompt_tokens are those that were
 * new. */
qp_status qp_chat_answer(qp_chat *chat, qp_generate_result *result, qp_error *error);

/* Adds a message of the user, and makes the answer. After an error the message is not added. */
qp_status qp_chat_ask(qp_chat *chat, const char *text, qp_generate_result *result, qp_error *error);

/* Forgets the last `count` messages, or all if there are fewer. */
qp_status qp_chat_drop(qp_chat *chat, size_t count, qp_error *error);

/* The messages as an array of JSON, to qp_free(). */
qp_status qp_chat_messages(const qp_chat *chat, char **json, qp_error *error);

/* The session that holds what the model has read of the messages; the chat owns it. */
const qp_session *qp_chat_session(const qp_chat *chat);

/* ---- Trace --------------------------------------------------------------------------------- */

/* A record of when each worker waited, worked and signalled in every instruction. With the machine
 * "serial", or if the options ask for parts, it records mathematical operations: while the trace is
 * open, attention runs as products, maxima, powers and divisions, and residuals are added
 * separately, which changes the rounding of logits. On a GPU it records what every thread block of
 * the megakernel did, or, with "cuda", the launches of operators, outside of graphs. */
typedef struct qp_trace qp_trace;

/* Set `size`. */
typedef struct qp_trace_options {
    size_t size; /* sizeof(qp_trace_options) */
    /* Most passes to record. Their memory is allocated when the trace is opened. */
    size_t max_passes;
    /* File with this machine's rates and the costs of instructions, as `quipu schedule --measure`
     * writes it. If there is none, the rates are measured when the trace is opened. Must live as
     * long as the trace. */
    const char *costs;
    /* Number of first passes that read a prompt; 0: the passes with more tokens than sequences. */
    size_t prompt_passes;
    /* Not 0: each worker of "threads" runs its instructions in parts, one for each mathematical
     * operation. "serial" always does so, a GPU never. */
    int parts;
    /* For "serial": chunks into which operators are cut by what they compute (products by features,
     * attention by heads), each on a track of its own; 0: 4. */
    int tracks;
} qp_trace_options;

/* Records the engine's next forward passes. The engine has one trace at a time. QP_INVALID for
 * fewer than 0 or more than 64 tracks. QP_UNSUPPORTED if the machine does not have the parts that
 * were asked for (a GPU, fused operators), or if it has no schedule to trace
 * ("operators", "reference" on a CPU). */
qp_status qp_trace_open(qp_engine *engine, const qp_trace_options *options, qp_trace **out,
                        qp_error *error);
void qp_trace_close(qp_trace *trace);

typedef enum qp_trace_form {
    QP_TRACE_TABLE, /* sums by operator: time, share, GB/s, GFLOP/s, share of limit, waiting time */
    QP_TRACE_CHROME, /* JSON that ui.perfetto.dev and chrome://tracing open */
    QP_TRACE_SVG,    /* a picture of the planned schedule above a measured pass */
    QP_TRACE_HTML,   /* a page with the planned schedule above the measured passes */
    /* int64 [passes][workers][longest queue][4], without a header: when each instruction of
     * qp_engine_schedule() began to wait, to compute and to signal, and when it had signalled, in
     * nanoseconds from the beginning of its pass; -1: not recorded */
    QP_TRACE_TIMINGS,
} qp_trace_form;

/* Prints the record; to qp_free(). QP_INVALID if no pass was recorded. Once max_passes are
 * recorded, another thread may run the engine meanwhile, but not close it. */
qp_status qp_trace_print(const qp_trace *trace, qp_trace_form form, char **text, size_t *length,
                         qp_error *error);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
#endif
