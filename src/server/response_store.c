/* Responses in memory: see response_store.h. */
#define _GNU_SOURCE /* strdup */
#include "server/response_store.h"

#include <stdlib.h>
#include <string.h>

void response_store_open(response_store *s, size_t most)
{
    *s = (response_store){.most = most};
    pthread_mutex_init(&s->lock, NULL);
    if (most) s->kept = calloc(RESPONSES_KEPT, sizeof *s->kept);
}

static void forget(response_store *s, kept_response *k)
{
    s->bytes -= k->bytes;
    free(k->id);
    free(k->reply);
    free(k->items);
    *k = (kept_response){0};
}

void response_store_close(response_store *s)
{
    for (size_t i = 0; s->kept && i < RESPONSES_KEPT; i++)
        forget(s, &s->kept[i]);
    free(s->kept);
    pthread_mutex_destroy(&s->lock);
}

static kept_response *find(const response_store *s, const char *id, uint64_t owner)
{
    for (size_t i = 0; s->kept && i < RESPONSES_KEPT; i++) {
        kept_response *k = &s->kept[i];
        if (k->id && k->owner == owner && strcmp(k->id, id) == 0) return k;
    }
    return NULL;
}

/* A free place, or the response that was used longest ago; NULL: there is none. */
static kept_response *oldest(const response_store *s, bool kept)
{
    kept_response *found = NULL;
    for (size_t i = 0; i < RESPONSES_KEPT; i++) {
        kept_response *k = &s->kept[i];
        if ((!kept || k->id) && (!found || k->used < found->used)) found = k;
    }
    return found;
}

void response_store_put(response_store *s, const char *id, uint64_t owner, const strbuf *reply,
                        const strbuf *items, size_t n_input)
{
    const size_t bytes = reply->length + items->length + strlen(id);
    if (!s->kept || bytes > s->most || reply->failed || items->failed) return;
    kept_response made = {.id = strdup(id),
                          .owner = owner,
                          .reply = strdup(strbuf_text(reply)),
                          .items = strdup(strbuf_text(items)),
                          .n_input = n_input,
                          .bytes = bytes};
    pthread_mutex_lock(&s->lock);
    while (s->bytes + bytes > s->most)
        forget(s, oldest(s, true));
    kept_response *place = oldest(s, false);
    if (place->id) forget(s, place);
    *place = made;
    place->used = ++s->uses;
    s->bytes += bytes;
    if (!made.id || !made.reply || !made.items) forget(s, place);
    pthread_mutex_unlock(&s->lock);
}

bool response_store_get(response_store *s, const char *id, uint64_t owner, strbuf *reply,
                        strbuf *items, strbuf *input)
{
    pthread_mutex_lock(&s->lock);
    kept_response *k = find(s, id, owner);
    if (k) k->used = ++s->uses;
    if (k && reply) strbuf_puts(reply, k->reply);
    if (k && items) strbuf_puts(items, k->items);
    if (k && input) strbuf_append(input, k->items, k->n_input);
    pthread_mutex_unlock(&s->lock);
    return k != NULL;
}

bool response_store_remove(response_store *s, const char *id, uint64_t owner)
{
    pthread_mutex_lock(&s->lock);
    kept_response *k = find(s, id, owner);
    if (k) forget(s, k);
    pthread_mutex_unlock(&s->lock);
    return k != NULL;
}
