/* OpenAPI 3.1 from the tables: see endpoints.h. */
#include "server/endpoints.h"

#include "server/routes.h"
#include "server/server_state.h"
#include "text/json_string.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* A status of the replies; `type`: another one that it may have besides JSON, or NULL. */
static void add_response(cJSON *responses, const char *status, const char *text, const char *type,
                         bool json)
{
    cJSON *response = json_make("{'description':%q,'content':{}}", text);
    cJSON *content = cJSON_GetObjectItemCaseSensitive(response, "content");
    if (type) cJSON_AddObjectToObject(content, type);
    if (json) cJSON_AddObjectToObject(content, "application/json");
    cJSON_AddItemToObject(responses, status, response);
}

static cJSON *describe_route(const route *r)
{
    cJSON *operation = json_make("{'summary':%q}", r->summary);
    field_tables fields = r->dialect ? r->dialect->fields : r->fields;
    const bool body = strcmp(r->method, "POST") == 0 && fields;
    const char *type = r->dialect ? r->dialect->stream_type : r->type;
    if (type && strcmp(type, "application/json") == 0) type = NULL;
    if (strchr(r->path, '*'))
        cJSON_AddItemToObject(
            operation, "parameters",
            json_make("[{'name':'name','in':'path','required':true,'schema':{'type':'string',"
                      "'pattern':%q}}]",
                      "^[^\\u0000-\\u001f\\u007f]+$"));
    if (body) {
        cJSON *schema = fields_schema(fields);
        cJSON_AddItemToObject(
            operation, "requestBody",
            json_make("{'required':true,'content':{'application/json':{'schema':%j}}}", schema));
        cJSON_Delete(schema);
    }
    cJSON *responses = cJSON_AddObjectToObject(operation, "responses");
    add_response(responses, "200", "the answer", type, r->dialect || !type);
    if (!r->open || body)
        add_response(responses, "4XX", "what is wrong with the request", NULL, true);
    add_response(responses, "503", "the model is being loaded, or the server ends", NULL, true);
    if (r->dialect)
        add_response(responses, "504", "the time for the answer was over before its first token",
                     NULL, true);
    if (r->open) cJSON_AddArrayToObject(operation, "security");
    return operation;
}

void reply_openapi(server *s, exchange *x)
{
    cJSON *paths = cJSON_CreateObject();
    for (const route *r = routes; r->method; r++) {
        char path[64], method[8] = {0};
        const char *star = strchr(r->path, '*');
        snprintf(path, sizeof path, "%.*s%s", (int)(star ? star - r->path : (long)strlen(r->path)),
                 r->path, star ? "{name}" : "");
        cJSON *item = cJSON_GetObjectItemCaseSensitive(paths, path);
        if (!item) item = cJSON_AddObjectToObject(paths, path);
        for (size_t i = 0; r->method[i] && i + 1 < sizeof method; i++)
            method[i] = (char)tolower((unsigned char)r->method[i]);
        cJSON_AddItemToObject(item, method, describe_route(r));
    }
    server_reply_json(
        x, "{'openapi':'3.1.0','info':{'title':'quipu serve','version':%q}%s,'paths':%j}",
        QP_VERSION,
        s->keys.count ? ",\"components\":{\"securitySchemes\":{\"key\":{\"type\":"
                        "\"http\",\"scheme\":\"bearer\"}}},\"security\":[{\"key\":[]}]"
                      : "",
        paths);
    cJSON_Delete(paths);
}
