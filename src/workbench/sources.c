/* The embedded source texts: see sources.h. */
#include "workbench/sources.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const char folder[] = "src/";

static const embedded_text *find_reference(const char *op_name)
{
    char path[256];
    snprintf(path, sizeof path, "src/op/%s/%s.c", op_name, op_name);
    return embedded_find(path);
}

size_t sources_code_length(const embedded_text *source)
{
    /* The order of the parts in an operator's file. */
    static const char *const tables[] = {
        "static const char *const cases[]", "static const char *const workloads[]",
        "static const op_tolerance tolerances[]", "const op_info op_"};
    size_t length = source->length;
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        const char *at = strstr(source->text, tables[i]);
        if (at && (size_t)(at - source->text) < length) length = (size_t)(at - source->text);
    }
    return length;
}

const char *sources_reference(const char *op_name, size_t *length)
{
    const embedded_text *source = find_reference(op_name);
    *length = source ? sources_code_length(source) : 0;
    return source ? source->text : "";
}

static bool is_listed(const char *const *paths, int n, const char *path)
{
    for (int i = 0; i < n; i++) {
        if (strcmp(paths[i], path) == 0) return true;
    }
    return false;
}

/* Appends the sources of the headers that a text includes: X.h, and X.c if it exists. */
static int add_included(const char *text, const char *self, const char **paths, int n)
{
    static const char include[] = "#include \"op/";
    for (const char *at = strstr(text, include); at; at = strstr(at + 1, include)) {
        const char *name = at + sizeof "#include \"" - 1;
        size_t length = strcspn(name, "\"");
        for (const char *ending = "ch"; *ending; ending++) {
            char path[256];
            if (length < 2 || length > 200) continue;
            snprintf(path, sizeof path, "%s%.*s%c", folder, (int)length - 1, name, *ending);
            const embedded_text *found = embedded_find(path);
            bool known = !found || strcmp(path, self) == 0 || is_listed(paths, n, path) ||
                         strcmp(path, "src/op/op.h") == 0 || strcmp(path, "src/op/op.c") == 0;
            if (!known && n < SOURCES_MAX) paths[n++] = found->path;
        }
    }
    return n;
}

int sources_called(const char *op_name, const char *paths[SOURCES_MAX])
{
    const embedded_text *source = find_reference(op_name);
    if (!source) return 0;
    int n = add_included(source->text, source->path, paths, 0);
    for (int i = 0; i < n; i++)
        n = add_included(embedded_find(paths[i])->text, source->path, paths, n);
    return n;
}
