/* What suites of traces share: readers of their JSON and tables. */
#pragma once

#include "engine_test.h"

#include "base/json.h"

#include <math.h>

enum { MAX_TRACKS = 256 };

/* To free(). */
static inline void print_trace(const qp_trace *trace, qp_trace_form form, char **text)
{
    qp_error error;
    size_t length;
    assert_ok(qp_trace_print(trace, form, text, &length, &error));
    assert_int_equal(strlen(*text), length);
}

static inline cJSON *trace_json(const qp_trace *trace)
{
    qp_error error;
    cJSON *json;
    char *text;
    print_trace(trace, QP_TRACE_CHROME, &text);
    assert_ok(json_parse(text, strlen(text), "the trace", &json, &error));
    free(text);
    return json;
}

static inline double number(const cJSON *json, const char *key)
{
    const cJSON *item = json_get(json, key);
    if (!cJSON_IsNumber(item)) fail_msg("%s is missing", key);
    return item->valuedouble;
}

static inline const char *string(const cJSON *json, const char *key)
{
    const cJSON *item = json_get(json, key);
    if (!cJSON_IsString(item)) fail_msg("%s is missing", key);
    return item->valuestring;
}

/* Events of a track come in order, and none begins before the one before has ended. Returns how
 * many passes there are; works[track], of tracks 1 and on (threads 2 and on): slices of work. */
static inline int check_tracks(const cJSON *json, int tracks, int works[MAX_TRACKS + 1])
{
    double free_at[MAX_TRACKS + 1] = {0};
    int passes = 0;
    memset(works, 0, (MAX_TRACKS + 1) * sizeof *works);
    const cJSON *event;
    cJSON_ArrayForEach(event, json_get(json, "traceEvents"))
    {
        if (strcmp(string(event, "ph"), "X") != 0) continue;
        int track = (int)number(event, "tid") - 1;
        const char *category = string(event, "cat");
        assert_true(number(event, "dur") >= 0);
        assert_in_range(track, 0, tracks);
        /* What happens between passes is listed after them. */
        if (strcmp(category, "host") == 0) continue;
        assert_true(number(event, "ts") >= free_at[track] - 1e-6);
        free_at[track] = number(event, "ts") + number(event, "dur");
        passes += strcmp(category, "pass") == 0;
        works[track] += strcmp(category, "work") == 0;
    }
    return passes;
}

/* The number that ends in the given column of a line. */
static inline double number_at(const char *line, long column)
{
    double value;
    long from = column;
    assert_true(column <= (long)strcspn(line, "\n"));
    while (from > 0 && line[from - 1] != ' ')
        from--;
    assert_int_equal(sscanf(line + from, "%lf", &value), 1);
    return value;
}

/* The rows of a table add up to its last, "pass", and none of them is negative: what slices took
 * lies inside the passes. None is faster than the limit. */
static inline void check_sums(const char *table)
{
    double sum = 0, pass = -1;
    const char *line = strstr(table, "\noperator");
    assert_non_null(line++);
    const long column = strstr(line, "time us") + strlen("time us") - line;
    const long limit = strstr(line, "of limit") + strlen("of limit") - line;
    line = strchr(line, '\n') + 1;
    for (; pass < 0; line = strchr(line, '\n') + 1) {
        const double time = number_at(line, column);
        if (strncmp(line, "pass ", 5) == 0)
            pass = time;
        else
            sum += time;
        const bool has_limit = (long)strcspn(line, "\n") > limit && line[limit - 1] == '%';
        if (has_limit && number_at(line, limit) > 100.05) fail_msg("beyond the limit:\n%s", table);
        if (time < -1) fail_msg("a row of %g us:\n%s", time, table);
    }
    assert_true(pass > 0);
    if (fabs(sum - pass) > 1) fail_msg("rows of %g us, a pass of %g:\n%s", sum, pass, table);
}
