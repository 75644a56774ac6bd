/* One table of options: parsing, --help, the manual page, shell completions and the QUIPU_*
 * environment twins are all read from it, so that none can disagree with another.
 *
 * The values land in a struct of the caller's; the table says at which member.
 *
 *     typedef struct settings {
 *         const char *model;
 *         int64_t top_k;
 *         bool echo;
 *         int device;
 *     } settings;
 *
 *     static const char *const devices[] = {"auto", "cpu", "cuda", NULL};
 *     static const option_spec options[] = {
 *         {"model", 'm', OPTION_STRING_AT(settings, model), .argument = "MODEL",
 *          .hint = OPTION_HINT_FILE, .help = "a GGUF file or a model directory"},
 *         {"top-k", 0, OPTION_INTEGER_AT(settings, top_k), .argument = "K", .maximum = 1000000,
 *          .fallback = "40", .help = "sample among the K likeliest tokens"},
 *         {"echo", 0, OPTION_FLAG_AT(settings, echo), .help = "print the prompt too"},
 *         {"device", 0, OPTION_CHOICE_AT(settings, device), .choices = devices,
 *          .fallback = "auto", .help = "where to run"},
 *         {0}};
 *     static const option_group group = {"Options", options};
 *     static const option_group *const groups[] = {&group, NULL};
 *     static const command_spec commands[] = {
 *         {.name = "run", .synopsis = "-m MODEL [OPTION...]", .summary = "answer a prompt",
 *          .groups = groups},
 *         {0}};
 *     static const program_spec program = {.name = "quipu", .commands = commands, ...};
 *
 *     int used;
 *     const command_spec *command;
 *     settings values = {0};
 *     option_result result = {0};
 *     TRY(command_find(&program, argc - 1, argv + 1, &command, &used, error));
 *     TRY(option_parse(&program, command, argc - 1 - used, argv + 1 + used, &values, &result,
 *                      error));
 *     if (option_source_at(&result, &values.top_k) == OPTION_FROM_DEFAULT) ...
 *
 * On the command line: --top-k 5, --top-k=5, -n5, -n 5, -vn5, --echo, --no-bos; `--` ends the
 * options; options and other words may come in any order; the last of a repeated option counts.
 * --help, -h and --help-all are known to every command. In the environment: QUIPU_TOP_K=5,
 * QUIPU_ECHO=1. The command line wins over the environment and that over the table's default: the
 * variable of an option that the command line gives, or excludes, is not read.
 */
#pragma once

#include "base/arena.h"
#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum option_type {
    OPTION_FLAG,    /* bool: present or not */
    OPTION_STRING,  /* const char *: as given */
    OPTION_STRINGS, /* option_strings: may be repeated, in order */
    OPTION_INTEGER, /* int64_t: decimal, within [minimum, maximum] */
    OPTION_NUMBER,  /* double: finite, within [low, high] */
    OPTION_SIZE,    /* uint64_t: bytes; 512, 64K, 2G, 1.5G, 2GiB: powers of 1024 */
    OPTION_CHOICE,  /* int: the index among `choices` */
} option_type;

/* What an OPTION_STRINGS member is. */
typedef struct option_strings {
    const char **items; /* [count] */
    int count;
} option_strings;

/* What a shell offers for the value. */
typedef enum option_hint {
    OPTION_HINT_NONE,
    OPTION_HINT_FILE,
    OPTION_HINT_FOLDER,
} option_hint;

typedef struct option_spec {
    const char *name; /* without the dashes; NULL ends a table */
    char short_name;  /* 0 for none */
    option_type type;
    size_t field;         /* offset of the value in the caller's struct */
    const char *argument; /* what help calls the value: "N", "FILE" */
    const char *help;     /* a phrase, no full stop at its end */
    /* The default, as on a command line. NULL leaves the member as the caller set it. */
    const char *fallback;
    int64_t minimum, maximum;   /* OPTION_INTEGER, OPTION_SIZE; both 0: any */
    double low, high;           /* OPTION_NUMBER; both 0: any */
    const char *const *choices; /* OPTION_CHOICE; ends in NULL */
    /* OPTION_CHOICE: names that choices had before, and what to say of each; ends in {NULL}. */
    const char *const (*renamed)[2];
    option_hint hint;
    bool negatable;   /* OPTION_FLAG: --no-NAME turns it off */
    bool single_dash; /* -NAME is the option too, as in similar programs */
    bool expert;      /* shown by --help-all, not by --help */
    /* Names of options that cannot be given together with this one, separated by blanks; one
     * direction suffices. */
    const char *excludes;
} option_spec;

/* Type and field in one, checked: a member of another type does not compile. */
#define OPTION_AT(kind, ctype, structure, member)                                                  \
    .type = (kind),                                                                                \
    .field = offsetof(structure, member) + 0 * sizeof((ctype *)0 == &((structure *)0)->member)
#define OPTION_FLAG_AT(structure, member) OPTION_AT(OPTION_FLAG, bool, structure, member)
#define OPTION_STRING_AT(structure, member)                                                        \
    OPTION_AT(OPTION_STRING, const char *, structure, member)
#define OPTION_STRINGS_AT(structure, member)                                                       \
    OPTION_AT(OPTION_STRINGS, option_strings, structure, member)
#define OPTION_INTEGER_AT(structure, member) OPTION_AT(OPTION_INTEGER, int64_t, structure, member)
#define OPTION_NUMBER_AT(structure, member)  OPTION_AT(OPTION_NUMBER, double, structure, member)
#define OPTION_SIZE_AT(structure, member)    OPTION_AT(OPTION_SIZE, uint64_t, structure, member)
#define OPTION_CHOICE_AT(structure, member)  OPTION_AT(OPTION_CHOICE, int, structure, member)

/* Options that belong together; commands share groups. */
typedef struct option_group {
    const char *title;          /* "Sampling" */
    const option_spec *options; /* ends in {0} */
} option_group;

typedef struct command_spec {
    const char *name;                  /* "run", or two words, "ops check"; NULL ends a table */
    const char *synopsis;              /* what follows the name in the usage line */
    const char *summary;               /* one phrase, for the list of commands */
    const char *heading;               /* in that list, before this command; NULL: none */
    const char *description;           /* paragraphs separated by an empty line; may be NULL */
    const option_group *const *groups; /* ends in NULL; may be NULL */
    int positional_minimum;            /* how many words besides options it takes */
    int positional_maximum;            /* -1: any number */
    option_hint positional_hint;
    /* An option that the first positional word sets where the option is not given, if there are
     * more words than positional_maximum; a word with a blank is only taken if it names a file. */
    const char *first_word;
    void (*run)(void); /* the caller's function, cast; cast it back before the call */
} command_spec;

/* A word and what is said about it. */
typedef struct option_entry {
    const char *name; /* NULL ends a table */
    const char *text;
} option_entry;

/* Flags of similar programs. One that means an option here, or something that is so without it, is
 * taken; others are answered with the reason, and with what to use. A command's own flags go first.
 * Several rows may have a name: the first that has a meaning for the command counts. */
typedef struct option_foreign {
    const char *names;  /* with their dashes, separated by blanks; NULL ends a table */
    const char *option; /* the option that takes the value; NULL: none */
    /* The values that have a meaning, and what the option gets for each: "99=cuda 0=cpu". Nothing
     * after the sign: nothing is set. Nothing before it: the flag needs no value. "*=*": all
     * others, as they are. NULL: all values; without an option, the flag has none. */
    const char *values;
    const char *text;     /* the answer where it has no meaning; NULL: names the option */
    const char *commands; /* to which the row is restricted, separated by blanks; NULL: all */
    bool holds;           /* without an option: what it asks for is so without it */
} option_foreign;

typedef struct program_spec {
    const char *name;
    const char *version;
    const char *summary;
    const char *description;
    const command_spec *commands; /* ends in {0} */
    /* Flags and commands of similar programs. A command's `option` is the command that it means
     * here. May be NULL. */
    const option_foreign *foreign_flags, *foreign_commands;
    /* Parts of the manual page; may be NULL. */
    const option_entry *exit_statuses, *files, *variables, *examples;
} program_spec;

typedef enum option_source {
    OPTION_FROM_DEFAULT, /* the table's default, or what the caller had put there */
    OPTION_FROM_ENVIRONMENT,
    OPTION_FROM_COMMAND_LINE,
} option_source;

enum { OPTION_LIMIT = 128 }; /* options that one command may have */

/* Zero-initialise; option_result_free() after use, also when parsing failed. */
typedef struct option_result {
    const command_spec *command;
    const void *fields;                  /* the caller's struct */
    unsigned char sources[OPTION_LIMIT]; /* option_source, in the order of the groups */
    const char **positional;             /* [n_positional] */
    int n_positional;
    bool help;     /* --help was asked for; nothing else was required or checked after it */
    bool help_all; /* --help-all was: `help` is true too */
    arena memory;
} option_result;

/* The command that the first words of argv name, and how many words that took. A word that is no
 * command is QP_INVALID, and the message names the nearest. */
qp_status command_find(const program_spec *program, int argc, char **argv, const command_spec **out,
                       int *used, qp_error *error);

/* Fills `fields` from defaults, environment and command line, in rising order; strings point into
 * argv and the environment. QP_INVALID names the flag (or variable), what was expected and found.
 */
qp_status option_parse(const program_spec *program, const command_spec *command, int argc,
                       char **argv, void *fields, option_result *out, qp_error *error);
void option_result_free(option_result *result);

/* Where the value of a member came from; `field` points into the struct that was filled. */
option_source option_source_at(const option_result *result, const void *field);

/* The index-th option of a command across its groups; NULL past the last. */
const option_spec *option_at(const command_spec *command, int index);

/* "QUIPU_TOP_K" for "top-k"; `out` has room for 64 bytes. */
void option_environment_name(const option_spec *option, char out[64]);

/* An option's type in words with its bounds: "an integer from 0 to 10", "auto, cpu or cuda". */
void option_expected(const option_spec *option, strbuf *out);

/* Texts drawn from the tables. */
void option_overview(const program_spec *program, strbuf *out); /* all commands */
/* `all`: expert options too. */
void option_help(const program_spec *program, const command_spec *command, bool all, strbuf *out);

/* The commands of two words that begin with `word`; false (and nothing appended) if none does. */
bool option_family_overview(const program_spec *program, const char *word, strbuf *out);
void option_man(const program_spec *program, strbuf *out); /* troff, man(7) */
void option_completion_bash(const program_spec *program, strbuf *out);
void option_completion_zsh(const program_spec *program, strbuf *out);
void option_completion_fish(const program_spec *program, strbuf *out);

/* Checks the tables themselves: names unique within a command, defaults valid, help present. */
qp_status option_check(const program_spec *program, qp_error *error);
