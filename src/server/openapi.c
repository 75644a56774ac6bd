/* OpenAPI 3.1 from the tables: see endpoints.h. */
#include "server/endpoints.h"

#include "server/routes.h"
#include "server/server_state.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* `json`: the reply may be JSON too. */
static void add_response(cJSON *responses, const char *status, const char *text, const char *type,
                         bool json)
{
    cJSON *response = cJSON_AddObjectToObject(responses, status);
    cJSON_AddStringToObject(response, "description", text);
    cJSON *content = cJSON_AddObjectToObject(response, "content");
    cJSON_AddObjectToObject(content, type);
    if (json && strcmp(type, "application/json") != 0)
        cJSON_AddObjectToObject(content, "application/json");
}

static void add_path_parameter(cJSON *operation)
{
    cJSON *parameter = cJSON_CreateObject();
    cJSON_AddStringToObject(parameter, "name", "name");
    cJSON_AddStringToObject(parameter, "in", "path");
    cJSON_AddTrueToObject(parameter, "required");
    cJSON *schema = cJSON_AddObjectToObject(parameter, "schema");
    cJSON_AddStringToObject(schema, "type", "string");
    cJSON_AddStringToObject(schema, "pattern", "^[^\\u0000-\\u001f\\u007f]+$");
    cJSON_AddItemToArray(cJSON_AddArrayToObject(operation, "parameters"), parameter);
}

static cJSON *describe_route(const route *r)
{
    cJSON *operation = cJSON_CreateObject();
    field_tables fields = r->dialect ? r->dialect->fields : r->fields;
    bool body = strcmp(r->method, "POST") == 0 && fields;
    cJSON_AddStringToObject(operation, "summary", r->summary);
    if (strchr(r->path, '*')) add_path_parameter(operation);
    if (body) {
        cJSON *content = cJSON_AddObjectToObject(operation, "requestBody");
        cJSON_AddTrueToObject(content, "required");
        content = cJSON_AddObjectToObject(content, "content");
        content = cJSON_AddObjectToObject(content, "application/json");
        cJSON_AddItemToObject(content, "schema", fields_schema(fields));
    }
    cJSON *responses = cJSON_AddObjectToObject(operation, "responses");
    const char *type = r->dialect ? r->dialect->stream_type : r->type;
    const bool json = r->dialect || !type;
    add_response(responses, "200", "the answer", type ? type : "application/json", json);
    if (!r->open || body)
        add_response(responses, "4XX", "what is wrong with the request", "application/json", true);
    add_response(responses, "503", "the model is being loaded, or the server ends",
                 "application/json", true);
    if (r->dialect)
        add_response(responses, "504", "the time for the answer was over before its first token",
                     "application/json", true);
    if (r->open) cJSON_AddArrayToObject(operation, "security");
    return operation;
}

static void add_security(cJSON *tree)
{
    cJSON *scheme = cJSON_AddObjectToObject(tree, "components");
    scheme = cJSON_AddObjectToObject(scheme, "securitySchemes");
    scheme = cJSON_AddObjectToObject(scheme, "key");
    cJSON_AddStringToObject(scheme, "type", "http");
    cJSON_AddStringToObject(scheme, "scheme", "bearer");
    cJSON *security = cJSON_CreateObject();
    cJSON_AddArrayToObject(security, "key");
    cJSON_AddItemToArray(cJSON_AddArrayToObject(tree, "security"), security);
}

void reply_openapi(server *s, exchange *x)
{
    cJSON *tree = cJSON_CreateObject();
    cJSON_AddStringToObject(tree, "openapi", "3.1.0");
    cJSON *info = cJSON_AddObjectToObject(tree, "info");
    cJSON_AddStringToObject(info, "title", "quipu serve");
    cJSON_AddStringToObject(info, "version", QP_VERSION);
    if (s->keys.count) add_security(tree);
    cJSON *paths = cJSON_AddObjectToObject(tree, "paths");
    for (const route *r = routes; r->method; r++) {
        char path[64];
        const char *star = strchr(r->path, '*');
        snprintf(path, sizeof path, "%.*s%s", (int)(star ? star - r->path : (long)strlen(r->path)),
                 r->path, star ? "{name}" : "");
        cJSON *item = cJSON_GetObjectItemCaseSensitive(paths, path);
        if (!item) item = cJSON_AddObjectToObject(paths, path);
        char method[8] = {0};
        for (size_t i = 0; r->method[i] && i + 1 < sizeof method; i++)
            method[i] = (char)tolower((unsigned char)r->method[i]);
        cJSON_AddItemToObject(item, method, describe_route(r));
    }
    server_reply_json(x, "%j", tree);
    cJSON_Delete(tree);
}
