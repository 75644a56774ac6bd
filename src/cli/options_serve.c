/* Options of `quipu serve`. */
#include "cli/option_groups.h"

#define SETTINGS cli_settings

const char *const cli_poolings[] = {"model", "mean", "last", NULL}; /* as server_pooling */

const char *const cli_switches[] = {"auto", "on", "off", NULL}; /* as server_switch */

static const option_spec serve_options[] = {
    {"host", 0, OPTION_STRINGS_AT(SETTINGS, hosts), .argument = "ADDRESS",
     .help = "where to listen, 127.0.0.1 if not given; may be repeated, and may be a unix socket: "
             "unix:PATH, or a path that ends in .sock. Any but this host's own addresses need "
             "--api-key-file"},
    {"port", 0, OPTION_INTEGER_AT(SETTINGS, port), .argument = "N", .fallback = "8080",
     .maximum = 65535, .help = "port to listen on; 0: one that is free"},
    {"parallel", 0, OPTION_INTEGER_AT(SETTINGS, parallel), .argument = "N", .fallback = "8",
     .minimum = 1, .maximum = 512,
     .help = "answers that are made at a time; each has a context of its own"},
    {"lora-modules", 0, OPTION_STRINGS_AT(SETTINGS, lora_modules), .argument = "NAME=PATH[:SCALE]",
     .help =
         "a LoRA adapter for the requests whose model is NAME; for more adapters give it again"},
    {"lora-init-without-apply", 0, OPTION_FLAG_AT(SETTINGS, lora_waits), .expert = true,
     .help = "the adapters of --lora too are only for requests that ask for them"},
    {"lora-at-once", 0, OPTION_INTEGER_AT(SETTINGS, lora_at_once), .expert = true, .argument = "N",
     .fallback = "0", .maximum = CLI_ADAPTERS,
     .help = "most adapters of a request; 0: those of --lora, and at least 4"},
    {"prompt-cache", 0, OPTION_STRING_AT(SETTINGS, prompt_cache), .argument = "DIR",
     .hint = OPTION_HINT_FOLDER,
     .help =
         "keep cached prompts in this folder when the server ends, and use them when it starts"},
    {"n-predict", 'n', OPTION_INTEGER_AT(SETTINGS, n_predict), .expert = true, .argument = "N",
     .fallback = "0", .maximum = 1 << 30,
     .help = "tokens of an answer whose request sets no limit; 0: until the context is full"},
    {"api-prefix", 0, OPTION_STRING_AT(SETTINGS, api_prefix), .expert = true, .argument = "PATH",
     .help = "all paths begin with this, such as /llm"},
    {"access-log", 0, OPTION_FLAG_AT(SETTINGS, access_log),
     .help = "a line on stderr for each request: its id, how it ended, and its times"},
    {"log-json", 0, OPTION_FLAG_AT(SETTINGS, log_json), .expert = true,
     .help = "what the server says, and the access log, as objects of JSON, one a line"},
    {"batch-invariant", 0, OPTION_FLAG_AT(SETTINGS, batch_invariant), .expert = true,
     .help =
         "on a GPU, the same answer to the bit whatever other requests there are, as on a CPU: "
         "passes that read prompts have --chunk rows (2,048, or 1,024 with fewer than 16 slots), "
         "and those that make tokens 9 to --parallel"},
    {"models", 0, OPTION_STRING_AT(SETTINGS, models), .argument = "DIR|FILE",
     .hint = OPTION_HINT_FILE,
     .excludes = "model hf alias lora lora-modules kv-events kv-events-replay",
     .help = "serve several models, each by a process that starts when a request names it: those "
             "of a folder (GGUF files, folders with config.json, what /api/pull fetched), or of a "
             "file with a name, a model and options a line"},
    {"models-memory", 0, OPTION_SIZE_AT(SETTINGS, models_memory), .argument = "BYTES",
     .fallback = "0", .maximum = (int64_t)1 << 50,
     .help = "memory that these models may take together, as planned before they are loaded; the "
             "one used longest ago ends when another needs its memory. 0: what is free at the "
             "start"},
    {"keep-alive", 0, OPTION_NUMBER_AT(SETTINGS, keep_alive), .argument = "SECONDS",
     .fallback = "0", .high = 1e9,
     .help = "of --models: a model ends so long after its last answer, unless a request has "
             "keep_alive; 0: when its memory is needed"},
    {"load-timeout", 0, OPTION_NUMBER_AT(SETTINGS, load_timeout), .argument = "SECONDS",
     .fallback = "600", .high = 1e9, .expert = true,
     .help = "of --models: a model that is not ready so long after its start has failed, and its "
             "process is killed; 0: it is waited for"},
    {"started-by", 0, OPTION_INTEGER_AT(SETTINGS, started_by), .expert = true, .argument = "N",
     .fallback = "0", .maximum = 1 << 20,
     .help = "of the processes that --models starts: the descriptor of the socket by which they "
             "ask for memory"},
    {"alias", 0, OPTION_STRING_AT(SETTINGS, alias), .argument = "NAME",
     .help = "the model's name in replies; without it that of its file"},
    {"chat-template", 0, OPTION_STRING_AT(SETTINGS, chat_template), .expert = true,
     .argument = "FILE", .hint = OPTION_HINT_FILE,
     .help = "a chat template in Jinja, in place of the model's own; the text itself if it has {"},
    {"chat-template-kwargs", 0, OPTION_STRING_AT(SETTINGS, template_kwargs), .expert = true,
     .argument = "JSON",
     .help =
         "variables of the chat template, as {\"enable_thinking\": false}, for requests that do "
         "not set them"},
    {"pooling", 0, OPTION_CHOICE_AT(SETTINGS, pooling), .expert = true, .choices = cli_poolings,
     .fallback = "model", .argument = "HOW",
     .help =
         "how a text becomes a vector. model: as its files say, else the mean; mean: the mean of "
         "the last hidden states of its tokens; last: the state of its last token, as models "
         "such as Qwen3-Embedding were trained"},
    {"matryoshka", 0, OPTION_FLAG_AT(SETTINGS, matryoshka), .expert = true,
     .help = "the model was trained for vectors that are cut (`dimensions` of a request)"},
    {"drain", 0, OPTION_NUMBER_AT(SETTINGS, drain), .argument = "SECONDS", .fallback = "30",
     .high = 86400, .help = "time for answers to end after SIGTERM"},
    {"drain-delay", 0, OPTION_NUMBER_AT(SETTINGS, drain_delay), .expert = true,
     .argument = "SECONDS", .fallback = "0", .high = 86400,
     .help = "time before that, in which GET /ready is 503 and requests are still taken, so that "
             "routers send no more"},
    {"kv-events", 0, OPTION_STRING_AT(SETTINGS, kv_events), .expert = true, .argument = "ADDRESS",
     .help = "publish what the prefix cache holds, in vLLM's form, at this address of ZMQ, such as "
             "tcp://127.0.0.1:5557, for routers; who connects learns the tokens of all prompts"},
    {"kv-events-replay", 0, OPTION_STRING_AT(SETTINGS, kv_events_replay), .expert = true,
     .argument = "ADDRESS",
     .help = "where routers get events again that they missed: the last 10,000 batches"},
    {"kv-events-topic", 0, OPTION_STRING_AT(SETTINGS, kv_events_topic), .expert = true,
     .argument = "TOPIC", .help = "the topic of --kv-events, such as kv@10.0.0.7:8080@MODEL"},
    {"own-metrics", 0, OPTION_FLAG_AT(SETTINGS, own_metrics), .expert = true,
     .help = "GET /metrics only under quipu's names, without those of vLLM and llama.cpp"},
    {0}};
const option_group cli_serve_options = {"Server", serve_options};

static const option_spec access_options[] = {
    {"raw-special", 0, OPTION_CHOICE_AT(SETTINGS, raw_special), .expert = true,
     .choices = cli_switches, .fallback = "auto", .argument = "WHEN",
     .help = "whether <|im_start|> and the like are control tokens in prompts without a chat "
             "template (/v1/completions, /completion, raw of /api/generate). auto: on loopback "
             "without keys; never in messages"},
    {"api-key-file", 0, OPTION_STRING_AT(SETTINGS, api_key_file), .argument = "FILE",
     .hint = OPTION_HINT_FILE, .help = "clients need one of the keys in this file, one a line"},
    {"tls-cert", 0, OPTION_STRING_AT(SETTINGS, tls_cert), .argument = "FILE",
     .hint = OPTION_HINT_FILE,
     .help = "speak HTTPS with this certificate and its chain (PEM); SIGHUP reads it again"},
    {"tls-key", 0, OPTION_STRING_AT(SETTINGS, tls_key), .argument = "FILE",
     .hint = OPTION_HINT_FILE,
     .help = "the certificate's key (PEM), if it is not in the same file"},
    {"insecure", 0, OPTION_FLAG_AT(SETTINGS, insecure),
     .help = "let other computers in without a key"},
    {"cors-origin", 0, OPTION_STRINGS_AT(SETTINGS, origins), .argument = "ORIGIN",
     .help =
         "pages of this origin, such as https://example.org, may use the server; localhost: pages "
         "of this computer; *: all pages"},
    {"shared-cache", 0, OPTION_FLAG_AT(SETTINGS, shared_cache), .expert = true,
     .help = "clients with different keys share what was computed for equal beginnings of prompts, "
             "and can tell by the time that another asked the same"},
    {0}};
const option_group cli_access_options = {"Access", access_options};

static const option_spec limit_options[] = {
    {"prompt-cache-size", 0, OPTION_SIZE_AT(SETTINGS, prompt_cache_size), .expert = true,
     .argument = "BYTES", .fallback = "1G", .minimum = 1024, .maximum = (int64_t)1 << 50,
     .help = "largest size of the file in --prompt-cache; the prompts used last are kept"},
    {"store-size", 0, OPTION_SIZE_AT(SETTINGS, store_size), .expert = true, .argument = "BYTES",
     .fallback = "64M", .maximum = (int64_t)1 << 40,
     .help = "memory for responses of /v1/responses, which later requests go on from; 0: none"},
    {"max-queued", 0, OPTION_INTEGER_AT(SETTINGS, max_queued), .expert = true, .argument = "N",
     .fallback = "1024", .minimum = 1, .maximum = 1 << 20,
     .help = "most answers that wait; further requests are refused with 429"},
    {"max-connections", 0, OPTION_INTEGER_AT(SETTINGS, max_connections), .expert = true,
     .argument = "N", .fallback = "1024", .minimum = 1, .maximum = 1 << 16,
     .help = "most connections at a time; /health has some more"},
    {"max-client-connections", 0, OPTION_INTEGER_AT(SETTINGS, client_connections), .expert = true,
     .argument = "N", .fallback = "0", .minimum = 0, .maximum = 1 << 16,
     .help = "most connections of one address (of IPv6, of one network of 64 bits); 0: half of "
             "--max-connections, and all for programs on this computer"},
    {"max-body", 0, OPTION_SIZE_AT(SETTINGS, max_body), .expert = true, .argument = "BYTES",
     .fallback = "16M", .minimum = 1024, .maximum = 1 << 30, .help = "largest body of a request"},
    {"timeout", 0, OPTION_NUMBER_AT(SETTINGS, silence), .expert = true, .argument = "SECONDS",
     .fallback = "0", .high = 1e6,
     .help = "an answer ends as it is this long after its request; 0: never"},
    {"pages", 0, OPTION_INTEGER_AT(SETTINGS, pages), .expert = true, .argument = "N",
     .fallback = "0", .maximum = 1 << 30,
     .help = "pages of the KV cache, which all answers share; 0: enough for a whole context "
             "of each of --parallel"},
    {"sse-ping", 0, OPTION_NUMBER_AT(SETTINGS, sse_ping), .expert = true, .argument = "SECONDS",
     .fallback = "1", .high = 1e6,
     .help =
         "a stream that says nothing for so long gets a comment, by which clients and proxies see "
         "that it lives; 0: none"},
    {"http-workers", 0, OPTION_INTEGER_AT(SETTINGS, http_workers), .expert = true, .argument = "N",
     .fallback = "2", .minimum = 1, .maximum = 64,
     .help = "threads that read requests and write text, besides the one for long work"},
    {0}};
const option_group cli_limit_options = {"Limits", limit_options};
