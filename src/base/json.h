/* Typed reading of JSON through cJSON.
 *
 * The lookups distinguish "absent" from "of the wrong type": an absent key leaves *out alone and
 * returns QP_OK; a wrong type is an error that names `where` (a file), the key, the expected and
 * the found type.
 */
#pragma once

#include "base/status.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Parses `length` bytes; trailing text other than white space is an error. The message gives line
 * and column. If an object has several members with the same key, the last one counts, as in
 * Python. A text of more than 4 million values, or with a NUL in a string, is QP_UNSUPPORTED.
 * cJSON_Delete() the result. */
qp_status json_parse(const char *text, size_t length, const char *where, cJSON **out,
                     qp_error *error);

/* The same, and json_number_text() has the texts of numbers: for conversations and calls of tools,
 * which have the same digits when they are printed again. */
qp_status json_parse_exact(const char *text, size_t length, const char *where, cJSON **out,
                           qp_error *error);

/* The same for a tree that cJSON has made of `text`, before any of its items was moved. */
qp_status json_keep_numbers(cJSON *tree, const char *text, size_t length, qp_error *error);

/* How a number was written, if its double would be printed otherwise: an integer of 2^53 or more,
 * or a whole number with a point or an exponent. NULL: any other number, or the text was not kept.
 */
const char *json_number_text(const cJSON *number);

/* The text of a tree, to cJSON_free(): numbers as they were written, whole ones without an
 * exponent. NULL: no memory. */
char *json_print(const cJSON *tree);

/* The same as json_parse(), but keeps all members with the same key, for formats that forbid
 * duplicates and whose readers search for them. */
qp_status json_parse_all(const char *text, size_t length, const char *where, cJSON **out,
                         qp_error *error);

/* The member `key` of an object; NULL when absent or JSON null. */
const cJSON *json_get(const cJSON *object, const char *key);

/* The text of such a member; "": there is none. */
const char *json_text(const cJSON *object, const char *key);

/* Each leaves *out alone when the key is absent or null. */
qp_status json_get_i64(const cJSON *object, const char *key, const char *where, int64_t *out,
                       qp_error *error);
qp_status json_get_double(const cJSON *object, const char *key, const char *where, double *out,
                          qp_error *error);
qp_status json_get_bool(const cJSON *object, const char *key, const char *where, bool *out,
                        qp_error *error);
/* *out points into the tree. */
qp_status json_get_string(const cJSON *object, const char *key, const char *where, const char **out,
                          qp_error *error);

/* "a string", "an object", ... for messages. */
const char *json_type_name(const cJSON *item);
