/* JSON Schema to a grammar of the texts that are valid.
 *
 * Properties come in the order of the schema. An object with properties, but without
 * additionalProperties, has no others. What the grammar cannot express is an error that names the
 * keyword and its path ("#/properties/a: multipleOf is not supported"), never ignored; keywords
 * that JSON Schema does not define, and those that only describe, are left out.
 */
#pragma once

#include "base/json.h"
#include "grammar/json_parts.h"

enum {
    SCHEMA_MAX_TEXT = 1 << 20,    /* bytes */
    SCHEMA_MAX_NESTING = 200,     /* schemas in each other, not counting $ref */
    SCHEMA_MAX_SCHEMAS = 20000,   /* all that are compiled */
    SCHEMA_MAX_PROPERTIES = 2000, /* of an object */
    SCHEMA_MAX_WORK = 1 << 23,    /* members looked at, and values compared and copied */
    SCHEMA_MAX_MERGED = 1 << 18,  /* values that are copied for allOf and $ref with others */
};
/* Adds the rules for the schema in a text; the root is the first. */
qp_status json_schema_parse(const char *text, size_t length, grammar *out, qp_error *error);

/* As an expression of a grammar that is being built. */
qp_status json_schema_add(json_parts *parts, const cJSON *schema, grammar_expr *out,
                          qp_error *error);

/* Any object: {"type": "json_object"}. */
void json_schema_any_object(grammar *out);
