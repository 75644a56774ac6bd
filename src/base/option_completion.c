/* Shell completions, made from the option tables: see option.h.
 *
 * The texts of the tables are our own, but they are quoted wherever a shell would interpret them.
 * The generated scripts recognise a command of two words ("ops check") by its first two words.
 */
#include "base/option.h"

#include <string.h>

/* The first word of a command's name, and whether there is a second. */
static bool first_word(const command_spec *command, strbuf *word)
{
    size_t length = strcspn(command->name, " ");
    strbuf_clear(word);
    strbuf_append(word, command->name, length);
    return command->name[length] != '\0';
}

/* Appends the first words of all commands, each once, or (with `family`) the second words of the
 * commands that begin with it; `separator` between them. */
static void put_words(const program_spec *program, const char *family, strbuf *out)
{
    strbuf word = {0}, earlier = {0};
    bool any = false;
    for (const command_spec *command = program->commands; command->name; command++) {
        bool two = first_word(command, &word);
        if (family && (!two || strcmp(strbuf_text(&word), family) != 0)) continue;
        if (!family && command != program->commands) {
            first_word(command - 1, &earlier);
            if (strcmp(strbuf_text(&word), strbuf_text(&earlier)) == 0) continue;
        }
        strbuf_printf(out, "%s%s", any ? " " : "",
                      family ? command->name + word.length + 1 : strbuf_text(&word));
        any = true;
    }
    strbuf_free(&word);
    strbuf_free(&earlier);
}

/* Calls for the first command of each family of two-word commands. */
static void each_family(const program_spec *program, strbuf *out,
                        void put(const program_spec *, const char *family, strbuf *))
{
    strbuf word = {0}, earlier = {0};
    for (const command_spec *command = program->commands; command->name; command++) {
        if (!first_word(command, &word)) continue;
        if (command != program->commands) {
            first_word(command - 1, &earlier);
            if (strcmp(strbuf_text(&word), strbuf_text(&earlier)) == 0) continue;
        }
        put(program, strbuf_text(&word), out);
    }
    strbuf_free(&word);
    strbuf_free(&earlier);
}

/* 'text' for a shell; within it, a quote becomes '\''. */
static void put_quoted(const char *text, strbuf *out)
{
    strbuf_putc(out, '\'');
    for (; *text; text++) {
        if (*text == '\'')
            strbuf_puts(out, "'\\''");
        else
            strbuf_putc(out, *text == '\n' ? ' ' : *text);
    }
    strbuf_putc(out, '\'');
}

static void put_choices(const option_spec *option, strbuf *out)
{
    for (int i = 0; option->choices[i]; i++)
        strbuf_printf(out, "%s%s", i ? " " : "", option->choices[i]);
}

/* bash --------------------------------------------------------------------------------------- */

static void bash_family(const program_spec *program, const char *family, strbuf *out)
{
    strbuf_printf(out,
                  "    %s)\n        if [ \"$COMP_CWORD\" = 2 ]; then\n"
                  "            COMPREPLY=($(compgen -W '",
                  family);
    put_words(program, family, out);
    strbuf_puts(out, "' -- \"$current\"))\n            return\n        fi\n"
                     "        command=\"$command ${COMP_WORDS[2]}\"\n        ;;\n");
}

/* The completion of an option's value. */
static void bash_value(const option_spec *option, strbuf *out)
{
    if (option->type == OPTION_FLAG) return;
    strbuf_printf(out, "        --%s", option->name);
    if (option->short_name) strbuf_printf(out, " | -%c", option->short_name);
    strbuf_puts(out, ")");
    if (option->type == OPTION_CHOICE) {
        strbuf_puts(out, " COMPREPLY=($(compgen -W '");
        put_choices(option, out);
        strbuf_puts(out, "' -- \"$current\"));");
    } else if (option->hint == OPTION_HINT_FILE) {
        strbuf_puts(out, " _quipu_files -f;");
    } else if (option->hint == OPTION_HINT_FOLDER) {
        strbuf_puts(out, " _quipu_files -d;");
    }
    strbuf_puts(out, " return ;;\n");
}

static void bash_command(const command_spec *command, strbuf *out)
{
    const option_spec *option;
    strbuf_printf(out, "    '%s')\n        case $previous in\n", command->name);
    for (int i = 0; (option = option_at(command, i)); i++)
        bash_value(option, out);
    strbuf_puts(out, "        esac\n        options='--help --help-all");
    for (int i = 0; (option = option_at(command, i)); i++) {
        strbuf_printf(out, " --%s", option->name);
        if (option->negatable) strbuf_printf(out, " --no-%s", option->name);
    }
    strbuf_puts(out, "'\n");
    if (command->positional_hint != OPTION_HINT_NONE)
        strbuf_printf(out, "        words=%s\n",
                      command->positional_hint == OPTION_HINT_FILE ? "-f" : "-d");
    strbuf_puts(out, "        ;;\n");
}

void option_completion_bash(const program_spec *program, strbuf *out)
{
    strbuf_printf(out,
                  "# Completion of %s for bash: source this file, or put it in\n"
                  "# ~/.local/share/bash-completion/completions/%s\n\n"
                  "_quipu_files() {\n"
                  "    compopt -o filenames 2>/dev/null\n"
                  "    mapfile -t COMPREPLY < <(compgen \"$1\" -- \"$current\")\n}\n\n"
                  "_quipu() {\n"
                  "    local current=${COMP_WORDS[COMP_CWORD]}\n"
                  "    local previous=${COMP_WORDS[COMP_CWORD - 1]}\n"
                  "    local command=${COMP_WORDS[1]} options= words=\n"
                  "    COMPREPLY=()\n"
                  "    # bash hands over --name=value as three words.\n"
                  "    if [ \"$current\" = = ]; then\n"
                  "        current=\n"
                  "    elif [ \"$previous\" = = ]; then\n"
                  "        previous=${COMP_WORDS[COMP_CWORD - 2]}\n"
                  "    fi\n"
                  "    if [ \"$COMP_CWORD\" = 1 ]; then\n"
                  "        COMPREPLY=($(compgen -W '--help --version ",
                  program->name, program->name);
    put_words(program, NULL, out);
    strbuf_puts(out, "' -- \"$current\"))\n        return\n    fi\n    case $command in\n");
    each_family(program, out, bash_family);
    strbuf_puts(out, "    esac\n    case $command in\n");
    for (const command_spec *command = program->commands; command->name; command++)
        bash_command(command, out);
    strbuf_puts(out, "    esac\n"
                     "    if [[ $current == -* ]]; then\n"
                     "        COMPREPLY=($(compgen -W \"$options\" -- \"$current\"))\n"
                     "    elif [ -n \"$words\" ]; then\n"
                     "        _quipu_files \"$words\"\n"
                     "    fi\n}\n");
    strbuf_printf(out, "complete -F _quipu %s\n", program->name);
}

/* zsh ---------------------------------------------------------------------------------------- */

/* An explanation inside an _arguments specification: brackets and colons have a meaning there. */
static void zsh_explained(const char *text, strbuf *out)
{
    for (; *text; text++) {
        if (strchr("[]:\\", *text)) strbuf_putc(out, '\\');
        strbuf_putc(out, *text == '\n' ? ' ' : *text);
    }
}

static void zsh_action(const option_spec *option, strbuf *out)
{
    if (option->type == OPTION_FLAG) return;
    strbuf_putc(out, ':');
    zsh_explained(option->argument ? option->argument : "value", out);
    strbuf_putc(out, ':');
    if (option->type == OPTION_CHOICE) {
        strbuf_putc(out, '(');
        put_choices(option, out);
        strbuf_putc(out, ')');
    } else if (option->hint != OPTION_HINT_NONE) {
        strbuf_puts(out, option->hint == OPTION_HINT_FILE ? "_files" : "_files -/");
    }
}

/* One specification for each spelling of the flag. */
static void zsh_flag(const option_spec *option, const char *flag, strbuf *out)
{
    strbuf text = {0};
    bool is_long = flag[1] == '-';
    strbuf_printf(&text, "%s%s%s[", option->type == OPTION_STRINGS ? "*" : "", flag,
                  option->type == OPTION_FLAG ? ""
                  : is_long                   ? "="
                                              : "+");
    zsh_explained(option->help, &text);
    strbuf_putc(&text, ']');
    zsh_action(option, &text);
    strbuf_puts(out, " \\\n            ");
    put_quoted(strbuf_text(&text), out);
    strbuf_free(&text);
}

static void zsh_command(const command_spec *command, strbuf *out)
{
    const option_spec *option;
    strbuf flag = {0};
    strbuf_printf(out,
                  "    '%s')\n        _arguments '--help[explain the command]' '--help-all[explain "
                  "it with all options]'",
                  command->name);
    for (int i = 0; (option = option_at(command, i)); i++) {
        strbuf_clear(&flag);
        strbuf_printf(&flag, "--%s", option->name);
        zsh_flag(option, strbuf_text(&flag), out);
        if (option->negatable) {
            strbuf_clear(&flag);
            strbuf_printf(&flag, "--no-%s", option->name);
            zsh_flag(option, strbuf_text(&flag), out);
        }
        if (!option->short_name) continue;
        strbuf_clear(&flag);
        strbuf_printf(&flag, "-%c", option->short_name);
        zsh_flag(option, strbuf_text(&flag), out);
    }
    if (command->positional_hint != OPTION_HINT_NONE)
        strbuf_puts(out, command->positional_hint == OPTION_HINT_FILE ? " '*:file:_files'"
                                                                      : " '*:folder:_files -/'");
    strbuf_puts(out, "\n        ;;\n");
    strbuf_free(&flag);
}

static void zsh_family(const program_spec *program, const char *family, strbuf *out)
{
    strbuf_printf(out, "    %s)\n        if (( CURRENT == 3 )); then\n            compadd ",
                  family);
    put_words(program, family, out);
    strbuf_puts(out, "\n            return\n        fi\n"
                     "        command=\"$command $words[3]\"\n        skip=2\n        ;;\n");
}

void option_completion_zsh(const program_spec *program, strbuf *out)
{
    strbuf_printf(out,
                  "#compdef %s\n# Completion of %s for zsh: put it, as _%s, in a folder of "
                  "$fpath.\n\n_quipu() {\n"
                  "    local command=$words[2] skip=1\n"
                  "    if (( CURRENT == 2 )); then\n        local -a commands=(",
                  program->name, program->name, program->name);
    for (const command_spec *command = program->commands; command->name; command++) {
        strbuf text = {0};
        if (first_word(command, &text)) {
            strbuf_free(&text);
            continue;
        }
        strbuf_putc(&text, ':');
        strbuf_puts(&text, command->summary);
        strbuf_puts(out, "\n            ");
        put_quoted(strbuf_text(&text), out);
        strbuf_free(&text);
    }
    strbuf_puts(out, "\n        )\n        _describe command commands\n        compadd -- ");
    put_words(program, NULL, out);
    strbuf_puts(out, "\n        return\n    fi\n    case $command in\n");
    each_family(program, out, zsh_family);
    strbuf_puts(out, "    esac\n"
                     "    # _arguments counts from the command.\n"
                     "    shift $skip words\n    (( CURRENT -= skip ))\n"
                     "    case $command in\n");
    for (const command_spec *command = program->commands; command->name; command++)
        zsh_command(command, out);
    strbuf_puts(out, "    esac\n}\n\nif [ \"$funcstack[1]\" = _quipu ]; then\n    _quipu \"$@\"\n"
                     "else\n");
    strbuf_printf(out, "    compdef _quipu %s\nfi\n", program->name);
}

/* fish --------------------------------------------------------------------------------------- */

/* The condition under which a command's options are offered. */
static void fish_condition(const command_spec *command, strbuf *out)
{
    strbuf word = {0};
    bool two = first_word(command, &word);
    strbuf_printf(out, "'__fish_seen_subcommand_from %s", strbuf_text(&word));
    if (two)
        strbuf_printf(out, "; and __fish_seen_subcommand_from %s", command->name + word.length + 1);
    strbuf_putc(out, '\'');
    strbuf_free(&word);
}

/* Like put_quoted(); fish escapes a quote with a backslash. */
static void fish_quoted(const char *text, strbuf *out)
{
    strbuf_putc(out, '\'');
    for (; *text; text++) {
        if (*text == '\'' || *text == '\\') strbuf_putc(out, '\\');
        strbuf_putc(out, *text == '\n' ? ' ' : *text);
    }
    strbuf_putc(out, '\'');
}

static void fish_option(const program_spec *program, const command_spec *command,
                        const option_spec *option, bool negated, strbuf *out)
{
    strbuf_printf(out, "complete -c %s -n ", program->name);
    fish_condition(command, out);
    strbuf_printf(out, " -l %s%s", negated ? "no-" : "", option->name);
    if (option->short_name && !negated) strbuf_printf(out, " -s %c", option->short_name);
    if (option->type == OPTION_CHOICE) {
        strbuf_puts(out, " -x -a '");
        put_choices(option, out);
        strbuf_putc(out, '\'');
    } else if (option->hint == OPTION_HINT_FILE) {
        strbuf_puts(out, " -r -F");
    } else if (option->hint == OPTION_HINT_FOLDER) {
        strbuf_puts(out, " -x -a '(__fish_complete_directories)'");
    } else if (option->type != OPTION_FLAG) {
        strbuf_puts(out, " -x");
    }
    strbuf_puts(out, " -d ");
    fish_quoted(option->help, out);
    strbuf_putc(out, '\n');
}

static void fish_command(const program_spec *program, const command_spec *command, strbuf *out)
{
    strbuf word = {0};
    bool two = first_word(command, &word);
    strbuf_printf(out, "complete -c %s -n ", program->name);
    if (two)
        strbuf_printf(out, "'__fish_seen_subcommand_from %s' -a %s", strbuf_text(&word),
                      command->name + word.length + 1);
    else
        strbuf_printf(out, "__fish_use_subcommand -a %s", strbuf_text(&word));
    strbuf_puts(out, " -d ");
    fish_quoted(command->summary, out);
    strbuf_putc(out, '\n');
    const option_spec *option;
    for (int i = 0; (option = option_at(command, i)); i++) {
        fish_option(program, command, option, false, out);
        if (option->negatable) fish_option(program, command, option, true, out);
    }
    if (command->positional_hint != OPTION_HINT_NONE) {
        strbuf_printf(out, "complete -c %s -F -n ", program->name);
        fish_condition(command, out);
        strbuf_putc(out, '\n');
    }
    strbuf_free(&word);
}

static void fish_family(const program_spec *program, const char *family, strbuf *out)
{
    strbuf_printf(out, "complete -c %s -n __fish_use_subcommand -a %s\n", program->name, family);
}

void option_completion_fish(const program_spec *program, strbuf *out)
{
    strbuf_printf(out,
                  "# Completion of %s for fish: put it in ~/.config/fish/completions/%s.fish\n"
                  "complete -c %s -f\n"
                  "complete -c %s -l help -s h -d 'explain the command'\n"
                  "complete -c %s -l help-all -d 'explain it with all options'\n",
                  program->name, program->name, program->name, program->name, program->name);
    each_family(program, out, fish_family);
    for (const command_spec *command = program->commands; command->name; command++)
        fish_command(program, command, out);
}
