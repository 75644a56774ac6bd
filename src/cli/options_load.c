/* Options of `quipu load`. */
#include "cli/option_groups.h"

#define SETTINGS cli_settings

static const option_spec server_options[] = {
    {"url", 0, OPTION_STRING_AT(SETTINGS, url), .argument = "URL",
     .fallback = "http://127.0.0.1:8080", .help = "the server: http://HOST[:PORT]"},
    {"model", 0, OPTION_STRING_AT(SETTINGS, served), .argument = "NAME",
     .help = "the model to ask for, on the command line only; without it the first that the server "
             "lists"},
    {"chat", 0, OPTION_FLAG_AT(SETTINGS, chat),
     .help = "ask /v1/chat/completions; without it /v1/completions"},
    {"api-key-file", 0, OPTION_STRING_AT(SETTINGS, api_key_file), .argument = "FILE",
     .hint = OPTION_HINT_FILE, .help = "send the key in the first line of this file"},
    {"timeout", 0, OPTION_NUMBER_AT(SETTINGS, silence), .argument = "SECONDS", .fallback = "600",
     .high = 1e6, .expert = true,
     .help = "a request has failed if nothing comes for so long; 0: wait without end"},
    {0}};
const option_group cli_server_options = {"Server", server_options};

static const option_spec pace_options[] = {
    {"streams", 'C', OPTION_INTEGER_AT(SETTINGS, streams), .argument = "N", .fallback = "0",
     .maximum = 65536,
     .help = "requests at the same time; 0: 1, with --rate or --replay any number"},
    {"rate", 0, OPTION_NUMBER_AT(SETTINGS, rate), .argument = "R", .fallback = "0", .high = 1e6,
     .excludes = "replay",
     .help = "requests arrive at random, R a second on average (Poisson); times count from the "
             "arrival, also where a request waits for one of --streams"},
    {"requests", 'n', OPTION_INTEGER_AT(SETTINGS, requests), .argument = "N", .fallback = "0",
     .maximum = 1 << 30,
     .help = "requests in all; 0: 10 for each stream, with --duration or --replay as many as come"},
    {"duration", 0, OPTION_NUMBER_AT(SETTINGS, duration), .argument = "SECONDS", .fallback = "0",
     .high = 1e7, .help = "no request begins after so long; 0: --requests alone counts"},
    {"warmup", 0, OPTION_INTEGER_AT(SETTINGS, warmup), .argument = "N", .fallback = "0",
     .maximum = 1 << 30, .help = "requests before those that count"},
    {0}};
const option_group cli_pace_options = {"Pace", pace_options};

static const option_spec question_options[] = {
    {"input-tokens", 0, OPTION_INTEGER_AT(SETTINGS, input_tokens), .argument = "N",
     .fallback = "1024", .minimum = 1, .maximum = 1 << 24, .help = "tokens of a prompt"},
    {"output-tokens", 0, OPTION_INTEGER_AT(SETTINGS, output_tokens), .argument = "N",
     .fallback = "128", .minimum = 1, .maximum = 1 << 24, .help = "tokens of an answer"},
    {"shared-prefix", 0, OPTION_INTEGER_AT(SETTINGS, shared_prefix), .argument = "N",
     .fallback = "0", .maximum = 1 << 24,
     .help = "the first N tokens of a prompt are those of the other prompts"},
    {"prefix-groups", 0, OPTION_INTEGER_AT(SETTINGS, prefix_groups), .argument = "N",
     .fallback = "1", .minimum = 1, .maximum = 1 << 30, .expert = true,
     .help = "number of different shared prefixes; requests take them in turn"},
    {"text", 0, OPTION_STRING_AT(SETTINGS, text), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .excludes = "words",
     .help = "prompts are pieces of this text, of four bytes a token; without it random token ids, "
             "for --chat random words"},
    {"words", 0, OPTION_FLAG_AT(SETTINGS, words), .help = "prompts are random words"},
    {"vocab-size", 0, OPTION_INTEGER_AT(SETTINGS, vocab_size), .argument = "N", .fallback = "0",
     .maximum = 1 << 30, .expert = true,
     .help = "random ids are below N; 0: as the server says in /v1/models, else 32000"},
    {"ignore-eos", 0, OPTION_FLAG_AT(SETTINGS, ignore_eos), .negatable = true, .fallback = "true",
     .help = "ask for answers of full length; OpenAI's own servers do not know ignore_eos"},
    {"temp", 0, OPTION_NUMBER_AT(SETTINGS, temperature), .argument = "T", .fallback = "0",
     .high = 100, .help = "temperature; 0 takes the likeliest token"},
    {"seed", 's', OPTION_INTEGER_AT(SETTINGS, seed), .argument = "N", .fallback = "1",
     .maximum = INT64_C(1) << 53, .help = "the same seed asks the same, at the same times"},
    {0}};
const option_group cli_question_options = {"Requests", question_options};

static const option_spec replay_options[] = {
    {"replay", 0, OPTION_STRING_AT(SETTINGS, replay), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .excludes = "shared-prefix",
     .help = "times, lengths and shared blocks of a trace: CSV with TIMESTAMP, ContextTokens, "
             "GeneratedTokens as Azure has, or JSON lines with hash_ids as Mooncake has"},
    {"speed", 0, OPTION_NUMBER_AT(SETTINGS, speed), .argument = "X", .fallback = "1", .low = 1e-6,
     .high = 1e9, .help = "requests come X times as fast as in the trace"},
    {"scale", 0, OPTION_NUMBER_AT(SETTINGS, scale), .argument = "X", .fallback = "1", .low = 1e-6,
     .high = 1e3, .help = "prompts and answers have X times as many tokens as in the trace"},
    {"context", 'c', OPTION_INTEGER_AT(SETTINGS, context), .argument = "N", .fallback = "0",
     .maximum = 1 << 26, .help = "leave out requests of more positions; 0: none"},
    {"skip", 0, OPTION_INTEGER_AT(SETTINGS, skip), .argument = "N", .fallback = "0",
     .maximum = 1 << 30, .help = "begin after the first N requests of the trace"},
    {"sample", 0, OPTION_INTEGER_AT(SETTINGS, sample), .argument = "N", .fallback = "1",
     .minimum = 1, .maximum = 1 << 30,
     .help = "keep one conversation in N, with all its requests; without hash_ids one request in "
             "N"},
    {0}};
const option_group cli_replay_options = {"Traces", replay_options};

static const char *const routers[] = {"round_robin", "power_of_two", "cache_aware", NULL};

static const option_spec simulation_options[] = {
    {"simulate", 0, OPTION_STRING_AT(SETTINGS, costs), .argument = "COSTS",
     .hint = OPTION_HINT_FILE, .excludes = "url",
     .help = "ask no server, but compute what a fleet would do, whose passes take what the rows of "
             "`quipu bench -o csv` in this file say"},
    {"servers", 0, OPTION_INTEGER_AT(SETTINGS, servers), .argument = "N", .fallback = "1",
     .minimum = 1, .maximum = 1 << 16, .help = "servers of the fleet"},
    {"copies", 0, OPTION_INTEGER_AT(SETTINGS, copies), .argument = "N", .fallback = "1",
     .minimum = 1, .maximum = 1 << 16,
     .help = "the trace N times, of other users and from another point of it each time"},
    {"router", 0, OPTION_CHOICE_AT(SETTINGS, router), .choices = routers, .fallback = "cache_aware",
     .argument = "RULE",
     .help = "how a server is chosen for a request, as vllm-router does: power_of_two, the one "
             "with fewer requests of two at random; cache_aware, the one that the longest "
             "beginning of the prompt went to last, or one with the fewest requests"},
    {"parallel", 0, OPTION_INTEGER_AT(SETTINGS, parallel), .argument = "N", .fallback = "64",
     .minimum = 1, .maximum = 512, .help = "answers that a server makes at a time"},
    {"chunk", 0, OPTION_INTEGER_AT(SETTINGS, chunk), .argument = "N", .fallback = "2048",
     .minimum = 1, .maximum = 1 << 16, .help = "most rows of a pass that reads prompts"},
    {"kv-positions", 0, OPTION_INTEGER_AT(SETTINGS, kv_positions), .argument = "N",
     .fallback = "1000000", .minimum = 1, .maximum = INT64_C(1) << 40,
     .help = "positions that a server's KV cache holds"},
    {0}};
const option_group cli_simulation_options = {"Simulation", simulation_options};

static const option_spec figures_options[] = {
    {"slo", 0, OPTION_STRING_AT(SETTINGS, limits), .argument = "LIMITS",
     .help = "count requests within limits in milliseconds (goodput), such as ttft:200,tpot:20 or "
             "e2el:5000"},
    {"json", 0, OPTION_FLAG_AT(SETTINGS, json),
     .help = "print one JSON object, with the names of `vllm bench serve`"},
    {0}};
const option_group cli_figures_options = {"Figures", figures_options};
