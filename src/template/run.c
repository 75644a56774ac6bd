/* One rendering: its state, its errors and the texts that it builds. See run.h. */
#include "template/run.h"

#include "base/checked.h"
#include "template/pychar.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

qp_status run_fail(run *run, const char *format, ...)
{
    char message[QP_ERROR_SIZE];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return template_error_at(run->error, QP_FORMAT, run->at->line, run->at->column, "%s", message);
}

qp_status run_check(run *run, const void *memory)
{
    if (memory) return QP_OK;
    return template_error_at(run->error, QP_NO_MEMORY, run->at->line, run->at->column,
                             "the template needs more than %zu bytes of memory",
                             run->options.max_memory);
}

qp_status run_step(run *run, uint64_t work)
{
    if (heap_spend(&run->heap, work)) return QP_OK;
    return template_error_at(run->error, QP_NO_MEMORY, run->at->line, run->at->column,
                             "the template takes more than %llu steps",
                             (unsigned long long)run->options.max_steps);
}

qp_status run_enter(run *run)
{
    if (run->depth == RUN_MAX_DEPTH)
        return run_fail(run, "evaluation is nested too deeply (more than %d levels)",
                        RUN_MAX_DEPTH);
    run->depth++;
    return run_step(run, 1);
}

void run_leave(run *run)
{
    run->depth--;
}

qp_status run_view(run *run, const char *data, size_t length, value *out)
{
    TRY(run_step(run, length / 64));
    const string *text = string_view(&run->heap, data, length);
    TRY(run_check(run, text));
    *out = value_text(text);
    return QP_OK;
}

qp_status run_text(run *run, const char *data, size_t length, value *out)
{
    TRY(run_step(run, length / 64));
    const string *text = string_copy(&run->heap, data, length);
    TRY(run_check(run, text));
    *out = value_text(text);
    return QP_OK;
}

qp_status run_list(run *run, list_kind kind, size_t count, value *out)
{
    list *items = list_new(&run->heap, kind, count);
    TRY(run_check(run, items));
    *out = value_list(items);
    return run_step(run, count / 8);
}

qp_status run_undefined(run *run, const char *hint, value *out)
{
    undefined *reason = heap_alloc(&run->heap, 1, sizeof *reason);
    TRY(run_check(run, reason));
    reason->hint = hint;
    *out = (value){.kind = VALUE_UNDEFINED, .as.reason = reason};
    return QP_OK;
}

qp_status run_fail_undefined(run *run, value item)
{
    const undefined *reason = item.as.reason;
    char name[128] = "";
    if (reason->name.kind == VALUE_STRING)
        snprintf(name, sizeof name, "'%.*s'", (int)reason->name.as.text->length % 100,
                 reason->name.as.text->data);
    else if (reason->name.kind == VALUE_INT)
        snprintf(name, sizeof name, "%lld", (long long)reason->name.as.integer);
    if (reason->hint) return run_fail(run, "%s", reason->hint);
    if (!reason->owner) return run_fail(run, "%s is undefined", name);
    return run_fail(run, "'%s object' has no %s %s", reason->owner,
                    reason->name.kind == VALUE_STRING ? "attribute" : "element", name);
}

static qp_status reserve(builder *builder, size_t more)
{
    run *run = builder->run;
    size_t need;
    if (!checked_add(builder->length, more, &need)) return run_check(run, NULL);
    if (builder == run->out && need > run->options.max_output)
        return template_error_at(
            run->error, QP_NO_MEMORY, run->at->line, run->at->column,
            "the template writes more than %zu bytes; a shorter conversation takes fewer",
            run->options.max_output);
    if (need <= builder->capacity) return QP_OK;
    size_t capacity = builder->capacity ? builder->capacity : 32;
    while (capacity < need) {
        if (!checked_mul(capacity, 2, &capacity)) return run_check(run, NULL);
    }
    char *data = heap_alloc(&run->heap, capacity, 1);
    TRY(run_check(run, data));
    if (builder->length) memcpy(data, builder->data, builder->length);
    builder->data = data;
    builder->capacity = capacity;
    return QP_OK;
}

qp_status builder_put(builder *builder, const char *data, size_t length)
{
    if (length == 0) return QP_OK;
    TRY(reserve(builder, length));
    TRY(run_step(builder->run, length / 64));
    memcpy(builder->data + builder->length, data, length);
    builder->length += length;
    return QP_OK;
}

qp_status builder_text(builder *builder, const char *text)
{
    return builder_put(builder, text, strlen(text));
}

qp_status builder_code(builder *builder, uint32_t code)
{
    char bytes[4];
    return builder_put(builder, bytes, pychar_encode(code, bytes));
}

qp_status builder_repeat(builder *builder, const string *text, size_t times)
{
    size_t total;
    if (!checked_mul(text->length, times, &total)) return run_check(builder->run, NULL);
    if (total == 0) return QP_OK;
    TRY(reserve(builder, total));
    TRY(run_step(builder->run, total / 64));
    for (; times > 0; times--, builder->length += text->length)
        memcpy(builder->data + builder->length, text->data, text->length);
    return QP_OK;
}

qp_status builder_finish(builder *builder, value *out)
{
    return run_view(builder->run, builder->data ? builder->data : "", builder->length, out);
}

static qp_status json_list(run *run, const cJSON *item, int depth, value *out)
{
    size_t count = 0;
    for (const cJSON *child = item->child; child; child = child->next)
        count++;
    TRY(run_list(run, LIST_LIST, count, out));
    value *items = out->as.items->items;
    for (const cJSON *child = item->child; child; child = child->next)
        TRY(run_from_json(run, child, depth + 1, items++));
    return QP_OK;
}

static qp_status json_dict(run *run, const cJSON *item, int depth, value *out)
{
    dict *members = dict_new(&run->heap);
    TRY(run_check(run, members));
    for (const cJSON *child = item->child; child; child = child->next) {
        value key, member;
        const char *name = child->string ? child->string : "";
        TRY(run_text(run, name, strlen(name), &key));
        TRY(run_from_json(run, child, depth + 1, &member));
        TRY(run_check(run, dict_set(&run->heap, members, key, member) ? members : NULL));
    }
    *out = (value){.kind = VALUE_DICT, .as.members = members};
    return QP_OK;
}

/* As Python's json reads it: an integer unless it has a point or an exponent. Without its text, a
 * whole number is an integer. */
static value json_number(const cJSON *item)
{
    const char *text = json_number_text(item);
    const double number = item->valuedouble;
    if (text && !strpbrk(text, ".eE")) {
        errno = 0;
        const long long integer = strtoll(text, NULL, 10);
        return errno ? value_float(number) : value_int(integer); /* integers have 64 bits */
    }
    const bool whole = !text && fabs(number) <= 0x1p53 && number == floor(number);
    return whole ? value_int((int64_t)number) : value_float(number);
}

qp_status run_from_json(run *run, const cJSON *item, int depth, value *out)
{
    if (depth > VALUE_MAX_DEPTH)
        return error_set(run->error, QP_INVALID,
                         "the conversation's JSON is nested too deeply (more than %d levels)",
                         VALUE_MAX_DEPTH);
    TRY(run_step(run, 1));
    if (cJSON_IsArray(item)) return json_list(run, item, depth, out);
    if (cJSON_IsObject(item)) return json_dict(run, item, depth, out);
    if (cJSON_IsString(item))
        return run_text(run, item->valuestring, strlen(item->valuestring), out);
    *out = value_none();
    if (cJSON_IsBool(item)) *out = value_bool(cJSON_IsTrue(item));
    if (cJSON_IsNumber(item)) *out = json_number(item);
    return QP_OK;
}

/* The characters of a string, one string each. */
static qp_status iterate_text(run *run, const string *text, list **out)
{
    value made;
    TRY(run_list(run, LIST_LIST, text->points, &made));
    *out = made.as.items;
    size_t at = 0;
    for (size_t i = 0; i < text->points; i++) {
        uint32_t code;
        size_t size = pychar_decode(text->data + at, text->length - at, &code);
        TRY(run_step(run, 1));
        TRY(run_view(run, text->data + at, size, &(*out)->items[i]));
        at += size;
    }
    return QP_OK;
}

qp_status run_iterate(run *run, value from, list **out)
{
    value made;
    if (from.kind == VALUE_LIST && from.as.items->kind != LIST_ITERATOR) {
        *out = from.as.items;
        return QP_OK;
    }
    if (from.kind == VALUE_STRING) return iterate_text(run, from.as.text, out);
    if (from.kind == VALUE_DICT) {
        TRY(run_list(run, LIST_LIST, 0, &made));
        *out = made.as.items;
        (*out)->items = from.as.members->keys;
        (*out)->count = from.as.members->count;
        return QP_OK;
    }
    if (from.kind != VALUE_UNDEFINED && from.kind != VALUE_LIST)
        return run_fail(run, "'%s' object is not iterable", value_type(from));
    TRY(run_list(run, LIST_LIST, 0, &made));
    *out = made.as.items;
    if (from.kind == VALUE_LIST) {
        list *rest = from.as.items;
        (*out)->items = rest->items + rest->cursor;
        (*out)->count = rest->count - rest->cursor;
        rest->cursor = rest->count;
    }
    return QP_OK;
}

const builtin *find_in(const builtin *table, size_t count, const string *name)
{
    for (size_t i = 0; i < count; i++) {
        if (string_is(name, table[i].name)) return &table[i];
    }
    return NULL;
}
