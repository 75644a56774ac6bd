/* quipu: a Llama-family inference engine.
 *
 * The only public header. A vocabulary turns text into tokens and conversations into prompts. An
 * engine is a loaded model with its plan and all its memory. A session is one sequence in it: its
 * tokens and their pages of the KV cache. Everything that can fail returns a qp_status and writes a
 * sentence into the qp_error that the caller owns (which may be NULL).
 *
 * An engine and its sessions belong to one thread at a time; a vocabulary may be shared.
 *
 * Structs that begin with `size` may get more members in later versions, at the end. The caller
 * sets `size`, and may leave all other members zero, which is their default:
 *
 *     qp_engine_options options = {.size = sizeof options, .model = "model.gguf"};
 *
 * A program runs with a newer library, and with an older one if it leaves members that this does
 * not know zero; QP_INVALID says so otherwise, and if `size` is not set. The layout of other
 * structs is final.
 */
#ifndef QUIPU_H
#define QUIPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

/* The version of the library that runs, as QP_VERSION is that of the header. */
const char *qp_version(void);

/* Frees what a function of this header gave "to qp_free()". NULL is nothing to do. */
void qp_free(void *memory);

typedef enum qp_status {
    QP_OK = 0,
    QP_INVALID,     /* an argument or a flag is wrong */
    QP_IO,          /* the operating system refused: open, read, write, map */
    QP_FORMAT,      /* a file or a text breaks its own format */
    QP_UNSUPPORTED, /* well formed, but not something that quipu can do */
    QP_NO_MEMORY,   /* it does not fit */
    QP_CANCELLED,   /* stopped on request */
    QP_DEVICE,      /* a GPU or its driver failed */
} qp_status;

enum { QP_ERROR_SIZE = 1024 };

/* What went wrong, for a person: what is wrong, what was expected, what was found, what to do. */
typedef struct qp_error {
    qp_status status;
    char message[QP_ERROR_SIZE];
} qp_error;

/* ---- Vocabulary ---------------------------------------------------------------------------- */

typedef struct qp_vocabulary qp_vocabulary;

/* `path`: a GGUF file (a vocabulary alone will do) or a directory with tokenizer files. */
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

/* Ids of the vocabulary are 0 .. qp_vocabulary_size() - 1. A model can have more rows of logits
 * than that, for ids without a token (qp_engine_info.vocab_size), and a vocabulary can have ids
 * without a token, whose piece is empty. NULL is an empty vocabulary for these four functions. */
int32_t qp_vocabulary_size(const qp_vocabulary *vocabulary);

/* The bytes that a token stands for in a text, owned by the vocabulary: a space as a space, a byte
 * token as its byte, a control token as its name. *length bytes, which need not be whole UTF-8
 * sequences, without a NUL; NULL and 0 for an id outside the vocabulary. */
const char *qp_token_piece(const qp_vocabulary *vocabulary, int32_t id, size_t *length);

/* Whether a token is never text but marks its structure: BOS, EOS, "<|im_start|>", ... */
bool qp_token_is_control(const qp_vocabulary *vocabulary, int32_t id);

typedef enum qp_role {
    QP_ROLE_BOS,     /* begins a text */
    QP_ROLE_EOS,     /* ends a text */
    QP_ROLE_EOT,     /* ends a turn of a conversation */
    QP_ROLE_UNKNOWN, /* stands for text that has no token */
    QP_ROLE_PADDING, /* fills up batches in training */
} qp_role;

/* The id of the token that has a role; -1 where the model's files name none. */
int32_t qp_special_token(const qp_vocabulary *vocabulary, qp_role role);

/* Appends the ids of text[0 .. length) (any bytes) to `tokens`. */
qp_status qp_tokenize(const qp_vocabulary *vocabulary, const char *text, size_t length,
                      unsigned flags, qp_tokens *tokens, qp_error *error);

/* The text of `ids`, to qp_free(); NUL-terminated, *length (may be NULL) counts without the NUL. */
qp_status qp_detokenize(const qp_vocabulary *vocabulary, const int32_t *ids, size_t count,
                        unsigned flags, char **text, size_t *length, qp_error *error);

/* Renders a conversation with the model's chat template. `json` is an array of messages
 * [{"role": "user", "content": "..."}, ...], or an object of template variables that holds one
 * under "messages" (with "tools", ...). The text, to qp_free(), holds every special token that the
 * model wants, and those that messages hold: tokenized with QP_BOS_NEVER | QP_SPECIAL, both become
 * control tokens, which is why qp_tokenize_chat() exists. QP_UNSUPPORTED without a template. */
qp_status qp_render_chat(const qp_vocabulary *vocabulary, const char *json, size_t length,
                         bool add_generation_prompt, char **text, qp_error *error);

/* Renders a conversation as qp_render_chat() does and appends its tokens. Control tokens that are
 * written in its messages ("<|im_end|>") stay text, unless `flags` has QP_SPECIAL; other flags have
 * no effect. This is the way for messages from people. */
qp_status qp_tokenize_chat(const qp_vocabulary *vocabulary, const char *json, size_t length,
                           bool add_generation_prompt, unsigned flags, qp_tokens *tokens,
                           qp_error *error);

/* The template's source, or NULL; owned by the vocabulary. */
const char *qp_chat_template(const qp_vocabulary *vocabulary);

/* ---- Engine -------------------------------------------------------------------------------- */

typedef struct qp_engine qp_engine;

typedef enum qp_log_level {
    QP_LOG_INFO,
    QP_LOG_NOTICE, /* what a person should see of a choice made for them, such as the device */
    QP_LOG_WARNING
} qp_log_level;

/* Set `size`; any other field that is zero (or NULL) takes its default. */
typedef struct qp_engine_options {
    size_t size;          /* sizeof(qp_engine_options) */
    const char *model;    /* a .gguf file, a Hugging Face directory,
                             "synthetic:PRESET[:TYPE[+OTHER][:SEED]]" */
    int threads;          /* default: the processors this process may use */
    int64_t context;      /* positions of a session; default: the model's, at most 8,192 */
    int64_t max_sessions; /* default 1 */
    int64_t chunk;        /* new tokens in one forward pass at most; default 512 */
    int64_t max_outputs;  /* rows of logits in one forward pass; default: max_sessions */
    int64_t page_size;    /* positions in a page of the KV cache; default 16 */
    int64_t pages;        /* of the KV cache, for all sessions; at least those of one context.
                           * Default: enough for every session's context */
    const char *kv_type;  /* "F16" (default), "BF16" or "F32" */
    const char *device;   /* "cpu" (default), "cuda": an NVIDIA GPU, or "auto": that GPU where it
                           * can be used and the model fits, with a notice that says so */
    const char *exec;     /* the machine. On the CPU "threads" (default): a schedule, a queue of
                           * instructions for each thread; "operators": operator by operator;
                           * "reference": the same by reference kernels; "serial": a schedule by
                           * reference kernels, one instruction at a time. On a GPU, which these
                           * imply, "megakernel": tokens in one kernel that feeds itself, prompts as
                           * "cuda" has them (default where the kernel runs the model); "cuda":
                           * operator by operator. "auto": the default */
    int workers;          /* thread blocks of "megakernel"; default: one a multiprocessor */
    uint64_t order;       /* of "serial": seed of a random order of instructions, any that the
                           * schedule allows; default: each worker goes as far as it can, in turn */
    bool fuse;            /* operators that need no other thread's results as one: fewer waits, for
                           * few tokens on many threads; on the CPU the same logits to the bit */
    /* How products of quantised weights take activations on the CPU: rounded to "8" bits or to
     * "16", with a scale for every 32 values, or as "float", with weights decoded to float32 when
     * the model is opened. "auto" (default): 16 where a token reads at most 256 MiB of weights,
     * else 8. The reference and serial machines, and GPUs, do not round:
     * a warning says so if "8" or "16" is given. */
    const char *activations;
    const char *cpu_mask; /* CPU features to leave unused, such as "avx512f,avx_vnni" */
    void (*log)(void *context, qp_log_level level, const char *message); /* may be NULL */
    void *log_context;
    /* Told of long work, such as the making of weights or the reading of a prompt: one line of
     * text, again and again until `finished`. May be NULL. */
    void (*progress)(void *context, const char *text, bool finished);
    void *progress_context;
} qp_engine_options;

qp_status qp_engine_open(const qp_engine_options *options, qp_engine **out, qp_error *error);
void qp_engine_close(qp_engine *engine); /* close its sessions first */

typedef struct qp_engine_info {
    size_t size;        /* of what this library knows of the struct; members after it are absent */
    int64_t vocab_size; /* logits in a row */
    int64_t context;    /* positions of a session */
    int64_t model_context; /* positions that the model was trained for */
    int64_t max_outputs;   /* rows of logits in one forward pass */
    int64_t chunk;         /* new tokens in one forward pass */
    uint64_t weight_bytes; /* of all weights, as stored */
    uint64_t read_bytes;   /* of them, what a forward pass of one token reads */
    int threads;
    int workers;        /* blocks of the GPU's megakernel, where it runs; else the threads */
    const char *device; /* "cpu", or the GPU's name */
} qp_engine_info;

/* Owned by the engine. */
const qp_engine_info *qp_engine_get_info(const qp_engine *engine);

/* Bytes a second that the engine's GPU reads of its memory when it does nothing else, now: the
 * weights, by a kernel that only reads, the best of some runs. QP_UNSUPPORTED on a CPU. */
qp_status qp_measure_read(qp_engine *engine, double *bytes_per_second, qp_error *error);

/* The model's vocabulary, owned by the engine; NULL where it has none (synthetic models), which
 * whoever is given it says: QP_INVALID. */
const qp_vocabulary *qp_engine_vocabulary(const qp_engine *engine);

/* Sizes, tensors by type, vocabulary and metadata of a model as text, or as JSON; to qp_free(). A
 * vocabulary alone (a GGUF file without tensors, a directory with tokenizer files) will do. */
qp_status qp_describe_model(const char *path, bool json, char **text, qp_error *error);

/* ---- Conversion ---------------------------------------------------------------------------- */

/* Set `size`; any other field that is zero (or NULL) takes its default. */
typedef struct qp_convert_options {
    size_t size;       /* sizeof(qp_convert_options) */
    const char *model; /* as qp_engine_options has it */
    const char *out;   /* the .gguf file to write */
    const char *type;  /* "BF16", "Q8_0", "Q4_K_M", ...: llama.cpp's names and mixes; NULL: types
                        * stay as they are */
    bool pure;         /* every matrix in the usual type of the mix, as far as its rows allow */
    int threads;       /* default: the processors this process may use */
    const volatile int *cancel; /* set from a signal handler or another thread; may be NULL */
    void (*log)(void *context, qp_log_level level, const char *message); /* may be NULL */
    void *log_context;
    void (*progress)(void *context, const char *text, bool finished); /* may be NULL */
    void *progress_context;
} qp_convert_options;

/* Writes a model with its sizes, vocabulary and chat template as a GGUF file that llama.cpp reads
 * too. The file appears whole or not at all. What GGUF cannot say is QP_UNSUPPORTED where it would
 * change results everywhere, and a warning otherwise. */
qp_status qp_convert(const qp_convert_options *options, qp_error *error);

/* ---- Sessions ------------------------------------------------------------------------------ */

typedef struct qp_session qp_session;

qp_status qp_session_open(qp_engine *engine, qp_session **out, qp_error *error);
void qp_session_close(qp_session *session);

/* Tokens that the session holds, in order, and their number. */
const int32_t *qp_session_tokens(const qp_session *session, size_t *count);

/* Forgets all but the first `keep` tokens. */
void qp_session_truncate(qp_session *session, size_t keep);

/* Opens another session of the same engine that holds the same tokens. Both share the pages of the
 * KV cache that these fill; each takes pages of its own for what it reads from then on, and a copy
 * of the last page where that is filled in part. QP_INVALID when all of the engine's sessions are
 * in use. */
qp_status qp_session_fork(const qp_session *session, qp_session **out, qp_error *error);

/* New tokens for one session. */
typedef struct qp_input {
    qp_session *session;
    const int32_t *tokens;
    size_t count;
    bool every_row; /* logits after every token, not only after the last */
} qp_input;

/* Receives the logits after token `token` of input `input`: float32 [vocab_size], valid during the
 * call. Anything but QP_OK ends the evaluation with that status. */
typedef qp_status qp_logits_callback(void *context, size_t input, size_t token,
                                     const float *logits);

/* Runs the model over the new tokens of all inputs, batched, in chunks. On a CPU the logits of an
 * input do not depend, to the bit, on the other inputs or on the chunks; on a GPU they do not
 * within chunks of up to 8 tokens, nor within those of 9 to 63. QP_INVALID names a token outside
 * the vocabulary, a session that would outgrow its context, or one that is given twice; nothing is
 * evaluated then. `cancel` (may be NULL) is looked at between chunks: a chunk that is done stays in
 * the sessions. */
qp_status qp_eval(qp_engine *engine, const qp_input *inputs, size_t n_inputs,
                  qp_logits_callback *on_logits, void *context, const volatile int *cancel,
                  qp_error *error);

/* Greedy decoding of sessions side by side: in each of `count` forward passes every session reads
 * one token, first its own of row 0 of `tokens` (count + 1, n_sessions), then always the likeliest
 * behind what it read, which is put into the next row. The last row has been through no session. A
 * GPU keeps logits and tokens to itself, up to 16 passes ahead of what is handed out. QP_INVALID as
 * for qp_eval(), and where the engine has fewer than n_sessions rows of logits. */
qp_status qp_decode(qp_engine *engine, qp_session *const *sessions, size_t n_sessions, size_t count,
                    int32_t *tokens, const volatile int *cancel, qp_error *error);

/* ---- Sampling ------------------------------------------------------------------------------ */

/* Where a setting's value came from, in rising order of precedence. */
typedef enum qp_source {
    QP_FROM_NEUTRAL,
    QP_FROM_MODEL, /* generation_config.json, or MODEL.generation_config.json beside MODEL.gguf */
    QP_FROM_ENVIRONMENT, /* a variable such as QUIPU_TOP_K */
    QP_FROM_COMMAND_LINE,
    QP_FROM_REQUEST,
} qp_source;

typedef enum qp_setting {
    QP_TEMPERATURE,        /* 0: always the likeliest token; neutral 1 */
    QP_TOP_K,              /* among the K likeliest; 0: all */
    QP_TOP_P,              /* among the likeliest that hold this probability; neutral 1 */
    QP_MIN_P,              /* at least this share of the likeliest's probability; neutral 0 */
    QP_REPETITION_PENALTY, /* logits of tokens seen are divided (or multiplied) by it; neutral 1 */
    QP_PRESENCE_PENALTY,   /* subtracted once from tokens seen in the answer; neutral 0 */
    QP_FREQUENCY_PENALTY,  /* subtracted for each time in the answer; neutral 0 */
    QP_SEED,               /* the same seed makes the same choices from the same logits, on every
                            * machine; neutral 0. Logits of quantised weights are the same on all CPUs
                            * with AVX2, and others on those without: there x is not rounded to 8 bits */
    QP_SETTING_COUNT
} qp_setting;

typedef struct qp_logit_bias {
    int32_t token;
    float bias;
} qp_logit_bias;

enum {
    QP_MAX_STOP_TOKENS = 16,
    QP_MAX_SETTINGS = 32, /* room for those of later versions */
};

/* Set `size`, then call qp_sampling_defaults(). */
typedef struct qp_sampling {
    size_t size;                       /* sizeof(qp_sampling) */
    double value[QP_MAX_SETTINGS];     /* by qp_setting */
    qp_source source[QP_MAX_SETTINGS]; /* of each value */
    const qp_logit_bias *logit_bias;   /* [n_logit_bias], the caller's */
    size_t n_logit_bias;
    const char *const *stops; /* [n_stops] texts that end the answer and are not part of it */
    size_t n_stops;
    qp_source stop_tokens_source;
    int32_t stop_tokens[QP_MAX_STOP_TOKENS]; /* the model's ends of text and of turn */
    size_t n_stop_tokens;
} qp_sampling;

/* Neutral values overlaid with what the model's files say; no biases, no stop texts. */
qp_status qp_sampling_defaults(const qp_engine *engine, qp_sampling *out, qp_error *error);

/* "temperature", "top_k", ...; NULL: this library has no such setting. */
const char *qp_setting_name(qp_setting setting);

/* Sets a value unless one of higher precedence is there. QP_INVALID names the allowed range. */
qp_status qp_sampling_set(qp_sampling *sampling, qp_setting setting, double value, qp_source source,
                          qp_error *error);

/* ---- Decoding ------------------------------------------------------------------------------ */

/* Chooses the tokens of one sequence: settings, biases, what the answer has had so far (for
 * penalties), and which tokens are allowed. The answer begins with the first token that it chooses.
 * It belongs to the thread of its engine, and to one session. */
typedef struct qp_sampler qp_sampler;

/* Copies the settings and biases; of texts and tokens that end an answer it takes the tokens, after
 * which a GPU stops by itself. QP_INVALID names a bias that is no finite number or minus infinity,
 * or a token outside the vocabulary. */
qp_status qp_sampler_open(qp_engine *engine, const qp_sampling *sampling, qp_sampler **out,
                          qp_error *error);
void qp_sampler_close(qp_sampler *sampler);

/* Which tokens may be chosen from now on: bits [(vocab_size + 31) / 32], the lowest first, which
 * are copied; NULL: all. While there is such a mask, a call of qp_step() chooses one token. */
qp_status qp_sampler_allow(qp_sampler *sampler, const uint32_t *allowed, qp_error *error);

/* A sequence in a call of qp_step(). Set `size`, which is the same for all sequences of a call; any
 * other field that is zero (or NULL) takes its default. */
typedef struct qp_sequence {
    size_t size; /* sizeof(qp_sequence) */
    qp_session *session;
    const int32_t *tokens; /* [count]: new tokens, which are read first. A sequence that goes on
                            * reads the token that was chosen last. */
    size_t count;
    /* Another sequence of the call: when that one has read all its new tokens, this session, which
     * is empty, becomes a fork of that one's, and the sampler below chooses from the same logits.
     * `read` is then the number of its tokens; `tokens` and `count` are not looked at. */
    const struct qp_sequence *like;
    qp_sampler *sampler; /* chooses the tokens that follow; NULL: they are only read */
    size_t
        max_tokens;  /* that are wanted from here on, in all calls; 0: until the context is full */
    size_t interval; /* of them, about so many at a time; 0: as many as cost nothing */
    bool every_row;  /* on_logits after every new token, not only after the last */
    const volatile int *cancel; /* set from elsewhere: the sequence makes no progress */
    /* Receives the logits after new token `token`: float32 [vocab_size], valid during the call.
     * Anything but QP_OK ends qp_step() with that status. */
    qp_status (*on_logits)(void *context, size_t token, const float *logits);
    /* Receives each token as it is chosen; false: no more are wanted. The session holds all tokens
     * before it, and it is the next to be read. */
    bool (*on_token)(void *context, int32_t token);
    void *context;
    /* What came of the call: new tokens that were read (give the others to the next call), tokens
     * that were chosen, forward passes that the sequence had a part in. */
    size_t read, chosen, passes;
} qp_sequence;

/* Makes progress for all sequences, each of another session: the call that servers, and everything
 * in this header that makes tokens, are built on. A batch is filled with the sequences that go on,
 * then with new tokens of the others in their order; sequences may join and leave from call to
 * call. Where all go on, several passes are made at a time. A GPU then runs ahead: when the call
 * returns, the passes of the next one are under way, if that has the same sequences in the same
 * order, each going on from its last token. If it has others, tokens under way are handed out to
 * those that stayed, and one that has just joined may have to wait for the call after.
 *
 * On a CPU tokens do not depend, to the bit, on the other sequences; on a GPU as far as qp_eval()
 * says. QP_INVALID names a token outside the vocabulary, a session that would outgrow its context,
 * or one that is given twice; QP_NO_MEMORY says that pages are missing. Nothing is run then, and
 * `read`, `chosen` and `passes` are 0. */
qp_status qp_step(qp_engine *engine, qp_sequence *sequences, size_t n_sequences, qp_error *error);

/* ---- Generation ---------------------------------------------------------------------------- */

typedef enum qp_finish {
    QP_FINISH_STOP_TOKEN, /* the model ended its answer */
    QP_FINISH_STOP_TEXT,  /* a stop text appeared */
    QP_FINISH_LENGTH,     /* max_tokens were made */
    QP_FINISH_CONTEXT,    /* the session is full */
    QP_FINISH_CANCELLED,
} qp_finish;

enum { QP_MAX_EOS_INTERVAL = 256 };

/* Set `size`; any other field that is zero (or NULL) takes its default. */
typedef struct qp_generate_options {
    size_t size;           /* sizeof(qp_generate_options) */
    const int32_t *prompt; /* [n_prompt], appended to the session first; at least 1 token */
    size_t n_prompt;
    const qp_sampling *sampling; /* NULL: as qp_sampling_defaults() says */
    int64_t max_tokens;          /* 0: until the context is full */
    /* Tokens that a GPU makes at a time, at most QP_MAX_EOS_INTERVAL; 0: as many as cost nothing.
     * The megakernel hands out each as it comes, and ends after a stop token itself. A CPU makes
     * and hands out one at a time. What was made past the end is discarded: the answer is the same.
     */
    int64_t eos_interval;
    bool special;               /* control tokens appear in the text */
    const volatile int *cancel; /* set from a signal handler or another thread; may be NULL */
    /* Receives each new token and the text that is certain by then (whole UTF-8 sequences, never
     * the beginning of a stop text): `length` bytes, possibly none. May be NULL. */
    qp_status (*on_token)(void *context, int32_t token, const char *text, size_t length);
    void *context;
} qp_generate_options;

typedef struct qp_generate_result {
    size_t size; /* sizeof(qp_generate_result), set by the caller */
    qp_finish finish;
    size_t prompt_tokens, generated_tokens;
    size_t shared_tokens; /* of the prompt: read for another answer, whose pages hold them */
    double prompt_seconds, generate_seconds;
    uint64_t prompt_passes, generate_passes; /* forward passes: each reads all weights once */
} qp_generate_result;

/* Appends the prompt, then samples until an end. The generated tokens become part of the session,
 * but for the last: it has not been through the model yet. */
qp_status qp_generate(qp_session *session, const qp_generate_options *options,
                      qp_generate_result *result, qp_error *error);

/* One of several answers: what qp_generate() takes and fills in. */
typedef struct qp_answer {
    qp_session *session;
    const qp_generate_options *options;
    qp_generate_result *result; /* may be NULL */
} qp_answer;

/* Makes several answers side by side, each by its own settings, as qp_generate() makes it alone:
 * the prompts are read together, a prompt that several empty sessions begin with once, and a
 * forward pass reads a token of every answer that goes on. The
 * engine needs as many sessions and rows of logits. On a CPU each answer is the same as alone; on a
 * GPU as far as qp_eval() says, and tokens are chosen there unless an answer has biases or
 * penalties. They come some at a time: eos_interval, the least of those given; 0: as many as cost
 * nothing. One that is cancelled ends alone; a failure, also of a receiver, ends all of them, and
 * names the answer that it is of. */
qp_status qp_generate_together(const qp_answer *answers, size_t n_answers, qp_error *error);

/* "stop", "length", ...: what the field calls a finish reason. */
const char *qp_finish_name(qp_finish finish);

/* ---- Trace --------------------------------------------------------------------------------- */

/* A record of when each worker waited, worked and signalled in every instruction. Where the engine
 * runs one instruction at a time ("serial"), or the options ask for it, it is of what operators are
 * in mathematics: while the trace is open attention runs as products, maxima, powers and divisions,
 * and residuals are added apart, which moves logits by rounding. Of a GPU it is of what every
 * thread block of the megakernel did, or with "cuda" of the operators as launches, outside of
 * graphs. */
typedef struct qp_trace qp_trace;

/* Set `size`. */
typedef struct qp_trace_options {
    size_t size;          /* sizeof(qp_trace_options) */
    size_t max_passes;    /* to record; the memory for them is taken when the trace is opened */
    const char *costs;    /* file with this machine's rates, and what instructions cost on it, as
                           * `quipu schedule --measure` writes it; where there is none, the rates are
                           * measured when the trace is opened. Borrowed while the trace is open. */
    size_t prompt_passes; /* the first passes recorded, which read a prompt; 0: those of more tokens
                           * than sequences */
    int parts;  /* not 0: each worker of "threads" runs its instructions in parts, as what they are
                 * in mathematics; "serial" does so anyway, a GPU does not */
    int tracks; /* of "serial": chunks that operators are cut in by what they compute (products by
                 * features, attention by heads), each on a track of its own; 0: 4 */
} qp_trace_options;

/* Records the engine's next forward passes. The engine has one trace at a time, and outlives it.
 * QP_INVALID for fewer than 0 or more than 64 tracks. QP_UNSUPPORTED where parts are asked for that
 * the machine does not have (of a GPU, of fused operators), or where the engine runs operator by
 * operator on a CPU ("operators", "reference"): what is traced there are the instructions of a
 * schedule. */
qp_status qp_trace_open(qp_engine *engine, const qp_trace_options *options, qp_trace **out,
                        qp_error *error);
void qp_trace_close(qp_trace *trace);

typedef enum qp_trace_form {
    QP_TRACE_TABLE,  /* sums by operator: time, share, GB/s, GFLOP/s, share of limit, waiting */
    QP_TRACE_CHROME, /* JSON that ui.perfetto.dev and chrome://tracing open */
    QP_TRACE_SVG,    /* a picture of the schedule as planned above a pass as measured */
    QP_TRACE_HTML,   /* one page: the schedule as planned above the passes as measured */
} qp_trace_form;

/* What was recorded, as text; to qp_free(). QP_INVALID where no pass was. */
qp_status qp_trace_print(const qp_trace *trace, qp_trace_form form, char **text, size_t *length,
                         qp_error *error);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
#endif
