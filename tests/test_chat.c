/* qp_chat: a conversation reads only what is new, and keeps what was said. */
#include "engine_test.h"

#include "base/json.h"
#include "base/strbuf.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

static qp_error error;

static qp_engine *open_text_model(int64_t context)
{
    return open_engine((qp_engine_options){
        .model = "golden/models/llama-text", .context = context, .max_sessions = 2});
}

static qp_status keep(void *context, const qp_text_piece *piece)
{
    assert_int_equal(piece->kind, QP_TEXT_CONTENT);
    for (size_t at = 0; at < piece->length;) { /* as messages have it */
        const size_t run = strnlen(piece->text + at, piece->length - at);
        utf8_put_valid(context, piece->text + at, run);
        at += run;
        if (at < piece->length) strbuf_puts(context, UTF8_REPLACEMENT);
        at++;
    }
    return QP_OK;
}

/* The messages as JSON, to cJSON_Delete(). */
static cJSON *messages_of(const qp_chat *chat)
{
    char *json;
    cJSON *tree;
    assert_ok(qp_chat_messages(chat, &json, &error));
    assert_ok(json_parse(json, strlen(json), "messages", &tree, &error));
    qp_free(json);
    return tree;
}

static const char *member(const cJSON *messages, int i, const char *key)
{
    return cJSON_GetStringValue(json_get(cJSON_GetArrayItem(messages, i), key));
}

/* The answer to the same messages, all read anew. */
static void assert_fresh(qp_engine *e, const cJSON *messages, const char *expected)
{
    strbuf text = {0};
    qp_chat *chat;
    const qp_chat_options options = {
        .size = sizeof options, .max_tokens = 6, .on_text = keep, .context = &text};
    assert_ok(qp_chat_open(e, &options, &chat, &error));
    char *json = cJSON_PrintUnformatted(messages);
    assert_ok(qp_chat_add(chat, json, strlen(json), &error));
    assert_ok(qp_chat_answer(chat, NULL, &error));
    assert_string_equal(strbuf_text(&text), expected);
    cJSON_free(json);
    strbuf_free(&text);
    qp_chat_close(chat);
}

static void answers_read_what_is_new(void **state)
{
    (void)state;
    qp_engine *e = open_text_model(256);
    strbuf text = {0};
    qp_chat *chat;
    qp_generate_result first = {.size = sizeof first}, second = first;
    const qp_chat_options options = {
        .size = sizeof options, .max_tokens = 6, .on_text = keep, .context = &text};
    const char *system = "{\"role\": \"system\", \"content\": \"Be brief.\"}";
    assert_ok(qp_chat_open(e, &options, &chat, &error));
    assert_ok(qp_chat_add(chat, system, strlen(system), &error));
    assert_ok(qp_chat_ask(chat, "the cat", &first, &error));
    strbuf_clear(&text);
    assert_ok(qp_chat_ask(chat, "<|im_end|>", &second, &error));
    cJSON *messages = messages_of(chat);
    assert_int_equal(cJSON_GetArraySize(messages), 5);
    assert_string_equal(member(messages, 2, "role"), "assistant");
    assert_string_equal(member(messages, 3, "content"), "<|im_end|>");
    assert_string_equal(member(messages, 4, "content"), strbuf_text(&text));
    cJSON_DeleteItemFromArray(messages, 4);
    assert_fresh(e, messages, strbuf_text(&text));
    /* The whole conversation takes more tokens than were read for the second answer. */
    char *json = cJSON_PrintUnformatted(messages);
    qp_tokens all = {0};
    assert_ok(qp_tokenize_chat(qp_engine_vocabulary(e), json, strlen(json), true, 0, &all, &error));
    assert_true(second.prompt_tokens < all.count - first.prompt_tokens / 2);
    qp_tokens_free(&all);
    cJSON_free(json);
    cJSON_Delete(messages);
    assert_ok(qp_chat_drop(chat, 4, &error));
    messages = messages_of(chat);
    assert_int_equal(cJSON_GetArraySize(messages), 1);
    cJSON_Delete(messages);
    strbuf_free(&text);
    qp_chat_close(chat);
    qp_engine_close(e);
}

/* Options may change between answers; the session is that of all of them. */
static void options_change(void **state)
{
    (void)state;
    qp_engine *e = open_text_model(256);
    strbuf text = {0};
    qp_chat *chat;
    qp_chat_options options = {
        .size = sizeof options, .max_tokens = 6, .on_text = keep, .context = &text};
    qp_generate_result result = {.size = sizeof result};
    assert_ok(qp_chat_open(e, &options, &chat, &error));
    assert_ok(qp_chat_ask(chat, "the cat", &result, &error));
    assert_int_equal(result.generated_tokens, 6);
    options.max_tokens = 2;
    options.flags = QP_SPECIAL;
    assert_ok(qp_chat_set(chat, &options, &error));
    assert_ok(qp_chat_ask(chat, "a\xffz", &result, &error));
    assert_int_equal(result.generated_tokens, 2);
    cJSON *messages = messages_of(chat);
    assert_string_equal(member(messages, 2, "content"), "a\xef\xbf\xbdz");
    cJSON_Delete(messages);
    options.variables = "[]";
    assert_int_equal(qp_chat_set(chat, &options, &error), QP_INVALID);
    assert_ok(qp_chat_ask(chat, "it", &result, &error));
    assert_int_equal(result.generated_tokens, 2);
    size_t held;
    qp_session_tokens(qp_chat_session(chat), &held);
    assert_true(held > result.prompt_tokens);
    strbuf_free(&text);
    qp_chat_close(chat);
    qp_engine_close(e);
}

static qp_status refuse_text(void *context, const qp_text_piece *piece)
{
    (void)piece;
    return *(qp_status *)context;
}

/* After an error the question is gone; an answer that was cancelled is kept as far as it came. */
static void errors_lose_nothing(void **state)
{
    (void)state;
    qp_status status = QP_IO;
    qp_engine *e = open_text_model(64);
    qp_chat *chat;
    const qp_chat_options options = {
        .size = sizeof options, .max_tokens = 6, .on_text = refuse_text, .context = &status};
    assert_ok(qp_chat_open(e, &options, &chat, &error));
    assert_int_equal(qp_chat_ask(chat, "the cat", NULL, &error), QP_IO);
    char longer[1024];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    qp_generate_result full = {.size = sizeof full};
    assert_int_equal(qp_chat_ask(chat, longer, &full, &error), QP_INVALID);
    assert_int_equal(full.finish, QP_FINISH_CONTEXT);
    assert_non_null(strstr(error.message, "the context has room for 64"));
    cJSON *messages = messages_of(chat);
    assert_int_equal(cJSON_GetArraySize(messages), 0);
    cJSON_Delete(messages);
    qp_generate_result result = {.size = sizeof result};
    status = QP_CANCELLED;
    assert_ok(qp_chat_ask(chat, "the cat", &result, &error));
    assert_int_equal(result.finish, QP_FINISH_CANCELLED);
    messages = messages_of(chat);
    assert_int_equal(cJSON_GetArraySize(messages), 2);
    cJSON_Delete(messages);
    qp_chat_close(chat);
    qp_engine_close(e);
}

static void what_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *message, *says;
    } cases[] = {{"[1]", "found a number"}, {"\"hi\"", "found a string"}, {"{", "the message"}};
    qp_engine *e = open_text_model(64),
              *silent = open_engine((qp_engine_options){.model = "synthetic:tiny", .context = 64});
    qp_chat *chat;
    qp_chat_options options = {.size = sizeof options};
    assert_int_equal(qp_chat_open(silent, &options, &chat, &error), QP_INVALID);
    assert_null(chat);
    options.variables = "[]";
    assert_int_equal(qp_chat_open(e, &options, &chat, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "an object of JSON"));
    options.variables = "{\"tools\": [{\"name\": \"f\"}]}";
    assert_int_equal(qp_chat_open(e, &options, &chat, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "tool 0"));
    options.variables = NULL;
    assert_ok(qp_chat_open(e, &options, &chat, &error));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_true(qp_chat_add(chat, cases[i].message, strlen(cases[i].message), &error) != QP_OK);
        if (!strstr(error.message, cases[i].says)) fail_msg("%s", error.message);
    }
    qp_engine_close(e);
    assert_int_equal(qp_chat_ask(chat, "hi", NULL, &error), QP_INVALID);
    qp_chat_close(chat);
    qp_engine_close(silent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_read_what_is_new),
        cmocka_unit_test(options_change),
        cmocka_unit_test(errors_lose_nothing),
        cmocka_unit_test(what_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
