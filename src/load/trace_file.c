#include "load/trace_file.h"

#include "base/json.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Returns the array with room for one more element of `size` bytes; NULL: out of memory, and the
 * array is unchanged. */
static void *grown(void *items, size_t count, size_t *capacity, size_t size)
{
    if (count < *capacity) return items;
    size_t more = *capacity ? 2 * *capacity : 256;
    void *moved = realloc(items, more * size);
    if (moved) *capacity = more;
    return moved;
}

static qp_status add_request(trace_file *t, trace_request request, size_t line, qp_error *error)
{
    if (request.input_tokens < 0 || request.input_tokens > TRACE_MOST_TOKENS ||
        request.output_tokens < 0 || request.output_tokens > TRACE_MOST_TOKENS)
        return error_set(error, QP_FORMAT,
                         "line %zu of the trace: numbers of tokens are from 0 to %d", line,
                         TRACE_MOST_TOKENS);
    if (!(fabs(request.seconds) <= TRACE_MOST_SECONDS))
        return error_set(error, QP_FORMAT,
                         "line %zu of the trace: its time is %g; expected seconds, or a date", line,
                         request.seconds);
    trace_request *room =
        grown(t->requests, t->n_requests, &t->request_capacity, sizeof *t->requests);
    if (!room) return error_no_memory(error, "the trace", t->n_requests * sizeof *t->requests);
    t->requests = room;
    /* The rows of both formats are sorted, except for ties; a clock set back counts as no gap. */
    double before = t->n_requests ? t->requests[t->n_requests - 1].seconds : request.seconds;
    if (request.seconds < before) request.seconds = before;
    t->requests[t->n_requests++] = request;
    return QP_OK;
}

/* Reads "2023-11-16 18:15:46.6805900" or a number of seconds. */
static bool read_time(const char *text, double *out)
{
    struct tm tm = {0};
    double seconds;
    int used = 0;
    if (sscanf(text, "%4d-%2d-%2d%*1[ T]%2d:%2d:%lf%n", &tm.tm_year, &tm.tm_mon, &tm.tm_mday,
               &tm.tm_hour, &tm.tm_min, &seconds, &used) == 6 &&
        used) {
        tm.tm_year -= 1900;
        tm.tm_mon -= 1;
        *out = (double)timegm(&tm) + seconds;
        return true;
    }
    return sscanf(text, "%lf%n", out, &used) == 1 && used;
}

static qp_status read_csv_line(trace_file *t, const char *line, size_t number, qp_error *error)
{
    trace_request request = {0};
    long long input, output;
    const char *comma = strchr(line, ',');
    if (!comma || !read_time(line, &request.seconds) ||
        sscanf(comma, ",%lld,%lld", &input, &output) != 2)
        return error_set(error, QP_FORMAT,
                         "line %zu of the trace is \"%.60s\"; expected a time and two numbers of "
                         "tokens, separated by commas",
                         number, line);
    request.input_tokens = input;
    request.output_tokens = output;
    return add_request(t, request, number, error);
}

static qp_status read_blocks(trace_file *t, const cJSON *ids, trace_request *request, size_t line,
                             qp_error *error)
{
    const cJSON *id;
    request->first_block = t->n_blocks;
    cJSON_ArrayForEach(id, ids)
    {
        if (!cJSON_IsNumber(id) || id->valuedouble < 0 || id->valuedouble > 0x1p53)
            return error_set(error, QP_FORMAT, "line %zu of the trace: hash_ids has %s, not an id",
                             line, json_type_name(id));
        uint64_t *room = grown(t->blocks, t->n_blocks, &t->block_capacity, sizeof *t->blocks);
        if (!room) return error_no_memory(error, "the trace", t->n_blocks * sizeof *t->blocks);
        t->blocks = room;
        t->blocks[t->n_blocks++] = (uint64_t)id->valuedouble;
    }
    request->n_blocks = t->n_blocks - request->first_block;
    return QP_OK;
}

static qp_status read_json_line(trace_file *t, const char *line, size_t number, qp_error *error)
{
    char where[64];
    trace_request request = {.input_tokens = -1, .output_tokens = -1};
    double milliseconds = 0;
    cJSON *root = NULL;
    snprintf(where, sizeof where, "line %zu of the trace", number);
    qp_status status = json_parse(line, strlen(line), where, &root, error);
    if (status == QP_OK) status = json_get_double(root, "timestamp", where, &milliseconds, error);
    if (status == QP_OK)
        status = json_get_i64(root, "input_length", where, &request.input_tokens, error);
    if (status == QP_OK)
        status = json_get_i64(root, "output_length", where, &request.output_tokens, error);
    if (status == QP_OK)
        status = read_blocks(t, json_get(root, "hash_ids"), &request, number, error);
    request.seconds = milliseconds * 1e-3;
    if (status == QP_OK) status = add_request(t, request, number, error);
    cJSON_Delete(root);
    return status;
}

/* Reads a line. Its first character shows what it is: an object, column names to skip, or values.
 */
static qp_status read_line(trace_file *t, char *line, size_t number, qp_error *error)
{
    line[strcspn(line, "\r")] = '\0';
    line += strspn(line, " \t");
    if (number == 1 && strncmp(line, "\xef\xbb\xbf", 3) == 0) line += 3;
    if (!*line || (number == 1 && strncmp(line, "TIMESTAMP", 9) == 0)) return QP_OK;
    return *line == '{' ? read_json_line(t, line, number, error)
                        : read_csv_line(t, line, number, error);
}

qp_status trace_file_read(const char *text, size_t length, trace_file *out, qp_error *error)
{
    const char *end = text + length;
    *out = (trace_file){0};
    for (size_t number = 1; text < end; number++) {
        const char *line_end = memchr(text, '\n', (size_t)(end - text));
        if (!line_end) line_end = end;
        char *line = strndup(text, (size_t)(line_end - text));
        if (!line) return error_no_memory(error, "a line of the trace", length);
        qp_status status = read_line(out, line, number, error);
        free(line);
        TRY(status);
        text = line_end + 1;
    }
    if (!out->n_requests) return error_set(error, QP_FORMAT, "the trace holds no requests");
    double first = out->requests[0].seconds;
    for (size_t i = 0; i < out->n_requests; i++)
        out->requests[i].seconds -= first;
    return QP_OK;
}

void trace_file_free(trace_file *trace)
{
    free(trace->requests);
    free(trace->blocks);
    *trace = (trace_file){0};
}
