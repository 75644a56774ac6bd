/* Options of the commands that describe, check and time operators: `quipu ops`. */
#include "cli/option_groups.h"

#define SETTINGS cli_settings

static const char *const page_formats[] = {"text", "markdown", "json", NULL};

#define UNCONFINED                                                                                 \
    {                                                                                              \
        "unconfined", 0, OPTION_FLAG_AT(SETTINGS, unconfined),                                     \
            .help = "run code that cannot be confined here with your rights: CUDA, Python, and "   \
                    "all code "                                                                    \
                    "where `quipu doctor` says so"                                                 \
    }

static const option_spec list_options[] = {
    {"of", 0, OPTION_STRING_AT(SETTINGS, of), .argument = "MODEL", .hint = OPTION_HINT_FILE,
     .help = "only the operators of this model's forward pass: a preset of synthetic weights such "
             "as llama-3.1-8b, or a model as -m takes it"},
    CLI_PLAN_FORM,
    {"json", 0, OPTION_FLAG_AT(SETTINGS, json), .help = "print JSON"},
    {0}};
const option_group cli_list_options = {"Operators", list_options};

static const option_spec describe_options[] = {
    {"all", 0, OPTION_FLAG_AT(SETTINGS, all), .help = "describe every operator"},
    {"format", 0, OPTION_CHOICE_AT(SETTINGS, page_format), .choices = page_formats,
     .fallback = "text", .argument = "FORMAT", .help = "format of the page"},
    {0}};
const option_group cli_describe_options = {"Page", describe_options};

static const option_spec prompt_page_options[] = {
    {"last", 0, OPTION_FLAG_AT(SETTINGS, last),
     .help = "end the page with the verdict on the last candidate that was checked"},
    {"device", 0, OPTION_CHOICE_AT(SETTINGS, kernel_device), .choices = cli_kernel_devices,
     .fallback = "cpu", .argument = "DEVICE",
     .help = "cuda: a page for the author of a kernel in CUDA"},
    {0}};
const option_group cli_prompt_page_options = {"Page", prompt_page_options};

static const option_spec kernel_options[] = {
    {"variant", 0, OPTION_STRING_AT(SETTINGS, variant), .argument = "NAME",
     .help = "only this variant; best: the variants that quipu would choose here"},
    {"kernel", 0, OPTION_STRING_AT(SETTINGS, kernel), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .help = "a candidate kernel for the named operator: a .c or .cu file, which is compiled, or a "
             ".so"},
    {"device", 0, OPTION_CHOICE_AT(SETTINGS, kernel_device), .choices = cli_kernel_devices,
     .fallback = "cpu", .argument = "DEVICE", .help = "the device whose kernels are meant"},
    {"cpu-mask", 0, OPTION_STRING_AT(SETTINGS, cpu_mask), .expert = true, .argument = "FEATURES",
     .help = "CPU features not to use, separated by commas"},
    {"timeout", 0, OPTION_INTEGER_AT(SETTINGS, timeout), .argument = "SECONDS", .fallback = "60",
     .minimum = 1, .maximum = 86400, .help = "a kernel that takes longer on a case is ended"},
    UNCONFINED,
    {"json", 0, OPTION_FLAG_AT(SETTINGS, json), .help = "print JSON"},
    {0}};
const option_group cli_kernel_options = {"Kernels", kernel_options};

static const option_spec check_options[] = {
    {"seed", 's', OPTION_INTEGER_AT(SETTINGS, seed), .argument = "N", .fallback = "1",
     .maximum = INT64_C(1) << 53, .help = "seed of the pseudo-random inputs"},
    {0}};
const option_group cli_check_options = {"Inputs", check_options};

static const option_spec timing_options[] = {
    {"threads", 't', OPTION_INTEGER_AT(SETTINGS, threads), .argument = "N", .fallback = "0",
     .maximum = 1024, .help = "CPU threads; 0: all that this process may use"},
    {"repetitions", 'r', OPTION_INTEGER_AT(SETTINGS, repetitions), .argument = "N",
     .fallback = "11", .minimum = 1, .maximum = 1000, .help = "rounds; figures are their medians"},
    {"workload", 'w', OPTION_STRING_AT(SETTINGS, workload), .argument = "TEXT",
     .help = "only the workloads whose name contains this; with '=' a workload of your own, such "
             "as 'n_tokens=64 hidden_size=8192 x:BF16'"},
    {"markdown", 0, OPTION_FLAG_AT(SETTINGS, markdown), .help = "print a Markdown table"},
    {0}};
const option_group cli_timing_options = {"Timing", timing_options};

static const option_spec import_options[] = {
    {"data", 0, OPTION_STRING_AT(SETTINGS, data), .argument = "FOLDER", .hint = OPTION_HINT_FOLDER,
     .help = "the data set with a solution's definition and workloads; without it, the definitions "
             "and workloads that `ops export` writes, for solutions in C"},
    {"definition", 0, OPTION_STRING_AT(SETTINGS, definition), .argument = "NAME",
     .help = "only the solutions of this definition"},
    {"save", 0, OPTION_FLAG_AT(SETTINGS, save_traces),
     .help = "append the traces to the data set's folder traces too"},
    {"python", 0, OPTION_STRING_AT(SETTINGS, python), .argument = "PROGRAM", .fallback = "python3",
     .help = "runs references and solutions in Python; with PyTorch where they need it"},
    {"device", 0, OPTION_CHOICE_AT(SETTINGS, kernel_device), .choices = cli_kernel_devices,
     .fallback = "cpu", .argument = "DEVICE", .help = "where the tensors of Python functions lie"},
    {"atol", 0, OPTION_NUMBER_AT(SETTINGS, atol), .argument = "X", .fallback = "0.01", .low = 0,
     .high = 1e30, .help = "an element may differ from the reference's by this"},
    {"rtol", 0, OPTION_NUMBER_AT(SETTINGS, rtol), .argument = "X", .fallback = "0.01", .low = 0,
     .high = 1e30, .help = "or by this part of it"},
    {"threads", 't', OPTION_INTEGER_AT(SETTINGS, threads), .argument = "N", .fallback = "0",
     .maximum = 1024, .help = "CPU threads; 0: all that this process may use"},
    {"repetitions", 'r', OPTION_INTEGER_AT(SETTINGS, repetitions), .argument = "N", .fallback = "3",
     .minimum = 1, .maximum = 1000, .help = "rounds; figures are their medians"},
    {"timeout", 0, OPTION_INTEGER_AT(SETTINGS, timeout), .argument = "SECONDS", .fallback = "300",
     .minimum = 1, .maximum = 86400, .help = "a kernel or function that takes longer is ended"},
    UNCONFINED,
    {0}};
const option_group cli_import_options = {"Solutions", import_options};

static const option_spec improve_options[] = {
    {"command", 0, OPTION_STRING_AT(SETTINGS, command), .argument = "COMMAND",
     .help = "a shell command: it reads a page on standard input and prints a kernel in C, or with "
             "--device cuda in CUDA, alone or "
             "as a block of Markdown"},
    {"rounds", 0, OPTION_INTEGER_AT(SETTINGS, rounds), .argument = "N", .fallback = "8",
     .minimum = 1, .maximum = 10000, .help = "kernels to ask for at most"},
    {"beam", 0, OPTION_INTEGER_AT(SETTINGS, beam), .argument = "N", .fallback = "1", .minimum = 1,
     .maximum = 16,
     .help = "answers follow in turn from the N fastest kernels so far, not each from the last"},
    {"resume", 0, OPTION_FLAG_AT(SETTINGS, resume),
     .help = "go on with the rounds that the folder has"},
    {"device", 0, OPTION_CHOICE_AT(SETTINGS, kernel_device), .choices = cli_kernel_devices,
     .fallback = "cpu", .argument = "DEVICE",
     .help = "cuda: kernels in CUDA, timed on the GPU beside quipu's; they need --unconfined"},
    {"seconds", 0, OPTION_INTEGER_AT(SETTINGS, seconds), .argument = "N", .fallback = "3600",
     .minimum = 1, .maximum = 1000000, .help = "no round begins after this time"},
    {"out", 'o', OPTION_STRING_AT(SETTINGS, out), .argument = "FOLDER", .hint = OPTION_HINT_FOLDER,
     .fallback = "improved", .help = "folder for the kernels, the best of them and the history"},
    {"workload", 'w', OPTION_STRING_AT(SETTINGS, workload), .argument = "TEXT",
     .help = "only the workloads whose name contains this"},
    {"threads", 't', OPTION_INTEGER_AT(SETTINGS, threads), .argument = "N", .fallback = "0",
     .maximum = 1024, .help = "CPU threads; 0: all that this process may use"},
    {"repetitions", 'r', OPTION_INTEGER_AT(SETTINGS, repetitions), .argument = "N", .fallback = "5",
     .minimum = 1, .maximum = 1000, .help = "rounds of a timing; figures are their medians"},
    {"timeout", 0, OPTION_INTEGER_AT(SETTINGS, timeout), .argument = "SECONDS", .fallback = "60",
     .minimum = 1, .maximum = 86400, .help = "a kernel that takes longer on a case is ended"},
    UNCONFINED,
    {0}};
const option_group cli_improve_options = {"Rounds", improve_options};
