/* Flags of similar programs: see option_foreign in option.h. */
#include "base/option_foreign.h"

#include <string.h>

bool option_has_word(const char *words, const char *word, size_t length)
{
    for (const char *at = words; *at; at += strspn(at, " ")) {
        const size_t size = strcspn(at, " ");
        if (size == length && memcmp(at, word, length) == 0) return true;
        at += size;
    }
    return false;
}

static bool is_for(const option_foreign *row, const command_spec *command)
{
    return !row->commands || option_has_word(row->commands, command->name, strlen(command->name));
}

static int index_of(const command_spec *command, const char *name)
{
    const option_spec *option;
    for (int i = 0; (option = option_at(command, i)); i++)
        if (strcmp(option->name, name) == 0) return i;
    return -1;
}

static const option_foreign *find(const option_foreign *table, const command_spec *command,
                                  const char *flag, size_t length, int *option)
{
    const option_foreign *first = NULL;
    *option = -1;
    for (const option_foreign *row = table; row && row->names; row++) {
        if (!is_for(row, command) || !option_has_word(row->names, flag, length)) continue;
        if (!first) first = row;
        if (row->option) *option = index_of(command, row->option);
        if (!row->option || *option >= 0) return row;
    }
    return first;
}

const option_foreign *option_foreign_find(const option_foreign *table, const command_spec *command,
                                          const char *flag, size_t length, int *option)
{
    const option_foreign *row = find(table, command, flag, length, option);
    char positive[72];
    if (row || length < 6 || length >= sizeof positive || memcmp(flag, "--no-", 5) != 0) return row;
    memcpy(positive, "--", 2);
    memcpy(positive + 2, flag + 5, length - 5);
    row = find(table, command, positive, length - 3, option);
    return row && (row->option || row->values || row->holds) ? NULL : row;
}

bool option_foreign_value(const option_foreign *row, const char *value, const char **out,
                          size_t *length)
{
    const size_t wanted = strlen(value);
    for (const char *at = row->values; at && *at; at += strspn(at, " ")) {
        const size_t size = strcspn(at, " "), name = strcspn(at, "=");
        *out = at + name + 1;
        *length = size - name - 1;
        if (name == 1 && *at == '*' && wanted > 0) {
            *out = value;
            *length = wanted;
            return true;
        }
        if (name == wanted && memcmp(at, value, name) == 0) return true;
        at += size;
    }
    return false;
}

/* The commands that have the option: two by name. */
static void put_owners(const program_spec *program, const char *option, strbuf *out)
{
    int owners = 0;
    for (const command_spec *command = program->commands; command->name; command++)
        if (index_of(command, option) >= 0 && owners++ < 2)
            strbuf_printf(out, "%s`%s %s`", owners > 1 ? ", " : "", program->name, command->name);
    if (owners > 2) strbuf_printf(out, " and %d more", owners - 2);
}

void option_foreign_advice(const program_spec *program, const option_foreign *row, strbuf *out)
{
    if (row->text) {
        strbuf_puts(out, row->text);
        return;
    }
    strbuf_printf(out, "here it is --%s of ", row->option);
    put_owners(program, row->option, out);
}
