/* Inside of the compiler of schemas: json_schema.c dispatches, json_schema_object.c makes objects
 * and arrays, json_schema_scalar.c strings and numbers; _combine.c follows $ref, anyOf, oneOf and
 * allOf; _merge.c joins schemas that must hold together. */
#pragma once

#include "grammar/json_schema.h"

/* Where a schema stands: a list from the inside out. */
typedef struct schema_path {
    const struct schema_path *outer;
    const char *name; /* NULL: `index` */
    int index;
} schema_path;

typedef struct schema_target {
    const cJSON *schema;
    uint32_t rule;
} schema_target;

typedef struct schema_compiler {
    json_parts *parts;
    grammar *g;
    const cJSON *root;
    schema_target *targets; /* [n_targets]: of $ref */
    size_t n_targets, targets_capacity;
    cJSON *owned; /* an array: schemas that were merged */
    int nesting, n_schemas, n_merged;
    qp_error *error;
} schema_compiler;

/* The expression of a schema: an object, true or false. */
qp_status schema_compile(schema_compiler *c, const cJSON *schema, const schema_path *path,
                         grammar_expr *out);

/* Counts steps of work; false when the schema, with those compiled before it into the same grammar,
 * takes too much. What follows a false may be wrong, because schema_refuse() and schema_compile()
 * then say that. */
bool schema_spend(schema_compiler *c, size_t steps);
bool schema_exhausted(const schema_compiler *c);

/* The member of an object; NULL: none. Counted, as are those below. */
cJSON *schema_find(schema_compiler *c, const cJSON *object, const char *name);

/* Whether a list has the text. */
bool schema_requires(schema_compiler *c, const cJSON *required, const char *name);

/* Whether two values are equal, whatever the order of members. */
bool schema_equal(schema_compiler *c, const cJSON *a, const cJSON *b);

/* $ref, alone or with other keywords; `name`, which is anyOf or oneOf; allOf. */
qp_status schema_reference(schema_compiler *c, const cJSON *schema, const schema_path *path,
                           grammar_expr *out);
qp_status schema_alternatives(schema_compiler *c, const cJSON *schema, const char *name,
                              const schema_path *path, grammar_expr *out);
qp_status schema_all_of(schema_compiler *c, const cJSON *schema, const schema_path *path,
                        grammar_expr *out);

/* Notes the rule of a schema, for references to it. */
qp_status schema_add_target(schema_compiler *c, schema_target target);

/* Whether a keyword excludes no value; JSON Schema has keywords that it does not define so. */
bool schema_only_describes(const char *keyword);

/* Whether it is one of the keywords that say a type, or that are not supported. */
bool schema_is_keyword(const char *name);

/* The names of an object's members: "patternProperties" and "propertyNames" (json_schema_names.c).
 * schema_names_close() what _open() gives, also after a failure. */
typedef struct member_names member_names;
qp_status schema_names_open(schema_compiler *c, const cJSON *schema, const schema_path *path,
                            member_names **out);
void schema_names_close(member_names *names);

/* The schema of a pattern that allows the name; NULL: none. */
const cJSON *schema_names_pattern(schema_compiler *c, member_names *names, const char *name);

/* Gives properties what patterns ask of them. */
qp_status schema_names_join(schema_compiler *c, member_names *names, const schema_path *path,
                            const cJSON **properties);

/* A member that is none of the properties. *some: there may be one. */
qp_status schema_names_others(schema_compiler *c, member_names *names, const cJSON *properties,
                              const cJSON *additional, const schema_path *path, grammar_expr *out,
                              bool *some);

/* The member of an object: `key` is in quotes. */
grammar_expr schema_member(schema_compiler *c, grammar_expr key, grammar_expr value);

qp_status schema_object(schema_compiler *c, const cJSON *schema, const schema_path *path,
                        grammar_expr *out);
qp_status schema_array(schema_compiler *c, const cJSON *schema, const schema_path *path,
                       grammar_expr *out);

qp_status schema_of_string(schema_compiler *c, const cJSON *schema, const schema_path *path,
                           grammar_expr *out);
/* `whole`: an integer. */
qp_status schema_of_number(schema_compiler *c, const cJSON *schema, const schema_path *path,
                           bool whole, grammar_expr *out);

/* Whether the keywords of strings, or of numbers, allow a constant. */
qp_status schema_string_allowed(schema_compiler *c, const cJSON *schema, const schema_path *path,
                                const cJSON *value, bool *out);
qp_status schema_number_allowed(schema_compiler *c, const cJSON *schema, const schema_path *path,
                                const cJSON *value, bool *out);

/* A schema that holds where both hold; owned by the compiler. */
qp_status schema_merge(schema_compiler *c, const cJSON *a, const cJSON *b, const schema_path *path,
                       const cJSON **out);

/* A copy, and one without a member; owned by the compiler. */
qp_status schema_copy(schema_compiler *c, const cJSON *schema, const schema_path *path,
                      cJSON **out);
qp_status schema_without(schema_compiler *c, const cJSON *schema, const char *name,
                         const schema_path *path, cJSON **out);

/* What $ref names: "#/$defs/a". */
qp_status schema_resolve(schema_compiler *c, const cJSON *schema, const schema_path *path,
                         const cJSON **out);

/* Whether no value is valid under two of all[n], as far as json_schema_disjoint.c sees it. */
bool schemas_disjoint(schema_compiler *c, const cJSON *const *all, size_t n);

/* An error "PATH: ...". */
qp_status schema_refuse(schema_compiler *c, const schema_path *path, qp_status status,
                        const char *format, ...) __attribute__((format(printf, 4, 5)));

/* The expression that matches nothing; where all that is required has none, the sentence is the
 * error of the whole. */
qp_status schema_nothing(schema_compiler *c, const schema_path *path, grammar_expr *out,
                         const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Puts the path before an error's message. */
qp_status schema_at(schema_compiler *c, const schema_path *path, qp_status status);

/* A whole number from 0 on; *out stays if there is none. */
qp_status schema_count(schema_compiler *c, const cJSON *schema, const char *name,
                       const schema_path *path, uint32_t *out);

/* Types of JSON as bits, in the order of schema_type_names. */
enum {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INTEGER = 4,
    TYPE_NUMBER = 8,
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64,
    TYPE_ALL = 127,
};

/* The type of a value, as a bit. */
unsigned schema_type_of(const cJSON *value);

/* Those that the schema names, or that its keywords are about; 0: any. */
qp_status schema_types(schema_compiler *c, const cJSON *schema, const schema_path *path,
                       unsigned *out);
