/* Options of the commands that turn text into tokens and tokens into text: prompts, sampling,
 * conversations, logits, perplexity. */
#include "cli/option_groups.h"

#define SETTINGS cli_settings

static const option_spec prompt_options[] = {
    {"prompt", 'p', OPTION_STRING_AT(SETTINGS, prompt), .argument = "TEXT", .excludes = "file ids",
     .help = "the prompt; without -p and -f it is read from standard input"},
    {"file", 'f', OPTION_STRING_AT(SETTINGS, file), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .excludes = "ids", .help = "read the prompt from a file; -: from standard input"},
    {0}};
const option_group cli_prompt_options = {"Prompt", prompt_options};

static const option_spec run_options[] = {
    {"raw", 0, OPTION_FLAG_AT(SETTINGS, raw), .excludes = "chat system",
     .help = "continue the prompt as plain text"},
    {"chat", 0, OPTION_FLAG_AT(SETTINGS, chat),
     .help = "put the prompt in the model's chat template (the default where it has one)"},
    {"system", 0, OPTION_STRING_AT(SETTINGS, system), .argument = "TEXT",
     .help = "the system message of the conversation"},
    {"answers", 0, OPTION_INTEGER_AT(SETTINGS, parallel), .argument = "N", .fallback = "1",
     .minimum = 1, .maximum = 512,
     .help = "generate N answers side by side, with the seeds --seed, --seed + 1, ...; they are "
             "printed when all have ended"},
    {"echo", 0, OPTION_FLAG_AT(SETTINGS, echo), .help = "print the prompt before the answer"},
    {"parse-special", 0, OPTION_FLAG_AT(SETTINGS, parse_special), .expert = true,
     .help = "control tokens written in the prompt, such as <|im_end|>, become their ids; without "
             "it they are text like any other"},
    {"special", 0, OPTION_FLAG_AT(SETTINGS, special), .help = "print control tokens as text"},
    {"json", 0, OPTION_FLAG_AT(SETTINGS, json),
     .help = "print one JSON object: text, tokens, finish reason, statistics"},
    {"dump", 0, OPTION_STRING_AT(SETTINGS, dump), .expert = true, .argument = "NAMES",
     .help = "keep the tensors of every pass whose names match, such as 'layers.3.*' or "
             "'*.attn_qkv.*,lm_head.*', in the file of --out"},
    {"out", 'o', OPTION_STRING_AT(SETTINGS, out), .expert = true, .argument = "FILE",
     .hint = OPTION_HINT_FILE,
     .help = "of --dump: a safetensors file, in which a tensor is called PASS.NAME"},
    {0}};
const option_group cli_run_options = {"Answer", run_options};

const char *const cli_thoughts[] = {"show", "fold", NULL};

static const option_spec answer_options[] = {
    {"plain", 0, OPTION_FLAG_AT(SETTINGS, plain),
     .help = "write answers as the model does: at a terminal their Markdown is drawn without it"},
    {"thoughts", 0, OPTION_CHOICE_AT(SETTINGS, thoughts), .choices = cli_thoughts,
     .fallback = "show", .argument = "HOW",
     .help = "thoughts before an answer, at a terminal. show: dimmed; fold: as one line"},
    {"chat-template-kwargs", 0, OPTION_STRING_AT(SETTINGS, template_kwargs), .expert = true,
     .argument = "JSON", .help = "variables of the chat template, as {\"enable_thinking\": false}"},
    {0}};
const option_group cli_answer_options = {"Form of answers at a terminal", answer_options};

static const option_spec chat_options[] = {
    {"system", 0, OPTION_STRING_AT(SETTINGS, system), .argument = "TEXT",
     .help = "the system message of the conversation"},
    {"parse-special", 0, OPTION_FLAG_AT(SETTINGS, parse_special), .expert = true,
     .help =
         "control tokens written in the messages, such as <|im_end|>, become their ids; without "
         "it they are text like any other"},
    {0}};
const option_group cli_chat_options = {"Conversation", chat_options};

static const option_spec setting_options[] = {
    {"temp", 0, OPTION_NUMBER_AT(SETTINGS, temperature), .argument = "T", .high = 100,
     .help = "temperature; 0: always take the likeliest token"},
    {"top-k", 0, OPTION_INTEGER_AT(SETTINGS, top_k), .argument = "K", .maximum = 1 << 30,
     .help = "sample among the K likeliest tokens; 0: all"},
    {"top-p", 0, OPTION_NUMBER_AT(SETTINGS, top_p), .argument = "P", .high = 1,
     .help = "sample among the likeliest tokens whose probabilities add up to P"},
    {"min-p", 0, OPTION_NUMBER_AT(SETTINGS, min_p), .expert = true, .argument = "P", .high = 1,
     .help = "exclude tokens less likely than P times the likeliest one"},
    {"repetition-penalty", 0, OPTION_NUMBER_AT(SETTINGS, repetition_penalty), .argument = "R",
     .low = 0.001, .high = 1000, .help = "divide the logits of tokens seen before"},
    {"presence-penalty", 0, OPTION_NUMBER_AT(SETTINGS, presence_penalty), .expert = true,
     .argument = "R", .low = -100, .high = 100,
     .help = "subtract R from the logits of tokens that the answer contains"},
    {"frequency-penalty", 0, OPTION_NUMBER_AT(SETTINGS, frequency_penalty), .expert = true,
     .argument = "R", .low = -100, .high = 100,
     .help = "subtract R from a token's logit for each time that the answer contains it"},
    {"seed", 's', OPTION_INTEGER_AT(SETTINGS, seed), .argument = "N", .maximum = INT64_C(1) << 53,
     .help = "the same seed makes the same choices from the same logits, on every machine"},
    {"typical", 0, OPTION_NUMBER_AT(SETTINGS, drawing[QP_TYPICAL_P]), .expert = true,
     .argument = "P", .high = 1,
     .help = "sample among the tokens of typical information that have probability P"},
    {"top-n-sigma", 0, OPTION_NUMBER_AT(SETTINGS, drawing[QP_TOP_N_SIGMA]), .expert = true,
     .argument = "N", .low = -1, .high = 1000,
     .help = "exclude logits more than N standard deviations below the largest"},
    {"min-keep", 0, OPTION_NUMBER_AT(SETTINGS, drawing[QP_MIN_KEEP]), .expert = true,
     .argument = "N", .high = 1048576, .help = "tokens that filters leave, if there are any"},
    {"xtc-probability", 0, OPTION_NUMBER_AT(SETTINGS, drawing[QP_XTC_PROBABILITY]), .expert = true,
     .argument = "P", .high = 1,
     .help = "how often the likeliest of several likely tokens are excluded"},
    {"xtc-threshold", 0, OPTION_NUMBER_AT(SETTINGS, drawing[QP_XTC_THRESHOLD]), .expert = true,
     .argument = "P", .high = 1, .help = "which tokens are likely, for --xtc-probability"},
    {"dry-multiplier", 0, OPTION_NUMBER_AT(SETTINGS, drawing[QP_DRY_MULTIPLIER]), .expert = true,
     .argument = "M", .high = 1000,
     .help = "penalise tokens that go on with a repetition of n tokens by M * base^(n - allowed)"},
    {"dry-base", 0, OPTION_NUMBER_AT(SETTINGS, drawing[QP_DRY_BASE]), .expert = true,
     .argument = "B", .high = 1000, .help = "the base of --dry-multiplier"},
    {"dry-allowed-length", 0, OPTION_NUMBER_AT(SETTINGS, drawing[QP_DRY_ALLOWED_LENGTH]),
     .expert = true, .argument = "N", .high = 1048576,
     .help = "repetitions that are too short for --dry-multiplier are shorter than N"},
    {"dry-penalty-last-n", 0, OPTION_NUMBER_AT(SETTINGS, drawing[QP_DRY_PENALTY_LAST_N]),
     .expert = true, .argument = "N", .low = -1, .high = 1073741824,
     .help = "look for repetitions among the last N tokens; -1: all"},
    {"mirostat", 0, OPTION_NUMBER_AT(SETTINGS, drawing[QP_MIROSTAT]), .expert = true,
     .argument = "N", .high = 2,
     .help = "2: hold the surprise of tokens at --mirostat-ent, without the filters above; 0: off"},
    {"mirostat-ent", 0, OPTION_NUMBER_AT(SETTINGS, drawing[QP_MIROSTAT_TAU]), .expert = true,
     .argument = "BITS", .high = 100, .help = "the surprise of --mirostat 2"},
    {"mirostat-lr", 0, OPTION_NUMBER_AT(SETTINGS, drawing[QP_MIROSTAT_ETA]), .expert = true,
     .argument = "R", .high = 1, .help = "how quickly --mirostat 2 adapts"},
    {0}};
const option_group cli_setting_options = {"Sampling", setting_options};

static const option_spec ending_options[] = {
    {"n-predict", 'n', OPTION_INTEGER_AT(SETTINGS, n_predict), .argument = "N", .fallback = "0",
     .maximum = 1 << 30, .help = "most tokens to generate; 0: until the answer ends"},
    {"stop", 0, OPTION_STRINGS_AT(SETTINGS, stops), .argument = "TEXT",
     .help = "end the answer before this text"},
    {"logit-bias", 0, OPTION_STRINGS_AT(SETTINGS, logit_biases), .expert = true,
     .argument = "ID:BIAS", .help = "add BIAS to the logit of token ID"},
    {"ignore-eos", 0, OPTION_FLAG_AT(SETTINGS, ignore_eos), .expert = true,
     .help = "go on when the model ends its answer"},
    {"eos-interval", 0, OPTION_INTEGER_AT(SETTINGS, eos_interval), .expert = true, .argument = "N",
     .fallback = "0", .maximum = QP_MAX_EOS_INTERVAL,
     .help =
         "tokens that a GPU generates between two checks whether the answer has ended; 0: 16; a "
         "CPU checks after each"},
    {0}};
const option_group cli_ending_options = {"Sampling", ending_options};

static const option_spec form_options[] = {
    {"json-schema", 0, OPTION_STRING_AT(SETTINGS, json_schema), .argument = "FILE",
     .hint = OPTION_HINT_FILE, .excludes = "grammar ignore-eos",
     .help = "answers are JSON that this JSON Schema allows: a file, - for standard input, or the "
             "schema itself, such as '{\"type\": \"object\"}'"},
    {"grammar", 0, OPTION_STRING_AT(SETTINGS, grammar), .argument = "FILE",
     .hint = OPTION_HINT_FILE, .excludes = "ignore-eos",
     .help = "answers have the form of a grammar in llama.cpp's notation (GBNF): a file, - for "
             "standard input, or the grammar itself, such as 'root ::= \"yes\" | \"no\"'"},
    {0}};
const option_group cli_form_options = {"Form of answers", form_options};

static const option_spec tokenize_options[] = {
    {"bos", 0, OPTION_FLAG_AT(SETTINGS, bos), .negatable = true,
     .help = "begin with the BOS token, or do not; if neither is given, as the model wants it"},
    {"special", 0, OPTION_FLAG_AT(SETTINGS, special),
     .help = "control tokens written in the text become their ids"},
    {0}};
const option_group cli_tokenize_options = {"Text", tokenize_options};

static const option_spec detokenize_options[] = {
    {"special", 0, OPTION_FLAG_AT(SETTINGS, special), .help = "print control tokens as text"}, {0}};
const option_group cli_detokenize_options = {"Text", detokenize_options};

static const option_spec template_options[] = {
    {"generation-prompt", 0, OPTION_FLAG_AT(SETTINGS, generation_prompt), .negatable = true,
     .fallback = "true", .help = "end with the header of the assistant's turn"},
    {0}};
const option_group cli_template_options = {"Conversation", template_options};

static const option_spec perplexity_options[] = {
    {"context", 'c', OPTION_INTEGER_AT(SETTINGS, context), .argument = "N", .fallback = "512",
     .minimum = 4, .maximum = 1 << 26, .help = "tokens in a chunk"},
    {"file", 'f', OPTION_STRING_AT(SETTINGS, file), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .help = "read the text from a file; without it, or with -, from standard input"},
    {"chunks", 0, OPTION_INTEGER_AT(SETTINGS, chunks), .argument = "N", .fallback = "0",
     .maximum = 1 << 30, .help = "score only the first N chunks; 0: all"},
    {"json", 0, OPTION_FLAG_AT(SETTINGS, json), .help = "print one JSON object"},
    {0}};
const option_group cli_perplexity_options = {"Text", perplexity_options};

static const option_spec logits_options[] = {
    {"ids", 0, OPTION_STRING_AT(SETTINGS, ids), .argument = "1,2,3",
     .help = "token ids in place of a prompt"},
    {"top", 0, OPTION_INTEGER_AT(SETTINGS, top), .argument = "K", .fallback = "5", .minimum = 1,
     .maximum = 1 << 20, .help = "print the K largest logits of each position"},
    {"json", 0, OPTION_FLAG_AT(SETTINGS, json), .help = "print one JSON object"},
    {"out", 'o', OPTION_STRING_AT(SETTINGS, out), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .help = "write all logits as float32 [positions][vocab_size]"},
    {0}};
const option_group cli_logits_options = {"Logits", logits_options};
