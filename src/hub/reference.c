/* Parses references to models: see hub.h. */
#include "hub/hub.h"

#include "base/suggest.h"

#include <stdio.h>
#include <string.h>

static const hub_short_name short_names[] = {
#define HUB_NAME(name, reference, licence) {name, reference, licence},
#include "hub/names.def"
#undef HUB_NAME
    {0}};

const hub_short_name *hub_short_name_at(int index)
{
    const int count = sizeof short_names / sizeof *short_names - 1;
    return index >= 0 && index < count ? &short_names[index] : NULL;
}

static const hub_short_name *find_short_name(const char *text)
{
    for (const hub_short_name *n = short_names; n->name; n++)
        if (strcmp(n->name, text) == 0) return n;
    return NULL;
}

bool hub_is_short_name(const char *text)
{
    return find_short_name(text) != NULL;
}

const char *hub_nearest_name(const char *text)
{
    suggestion near = {.word = text};
    const size_t length = strlen(text);
    for (const hub_short_name *n = short_names; n->name; n++) {
        if (length > 0 && strncmp(n->name, text, length) == 0) return n->name;
        suggest_offer(&near, n->name);
    }
    return near.best;
}

/* Letters, digits, '-', '_' and '.', but not "." or "..", nor "--", which separates the parts in
 * the cache: the name becomes a part of a path. */
static bool is_plain_name(const char *text)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    return *text && strspn(text, allowed) == strlen(text) && !strstr(text, "..") &&
           !strstr(text, "--") && strcmp(text, ".") != 0;
}

/* A file of a repository: plain names, possibly in folders. */
static bool is_plain_path(const char *text)
{
    char part[HUB_NAME_SIZE];
    for (const char *at = text; *at;) {
        size_t length = strcspn(at, "/");
        if (length >= sizeof part) return false;
        memcpy(part, at, length);
        part[length] = '\0';
        if (!*part || part[0] == '.') return false;
        at += length;
        if (*at == '/' && !*++at) return false;
    }
    return *text && !strpbrk(text, "\\\"'\n\r\t");
}

static bool copy_part(const char *from, size_t length, char *to)
{
    if (length >= HUB_NAME_SIZE) return false;
    memcpy(to, from, length);
    to[length] = '\0';
    return true;
}

static qp_status refuse(const char *text, qp_error *error)
{
    if (hub_nearest_name(text))
        return error_set(error, QP_INVALID, "there is no model called \"%s\"; did you mean %s?",
                         text, hub_nearest_name(text));
    return error_set(error, QP_INVALID,
                     "a model of the hub is OWNER/NAME, OWNER/NAME:FILE.gguf, OWNER/NAME:TYPE or a "
                     "short name (`quipu pull` lists them), found \"%s\"",
                     text);
}

qp_status hub_parse(const char *text, hub_reference *out, qp_error *error)
{
    const hub_short_name *known = find_short_name(text);
    const char *full = known ? known->reference : text;
    *out = (hub_reference){.licence = known ? known->licence : NULL};
    const char *slash = strchr(full, '/'), *colon = strchr(full, ':');
    if (!slash || (colon && colon < slash)) return refuse(text, error);
    size_t name_length = colon ? (size_t)(colon - slash - 1) : strlen(slash + 1);
    if (!copy_part(full, (size_t)(slash - full), out->owner) ||
        !copy_part(slash + 1, name_length, out->name) ||
        (colon && !copy_part(colon + 1, strlen(colon + 1), out->select)))
        return refuse(text, error);
    bool plain = is_plain_name(out->owner) && is_plain_name(out->name) &&
                 (colon ? is_plain_path(out->select) : true);
    return plain ? QP_OK : refuse(text, error);
}

void hub_print_reference(const hub_reference *r, char *text, size_t size)
{
    snprintf(text, size, "%s/%s%s%s", r->owner, r->name, *r->select ? ":" : "", r->select);
}
