/* Responses that are kept: what a request goes on from, and the endpoints that show and delete
 * them. See response_store.h and api_responses.h. */
#include "server/api_responses.h"

#include "server/endpoints.h"
#include "server/json_memory.h"
#include "server/server_state.h"
#include "text/json_string.h"

#include <stdio.h>
#include <string.h>

#define ROUTE "/v1/responses/"
#define ITEMS "/input_items"

/* ---- A conversation that goes on ----------------------------------------------------------- */

qp_status responses_open_earlier(call *c, api_error *error)
{
    strbuf items = {0};
    if (!c->p.previous) return QP_OK;
    strbuf_putc(&items, '[');
    const bool found =
        response_store_get(&c->server->responses, c->p.previous, c->owner, NULL, &items, NULL);
    strbuf_putc(&items, ']');
    cJSON *earlier = NULL;
    qp_status status = QP_OK;
    if (found)
        status = json_parse_exact(strbuf_text(&items), items.length, "the conversation", &earlier,
                                  &error->error);
    strbuf_free(&items);
    if (found && status == QP_OK) {
        cJSON_AddItemToObject(c->body, RESPONSES_EARLIER, earlier);
        return QP_OK;
    }
    if (found) return api_failed(error, status);
    error->code = "previous_response_not_found";
    return api_refuse(
        error, 400, "previous_response_id",
        "there is no response \"%.60s\": the server has forgotten it (--store-size), "
        "or it was made with \"store\": false, with another key or by another server; "
        "send the whole conversation as \"input\"",
        c->p.previous);
}

static void put_items(const cJSON *items, strbuf *out)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, items) json_put(out, out->length ? ",%j" : "%j", item);
}

/* A text is a message of the user. */
static void put_input(const cJSON *input, strbuf *out)
{
    if (!cJSON_IsString(input)) {
        put_items(input, out);
        return;
    }
    if (out->length) strbuf_putc(out, ',');
    json_put(out, "{'type':'message','role':'user','content':%q}", input->valuestring);
}

void responses_keep(const call *c, const strbuf *reply, const strbuf *output)
{
    char id[64];
    strbuf items = {0};
    if (c->p.no_store || !c->server->responses.kept) return;
    put_items(json_get(c->body, RESPONSES_EARLIER), &items);
    put_input(c->p.input, &items);
    const size_t n_input = items.length;
    if (items.length) strbuf_putc(&items, ',');
    strbuf_append(&items, output->data, output->length);
    snprintf(id, sizeof id, "resp_%s", c->id);
    if (!reply->failed && !output->failed && !json_memory_failed())
        response_store_put(&c->server->responses, id, c->owner, reply, &items, n_input);
    strbuf_free(&items);
}

/* ---- Endpoints ----------------------------------------------------------------------------- */

/* The id in the request's path, without what follows it; "": none, or one that is too long. */
static void id_of(const call *c, char *id, size_t size)
{
    const char *target = exchange_request(c->exchange)->target;
    const size_t skip = target[1] == 'v' ? strlen(ROUTE) : strlen(ROUTE) - strlen("/v1");
    const size_t length = strcspn(target + skip, "/");
    *id = '\0';
    if (length >= size) return;
    memcpy(id, target + skip, length);
    id[length] = '\0';
}

static qp_status not_found(const char *id, api_error *error)
{
    return api_refuse(error, 404, "response_id", "there is no response \"%.60s\"", id);
}

qp_status answer_response(call *c, api_error *error)
{
    char id[64];
    strbuf text = {0};
    const char *target = exchange_request(c->exchange)->target;
    const bool items = strstr(target, ITEMS) != NULL;
    id_of(c, id, sizeof id);
    const bool found = response_store_get(&c->server->responses, id, c->owner, items ? NULL : &text,
                                          NULL, items ? &text : NULL);
    if (!found) return not_found(id, error);
    json_put(&c->out, items ? "{'object':'list','data':[%t],'has_more':false}" : "%t", &text);
    strbuf_free(&text);
    return QP_OK;
}

qp_status answer_response_deleted(call *c, api_error *error)
{
    char id[64];
    id_of(c, id, sizeof id);
    if (!response_store_remove(&c->server->responses, id, c->owner)) return not_found(id, error);
    json_put(&c->out, "{'id':%q,'object':'response','deleted':true}", id);
    return QP_OK;
}

qp_status answer_response_length(call *c, api_error *error)
{
    TRY(openai_responses.read(c, c->body, error));
    call_put_length(c, ",\"object\":\"response.input_tokens\"");
    return QP_OK;
}
