/* The commands: the one table from which help, the manual page, shell completions and the QUIPU_*
 * variables are made. Their options are in options_*.c. */
#include "base/version.h"
#include "cli/option_groups.h"
#include "engine/sampling.h"

#define GROUPS(...)                                                                                \
    (const option_group *const[])                                                                  \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

/* A command's name, and the function that runs it. */
#define COMMAND(words, function) .name = (words), .run = (void (*)(void))(function)

/* For commands that sample by cli_sampling_likely(). */
#define TEXT_(value) #value
#define TEXT(value)  TEXT_(value)
#define UNLIKELY                                                                                   \
    "Where the model's files have no settings of sampling, unlikely tokens are excluded: "         \
    "--temp " TEXT(SAMPLING_LIKELY_TEMPERATURE) " --top-k " TEXT(                                  \
        SAMPLING_LIKELY_TOP_K) " --top-p " TEXT(SAMPLING_LIKELY_TOP_P) " --min-p " TEXT(SAMPLING_LIKELY_MIN_P) ". Options replace each of these."

static const command_spec commands[] = {
    {COMMAND("run", command_run), .heading = "Answers",
     .synopsis = "[MODEL] [PROMPT | -p PROMPT | -f FILE] [OPTION...]", .positional_maximum = -1,
     .first_word = "model", .summary = "answer one prompt",
     .description =
         "quipu run llama3.2:1b \"why is the sky blue\" names the model and the prompt in words; "
         "with a model and no prompt, at a terminal, it is `quipu chat`. The answer goes to stdout "
         "as it is made, and one line of statistics to "
         "stderr. Where the model has a chat template, the prompt is the user's message "
         "of a conversation; --raw continues it as plain text. With -p, text on standard input "
         "goes before the prompt: quipu run -p 'Summarize this:' < report.txt.\n\n" UNLIKELY,
     .groups =
         GROUPS(&cli_model_options, &cli_prompt_options, &cli_run_options, &cli_answer_options,
                &cli_setting_options, &cli_ending_options, &cli_form_options, &cli_context_options,
                &cli_engine_options, &cli_lora_options, &cli_speculation_options,
                &cli_queue_options, &cli_cache_options, &cli_own_kernel_options)},
    {COMMAND("chat", command_chat), .first_word = "model", .synopsis = "[MODEL] [OPTION...]",
     .summary = "have a conversation with a model",
     .description =
         "Type a message and press Enter; lines pasted together are one message. Ctrl-C stops an "
         "answer, Ctrl-D ends the "
         "conversation, /help lists the commands.\n\n" UNLIKELY,
     .groups = GROUPS(&cli_model_options, &cli_chat_options, &cli_answer_options,
                      &cli_setting_options, &cli_ending_options, &cli_form_options,
                      &cli_context_options, &cli_engine_options, &cli_lora_options,
                      &cli_speculation_options, &cli_queue_options, &cli_cache_options)},
    {COMMAND("serve", command_serve), .first_word = "model",
     .synopsis = "[MODEL] [--port N] [OPTION...]",
     .summary = "answer many clients over HTTP, by the APIs of OpenAI, Anthropic and Ollama",
     .description =
         "Listens on this host alone unless --host names another address, which needs API keys. "
         "Requests share the model: --parallel says how many are answered at a time, the others "
         "wait. The sampling options are what holds where a request says nothing. Without them and "
         "settings in the model's files, OpenAI's and Anthropic's endpoints sample at temperature "
         "1 from all tokens; the page and the endpoints of Ollama and llama.cpp exclude unlikely "
         "ones as quipu run does. GET /health is "
         "200 when the model is there, /openapi.json lists all endpoints and their fields. SIGTERM "
         "lets answers end, SIGHUP reads the key file again.",
     .groups =
         GROUPS(&cli_model_options, &cli_serve_options, &cli_access_options, &cli_limit_options,
                &cli_setting_options, &cli_context_options, &cli_engine_options, &cli_lora_options,
                &cli_speculation_options, &cli_queue_options, &cli_cache_options)},
    {COMMAND("pull", command_pull), .heading = "Models", .synopsis = "[NAME]",
     .summary = "fetch a model from Hugging Face, or list the short names",
     .description =
         "NAME is a short name such as llama3.2:1b, OWNER/REPOSITORY, "
         "OWNER/REPOSITORY:FILE.gguf or OWNER/REPOSITORY:TYPE. The model is stored in the cache "
         "that Hugging Face's Python library uses (HF_HOME, HF_HUB_CACHE), and its path is "
         "printed. HF_ENDPOINT names another hub, HF_TOKEN a token for gated "
         "models. An interrupted fetch is resumed, and every file's hash is checked. "
         "Commands that take -m fetch hf:NAME, or a short name, by themselves.",
     .positional_maximum = 1},
    {COMMAND("list", command_list), .synopsis = "[--json]",
     .summary = "list the models in the cache", .groups = GROUPS(&cli_json_options)},
    {COMMAND("rm", command_rm), .synopsis = "NAME",
     .summary = "remove a fetched model: all of it, or the file that NAME selects",
     .positional_minimum = 1, .positional_maximum = 1},
    {COMMAND("info", command_info), .first_word = "model",
     .synopsis = "[MODEL] [--modules | --config] [--json]",
     .summary = "show a model's family, sizes and tensors, its modules or its configuration",
     .groups = GROUPS(&cli_model_options, &cli_info_options)},
    {COMMAND("convert", command_convert), .first_word = "model",
     .synopsis = "[-m MODEL] -o FILE.gguf [--type TYPE]",
     .summary = "write a model as a GGUF file, in another element type if asked",
     .description = "MODEL may be a GGUF file, a Hugging Face directory or synthetic weights; "
                    "llama.cpp reads the file too. The file appears whole or not at all. What it "
                    "cannot hold is an error or a warning.",
     .groups = GROUPS(&cli_model_options, &cli_lora_options, &cli_convert_options)},
    {COMMAND("tokenize", command_tokenize), .heading = "Texts and tokens", .first_word = "model",
     .synopsis = "[-m MODEL] [OPTION...] < TEXT",
     .summary = "convert text to token ids, on one line",
     .description = "MODEL may also be a directory that holds only tokenizer files, or a GGUF file "
                    "that holds only a vocabulary.",
     .groups = GROUPS(&cli_model_options, &cli_tokenize_options)},
    {COMMAND("detokenize", command_detokenize), .first_word = "model",
     .synopsis = "[-m MODEL] [OPTION...] < IDS", .summary = "convert token ids to text",
     .groups = GROUPS(&cli_model_options, &cli_detokenize_options)},
    {COMMAND("template", command_template), .first_word = "model",
     .synopsis = "[-m MODEL] [OPTION...] < MESSAGES",
     .summary = "render a conversation with the model's chat template",
     .description = "Reads JSON: an array of messages, or an object of template variables with "
                    "that array under \"messages\".",
     .groups = GROUPS(&cli_model_options, &cli_template_options)},
    {COMMAND("logits", command_logits), .first_word = "model",
     .synopsis = "[-m MODEL] (-p PROMPT | --ids 1,2,3) [OPTION...]",
     .summary = "print the model's logits after every token",
     .groups = GROUPS(&cli_model_options, &cli_prompt_options, &cli_logits_options,
                      &cli_context_options, &cli_engine_options, &cli_lora_options,
                      &cli_cache_options, &cli_own_kernel_options)},
    {COMMAND("perplexity", command_perplexity), .first_word = "model",
     .synopsis = "[-m MODEL] -f FILE [OPTION...]",
     .summary = "measure how well a model predicts a text",
     .description =
         "The text is cut into chunks of --context tokens, and the first token of each is replaced "
         "by BOS. The second half of each chunk is scored. Prints exp of the mean negative log "
         "likelihood and its standard error.",
     .groups = GROUPS(&cli_model_options, &cli_perplexity_options, &cli_engine_options,
                      &cli_lora_options, &cli_cache_options, &cli_own_kernel_options)},
    {COMMAND("plan", command_plan), .heading = "A forward pass", .first_word = "model",
     .synopsis = "[-m MODEL] [OPTION...]",
     .summary = "show tensor lifetimes and exact memory of a forward pass",
     .description = "Each row is a step, each column a tensor: + created, o kept, m mapped from "
                    "the host, r read, w written, x destroyed. Weights are not read. With --device "
                    "cuda the launches of a pass follow: the steps that each launch runs, its "
                    "kernels, the forms of its input and output, and the steps inside a chain.",
     .groups = GROUPS(&cli_model_options, &cli_plan_options, &cli_fusing_options,
                      &cli_cache_options, &cli_lora_options)},
    {COMMAND("shapes", command_shapes), .first_word = "model",
     .synopsis = "[-m MODEL] --tokens N [--batch B]",
     .summary = "show the shapes of every step in prefill and decode",
     .groups = GROUPS(&cli_model_options, &cli_shapes_options, &cli_fusing_options)},
    {COMMAND("schedule", command_schedule), .first_word = "model",
     .synopsis = "[-m MODEL] [--workers N] [OPTION...]",
     .summary = "show a forward pass as instructions in queues, one queue for each worker",
     .description =
         "Prints the number of instructions of each kind, how evenly they are distributed and the "
         "predicted time of a pass. --list prints every instruction with its slice of the work, "
         "the counters that it waits for (c7>=4: until counter 7 has been signalled 4 times in "
         "this pass) and the counter that it signals. Only --compare reads the weights, because it "
         "runs the passes. Predictions use the costs that --measure stored for this processor, "
         "version and number of workers, or else guesses.",
     .groups = GROUPS(&cli_model_options, &cli_schedule_options, &cli_part_options)},
    {COMMAND("trace", command_trace), .first_word = "model",
     .synopsis = "[-m MODEL] (-p PROMPT | --ids 1,2,3) [-n N] [OPTION...]",
     .summary = "show what every worker did while a model answered",
     .description =
         "Reads the prompt and generates the likeliest tokens, once without and once with a record "
         "of every instruction, then prints where the time went. GB/s and GFLOP/s are sums over "
         "all workers while they do that kind of work; \"of limit\" is the time that the machine's "
         "own rates would allow, divided by the time taken. With --exec serial, operators run one "
         "after the other in their mathematical parts (Linear, RoPE, Concat, RepeatKV, MatMul, "
         "ReduceMax, ElementwiseExp, Normalize, SiLU, Mul, Add...), each cut into as many chunks "
         "as "
         "there are --tracks; with --parts, the workers of --exec threads run their instructions "
         "in these parts. With --device cuda, a track is a thread block of the megakernel, and its "
         "waits are for data of other blocks; with --exec cuda, the trace shows the launches of "
         "operators.",
     .groups =
         GROUPS(&cli_model_options, &cli_prompt_options, &cli_trace_options, &cli_context_options,
                &cli_engine_options, &cli_lora_options, &cli_queue_options, &cli_part_options,
                &cli_cache_options, &cli_own_kernel_options)},
    {COMMAND("diff", command_diff), .first_word = "model",
     .synopsis = "[-m MODEL] [--a MACHINE] [--b MACHINE] [OPTION...]",
     .summary = "compare the forward pass on two machines, tensor by tensor",
     .description =
         "Each step is compared alone: b reads the inputs that a has, and its outputs may differ "
         "by the operators' tolerances, or not at all where both run the same kernels. Then b runs "
         "the whole pass on its own, which shows how errors add up, and once more without a stop "
         "between steps, which must give the same bits. The exit status is 0 if everything is "
         "within tolerance; else the first difference is named.",
     .groups = GROUPS(&cli_model_options, &cli_diff_options, &cli_fusing_options,
                      &cli_cache_options, &cli_lora_options, &cli_own_kernel_options)},
    {COMMAND("bench", command_bench), .heading = "Speed", .first_word = "model",
     .synopsis = "[-m MODEL] [-p N] [-n N] [OPTION...]",
     .summary = "measure tokens per second of prompts and of generation",
     .description =
         "ppN reads one prompt of N tokens, tgN makes N forward passes of one token "
         "each; with --parallel P, P prompts at once and P tokens a pass, all of which "
         "count. A GPU feeds the likeliest token back by itself, for up to 16 passes at "
         "a time, and its rate is compared with its own read bandwidth. The table shows "
         "mean and standard deviation over the repetitions. With --skip the table shows what "
         "parts of a pass cost: the tests run with and without them, in turn, and the "
         "quickest run counts.",
     .groups =
         GROUPS(&cli_model_options, &cli_bench_options, &cli_context_options, &cli_engine_options,
                &cli_lora_options, &cli_speculation_options, &cli_queue_options, &cli_part_options,
                &cli_cache_options, &cli_own_kernel_options)},
    {COMMAND("load", command_load), .synopsis = "--url http://HOST:PORT [OPTION...]",
     .summary = "drive a server that speaks OpenAI's API, and measure what its clients see",
     .description =
         "Without --rate each of the streams asks again once it has its answer; with it requests "
         "arrive at random, and --replay takes their times and lengths from a trace. Prints the "
         "time to the first token (TTFT), the time per token after it (TPOT), the time between "
         "events (ITL), from end to end (E2EL), requests and tokens a second, as `vllm bench "
         "serve` defines them. With --simulate no server is asked: a fleet is computed. Exit "
         "status 1 if a request failed.",
     .groups = GROUPS(&cli_server_options, &cli_pace_options, &cli_question_options,
                      &cli_replay_options, &cli_simulation_options, &cli_figures_options)},
    {COMMAND("ops list", command_ops_list), .heading = "Operators and kernels",
     .synopsis = "[--of MODEL] [--json]",
     .summary = "list the operators, all or those of a model, with axes, types and variants",
     .groups = GROUPS(&cli_list_options)},
    {COMMAND("ops describe", command_ops_describe), .synopsis = "OPERATOR [--format FORMAT]",
     .summary = "print everything that the author of a kernel must know about an operator",
     .groups = GROUPS(&cli_describe_options), .positional_maximum = 1},
    {COMMAND("ops check", command_ops_check),
     .synopsis = "[OPERATOR...] [--variant NAME | --kernel FILE] [OPTION...]",
     .summary = "compare kernels with the reference on hard cases",
     .description =
         "Runs every operator's kernels on all of its cases: odd shapes, strides, unusual inputs, "
         "garbage around the tensors, several threads. A candidate runs with the rights of the "
         "user, so check only code that you would run. The exit status is 0 if all passed.",
     .groups = GROUPS(&cli_kernel_options, &cli_check_options), .positional_maximum = -1},
    {COMMAND("ops bench", command_ops_bench),
     .synopsis = "[OPERATOR...] [--variant NAME | --kernel FILE] [OPTION...]",
     .summary = "measure kernels on the shapes of real models",
     .description =
         "The reference, the best variant and the requested kernel run in turn with measurements "
         "of the machine's limits. Calls rotate over copies of the tensors "
         "that are larger than the caches. After the timing each kernel runs once more on inputs "
         "that it has not seen, and its outputs are compared with the reference.",
     .groups = GROUPS(&cli_kernel_options, &cli_timing_options), .positional_maximum = -1},
    {COMMAND("ops export", command_ops_export), .synopsis = "FOLDER",
     .summary = "write the operators as FlashInfer-Bench definitions and workloads",
     .positional_minimum = 1, .positional_maximum = 1, .positional_hint = OPTION_HINT_FOLDER},
    {COMMAND("ops import", command_ops_import), .synopsis = "SOLUTION.json | FOLDER [OPTION...]",
     .summary = "judge and time FlashInfer-Bench solutions; print their traces",
     .description =
         "FOLDER is a data set: all of its solutions are judged on the workloads of their "
         "definitions. A solution in Python, Triton, C++ or CUDA, or a C function of an op_call, "
         "is compared with its definition's reference, a Python function. One whose entry point is "
         "an operator's kernel, such as rms_norm.c::rms_norm_kernel for rmsnorm_h4096, is checked "
         "as by `ops check`. Solutions run in processes of their own, with a time limit. Those in "
         "C are confined; others, and references in Python, have your rights and need "
         "--unconfined.",
     .groups = GROUPS(&cli_import_options), .positional_minimum = 1, .positional_maximum = 1,
     .positional_hint = OPTION_HINT_FILE},
    {COMMAND("ops leaderboard", command_ops_leaderboard), .synopsis = "FOLDER [--json]",
     .summary = "compare FlashInfer-Bench solutions by their traces",
     .description = "For each definition and hardware: how many workloads each solution passed, on "
                    "how many it is the fastest of those that passed, and the geometric mean of "
                    "its speedups over the reference; then the fastest solution of each workload. "
                    "FOLDER is a data set, or a folder or .jsonl file of traces. Of several traces "
                    "of a solution on a workload the last counts.",
     .groups = GROUPS(&cli_json_options), .positional_minimum = 1, .positional_maximum = 1,
     .positional_hint = OPTION_HINT_FOLDER},
    {COMMAND("ops improve", command_ops_improve), .synopsis = "OPERATOR --command COMMAND",
     .summary = "ask a program for kernels again and again, and keep the best",
     .description =
         "Each round gives the command the page of `quipu ops prompt`, with the verdict and the "
         "times of its last kernel, and takes a kernel from its output. The kernel is checked as "
         "by `ops check` and timed beside quipu's own; the speedup is the geometric mean over the "
         "workloads. The folder gets each kernel (001.c, ...), best.c, and history.jsonl with a "
         "JSON object for each round. The exit status is 0 if a kernel passed.",
     .groups = GROUPS(&cli_improve_options), .positional_minimum = 1, .positional_maximum = 1},
    {COMMAND("ops prompt", command_ops_prompt), .synopsis = "OPERATOR [--last]",
     .summary = "print the description as a page for a language model that writes kernels",
     .groups = GROUPS(&cli_prompt_page_options), .positional_minimum = 1, .positional_maximum = 1},
    {COMMAND("help", command_help), .heading = "This program", .synopsis = "[COMMAND]",
     .summary = "show this list, or the help of a command", .positional_maximum = 2},
    {COMMAND("doctor", command_doctor), .first_word = "model",
     .synopsis = "[-m MODEL [OPTION...]] [--json]",
     .summary = "show what hardware quipu finds here and which of it quipu uses",
     .description = "With -m MODEL it also opens the model, runs a pass, and shows what the time "
                    "from the start to the first logits was spent on.",
     .groups = GROUPS(&cli_model_options, &cli_context_options, &cli_engine_options,
                      &cli_cache_options, &cli_json_options)},
    {COMMAND("man", command_man), .synopsis = "", .summary = "print the manual page, for man -l -"},
    {COMMAND("completion", command_completion), .synopsis = "bash|zsh|fish",
     .summary = "print a shell's completion script", .positional_minimum = 1,
     .positional_maximum = 1},
    {COMMAND("version", command_version), .synopsis = "", .summary = "print the version"},
    {0}};

static const program_spec program = {
    .name = "quipu",
    .version = version_text,
    .summary = "run Llama models, and see every operator, tensor and step on the way",
    .description = "Runs Llama models, and shows every operator, tensor and step on the way.",
    .commands = commands,
    .foreign_flags = cli_foreign_flags,
    .foreign_commands = cli_foreign_commands,
    .exit_statuses = cli_exit_statuses,
    .files = cli_files,
    .variables = cli_variables,
    .examples = cli_examples,
};

const program_spec *cli_program(void)
{
    return &program;
}

cli_command *cli_function(const command_spec *command)
{
    return (cli_command *)command->run;
}
