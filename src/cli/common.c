/* What the commands share: see cli.h. */
#include "cli/cli.h"
#include "cli/terminal.h"

#include "base/files.h"
#include "base/option_cache.h"
#include "base/threads.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"

qp_status cli_model_path(const cli_call *call, const char **path)
{
    static char found[4096];
    if (call->settings->hub) return cli_hub_path(call->settings->hub, true, path, call->error);
    if (call->settings->model) return cli_hub_path(call->settings->model, false, path, call->error);
    if (!option_cache_path(QUIPU_DEFAULT_MODEL, found, sizeof found))
        return error_set(call->error, QP_INVALID,
                         "no model was named, and without HOME there is no cache to look in; "
                         "name one with -m");
    if (access(found, R_OK) != 0)
        return error_set(
            call->error, QP_IO,
            "no model was named, and the default model is not at %s: name one, such as "
            "-m model.gguf or -m smollm2:360m, or fetch the default one with ./dev "
            "fetch-model",
            found);
    *path = found;
    return QP_OK;
}

const char *cli_costs_path(const char *device, int64_t workers)
{
    static char path[4096];
    char name[64];
    snprintf(name, sizeof name, "costs/%s-%lld.txt", device, (long long)workers);
    return option_cache_path(name, path, sizeof path) ? path : NULL;
}

void cli_log(void *context, qp_log_level level, const char *message)
{
    const cli_call *call = context;
    if (level != QP_LOG_INFO || call->settings->verbose)
        fprintf(stderr, "quipu: %s%s\n", level == QP_LOG_WARNING ? "warning: " : "", message);
}

/* Standard output is a terminal with an unfinished line, which progress would erase. */
static bool line_open;

static bool progress_held;

void cli_hold_progress(bool hold)
{
    progress_held = hold;
}

void cli_show_line(void *context, const char *text)
{
    (void)context;
    int columns, lines;
    terminal_size(&columns, &lines);
    fprintf(stderr, "\r\033[K%.*s", columns - 1, text);
    fflush(stderr);
}

static void show_progress(void *context, const char *text, bool finished)
{
    if (line_open || progress_held) return;
    cli_show_line(context, finished ? "" : text);
}

static bool has_lines(void)
{
    return isatty(STDERR_FILENO) && option_terminal_has_sequences();
}

cli_line_callback *cli_line(void)
{
    return has_lines() ? cli_show_line : NULL;
}

cli_progress_callback *cli_progress(void)
{
    return has_lines() ? show_progress : NULL;
}

qp_schedule_options cli_schedule(const cli_call *call)
{
    const cli_settings *s = call->settings;
    return (qp_schedule_options){.size = sizeof(qp_schedule_options),
                                 .setting = cli_schedule_settings[s->setting],
                                 .assignment = cli_schedule_assignments[s->assign],
                                 .memory_fraction = s->memory_fraction,
                                 .file = s->schedule};
}

pass_part cli_part(const cli_call *call)
{
    const cli_settings *s = call->settings;
    const int64_t threads = s->threads ? s->threads : threads_available();
    return (pass_part){.skip = s->left_out,
                       .start_after = s->start_after,
                       .stop_after = s->stop_after,
                       .layers = s->layers,
                       .costs = cli_costs_path("cpu", threads)};
}

/* The path of the draft model; NULL: there is none. The model's path is looked up after it, which
 * overwrites what cli_hub_path() returned. */
static qp_status find_draft(const cli_call *call, const char **path)
{
    static char found[4096];
    *path = NULL;
    if (!call->settings->draft) return QP_OK;
    TRY(cli_hub_path(call->settings->draft, false, path, call->error));
    snprintf(found, sizeof found, "%s", *path);
    *path = found;
    return QP_OK;
}

/* The life of a rank other than the first. */
static void follow(const qp_engine_options *options)
{
    qp_error error = {0};
    exit(cli_end(qp_rank_follow(options, &error), &error));
}

/* Whether ranks are processes that mpirun has started, or is to start. */
static bool by_mpi(const cli_settings *s)
{
    return s->ranks_by >= 2 || (s->ranks_by == 0 && qp_rank() >= 0);
}

bool cli_only_helps_ranks(const cli_call *call)
{
    return by_mpi(call->settings) && qp_rank() != 0;
}

static qp_status open_engine(const cli_call *call, int64_t max_outputs, bool at_once,
                             qp_engine **out)
{
    const cli_settings *s = call->settings;
    const qp_schedule_options schedule = cli_schedule(call);
    qp_engine_options options = {.size = sizeof options,
                                 .schedule = &schedule,
                                 .threads = (int)s->threads,
                                 .context = s->context,
                                 .chunk = s->chunk,
                                 .max_sessions = s->parallel,
                                 .max_outputs = max_outputs,
                                 .page_size = s->page_size,
                                 .pages = s->pages,
                                 .kv_type = cli_kv_types[s->kv_type],
                                 .exec = cli_execs[s->exec],
                                 .device = cli_devices[s->device],
                                 .workers = (int)s->workers,
                                 .order = (uint64_t)s->order,
                                 .plan = cli_plan_forms[s->plan_form],
                                 .act_type = cli_act_types[s->act_type],
                                 .fuse = s->fuse,
                                 .batch_invariant = s->batch_invariant,
                                 .activations = cli_activations[s->activations],
                                 .bf16_copies = cli_copies[s->bf16_copies],
                                 .speculate = cli_speculations[s->speculate],
                                 .cpu_mask = s->cpu_mask,
                                 .kernels = call->kernels,
                                 .n_kernels = call->n_kernels,
                                 .cuda_kernels = call->cuda_kernels,
                                 .n_cuda_kernels = call->n_cuda_kernels,
                                 .log = cli_log,
                                 .log_context = (void *)call,
                                 .ranks = (int)s->ranks,
                                 .transport = s->ranks_by == 3 ? "messages"
                                              : by_mpi(s)      ? "mpi"
                                                               : "threads",
                                 .cut = cli_cuts[s->cut],
                                 .gpus = s->gpus,
                                 .exchange = cli_exchanges[s->exchange],
                                 .cache_packed = s->cache_packed,
                                 .cache_packed_size = s->cache_packed_size,
                                 .progress = cli_progress()};
    if (by_mpi(s) && qp_rank() < 0) return cli_start_ranks(call, (int)s->ranks);
    qp_status status = find_draft(call, &options.draft);
    if (status == QP_OK) status = cli_model_path(call, &options.model);
    if (status == QP_OK && by_mpi(s) && qp_rank() > 0) follow(&options);
    if (s->threads > threads_available())
        fprintf(stderr,
                "quipu: warning: %lld threads on %d processors take turns, which is many times "
                "slower; without -t there is one for each processor\n",
                (long long)s->threads, threads_available());
    pass_part part = cli_part(call);
    part.at_once = at_once;
    return status == QP_OK ? part_open(&options, &part, out, call->error) : status;
}

qp_status cli_open_engine(const cli_call *call, int64_t max_outputs, qp_engine **out)
{
    return open_engine(call, max_outputs, false, out);
}

qp_status cli_open_engine_at_once(const cli_call *call, int64_t max_outputs, qp_engine **out)
{
    return open_engine(call, max_outputs, true, out);
}

qp_status cli_read_file(const char *path, size_t most, char **text, size_t *length, qp_error *error)
{
    strbuf buf = {0};
    qp_status status = path ? files_read(path, most, &buf, error)
                            : files_read_stream(stdin, "standard input", most, &buf, error);
    *length = buf.length;
    *text = strbuf_take(&buf);
    if (status == QP_OK && !*text) status = error_no_memory(error, "a text", *length);
    if (status == QP_OK) return QP_OK;
    free(*text);
    *text = NULL;
    return status;
}

qp_status cli_read_stdin(char **text, size_t *length, qp_error *error)
{
    if (isatty(STDIN_FILENO)) fputs("quipu: reading standard input; end it with Ctrl-D\n", stderr);
    return cli_read_file(NULL, CLI_TEXT_MOST, text, length, error);
}

qp_status cli_read_input(const char *file, char **text, size_t *length, qp_error *error)
{
    if (!file || strcmp(file, "-") == 0) return cli_read_stdin(text, length, error);
    return cli_read_file(file, CLI_TEXT_MOST, text, length, error);
}

qp_status cli_read_prompt(const cli_call *call, char **text, size_t *length)
{
    const cli_settings *s = call->settings;
    if (!s->prompt) return cli_read_input(s->file, text, length, call->error);
    *text = strdup(s->prompt);
    if (!*text) return error_no_memory(call->error, "the prompt", strlen(s->prompt));
    *length = strlen(s->prompt);
    return QP_OK;
}

qp_status cli_parse_ids(const char *text, const char *where, qp_tokens *out, qp_error *error)
{
    static const char separators[] = ", \t\r\n[]";
    for (const char *at = text + strspn(text, separators); *at; at += strspn(at, separators)) {
        char *end;
        errno = 0;
        long id = strtol(at, &end, 10);
        if (end == at || errno || id < 0 || id > INT32_MAX || !strchr(separators, *end))
            return error_set(error, QP_INVALID,
                             "%s: token ids are whole numbers separated by commas or spaces, found "
                             "\"%.*s\"",
                             where, (int)strcspn(at, separators), at);
        at = end;
        if (out->count == out->capacity) {
            size_t capacity = out->capacity ? 2 * out->capacity : 256;
            int32_t *data = realloc(out->data, capacity * sizeof *data);
            if (!data) return error_no_memory(error, "token ids", capacity * sizeof *data);
            out->data = data;
            out->capacity = capacity;
        }
        out->data[out->count++] = (int32_t)id;
    }
    return QP_OK;
}

qp_status cli_tokenize(const cli_call *call, const qp_vocabulary *vocabulary, const char *text,
                       size_t length, unsigned flags, qp_tokens *tokens)
{
    if (vocabulary) return qp_tokenize(vocabulary, text, length, flags, tokens, call->error);
    return cli_parse_ids(text, "the prompt (the model has no vocabulary)", tokens, call->error);
}

qp_status cli_read_tokens(const cli_call *call, const qp_vocabulary *vocabulary, qp_tokens *tokens)
{
    const cli_settings *s = call->settings;
    char *text = NULL;
    size_t length;
    qp_status status;
    if (s->ids) {
        status = cli_parse_ids(s->ids, "--ids", tokens, call->error);
    } else {
        TRY(cli_read_prompt(call, &text, &length));
        status = cli_tokenize(call, vocabulary, text, length, QP_BOS_DEFAULT, tokens);
        free(text);
    }
    if (status == QP_OK && tokens->count == 0)
        status = error_set(call->error, QP_INVALID,
                           "the prompt is empty: there is no token to begin from");
    return status;
}

/* Standard output's reader has closed the pipe. */
static bool reader_gone;

static qp_status output_failed(qp_error *error)
{
    reader_gone |= errno == EPIPE;
    return error_set(error, QP_IO, "standard output cannot be written: %s", strerror(errno));
}

qp_status cli_write(const void *bytes, size_t length, qp_error *error)
{
    if (length == 0) return QP_OK;
    line_open = ((const char *)bytes)[length - 1] != '\n' && isatty(STDOUT_FILENO);
    if (fwrite(bytes, 1, length, stdout) == length) return QP_OK;
    return output_failed(error);
}

/* If the reader of stdout has closed the pipe, ends the process by SIGPIPE without a message, as
 * `quipu plan | head` expects. Called when everything has been cleaned up. */
static void end_with_reader(void)
{
    if (!reader_gone) return;
    signal(SIGPIPE, SIG_DFL);
    raise(SIGPIPE);
}

static int exit_code(qp_status status)
{
    switch (status) {
    case QP_OK:
        return 0;
    case QP_INVALID:
        return 2;
    case QP_CANCELLED:
        return 130;
    default:
        return 1;
    }
}

int cli_end(qp_status status, const qp_error *error)
{
    end_with_reader();
    fflush(stdout); /* in a common file the message follows the output */
    if (status != QP_OK) fprintf(stderr, "quipu: %s\n", error->message);
    return exit_code(status);
}

qp_status cli_write_file(const char *path, const void *bytes, size_t length, qp_error *error)
{
    FILE *file = fopen(path, "wb");
    if (!file) return error_set(error, QP_IO, "%s: cannot be created: %s", path, strerror(errno));
    bool written = fwrite(bytes, 1, length, file) == length;
    int why = errno;
    if (fclose(file) != 0 && written) {
        written = false;
        why = errno;
    }
    if (written) return QP_OK;
    cli_remove_partial(path);
    return error_set(error, QP_IO, "%s: cannot be written: %s", path, strerror(why));
}

void cli_remove_partial(const char *path)
{
    struct stat found;
    if (stat(path, &found) == 0 && S_ISREG(found.st_mode)) unlink(path);
}

qp_status cli_flush(qp_error *error)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return QP_OK;
    return output_failed(error);
}

volatile int cli_interrupted;
static volatile sig_atomic_t catching;

/* While no command catches interrupts, there are no half-written files, so the process may end at
 * once. It ends by the signal itself, so that a shell stops its loop too. */
static void on_interrupt(int number)
{
    static const char message[] = "\nquipu: interrupted\n";
    cli_interrupted = 1;
    if (catching) return;
    ssize_t ignored = write(STDERR_FILENO, message, sizeof message - 1);
    (void)ignored;
    signal(number, SIG_DFL);
    raise(number);
}

void cli_handle_signals(void)
{
    struct sigaction action = {.sa_handler = on_interrupt}; /* reads are not restarted */
    sigaction(SIGINT, &action, NULL);
    signal(SIGPIPE, SIG_IGN); /* a closed pipe and a file that may not grow further are errors */
    signal(SIGXFSZ, SIG_IGN); /* of writing, reported like any other */
}

void cli_catch_interrupt(void)
{
    cli_interrupted = 0;
    catching = 1;
}

void cli_release_interrupt(void)
{
    catching = 0;
}

static const int endings[] = {SIGTERM, SIGHUP, SIGQUIT};
enum { N_ENDINGS = sizeof endings / sizeof *endings };
static volatile sig_atomic_t ending; /* the signal that arrived */

static void on_ending(int number)
{
    ending = number;
    cli_interrupted = 1;
}

void cli_catch_endings(void)
{
    cli_catch_interrupt();
    for (int i = 0; i < N_ENDINGS; i++) {
        struct sigaction action, found;
        sigaction(endings[i], NULL, &found);
        action = (struct sigaction){.sa_handler = on_ending};
        /* nohup lets a program ignore SIGHUP. */
        if (found.sa_handler != SIG_IGN) sigaction(endings[i], &action, NULL);
    }
}

void cli_release_endings(void)
{
    cli_release_interrupt();
    for (int i = 0; i < N_ENDINGS; i++) {
        struct sigaction found;
        sigaction(endings[i], NULL, &found);
        if (found.sa_handler == on_ending) signal(endings[i], SIG_DFL);
    }
    if (ending) raise(ending);
}

/* If the caller closed a standard descriptor, the next file opened would get its number, and
 * answers would be written into that file. A descriptor that refuses to be written (for standard
 * input, read) takes its place. */
void cli_fill_descriptors(void)
{
    static const int modes[] = {O_WRONLY, O_RDONLY, O_WRONLY};
    for (int fd = 0; fd < 3; fd++) {
        if (fcntl(fd, F_GETFD) < 0) open("/dev/null", modes[fd]);
    }
}

/* "1 token", "5 tokens" */
static void put_tokens(size_t count, strbuf *out)
{
    strbuf_printf(out, "%zu token%s", count, count == 1 ? "" : "s");
}

void cli_report_statistics(const qp_engine *engine, const qp_generate_result *r)
{
    strbuf text = {0};
    double weights = (double)qp_engine_get_info(engine)->read_bytes * 1e-9;
    double prompt = r->prompt_seconds > 0 ? r->prompt_seconds : 1e-9;
    double generate = r->generate_seconds > 0 ? r->generate_seconds : 1e-9;
    strbuf_puts(&text, "prompt ");
    put_tokens(r->prompt_tokens, &text);
    strbuf_printf(&text, ", %.1f tokens/s; generated ", (double)r->prompt_tokens / prompt);
    put_tokens(r->generated_tokens, &text);
    if (r->generate_passes) /* the prompt's last pass gives the first token */
        strbuf_printf(&text, ", %.1f tokens/s, %.1f GB/s of weights",
                      (double)(r->generate_passes + r->accepted_tokens) / generate,
                      (double)r->generate_passes * weights / generate);
    if (r->proposed_tokens)
        strbuf_printf(&text, ", %zu of %zu proposed tokens accepted", r->accepted_tokens,
                      r->proposed_tokens);
    strbuf_printf(&text, "; %s", qp_finish_name(r->finish));
    terminal_note(0, strbuf_text(&text));
    strbuf_free(&text);
}
