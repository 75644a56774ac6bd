/* The commands and their options: the one table behind help, manual page, completions and the
 * QUIPU_* variables. */
#include "cli/cli.h"

#include "base/version.h"

#define SETTINGS cli_settings

const char *const cli_kv_types[] = {"F16", "BF16", "F32", NULL};
const char *const cli_execs[] = {"auto",      "reference", "serial",     "threads",
                                 "operators", "cuda",      "megakernel", NULL};
static const char *const old_execs[][2] = {{"ref", "it is reference now"},
                                           {"ops", "it is operators now, and cuda on a GPU"},
                                           {"mk", "it is megakernel now"},
                                           {NULL, NULL}};
const char *const cli_activations[] = {"auto", "8", "16", "float", NULL};
const char *const cli_devices[] = {"auto", "cpu", "cuda", NULL};

static const option_spec model_options[] = {
    {"model", 'm', OPTION_STRING_AT(SETTINGS, model), .argument = "MODEL", .hint = OPTION_HINT_FILE,
     .help = "a GGUF file, a Hugging Face directory, hf:OWNER/REPOSITORY[:FILE or TYPE], a short "
             "name of `quipu pull`, or synthetic:PRESET[:TYPE[+OTHER][:SEED]]; without it the "
             "default model"},
    {"hf", 0, OPTION_STRING_AT(SETTINGS, hub), .argument = "REPOSITORY", .single_dash = true,
     .excludes = "model",
     .help =
         "a model of Hugging Face: OWNER/REPOSITORY[:FILE or TYPE], fetched where it is missing"},
    {"verbose", 'v', OPTION_FLAG_AT(SETTINGS, verbose), .help = "print what is used and why"},
    {0}};

static const option_spec cache_options[] = {
    {"page-size", 0, OPTION_INTEGER_AT(SETTINGS, page_size), .expert = true, .argument = "N",
     .fallback = "16", .minimum = 1, .maximum = 1 << 16,
     .help = "positions in a page of the KV cache"},
    {"kv-type", 0, OPTION_CHOICE_AT(SETTINGS, kv_type), .expert = true, .choices = cli_kv_types,
     .fallback = "F16", .argument = "TYPE", .help = "element type of the KV cache"},
    {0}};

static const option_spec context_options[] = {
    {"context", 'c', OPTION_INTEGER_AT(SETTINGS, context), .argument = "N", .fallback = "0",
     .maximum = 1 << 26, .help = "positions of a conversation; 0: the model's, at most 8192"},
    {0}};

static const option_spec engine_options[] = {
    {"threads", 't', OPTION_INTEGER_AT(SETTINGS, threads), .argument = "N", .fallback = "0",
     .maximum = 1024, .help = "CPU threads; 0: all that this process may use"},
    {"chunk", 0, OPTION_INTEGER_AT(SETTINGS, chunk), .expert = true, .argument = "N",
     .fallback = "0", .maximum = 1 << 16,
     .help = "tokens of a prompt in one forward pass; 0: 512, on a GPU 2048"},
    {"exec", 0, OPTION_CHOICE_AT(SETTINGS, exec), .expert = true, .choices = cli_execs,
     .renamed = old_execs, .fallback = "auto", .argument = "MACHINE",
     .help = "threads: a schedule, a queue for each; serial: a schedule, one instruction at a time "
             "by references; operators: operator by operator; reference: the same by references; "
             "megakernel: tokens in one kernel on a GPU; cuda: operator by operator on a GPU; "
             "auto: threads on the CPU, megakernel on a GPU where it runs the model, else cuda"},
    {"order", 0, OPTION_INTEGER_AT(SETTINGS, order), .expert = true, .argument = "SEED",
     .fallback = "0", .minimum = 0, .maximum = INT64_MAX,
     .help = "of --exec serial: instructions in a random order, any that the schedule allows; 0: "
             "each worker goes as far as it can, in turn"},
    {"device", 0, OPTION_CHOICE_AT(SETTINGS, device), .choices = cli_devices, .fallback = "auto",
     .argument = "DEVICE", .help = "what runs the model; auto: an NVIDIA GPU where there is one"},
    {"workers", 0, OPTION_INTEGER_AT(SETTINGS, workers), .expert = true, .argument = "N",
     .fallback = "0", .maximum = 1024,
     .help = "thread blocks of the megakernel; 0: one for each multiprocessor of the GPU"},
    {"fuse", 0, OPTION_FLAG_AT(SETTINGS, fuse), .expert = true,
     .help = "operators that need no other thread's results as one: the same answer with fewer "
             "waits, for few tokens on many threads"},
    {"activations", 0, OPTION_CHOICE_AT(SETTINGS, activations), .choices = cli_activations,
     .fallback = "auto", .argument = "HOW",
     .help = "on the CPU, how products of quantised weights take activations: rounded to 8 bits or "
             "to 16, or as float with weights decoded to float32; auto: 16 where a token reads at "
             "most 256 MiB of weights, else 8"},
    {"cpu-mask", 0, OPTION_STRING_AT(SETTINGS, cpu_mask), .expert = true, .argument = "FEATURES",
     .help = "CPU features to leave unused, separated by commas"},
    {0}};

static const option_spec sampling_options[] = {
    {"n-predict", 'n', OPTION_INTEGER_AT(SETTINGS, n_predict), .argument = "N", .fallback = "0",
     .maximum = 1 << 30, .help = "tokens to generate at most; 0: until the answer ends"},
    {"temp", 0, OPTION_NUMBER_AT(SETTINGS, temperature), .argument = "T", .high = 100,
     .help = "temperature; 0 takes the likeliest token"},
    {"top-k", 0, OPTION_INTEGER_AT(SETTINGS, top_k), .argument = "K", .maximum = 1 << 30,
     .help = "sample among the K likeliest tokens; 0: all"},
    {"top-p", 0, OPTION_NUMBER_AT(SETTINGS, top_p), .argument = "P", .high = 1,
     .help = "sample among the likeliest tokens that hold probability P"},
    {"min-p", 0, OPTION_NUMBER_AT(SETTINGS, min_p), .expert = true, .argument = "P", .high = 1,
     .help = "leave out tokens below P times the likeliest's probability"},
    {"repetition-penalty", 0, OPTION_NUMBER_AT(SETTINGS, repetition_penalty), .argument = "R",
     .low = 0.001, .high = 1000, .help = "divide the logits of tokens seen before"},
    {"presence-penalty", 0, OPTION_NUMBER_AT(SETTINGS, presence_penalty), .expert = true,
     .argument = "R", .low = -100, .high = 100,
     .help = "subtract from tokens that the answer holds"},
    {"frequency-penalty", 0, OPTION_NUMBER_AT(SETTINGS, frequency_penalty), .expert = true,
     .argument = "R", .low = -100, .high = 100,
     .help = "subtract for each time that the answer holds a token"},
    {"seed", 's', OPTION_INTEGER_AT(SETTINGS, seed), .argument = "N", .maximum = INT64_C(1) << 53,
     .help = "the same seed makes the same choices from the same logits, on every machine"},
    {"stop", 0, OPTION_STRINGS_AT(SETTINGS, stops), .argument = "TEXT",
     .help = "end the answer before this text"},
    {"logit-bias", 0, OPTION_STRINGS_AT(SETTINGS, logit_biases), .expert = true,
     .argument = "ID:BIAS", .help = "add BIAS to the logit of token ID"},
    {"ignore-eos", 0, OPTION_FLAG_AT(SETTINGS, ignore_eos), .expert = true,
     .help = "go on when the model ends its answer"},
    {"eos-interval", 0, OPTION_INTEGER_AT(SETTINGS, eos_interval), .expert = true, .argument = "N",
     .fallback = "0", .maximum = QP_MAX_EOS_INTERVAL,
     .help = "tokens made at a time; 0: one, on a GPU 16"},
    {0}};

static const option_spec prompt_options[] = {
    {"prompt", 'p', OPTION_STRING_AT(SETTINGS, prompt), .argument = "TEXT", .excludes = "file ids",
     .help = "the prompt; without -p and -f it is read from standard input"},
    {"file", 'f', OPTION_STRING_AT(SETTINGS, file), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .excludes = "ids", .help = "read the prompt from a file"},
    {0}};

static const option_spec run_options[] = {
    {"raw", 0, OPTION_FLAG_AT(SETTINGS, raw), .excludes = "chat system",
     .help = "continue the prompt as plain text"},
    {"chat", 0, OPTION_FLAG_AT(SETTINGS, chat),
     .help = "put the prompt in the model's chat template (the default where it has one)"},
    {"system", 0, OPTION_STRING_AT(SETTINGS, system), .argument = "TEXT",
     .help = "the system message of the conversation"},
    {"answers", 0, OPTION_INTEGER_AT(SETTINGS, parallel), .argument = "N", .fallback = "1",
     .minimum = 1, .maximum = 512,
     .help = "make N answers side by side, with seeds from --seed on; they are printed when all "
             "have ended"},
    {"echo", 0, OPTION_FLAG_AT(SETTINGS, echo), .help = "print the prompt before the answer"},
    {"parse-special", 0, OPTION_FLAG_AT(SETTINGS, parse_special), .expert = true,
     .help = "control tokens written in the prompt, such as <|im_end|>, become their ids; without "
             "it they are text like any other"},
    {"special", 0, OPTION_FLAG_AT(SETTINGS, special), .help = "print control tokens as text"},
    {"json", 0, OPTION_FLAG_AT(SETTINGS, json),
     .help = "print one JSON object: text, tokens, finish reason, statistics"},
    {0}};

static const option_spec chat_options[] = {
    {"system", 0, OPTION_STRING_AT(SETTINGS, system), .argument = "TEXT",
     .help = "the system message of the conversation"},
    {"parse-special", 0, OPTION_FLAG_AT(SETTINGS, parse_special), .expert = true,
     .help =
         "control tokens written in the messages, such as <|im_end|>, become their ids; without "
         "it they are text like any other"},
    {0}};

static const option_spec tokenize_options[] = {
    {"bos", 0, OPTION_FLAG_AT(SETTINGS, bos), .negatable = true,
     .help = "begin with the BOS token, or not; without either as the model wants it"},
    {"special", 0, OPTION_FLAG_AT(SETTINGS, special),
     .help = "control tokens written in the text become their ids"},
    {0}};

static const option_spec detokenize_options[] = {
    {"special", 0, OPTION_FLAG_AT(SETTINGS, special), .help = "print control tokens as text"}, {0}};

static const option_spec template_options[] = {
    {"generation-prompt", 0, OPTION_FLAG_AT(SETTINGS, generation_prompt), .negatable = true,
     .fallback = "true", .help = "end with the beginning of the assistant's turn"},
    {0}};

static const option_spec perplexity_options[] = {
    {"context", 'c', OPTION_INTEGER_AT(SETTINGS, context), .argument = "N", .fallback = "512",
     .minimum = 4, .maximum = 1 << 26, .help = "tokens of a chunk"},
    {"file", 'f', OPTION_STRING_AT(SETTINGS, file), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .help = "the text; without it standard input"},
    {"chunks", 0, OPTION_INTEGER_AT(SETTINGS, chunks), .argument = "N", .fallback = "0",
     .maximum = 1 << 30, .help = "stop after N chunks; 0: all"},
    {"json", 0, OPTION_FLAG_AT(SETTINGS, json), .help = "print one JSON object"},
    {0}};

static const option_spec logits_options[] = {
    {"ids", 0, OPTION_STRING_AT(SETTINGS, ids), .argument = "1,2,3",
     .help = "token ids in place of a prompt"},
    {"top", 0, OPTION_INTEGER_AT(SETTINGS, top), .argument = "K", .fallback = "5", .minimum = 1,
     .maximum = 1 << 20, .help = "the K largest logits of each position"},
    {"json", 0, OPTION_FLAG_AT(SETTINGS, json), .help = "print one JSON object"},
    {"out", 'o', OPTION_STRING_AT(SETTINGS, out), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .help = "write all logits as float32 [positions][vocab_size]"},
    {0}};

static const option_spec json_options[] = {
    {"json", 0, OPTION_FLAG_AT(SETTINGS, json), .help = "print JSON"}, {0}};

static const char *const formats[] = {"md", "csv", "json", NULL};

static const option_spec bench_options[] = {
    {"n-prompt", 'p', OPTION_INTEGER_AT(SETTINGS, n_prompt), .argument = "N", .fallback = "512",
     .maximum = 1 << 24, .help = "tokens of the prompt test; 0: none"},
    {"n-gen", 'n', OPTION_INTEGER_AT(SETTINGS, n_generate), .argument = "N", .fallback = "128",
     .maximum = 1 << 24, .help = "tokens of the generation test; 0: none"},
    {"depth", 'd', OPTION_INTEGER_AT(SETTINGS, depth), .argument = "N", .fallback = "0",
     .maximum = 1 << 24, .help = "tokens of context before each test"},
    {"parallel", 0, OPTION_INTEGER_AT(SETTINGS, parallel), .argument = "N", .fallback = "1",
     .minimum = 1, .maximum = 512,
     .help = "sequences side by side; a pass reads a token of each, and takes the likeliest next"},
    {"repetitions", 'r', OPTION_INTEGER_AT(SETTINGS, repetitions), .argument = "N", .fallback = "5",
     .minimum = 1, .maximum = 1000, .help = "runs of each test"},
    {"output", 'o', OPTION_CHOICE_AT(SETTINGS, format), .choices = formats, .fallback = "md",
     .argument = "FORMAT", .help = "form of the table"},
    {0}};

static const option_spec convert_options[] = {
    {"out", 'o', OPTION_STRING_AT(SETTINGS, out), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .help = "the GGUF file to write"},
    {"type", 0, OPTION_STRING_AT(SETTINGS, type), .argument = "TYPE",
     .help = "element type, by llama.cpp's names for its mixes: BF16, Q8_0, Q4_0, Q4_K_M, ...; "
             "without it types stay as they are"},
    {"pure", 0, OPTION_FLAG_AT(SETTINGS, pure),
     .help = "every matrix in that type, without the mix"},
    {"threads", 't', OPTION_INTEGER_AT(SETTINGS, threads), .argument = "N", .fallback = "0",
     .maximum = 1024, .help = "CPU threads; 0: all that this process may use"},
    {0}};

static const char *const cli_kernel_devices[] = {"cpu", "cuda", NULL};

/* Which of the forms that a forward pass is planned in. */
static const option_spec fusing_options[] = {
    {"fuse", 0, OPTION_FLAG_AT(SETTINGS, fuse), .expert = true,
     .help = "the forward pass for few tokens, in fused operators"},
    {"sums", 0, OPTION_FLAG_AT(SETTINGS, sums), .expert = true,
     .help = "fused further, as the megakernel runs it: workers add up the residual"},
    {"kv-partitions", 0, OPTION_INTEGER_AT(SETTINGS, kv_partitions), .expert = true,
     .argument = "N", .fallback = "1", .minimum = 1, .maximum = 1024,
     .help = "fused: parts of a sequence's positions that attention is split in"},
    {0}};

static const option_spec plan_options[] = {
    {"tokens", 0, OPTION_INTEGER_AT(SETTINGS, tokens), .argument = "N", .fallback = "512",
     .minimum = 1, .maximum = 1 << 20, .help = "new tokens in one forward pass"},
    {"context", 'c', OPTION_INTEGER_AT(SETTINGS, context), .argument = "N", .fallback = "0",
     .maximum = 1 << 26, .help = "positions of a sequence; 0: the model's"},
    {"sequences", 0, OPTION_INTEGER_AT(SETTINGS, sequences), .argument = "N", .fallback = "1",
     .minimum = 1, .maximum = 1 << 16, .help = "sequences at once"},
    {"ranks", 0, OPTION_INTEGER_AT(SETTINGS, ranks), .argument = "N", .fallback = "1", .minimum = 1,
     .maximum = 1024, .help = "ranks of tensor parallelism"},
    {"memory", 0, OPTION_SIZE_AT(SETTINGS, memory), .argument = "BYTES", .fallback = "0",
     .help = "memory that the largest context is computed for, of a GPU too; 0: what is available "
             "now"},
    {"device", 0, OPTION_CHOICE_AT(SETTINGS, kernel_device), .choices = cli_kernel_devices,
     .fallback = "cpu", .argument = "DEVICE",
     .help = "cuda: a pass's launches on a GPU and the exact memory of a run there too"},
    {"arch", 0, OPTION_STRING_AT(SETTINGS, arch), .argument = "ARCH",
     .help = "with --device cuda, the GPU's architecture, sm_90 or sm_100, where it is not the one "
             "here"},
    {"json", 0, OPTION_FLAG_AT(SETTINGS, json), .help = "print JSON"},
    {0}};

static const option_spec shapes_options[] = {
    {"tokens", 0, OPTION_INTEGER_AT(SETTINGS, tokens), .argument = "N", .fallback = "512",
     .minimum = 1, .maximum = 1 << 20, .help = "tokens of the prompt"},
    {"batch", 0, OPTION_INTEGER_AT(SETTINGS, batch), .argument = "B", .fallback = "1", .minimum = 1,
     .maximum = 1 << 16, .help = "sequences that decode at once"},
    {"json", 0, OPTION_FLAG_AT(SETTINGS, json), .help = "print JSON"},
    {0}};

static const char *const page_formats[] = {"text", "markdown", "json", NULL};

static const option_spec describe_options[] = {
    {"all", 0, OPTION_FLAG_AT(SETTINGS, all), .help = "every operator"},
    {"format", 0, OPTION_CHOICE_AT(SETTINGS, page_format), .choices = page_formats,
     .fallback = "text", .argument = "FORMAT", .help = "form of the page"},
    {0}};

static const option_spec prompt_page_options[] = {
    {"last", 0, OPTION_FLAG_AT(SETTINGS, last),
     .help = "end with the verdict on the last candidate that was checked"},
    {0}};

static const option_spec kernel_options[] = {
    {"variant", 0, OPTION_STRING_AT(SETTINGS, variant), .argument = "NAME",
     .help = "this variant alone; best: those that the program would choose"},
    {"kernel", 0, OPTION_STRING_AT(SETTINGS, kernel), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .help =
         "a candidate for the operator named: a .c or .cu file, compiled on the spot, or a .so"},
    {"device", 0, OPTION_CHOICE_AT(SETTINGS, kernel_device), .choices = cli_kernel_devices,
     .fallback = "cpu", .argument = "DEVICE", .help = "whose kernels"},
    {"cpu-mask", 0, OPTION_STRING_AT(SETTINGS, cpu_mask), .expert = true, .argument = "FEATURES",
     .help = "CPU features to leave unused, separated by commas"},
    {"timeout", 0, OPTION_INTEGER_AT(SETTINGS, timeout), .argument = "SECONDS", .fallback = "60",
     .minimum = 1, .maximum = 86400, .help = "a kernel that takes longer on a case is ended"},
    {"json", 0, OPTION_FLAG_AT(SETTINGS, json), .help = "print JSON"},
    {0}};

static const option_spec check_options[] = {{"seed", 's', OPTION_INTEGER_AT(SETTINGS, seed),
                                             .argument = "N", .fallback = "1",
                                             .maximum = INT64_C(1) << 53, .help = "of the inputs"},
                                            {0}};

static const option_spec timing_options[] = {
    {"threads", 't', OPTION_INTEGER_AT(SETTINGS, threads), .argument = "N", .fallback = "0",
     .maximum = 1024, .help = "CPU threads; 0: all that this process may use"},
    {"repetitions", 'r', OPTION_INTEGER_AT(SETTINGS, repetitions), .argument = "N",
     .fallback = "11", .minimum = 1, .maximum = 1000, .help = "rounds; figures are their medians"},
    {"workload", 'w', OPTION_STRING_AT(SETTINGS, workload), .argument = "TEXT",
     .help = "only the workloads whose name contains this"},
    {"markdown", 0, OPTION_FLAG_AT(SETTINGS, markdown), .help = "print a Markdown table"},
    {0}};

static const option_spec import_options[] = {
    {"threads", 't', OPTION_INTEGER_AT(SETTINGS, threads), .argument = "N", .fallback = "0",
     .maximum = 1024, .help = "CPU threads; 0: all that this process may use"},
    {"repetitions", 'r', OPTION_INTEGER_AT(SETTINGS, repetitions), .argument = "N", .fallback = "3",
     .minimum = 1, .maximum = 1000, .help = "rounds; figures are their medians"},
    {"timeout", 0, OPTION_INTEGER_AT(SETTINGS, timeout), .argument = "SECONDS", .fallback = "300",
     .minimum = 1, .maximum = 86400, .help = "a kernel that takes longer is ended"},
    {0}};

static const option_group import_group = {"Timing", import_options};
static const option_group timing_group = {"Timing", timing_options};
static const option_group kernel_group = {"Kernels", kernel_options};
static const option_group check_group = {"Inputs", check_options};
static const option_group describe_group = {"Page", describe_options};
static const option_group prompt_page_group = {"Page", prompt_page_options};
static const char *const schedule_settings[] = {"latency", "throughput", NULL};
static const char *const schedule_assignments[] = {"rr", "zz", "wave", "dag", "pool", NULL};

static const option_spec schedule_options[] = {
    {"workers", 0, OPTION_INTEGER_AT(SETTINGS, workers), .expert = true, .argument = "N",
     .fallback = "0", .maximum = 1024,
     .help = "queues; 0: one for each processor that this process may use, or multiprocessor"},
    {"device", 0, OPTION_CHOICE_AT(SETTINGS, kernel_device), .choices = cli_kernel_devices,
     .fallback = "cpu", .argument = "DEVICE",
     .help = "cuda: the megakernel's schedule, measured and compared on the GPU"},
    {"setting", 0, OPTION_CHOICE_AT(SETTINGS, setting), .choices = schedule_settings,
     .fallback = "latency", .argument = "WHICH",
     .help = "latency: few tokens; throughput: many, in tiles"},
    {"assign", 0, OPTION_CHOICE_AT(SETTINGS, assign), .choices = schedule_assignments,
     .fallback = "rr", .argument = "HOW",
     .help = "rr: in turn; zz: there and back; wave: largest first onto the least loaded; dag: "
             "the critical path first; pool: memory-bound and compute-bound work apart"},
    {"memory-fraction", 0, OPTION_NUMBER_AT(SETTINGS, memory_fraction), .expert = true,
     .argument = "F", .fallback = "0", .high = 1,
     .help = "of the workers for memory-bound work in pool, as far as no queue gets longer than "
             "four times the mean; 0: from the costs"},
    {"context", 'c', OPTION_INTEGER_AT(SETTINGS, context), .argument = "N", .fallback = "0",
     .maximum = 1 << 26, .help = "positions of a sequence; 0: the model's, at most 8192"},
    {"chunk", 0, OPTION_INTEGER_AT(SETTINGS, chunk), .expert = true, .argument = "N",
     .fallback = "512", .minimum = 1, .maximum = 1 << 16,
     .help = "tokens of a prompt in one forward pass; with --sums 1 if not given"},
    {"kv-partitions", 0, OPTION_INTEGER_AT(SETTINGS, kv_partitions), .expert = true,
     .argument = "N", .fallback = "0", .maximum = 1024,
     .help =
         "fused: parts of a sequence's positions that attention is split in; 0: one, as run --fuse "
         "has it, and with --sums as many as give each worker a part of a KV head"},
    {"fuse", 0, OPTION_FLAG_AT(SETTINGS, fuse), .expert = true,
     .help =
         "latency: in fused operators, as run --fuse; without it the schedule is that of a run"},
    {"sums", 0, OPTION_FLAG_AT(SETTINGS, sums), .expert = true,
     .help = "latency: fused further, as the megakernel runs it: workers add up the residual"},
    {"group", 0, OPTION_INTEGER_AT(SETTINGS, group), .expert = true, .argument = "N",
     .fallback = "0", .maximum = 1 << 20,
     .help = "output features that stay together; 0: what the CPU's kernels take at a time"},
    {"bandwidth", 0, OPTION_NUMBER_AT(SETTINGS, bandwidth), .expert = true, .argument = "GB/s",
     .fallback = "0", .high = 1e6,
     .help = "of the machine, for predictions; 0: as measured, else 20"},
    {"gflops", 0, OPTION_NUMBER_AT(SETTINGS, gflops), .expert = true, .argument = "GFLOP/s",
     .fallback = "0", .high = 1e9,
     .help = "of the machine, for predictions; 0: as measured, else 100"},
    {"signal", 0, OPTION_NUMBER_AT(SETTINGS, signal_ns), .expert = true, .argument = "NS",
     .fallback = "0", .high = 1e9,
     .help = "from a signal to the end of a wait, for predictions; 0: as measured, else 200"},
    {"list", 0, OPTION_FLAG_AT(SETTINGS, list),
     .help = "print every queue, instruction by "
             "instruction"},
    {"verify", 0, OPTION_FLAG_AT(SETTINGS, verify), .help = "prove that it is sound"},
    {"measure", 0, OPTION_FLAG_AT(SETTINGS, measure),
     .help = "measure what instructions cost on this machine with so many workers, for later "
             "predictions; takes about two minutes"},
    {"compare", 0, OPTION_FLAG_AT(SETTINGS, compare),
     .help = "run all strategies in turn, and show what was predicted of each beside what it took"},
    {"html", 0, OPTION_STRING_AT(SETTINGS, html), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .help = "write a page for a browser that shows when which worker does what"},
    {"save", 0, OPTION_STRING_AT(SETTINGS, save), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .help = "write the queues to a file"},
    {"load", 0, OPTION_STRING_AT(SETTINGS, load), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .help = "show a schedule that --save wrote, proved sound again and compared with what its "
             "options make now; the file says its workers and setting, the other options must be "
             "those that it was saved with"},
    {"json", 0, OPTION_FLAG_AT(SETTINGS, json), .help = "print JSON"},
    {0}};

static const option_spec trace_options[] = {
    {"ids", 0, OPTION_STRING_AT(SETTINGS, ids), .argument = "1,2,3",
     .help = "token ids in place of a prompt"},
    {"n-predict", 'n', OPTION_INTEGER_AT(SETTINGS, n_predict), .argument = "N", .fallback = "16",
     .minimum = 1, .maximum = 1 << 16, .help = "tokens to generate"},
    {"out", 'o', OPTION_STRING_AT(SETTINGS, out), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .help = "write JSON for ui.perfetto.dev or chrome://tracing"},
    {"html", 0, OPTION_STRING_AT(SETTINGS, html), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .help = "write a page for a browser: what was planned above what was measured"},
    {"svg", 0, OPTION_STRING_AT(SETTINGS, svg), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .help = "write a picture of the plan and of one usual pass"},
    {"table", 0, OPTION_FLAG_AT(SETTINGS, table),
     .help = "print the sums by operator, which is done anyway where no file is asked for"},
    {0}};

static const option_spec diff_options[] = {
    {"prompt", 'p', OPTION_STRING_AT(SETTINGS, prompt), .argument = "TEXT", .excludes = "file ids",
     .help = "what to run; without a prompt and ids, pseudo-random tokens"},
    {"file", 'f', OPTION_STRING_AT(SETTINGS, file), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .excludes = "ids", .help = "read the prompt from a file"},
    {"ids", 0, OPTION_STRING_AT(SETTINGS, ids), .argument = "1,2,3",
     .help = "token ids in place of a prompt"},
    {"tokens", 0, OPTION_INTEGER_AT(SETTINGS, tokens), .argument = "N", .fallback = "16",
     .minimum = 1, .maximum = 1 << 16, .help = "how many pseudo-random ones"},
    {"one-by-one", 0, OPTION_INTEGER_AT(SETTINGS, singles), .argument = "N", .fallback = "2",
     .maximum = 1 << 16, .help = "of the tokens go alone at the end, as in generation"},
    {"a", 0, OPTION_STRING_AT(SETTINGS, machine_a), .argument = "MACHINE", .fallback = "reference",
     .help = "what is right: reference, serial, threads, operators or cuda, as --exec of other "
             "commands has them"},
    {"b", 0, OPTION_STRING_AT(SETTINGS, machine_b), .argument = "MACHINE", .fallback = "threads",
     .help = "what is compared with it: one of these or megakernel"},
    {"order", 0, OPTION_INTEGER_AT(SETTINGS, order), .expert = true, .argument = "SEED",
     .fallback = "1", .minimum = 1, .maximum = INT64_MAX,
     .help = "of serial: the random order of its instructions, any that the schedule allows"},
    {"start-after", 0, OPTION_STRING_AT(SETTINGS, start_after), .expert = true, .argument = "STEP",
     .help = "compare from after this step on, such as 5.attn_qkv; what came before is taken "
             "from a"},
    {"stop-after", 0, OPTION_STRING_AT(SETTINGS, stop_after), .expert = true, .argument = "STEP",
     .help = "compare up to this step"},
    {"layers", 0, OPTION_INTEGER_AT(SETTINGS, layers), .expert = true, .argument = "N",
     .fallback = "0", .maximum = 1 << 15,
     .help = "only the first N layers, and what follows the last; 0: all"},
    {"setting", 0, OPTION_CHOICE_AT(SETTINGS, setting), .choices = schedule_settings,
     .fallback = "latency", .argument = "WHICH", .help = "of schedules: latency or throughput"},
    {"assign", 0, OPTION_CHOICE_AT(SETTINGS, assign), .choices = schedule_assignments,
     .fallback = "rr", .argument = "HOW", .help = "of schedules: rr, zz, wave, dag or pool"},
    {"list", 0, OPTION_FLAG_AT(SETTINGS, list),
     .help = "every layer's steps, not only the worst of each kind"},
    {"json", 0, OPTION_FLAG_AT(SETTINGS, json), .help = "print JSON"},
    {"threads", 't', OPTION_INTEGER_AT(SETTINGS, threads), .argument = "N", .fallback = "0",
     .maximum = 1024, .help = "CPU threads; 0: all that this process may use"},
    {"chunk", 0, OPTION_INTEGER_AT(SETTINGS, chunk), .expert = true, .argument = "N",
     .fallback = "512", .minimum = 1, .maximum = 1 << 16, .help = "tokens in one forward pass"},
    {"activations", 0, OPTION_CHOICE_AT(SETTINGS, activations), .choices = cli_activations,
     .fallback = "auto", .argument = "HOW",
     .help = "on the CPU, how products of quantised weights take activations: 8, 16 or float; auto "
             "is 8"},
    {"cpu-mask", 0, OPTION_STRING_AT(SETTINGS, cpu_mask), .expert = true, .argument = "FEATURES",
     .help = "CPU features to leave unused, separated by commas"},
    {0}};

static const option_group model_group = {"Model", model_options};
static const option_group context_group = {"Running", context_options};
static const option_group engine_group = {"Running", engine_options};
static const option_group cache_group = {"KV cache", cache_options};
static const option_group fusing_group = {"Form of the pass", fusing_options};
static const option_group sampling_group = {"Sampling", sampling_options};
static const option_group prompt_group = {"Prompt", prompt_options};
static const option_group run_group = {"Answer", run_options};
static const option_group chat_group = {"Conversation", chat_options};
static const option_group tokenize_group = {"Text", tokenize_options};
static const option_group detokenize_group = {"Text", detokenize_options};
static const option_group template_group = {"Conversation", template_options};
static const option_group perplexity_group = {"Text", perplexity_options};
static const option_group logits_group = {"Logits", logits_options};
static const option_group json_group = {"Output", json_options};
static const option_group bench_group = {"Tests", bench_options};
static const option_group convert_group = {"Conversion", convert_options};
static const option_group plan_group = {"Plan", plan_options};
static const option_group shapes_group = {"Shapes", shapes_options};
static const option_group trace_group = {"Trace", trace_options};
static const option_group diff_group = {"Comparison", diff_options};
static const option_group schedule_group = {"Schedule", schedule_options};

#define GROUPS(...)                                                                                \
    (const option_group *const[])                                                                  \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

/* A command's name, and the function that runs it. */
#define COMMAND(words, function) .name = (words), .run = (void (*)(void))(function)

static const command_spec commands[] = {
    {COMMAND("run", command_run), .synopsis = "[-m MODEL] [-p PROMPT | -f FILE] [OPTION...]",
     .summary = "answer one prompt",
     .description =
         "The answer goes to stdout as it is made, and one line of statistics to "
         "stderr. Where the model has a chat template, the prompt is the user's message "
         "of a conversation; --raw continues it as plain text. With -p, text on standard input "
         "goes before the prompt: quipu run -p 'Summarize this:' < report.txt.",
     .groups = GROUPS(&model_group, &prompt_group, &run_group, &sampling_group, &context_group,
                      &engine_group, &cache_group)},
    {COMMAND("chat", command_chat), .synopsis = "[-m MODEL] [OPTION...]",
     .summary = "talk with a model",
     .description =
         "Type a message and press Enter; lines pasted together are one message. Ctrl-C stops an "
         "answer, Ctrl-D ends the "
         "conversation, /help lists the commands.",
     .groups = GROUPS(&model_group, &chat_group, &sampling_group, &context_group, &engine_group,
                      &cache_group)},
    {COMMAND("tokenize", command_tokenize), .synopsis = "[-m MODEL] [OPTION...] < TEXT",
     .summary = "text to token ids, on one line",
     .description = "MODEL may also be a directory with tokenizer files only, or a GGUF file with "
                    "a vocabulary only.",
     .groups = GROUPS(&model_group, &tokenize_group)},
    {COMMAND("detokenize", command_detokenize), .synopsis = "[-m MODEL] [OPTION...] < IDS",
     .summary = "token ids to text", .groups = GROUPS(&model_group, &detokenize_group)},
    {COMMAND("template", command_template), .synopsis = "[-m MODEL] [OPTION...] < MESSAGES",
     .summary = "render a conversation with the model's chat template",
     .description = "Reads JSON: an array of messages, or an object of template variables with one "
                    "under \"messages\".",
     .groups = GROUPS(&model_group, &template_group)},
    {COMMAND("perplexity", command_perplexity), .synopsis = "[-m MODEL] -f FILE [OPTION...]",
     .summary = "how well a model predicts a text",
     .description = "The text is cut into chunks of --context tokens, each begun with BOS; the "
                    "second half of each chunk is scored. Prints exp of the mean negative log "
                    "likelihood and its standard error.",
     .groups = GROUPS(&model_group, &perplexity_group, &engine_group, &cache_group)},
    {COMMAND("logits", command_logits),
     .synopsis = "[-m MODEL] (-p PROMPT | --ids 1,2,3) [OPTION...]",
     .summary = "the model's logits after every token",
     .groups = GROUPS(&model_group, &prompt_group, &logits_group, &context_group, &engine_group,
                      &cache_group)},
    {COMMAND("info", command_info), .synopsis = "[-m MODEL] [--json]",
     .summary = "a model's family, sizes and tensors", .groups = GROUPS(&model_group, &json_group)},
    {COMMAND("doctor", command_doctor), .synopsis = "[--json]",
     .summary = "what this machine has and quipu would use", .groups = GROUPS(&json_group)},
    {COMMAND("plan", command_plan), .synopsis = "[-m MODEL] [OPTION...]",
     .summary = "tensor lifetimes and exact memory of a forward pass",
     .description = "A row a step, a column a tensor: + created, o kept, m mapped from the host, r "
                    "read, w written, x destroyed. Weights are not read. With --device cuda the "
                    "launches of a pass follow: the plan's steps that each runs, its kernels, the "
                    "form in which rows come and go, and a chain's own steps.",
     .groups = GROUPS(&model_group, &plan_group, &fusing_group, &cache_group)},
    {COMMAND("shapes", command_shapes), .synopsis = "[-m MODEL] --tokens N [--batch B]",
     .summary = "every step's shapes in prefill and decode",
     .groups = GROUPS(&model_group, &shapes_group, &fusing_group)},
    {COMMAND("schedule", command_schedule), .synopsis = "[-m MODEL] [--workers N] [OPTION...]",
     .summary = "a forward pass as instructions in queues, one queue a worker",
     .description =
         "Prints how many instructions of each kind there are, how evenly they are "
         "dealt and how long a pass should take; with --list every instruction with "
         "its slice of the work, the counters that it waits for (c7>=4: until counter "
         "7 has 4 of this pass) and the one that it signals. Weights are not read, but by "
         "--compare, which runs the passes. Predictions use the costs that --measure "
         "kept for this processor, version and number of workers, and guesses where "
         "there are none.",
     .groups = GROUPS(&model_group, &schedule_group)},
    {COMMAND("trace", command_trace),
     .synopsis = "[-m MODEL] (-p PROMPT | --ids 1,2,3) [-n N] [OPTION...]",
     .summary = "what every worker did while a model answered",
     .description =
         "Reads the prompt and generates the likeliest tokens once without and once "
         "with a record of every instruction, then prints where the time went. GB/s and "
         "GFLOP/s are those of all workers together while they do such work; \"of "
         "limit\" is the time that the machine's own rates would allow, over the time "
         "taken. With --exec serial it is one instruction after the other, each as what "
         "it is in mathematics: Linear, MatMul, ReduceMax, ElementwiseExp, Normalize... With "
         "--device cuda a track is a thread block of the megakernel, and waiting is for others' "
         "data; with --exec cuda it is the GPU's operators as launches.",
     .groups = GROUPS(&model_group, &prompt_group, &trace_group, &context_group, &engine_group,
                      &cache_group)},
    {COMMAND("diff", command_diff),
     .synopsis = "[-m MODEL] [--a MACHINE] [--b MACHINE] [OPTION...]",
     .summary = "compare a forward pass on one machine with another's, tensor by tensor",
     .description = "Each step is judged alone: b gets what it reads from a, and may differ by as "
                    "much as the operators' tolerances allow its kernels, not at all where both "
                    "run the same. Then b runs from beginning to end on its own, for what adds up, "
                    "and once more without a stop between steps, which has to give the same bits. "
                    "The exit status is 0 if all is within tolerance; else the first difference "
                    "is named.",
     .groups = GROUPS(&model_group, &diff_group, &fusing_group, &cache_group)},
    {COMMAND("bench", command_bench), .synopsis = "[-m MODEL] [-p N] [-n N] [OPTION...]",
     .summary = "tokens per second of prompts and of generation",
     .description =
         "ppN reads one prompt of N tokens, tgN makes N forward passes of one token "
         "each; with --parallel P, P prompts at once and P tokens a pass, all of which "
         "count. A GPU reads the likeliest token next by itself, up to 16 passes at once, and is "
         "compared with its own read bandwidth. Mean and standard deviation over the "
         "repetitions.",
     .groups = GROUPS(&model_group, &bench_group, &context_group, &engine_group, &cache_group)},
    {COMMAND("convert", command_convert), .synopsis = "[-m MODEL] -o FILE.gguf [--type TYPE]",
     .summary = "write a model as a GGUF file, in another element type if asked",
     .description = "MODEL may be a GGUF file, a Hugging Face directory or synthetic weights; "
                    "llama.cpp reads the file too. It appears whole or not at all. What the file "
                    "cannot hold is refused, or named in a warning.",
     .groups = GROUPS(&model_group, &convert_group)},
    {COMMAND("pull", command_pull), .synopsis = "[NAME]",
     .summary = "fetch a model from Hugging Face, or list the short names",
     .description =
         "NAME is a short name such as llama3.2:1b, OWNER/REPOSITORY, "
         "OWNER/REPOSITORY:FILE.gguf or OWNER/REPOSITORY:TYPE. The model goes to the "
         "cache that Hugging Face's Python library uses (HF_HOME, HF_HUB_CACHE), and its "
         "place is printed. HF_ENDPOINT names another hub, HF_TOKEN a token for gated "
         "models. An interrupted fetch is resumed, and every file's hash is checked. "
         "Commands that take -m fetch hf:NAME, or a short name, by themselves.",
     .positional_maximum = 1},
    {COMMAND("list", command_list), .synopsis = "[--json]", .summary = "the models that are here",
     .groups = GROUPS(&json_group)},
    {COMMAND("rm", command_rm), .synopsis = "NAME",
     .summary = "remove a fetched model: all of it, or the file that NAME selects",
     .positional_minimum = 1, .positional_maximum = 1},
    {COMMAND("ops list", command_ops_list), .synopsis = "[--json]",
     .summary = "every operator with its axes, types and variants", .groups = GROUPS(&json_group)},
    {COMMAND("ops describe", command_ops_describe), .synopsis = "OPERATOR [--format FORMAT]",
     .summary = "all that a kernel's author must know of an operator",
     .groups = GROUPS(&describe_group), .positional_maximum = 1},
    {COMMAND("ops check", command_ops_check),
     .synopsis = "[OPERATOR...] [--variant NAME | --kernel FILE] [OPTION...]",
     .summary = "compare kernels with the references on hard cases",
     .description = "Every operator's kernels on all of its cases: odd shapes, strides, unusual "
                    "inputs, garbage around them, several threads. A candidate runs with the "
                    "rights of the user; check only what you would run. The exit status is 0 if "
                    "all passed.",
     .groups = GROUPS(&kernel_group, &check_group), .positional_maximum = -1},
    {COMMAND("ops bench", command_ops_bench),
     .synopsis = "[OPERATOR...] [--variant NAME | --kernel FILE] [OPTION...]",
     .summary = "time kernels on the shapes of real models",
     .description = "The reference, the best variant and the kernel asked for take turns with "
                    "measurements of the machine's limits. Calls rotate over copies of the tensors "
                    "that are larger than the caches. After the timing each kernel computes once "
                    "more from inputs that it has not seen, and is compared with the reference.",
     .groups = GROUPS(&kernel_group, &timing_group), .positional_maximum = -1},
    {COMMAND("ops export", command_ops_export), .synopsis = "FOLDER",
     .summary = "write the operators as FlashInfer-Bench definitions and workloads",
     .positional_minimum = 1, .positional_maximum = 1, .positional_hint = OPTION_HINT_FOLDER},
    {COMMAND("ops import", command_ops_import), .synopsis = "SOLUTION.json [OPTION...]",
     .summary = "check and time a FlashInfer-Bench solution in C or CUDA; print its traces",
     .description =
         "A solution's entry point is a kernel as `quipu ops describe` asks for, such as "
         "rms_norm.c::rms_norm_kernel for rmsnorm_h4096. It runs with the rights of the "
         "user; import only what you would run.",
     .groups = GROUPS(&import_group), .positional_minimum = 1, .positional_maximum = 1,
     .positional_hint = OPTION_HINT_FILE},
    {COMMAND("ops prompt", command_ops_prompt), .synopsis = "OPERATOR [--last]",
     .summary = "the description as a page for a language model that writes kernels",
     .groups = GROUPS(&prompt_page_group), .positional_minimum = 1, .positional_maximum = 1},
    {COMMAND("help", command_help), .synopsis = "[COMMAND]",
     .summary = "this list, or the help of a command", .positional_maximum = 2},
    {COMMAND("man", command_man), .synopsis = "", .summary = "the manual page, for man -l -"},
    {COMMAND("completion", command_completion), .synopsis = "bash|zsh|fish",
     .summary = "a shell's completion script", .positional_minimum = 1, .positional_maximum = 1},
    {COMMAND("version", command_version), .synopsis = "", .summary = "the version"},
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
