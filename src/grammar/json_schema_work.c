/* The work of compiling a schema is counted: members looked at, values compared and copied. A
 * schema is a request's, and every loop over its members inside another one would take quadratic
 * time. */
#include "grammar/json_schema_parts.h"

#include <string.h>

bool schema_spend(schema_compiler *c, size_t steps)
{
    c->parts->work += steps;
    return !schema_exhausted(c);
}

bool schema_exhausted(const schema_compiler *c)
{
    return c->parts->work > SCHEMA_MAX_WORK;
}

cJSON *schema_find(schema_compiler *c, const cJSON *object, const char *name)
{
    cJSON *item = cJSON_IsObject(object) ? object->child : NULL;
    while (item && schema_spend(c, 1) && strcmp(item->string, name) != 0)
        item = item->next;
    return schema_exhausted(c) ? NULL : item;
}

bool schema_requires(schema_compiler *c, const cJSON *required, const char *name)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, required)
    {
        if (!schema_spend(c, 1)) return false;
        if (cJSON_IsString(item) && strcmp(item->valuestring, name) == 0) return true;
    }
    return false;
}

/* Members of both: usually in the same order. */
static bool members_equal(schema_compiler *c, const cJSON *a, const cJSON *b)
{
    const cJSON *x = a->child, *y = b->child;
    for (; x && y; x = x->next, y = y->next) {
        const bool same = strcmp(x->string, y->string) == 0;
        const cJSON *other = same ? y : schema_find(c, b, x->string);
        if (!other || !schema_equal(c, x, other)) return false;
    }
    return !x && !y;
}

bool schema_equal(schema_compiler *c, const cJSON *a, const cJSON *b)
{
    if (!schema_spend(c, 1) || (a->type & 0xFF) != (b->type & 0xFF)) return false;
    if (cJSON_IsNumber(a)) return a->valuedouble == b->valuedouble;
    if (cJSON_IsString(a)) {
        schema_spend(c, strlen(a->valuestring) / 64);
        return strcmp(a->valuestring, b->valuestring) == 0;
    }
    if (cJSON_IsObject(a)) return members_equal(c, a, b);
    const cJSON *x = a->child, *y = b->child;
    for (; x && y; x = x->next, y = y->next)
        if (!schema_equal(c, x, y)) return false;
    return !x && !y;
}
