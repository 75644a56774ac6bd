/* What the commands share: the settings, and functions that several commands need.
 *
 * One struct holds the value of every option of every command; commands.c says which command takes
 * which option. Answers go to stdout, everything else to stderr. Only this folder ends the process.
 */
#pragma once

#include "base/option.h"
#include "inspect/part.h"
#include "quipu.h"

#include <stdio.h>

typedef struct cli_settings {
    /* the model, and how it runs */
    const char *model, *hub;
    int64_t context, threads, chunk, page_size;
    int kv_type, exec, device, activations, bf16_copies;
    int64_t order;     /* of the machine `serial`: a seed */
    int speculate;     /* index into cli_speculations */
    const char *draft; /* a model */
    const char *cpu_mask;
    option_strings kernels; /* "rms_norm=mine.c" */
    option_strings lora, lora_modules;
    bool lora_merge, lora_waits;
    int64_t lora_at_once;
    bool verbose;
    /* sampling */
    double drawing[QP_SETTING_COUNT]; /* settings without a member of their own */
    double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    int64_t top_k, seed;
    option_strings stops, logit_biases;
    int64_t n_predict, eos_interval;
    bool ignore_eos;
    const char *json_schema, *grammar; /* a file, or the text itself */
    /* input and output */
    const char *prompt, *file, *ids, *out, *system, *dump;
    bool raw, chat, echo, json, special, parse_special, bos, generation_prompt, plain;
    int thoughts; /* index into cli_thoughts */
    int64_t top;
    int64_t chunks;
    /* bench */
    int64_t n_prompt, n_generate, depth, parallel, repetitions;
    int format;
    /* convert */
    const char *type;
    bool pure, clamp;
    const char *imatrix, *imatrix_out;
    /* plan and shapes */
    int64_t tokens, sequences, ranks, rank, batch, kv_partitions;
    int cut, ranks_by; /* indices into cli_cuts, and into auto, threads, mpi, messages */
    const char *gpus;
    int exchange; /* index into cli_exchanges */
    uint64_t memory;
    bool fuse, sums;
    const char *rules;
    int plan_form; /* index into cli_plan_forms */
    int act_type;  /* index into cli_act_types */
    /* schedule */
    int64_t workers, group;
    int setting, assign;
    double memory_fraction, bandwidth, gflops, signal_ns;
    bool list, verify, measure, compare, tune, linear, first_rule;
    const char *types;  /* of weights, with commas */
    const char *queues; /* a JSON file */
    const char *save, *load, *html, *svg, *schedule, *network;
    const char *left_out; /* kinds to skip */
    /* info */
    bool modules, config, list_kernels;
    const char *module;
    /* trace */
    bool table, parts, describe;
    int64_t tracks;
    /* diff */
    const char *machine_a, *machine_b, *start_after, *stop_after;
    int64_t singles, layers;
    /* ops */
    bool all, last, markdown;
    int page_format;
    const char *variant, *kernel, *workload, *of;
    const char *arch;  /* of a GPU that need not be installed; NULL: of the GPU here */
    int kernel_device; /* index into cli_kernel_devices */
    int64_t timeout;
    const char *command; /* that writes kernels */
    int64_t rounds, seconds, beam;
    bool resume;
    const char *data, *definition, *python;
    bool save_traces, unconfined;
    double atol, rtol;
    /* load */
    const char *url, *served, *text, *replay, *limits, *api_key_file;
    bool words;
    int64_t streams, requests, warmup, input_tokens, output_tokens, shared_prefix, prefix_groups;
    int64_t vocab_size, skip, sample;
    int64_t servers, copies, kv_positions;
    const char *costs;
    int router; /* index into load_router */
    double rate, duration, speed, scale, silence, sse_ping;
    /* serve; the key file is that of load */
    const char *alias, *chat_template, *tls_cert, *tls_key, *api_prefix, *kv_events,
        *kv_events_replay, *kv_events_topic;
    const char *template_kwargs; /* of run and chat, too */
    option_strings hosts, origins;
    bool insecure, shared_cache, batch_invariant, access_log, log_json, matryoshka, own_metrics;
    int pooling;     /* index into cli_poolings */
    int raw_special; /* index into cli_switches */
    int64_t port, http_workers, max_connections, client_connections, max_queued, pages;
    uint64_t store_size, max_body, prompt_cache_size, cache_packed_size;
    const char *prompt_cache, *cache_packed;
    double drain, drain_delay, keep_alive, load_timeout;
    const char *models;
    uint64_t models_memory;
    int64_t started_by; /* the descriptor of the server that shares memory out; 0: none */
} cli_settings;

/* The choices of --kv-type, --exec and --device, by index; each list ends with NULL. */
extern const char *const cli_kv_types[], *const cli_execs[], *const cli_devices[];
extern const char *const cli_activations[], *const cli_cuts[], *const cli_speculations[],
                                                                   *const cli_exchanges[];
extern const char *const cli_poolings[], *const cli_switches[], *const cli_thoughts[];
extern const char *const cli_copies[];
extern const char *const cli_plan_forms[]; /* by plan_form */

/* The index of a machine in cli_execs, which has it. */
int cli_exec_index(const char *name);
extern const char *const cli_act_types[];
extern const char *const cli_schedule_settings[], *const cli_schedule_assignments[];

/* Of serve: asks the server that has started this process. */
qp_status cli_ask_for_memory(void *settings, uint64_t bytes, qp_error *error);

/* The call of a command: its settings and where each came from. */
typedef struct cli_call {
    const program_spec *program;
    cli_settings *settings;
    const option_result *options;
    qp_error *error;
    const qp_kernel *kernels; /* [n_kernels]: those of --kernel, loaded */
    size_t n_kernels;
    const qp_cuda_kernel *cuda_kernels; /* [n_cuda_kernels]: of these those for a GPU */
    size_t n_cuda_kernels;
    struct dump *dump; /* receives the tensors of --dump; NULL: none */
} cli_call;

typedef qp_status cli_command(const cli_call *call);

/* The adapters of --lora and --lora-modules, and what they are called. */
enum { CLI_ADAPTERS = 64 };
typedef struct cli_adapter {
    qp_adapter adapter;
    const char *name;
} cli_adapter;
typedef struct cli_adapters {
    qp_adapter of[CLI_ADAPTERS]; /* [n] */
    const char *names[CLI_ADAPTERS];
    size_t n;
} cli_adapters;
qp_status cli_read_adapters(const cli_call *call, cli_adapters *out);

/* What the command line says of each model of --models, for its own `quipu serve`: free() the
 * list, whose texts lie in *words. NULL: no memory. */
const char **cli_arguments_for_models(const cli_call *call, strbuf *words, size_t *count);

/* Runs a command with the kernels of --kernel, in a process of its own; *code is what that one
 * ended with. */
qp_status cli_run_with_kernels(const cli_call *call, cli_command *command, int *code);

/* Says what went wrong, if something did; the exit status for it. A process whose reader has gone
 * ends here. */
int cli_end(qp_status status, const qp_error *error);

cli_command command_run, command_chat, command_tokenize, command_detokenize, command_template,
    command_perplexity, command_logits, command_info, command_doctor, command_plan, command_shapes,
    command_bench, command_schedule, command_trace, command_diff, command_convert, command_help,
    command_pull, command_list, command_rm, command_man, command_completion, command_version,
    command_ops_list, command_ops_describe, command_ops_prompt, command_ops_check,
    command_ops_bench, command_ops_export, command_ops_import, command_ops_improve,
    command_ops_leaderboard, command_load, command_serve;

/* Names that similar programs use, with what to use here; and parts of the manual page. */
extern const option_foreign cli_foreign_flags[], cli_foreign_commands[];
extern const option_entry cli_exit_statuses[], cli_files[], cli_variables[], cli_examples[];

/* The program's tables, and the function that runs a command. */
const program_spec *cli_program(void);
cli_command *cli_function(const command_spec *command);

/* The path of the model to use: the one that was named, else the default model in the user's cache.
 * QP_IO names the command that fetches it when it is missing. The text lives as long as the
 * process. */
qp_status cli_model_path(const cli_call *call, const char **path);

/* Replaces a hub's name for a model ("hf:OWNER/REPOSITORY[:FILE or TYPE]"; with `always` also
 * without "hf:") or a short name by the path of its file, which is fetched first where it is
 * missing. Other names are returned as they are. The text lives as long as the process. */
qp_status cli_hub_path(const char *model, bool always, const char **path, qp_error *error);

/* The file of the costs measured with that many workers; NULL when there is no cache folder. The
 * text is overwritten by the next call. */
const char *cli_costs_path(const char *device, int64_t workers);

/* A log callback for engines and conversions. Prints to stderr, information only with -v. Its
 * context is the cli_call. */
void cli_log(void *call, qp_log_level level, const char *message);

/* The schedule that the call's settings choose. */
qp_schedule_options cli_schedule(const cli_call *call);

/* The part of the pass that the call's settings choose. */
pass_part cli_part(const cli_call *call);

/* Opens the engine with the call's settings. `max_outputs`: rows of logits in one pass, 0: one. A
 * process that mpirun has started as a rank other than the first does not return: it computes its
 * part until the first rank has ended, and ends. */
qp_status cli_open_engine(const cli_call *call, int64_t max_outputs, qp_engine **out);

/* The same for a command that runs its first pass at once: see pass_part. */
qp_status cli_open_engine_at_once(const cli_call *call, int64_t max_outputs, qp_engine **out);

/* Whether cli_open_engine() will not return an engine: this process only starts mpirun, or is a
 * rank other than the first. */
bool cli_only_helps_ranks(const cli_call *call);

/* Runs this program anew under mpirun, with the same arguments; returns only if that fails. */
qp_status cli_start_ranks(const cli_call *call, int ranks);

/* Shows a progress line that is overwritten; NULL where standard error is not a terminal. */
typedef void cli_progress_callback(void *context, const char *text, bool finished);
cli_progress_callback *cli_progress(void);

/* Shows a line on standard error in place of the one before, cut to the terminal's width; "" clears
 * it. `context` is not used. */
typedef void cli_line_callback(void *context, const char *text);
cli_line_callback cli_show_line;

/* cli_show_line(); NULL where standard error is not a terminal. */
cli_line_callback *cli_line(void);

/* Hides progress until it is called with false: while something is timed. */
void cli_hold_progress(bool hold);

/* The model's sampling settings overlaid with the command line's; cli_sampling_free() it.
 * cli_sampling_likely() excludes unlikely tokens where neither says otherwise: see
 * engine/sampling.h. */
qp_status cli_sampling_likely(const cli_call *call, qp_engine *engine, qp_sampling *out);
qp_status cli_sampling(const cli_call *call, qp_engine *engine, qp_sampling *out);
void cli_sampling_free(qp_sampling *sampling);

/* Whether the form of answers comes from standard input. */
bool cli_form_is_input(const cli_settings *settings);

/* Prints every sampling setting with its value and source to stderr. */
void cli_report_sampling(const cli_call *call, const qp_sampling *sampling);

/* Reads all of standard input or of a file; to free(). QP_FORMAT if it holds more than `most`
 * bytes, because a device such as /dev/zero never ends. */
enum { CLI_TEXT_MOST = 256 << 20 };
qp_status cli_read_stdin(char **text, size_t *length, qp_error *error);
/* A file, or standard input where it is NULL or "-". */
qp_status cli_read_input(const char *file, char **text, size_t *length, qp_error *error);
qp_status cli_read_file(const char *path, size_t most, char **text, size_t *length,
                        qp_error *error);

/* The prompt of -p, of -f, or of standard input when neither is given; to free(). */
qp_status cli_read_prompt(const cli_call *call, char **text, size_t *length);

/* Parses "1,2,3" or "1 2 3" (or line breaks between) as ids; `where` names the text in messages. */
qp_status cli_parse_ids(const char *text, const char *where, qp_tokens *out, qp_error *error);

/* The tokens of a prompt, by qp_tokenize() with its `flags`. For a model without a vocabulary
 * (NULL) the text is a list of ids. */
qp_status cli_tokenize(const cli_call *call, const qp_vocabulary *vocabulary, const char *text,
                       size_t length, unsigned flags, qp_tokens *tokens);

/* The tokens of --ids, or of the prompt by cli_tokenize(), with BOS where the model wants it; at
 * least one. */
qp_status cli_read_tokens(const cli_call *call, const qp_vocabulary *vocabulary, qp_tokens *tokens);

/* Writes to stdout; QP_IO when it cannot be written (a full disk, a closed pipe). */
qp_status cli_write(const void *bytes, size_t length, qp_error *error);
qp_status cli_flush(qp_error *error);

/* Writes a file. A file that was only partly written is removed. cli_remove_partial() removes a
 * regular file that another function left half-written. */
qp_status cli_write_file(const char *path, const void *bytes, size_t length, qp_error *error);
void cli_remove_partial(const char *path);

/* Called first by main(). SIGINT ends the program with a message unless it is caught, failed writes
 * are reported as statuses instead of signals, and closed standard descriptors are replaced. */
void cli_handle_signals(void);
void cli_fill_descriptors(void);

/* Set by SIGINT between cli_catch_interrupt() and cli_release_interrupt(). Meanwhile the process is
 * ended 1.5 s after the signal if it has not ended by itself, whatever it waits for, and 1.5 s
 * after the last reader of its standard output has gone, if that is a pipe. */
extern volatile int cli_interrupted;
void cli_catch_interrupt(void);
void cli_release_interrupt(void);

/* The same for a conversation, which goes on: the process is ended only by another interrupt, two
 * seconds or more after one that did not end the answer. */
void cli_catch_answers_interrupt(void);

/* Ends the process 1.5 s from now, or takes that back. */
void cli_limit_ending(bool limit);

/* The same also for SIGTERM, SIGHUP and SIGQUIT, for work that must not leave half-written files:
 * cli_release_endings() ends the process by the signal that arrived. */
void cli_catch_endings(void);
void cli_release_endings(void);

/* The line of statistics after an answer, to stderr. */
void cli_report_statistics(const qp_engine *engine, const qp_generate_result *result);
