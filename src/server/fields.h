/* The fields of a request's body: one table for each endpoint has name, type, range and the
 * member that receives the value. The reader checks requests by it, and /openapi.json is written
 * from it.
 *
 * A field that is in no table is ignored, as clients expect: it must change nothing in the answer
 * that its client could rely on. What would, and cannot be done, is a FIELD_NEUTRAL of
 * call_refused_fields. A field of a table with another type or out of range is refused, and the
 * message names it. null is the same as no field.
 */
#pragma once

#include "base/json.h"
#include "quipu.h"
#include "server/api_error.h"

typedef enum field_type {
    FIELD_BOOL,    /* bool */
    FIELD_INTEGER, /* int64_t, within [low, high] */
    FIELD_NUMBER,  /* double, within [low, high] */
    FIELD_STRING,  /* const char *, into the body */
    FIELD_SETTING, /* of the qp_sampling there: `setting` */
    FIELD_JSON,    /* const cJSON *, into the body; of a type in `types` */
    FIELD_READ,    /* what `read` makes of a value of a type in `types` */
    FIELD_OBJECT,  /* an object with fields of its own: `tables` */
    FIELD_NEUTRAL, /* what cannot be done: only the values of the "enum" in `schema`, with which it
                    * asks for nothing; `help` says what there is in its place */
} field_type;

/* Types of JSON that FIELD_JSON and FIELD_READ take. */
enum {
    JSON_BOOL = 1,
    JSON_NUMBER = 2,
    JSON_STRING = 4,
    JSON_ARRAY = 8,
    JSON_OBJECT = 16,
    JSON_ANY = 31,
};

typedef struct field {
    const char *name; /* NULL ends a table */
    field_type type;
    size_t at;        /* offset in the struct that is filled */
    double low, high; /* both 0: any */
    qp_setting setting;
    unsigned types;
    qp_status (*read)(void *out, const char *name, const cJSON *value, api_error *error);
    const struct field *const *tables; /* of FIELD_OBJECT: as a field_tables */
    bool required;
    const char *items; /* of a list: the JSON Schema of its elements; NULL: any */
    int least_items;
    const char *schema; /* more keywords of its JSON Schema, as an object */
    const char *help;   /* a phrase */
} field;

/* A row of a table. */
#define FIELD(word, ...)                                                                           \
    {                                                                                              \
        .name = (word), __VA_ARGS__                                                                \
    }

/* A list of tables that ends with NULL. */
typedef const field *const *field_tables;

/* Reads the members of `body` that the tables name into the struct at `out`. */
qp_status fields_read(field_tables tables, const cJSON *body, void *out, api_error *error);

/* The JSON Schema of such a body, as an object. */
cJSON *fields_schema(field_tables tables);

/* Schemas of elements. */
#define ITEMS_TEXTS    "{\"type\": \"string\"}"
#define ITEMS_NONEMPTY "{\"type\": \"string\", \"minLength\": 1}"
#define ITEMS_TOKENS   "{\"type\": \"integer\", \"minimum\": 0}"
#define ITEMS_OBJECTS  "{\"type\": \"object\"}"
#define SCHEMA_TEXT    "{\"minLength\": 1}"
#define SCHEMA_COUNT   "{\"multipleOf\": 1, \"minimum\": -2, \"maximum\": 1073741824}"
#define SCHEMA_SEED    "{\"multipleOf\": 1, \"maximum\": 9007199254740992}"
#define SCHEMA_FORMAT                                                                              \
    "{\"required\": [\"type\"], \"properties\": {\"type\": {\"enum\": [\"text\", "                 \
    "\"json_object\", "                                                                            \
    "\"json_schema\"]}}}"
#define ITEMS_MESSAGES                                                                             \
    "{\"type\": \"object\", \"required\": [\"role\"], \"properties\": {\"role\": "                 \
    "{\"type\": \"string\"}}}"
