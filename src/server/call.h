/* A call of the API that makes text: the parameters from its body, its prompts, and its answers as
 * they grow. A dialect (one for each endpoint) turns a body into a call and answers into replies.
 *
 *     start (a worker) -> dialect reads the body -> prompts to the batcher
 *     events (a worker) -> text of each answer -> dialect writes chunks, or the whole reply
 *
 * A call belongs to its exchange and ends with it. One worker at a time works on it, under `lock`.
 */
#pragma once

#include "engine/text_stream.h"
#include "server/api_error.h"
#include "server/batcher.h"
#include "server/fields.h"
#include "server/form.h"
#include "server/http.h"
#include "server/server.h"
#include "server/workers.h"
#include "text/tokenizer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

typedef struct call call;
typedef struct answer answer;

enum { CALL_MOST_PROMPTS = 512, CALL_MOST_STOPS = 16, CALL_MOST_BIASES = 1024 };

/* Parameters of all endpoints. Texts and JSON point into the body. */
typedef struct parameters {
    const char *model;
    bool stream, include_usage, echo, ignore_eos, special, parse_special, add_special, with_pieces;
    bool logprobs, raw, token_ids, timings, progress, verbose;
    bool base64;        /* embeddings as base64 */
    bool whole_vectors; /* embeddings are not scaled to length 1 */
    bool mixed;    /* a prompt may hold ids and texts, and texts may be {"prompt_string": text} */
    bool no_tools; /* tools must not be called */
    bool thoughts_in_text, no_thoughts; /* thoughts stay content, or are not sent */
    bool think, no_think;               /* the model shall think, or not */
    const char *effort;                 /* how much; NULL: not given */
    int64_t thinking_budget;            /* tokens of thoughts; -1: any number */
    int64_t penalty_window;             /* last tokens that penalties are about; -1: all */
    bool no_generation_prompt, generation_prompt; /* false or true was asked for */
    bool continues; /* the answer continues the last message, which is the model's */
    int64_t n, best_of, max_tokens, min_tokens, top_logprobs; /* -1: not given */
    int64_t dimensions, top_n;                                /* 0: not given */
    double timeout;                                           /* seconds; 0: none */
    qp_sampling sampling;
    const char *stops[CALL_MOST_STOPS];
    size_t n_stops;
    const char *breakers[CALL_MOST_STOPS]; /* of DRY, if `has_breakers` */
    bool has_breakers;
    qp_logit_bias biases[CALL_MOST_BIASES];
    size_t n_biases;
    const cJSON *prompt, *messages, *tools, *system, *input, *template_variables, *reply_fields;
    const cJSON *text_biases;                          /* logit_bias that may have texts */
    const char *text, *instructions, *before, *suffix; /* `before`: input_prefix of /infill */
    const cJSON *files, *metadata, *include;
    const cJSON *lora;    /* [{"id", "scale"}]; NULL: not given */
    const char *adapter;  /* its name; NULL: not given */
    const char *previous; /* the response that is gone on from; NULL: none */
    bool no_store;        /* the response is not kept */
    requested_form form;  /* of the answers */
    requested_tool tool;  /* a call that is forced */
} parameters;

/* Rows of tables whose value is a member of the parameters, or what `read` makes of it. */
#define MEMBER(kind, member)  .type = (kind), .at = offsetof(parameters, member)
#define BOOLEAN(member)       MEMBER(FIELD_BOOL, member)
#define INTEGER(member)       MEMBER(FIELD_INTEGER, member)
#define NUMBER(member)        MEMBER(FIELD_NUMBER, member)
#define TEXT(member)          MEMBER(FIELD_STRING, member)
#define TREE(kinds, member)   MEMBER(FIELD_JSON, member), .types = (kinds)
#define READ(kinds, function) .type = FIELD_READ, .types = (kinds), .read = (function)
#define MODEL_FIELD                                                                                \
    FIELD("model", TEXT(model), .help = "the name of an adapter; any other: the model")

/* A token's log-probability, kept until its text is sent. */
typedef struct token_note {
    int32_t token;
    float logprob;
    size_t offset; /* where its text begins in the answer */
    size_t tops;   /* index of its first alternative in answer.tops */
    uint32_t n_tops;
} token_note;

/* A part of an answer, in the order in which the model wrote them. */
typedef struct answer_part {
    qp_text_kind kind;   /* QP_TEXT_CONTENT, QP_TEXT_THINKING or QP_TEXT_CALL */
    size_t from, length; /* of answer.text or answer.thinking */
    const cJSON *call;   /* of answer.tool_calls */
} answer_part;

struct answer {
    call *call;
    size_t prompt, index;   /* of all answers of the call */
    qp_text_stream *stream; /* of its tokens */
    strbuf text;            /* all content since the first token, without thoughts and calls */
    strbuf thinking;        /* all thoughts */
    answer_part *parts;     /* [n_parts] */
    size_t n_parts, parts_capacity;
    /* The call that the model writes now, or the last one: its number, its id, what it wrote. */
    size_t call_number;
    char call_id[10];
    strbuf name, arguments;
    bool in_string, escaped; /* the arguments end inside a text of JSON, after a backslash */
    cJSON *tool_calls; /* [{"id", "name", "arguments"}], with "broken" in a stream that has begun to
                        * send one which is not whole; NULL: none */
    size_t n_tokens;   /* chosen tokens, without the one that ends the answer */
    size_t n_thinking; /* those of thoughts */
    bool begun, ended; /* the dialect has received its first text; its end */
    bool over;         /* its last event was read */
    int finish;        /* a qp_finish, or REQUEST_*; once it has ended */
    const char *stopped;   /* the stop text that ended it; NULL: none */
    token_note *notes;     /* [n_notes] with logprobs */
    size_t n_notes, noted; /* those before `noted` were sent */
    token_top *tops;       /* [n_tops] */
    size_t n_tops;
    int32_t *ids; /* [n_ids] token ids, if the client wants them */
    size_t n_ids, ids_sent;
    size_t notes_capacity, tops_capacity, ids_capacity;
};

typedef struct call_prompt {
    request *request; /* with a reference; NULL: not submitted */
    char *text;       /* of the prompt, if it is echoed */
    size_t length;
    bool held; /* a worker has taken it, and reads on when the client has caught up */
} call_prompt;

/* The functions of one endpoint. Writers append to call->out, which is then sent to the client. */
typedef struct dialect {
    field_tables fields;
    const char *stream_type; /* the Content-Type of a stream */
    bool likely;             /* sampling_exclude_unlikely() unless settings say otherwise */
    bool whole_calls;        /* a stream has calls of tools only when they are whole */
    /* Checks what the tables cannot check, and adds prompts by call_add_*(). Without a prompt, what
     * it has written is the reply. */
    qp_status (*read)(call *c, const cJSON *body, api_error *error);
    void (*whole)(call *c); /* the reply of a call that does not stream */
    /* A stream: the first event has come; an answer has a piece that is certain, as qp_text_piece
     * has it, or notes or its first token as content without text; an answer has ended; all have.
     * The last call of a->tool_calls is the one that QP_TEXT_CALL_END ends. What is NULL writes
     * nothing. */
    void (*begin)(call *c);
    void (*delta)(call *c, answer *a, qp_text_kind kind, const char *text, size_t length);
    void (*finish)(call *c, answer *a);
    void (*progress)(call *c, const answer *a, size_t read); /* tokens of its prompt */
    void (*end)(call *c);
    /* A failure after the stream has begun. */
    void (*fail)(call *c, const api_error *error);
} dialect;

struct call {
    worker_task task; /* first member: starts the call; later continues it after a pause */
    server *server;
    exchange *exchange; /* owns the call */
    const struct route *route;
    const dialect *dialect; /* of the route; NULL: it makes no text */
    cJSON *body;
    parameters p;
    char id[40];
    time_t created;
    uint64_t arrived; /* clock_ns() */
    uint64_t owner,
        cache_key;     /* numbers of keys: of the client's, and of those that share prefixes */
    bool is_long;      /* its task is among the long ones */
    bool chat, embeds; /* prompts are conversations; embeddings of them are wanted */

    pthread_mutex_t lock;
    call_prompt *prompts; /* [n_prompts] */
    size_t n_prompts, prompts_capacity;
    answer *answers; /* [n_prompts * n] */
    size_t n_answers, n_over;
    bool streaming, replied;
    atomic_int resuming; /* not a bool: a compiler may read the bools before it in one access */
    tool_names tools;    /* tools that the client offers */
    qp_grammar *form;    /* of the answers; NULL: any text */
    strbuf out;
    strbuf head; /* the beginning of every chunk of a stream, made by the dialect */
    int state;   /* used by the dialect: the progress of its stream */
};

/* ---- For the server ------------------------------------------------------------------------ */

/* Makes a call, which the exchange owns; NULL: no memory. */
call *call_new(server *server, exchange *x, const struct route *route, uint64_t owner);

/* Gives a new call to the workers. */
void call_put(call *c);

/* Handles events of one of the call's prompts; takes over the reference. On a worker. */
void call_take_events(request *r);

/* ---- For dialects -------------------------------------------------------------------------- */

/* Fields that endpoints share. */
extern const field call_sampling_fields[], call_openai_fields[], call_bias_fields[],
    call_ending_fields[], call_vendor_fields[], call_message_fields[], call_template_fields[],
    call_tool_fields[], call_tool_choice_fields[];

/* How much the model thinks, and where its thoughts go: call_thinking.c. */
extern const field call_thinking_fields[];

/* Adds what the request asks for to the variables of the chat template, unless they have it. */
void call_put_thinking(const parameters *parameters, cJSON *variables);

/* Thoughts of a message of a conversation, under the names that chat templates know. */
void call_name_thinking(cJSON *message);

/* What no endpoint can do, and what only some can: fields_refused.c. */
extern const field call_refused_fields[], call_single_fields[], call_no_logprobs_fields[];

/* The length of an answer: a whole number; negative: until the context is full. */
qp_status call_read_length(void *parameters, const char *name, const cJSON *value,
                           api_error *error);

/* Whether an item of a list is a whole number that can be a token's id. */
bool call_token_id(const cJSON *item, int32_t *id);

/* Adds a prompt: text, or a conversation for the model's template, whose variables are freed. */
qp_status call_add_text(call *c, const char *text, api_error *error);
qp_status call_add_chat(call *c, cJSON *variables, api_error *error);

/* Adds a prompt of tokens, which it takes over; and a token to some. */
qp_status call_add_tokens(call *c, qp_tokens *tokens, api_error *error);
qp_status call_append_token(qp_tokens *tokens, int32_t id, api_error *error);

/* Adds a prompt for text between two others, with the marks that the model was trained on: texts of
 * other files, [{"filename", "text"}], come first, and `begun` begins the answer; both may be NULL.
 * call_fill.c */
qp_status call_add_fill(call *c, const char *before, const char *after, const cJSON *files,
                        const char *begun, api_error *error);

/* The field that prompts come from, for messages. */
const char *call_prompt_name(const call *c);

/* Adds what p.prompt has, a field of this name: a text, token ids, or an array of these. `added`
 * (may be NULL) is called after each prompt. */
typedef qp_status call_prompt_added(call *c, const cJSON *prompt, api_error *error);
qp_status call_add_prompts(call *c, const char *name, call_prompt_added *added, api_error *error);

/* Whether the last message is the assistant's, with a text and without calls of tools. */
bool call_ends_in_answer(const cJSON *messages);

/* The variables of a template: messages in the form that templates expect, and the tools if they
 * may be called. *out: to cJSON_Delete(), or to call_add_chat(). */
qp_status call_chat_variables(call *c, const cJSON *messages, const cJSON *tools, cJSON **out,
                              api_error *error);

/* For a template without a place for tools: writes them, calls and results as texts of the
 * messages. `tools` may be NULL. tool_texts.c */
void tool_texts_write(cJSON *messages, const cJSON *tools);

/* The reply of endpoints that only count: {"input_tokens": N} of the first prompt; `more` members.
 */
void call_put_length(call *c, const char *more);

/* Fields that several endpoints read in the same way. */
qp_status call_read_stop(void *parameters, const char *name, const cJSON *value, api_error *error);
/* With a vocabulary, texts too have biases: each of their tokens. */
qp_status call_add_biases(parameters *parameters, const char *name, const cJSON *value,
                          const qp_vocabulary *vocabulary, api_error *error);

/* Sums for "usage". */
typedef struct call_usage {
    size_t prompt, cached, completion, thinking;
} call_usage;
call_usage call_sum_usage(const call *c);

/* Whether an answer ended before the model ended it: what it has of calls may be a part. */
bool call_was_cut(const answer *a);

/* OpenAI's finish reason of an answer: "stop", "length" or "tool_calls". */
const char *call_finish_reason(const answer *a);
