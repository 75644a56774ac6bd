/* A table of costs as text: a first line with what the text is and its checksum, then JSON that a
 * person can read. Every value is checked when it is read. */
#include "base/cpu.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/version.h"
#include "file/mapping.h"
#include "schedule/cost.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char head[] = "quipu costs 1 ";

static uint64_t sum(const char *text, size_t length)
{
    uint64_t hash = length;
    for (size_t i = 0; i < length; i++)
        hash = hash_mix(hash ^ (unsigned char)text[i]);
    return hash;
}

static cJSON *numbers(double a, double b, double c, int n)
{
    const double values[] = {a, b, c};
    return cJSON_CreateDoubleArray(values, n);
}

static void add_points(cJSON *item, const char *key, const cost_point *points, int n)
{
    cJSON *array = cJSON_AddArrayToObject(item, key);
    for (int i = 0; i < n; i++)
        cJSON_AddItemToArray(
            array, numbers(points[i].intensity, points[i].ns_per_byte, points[i].alone, 3));
}

static cJSON *curve_json(const cost_curve *curve)
{
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "op", op_get(curve->op)->name);
    cJSON_AddStringToObject(item, "type", dtype_name(curve->type));
    cJSON_AddNumberToObject(item, "fixed_ns", curve->fixed_ns);
    cJSON_AddNumberToObject(item, "pass_bytes", curve->pass_bytes);
    if (curve->signal_ns > 0) cJSON_AddNumberToObject(item, "signal_ns", curve->signal_ns);
    add_points(item, "points", curve->points, curve->n_points);
    if (curve->n_small > 0) {
        cJSON_AddNumberToObject(item, "small_bytes", curve->small_bytes);
        cJSON_AddNumberToObject(item, "small_fixed_ns", curve->small_fixed_ns);
        add_points(item, "small", curve->small, curve->n_small);
    }
    if (curve->n_tiles > 0) add_points(item, "tiles", curve->tiles, curve->n_tiles);
    if (curve->n_small_tiles > 0)
        add_points(item, "small_tiles", curve->small_tiles, curve->n_small_tiles);
    return item;
}

qp_status cost_print(const cost_table *table, strbuf *out, qp_error *error)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "device", table->device);
    cJSON_AddStringToObject(root, "machine", table->machine);
    cJSON_AddStringToObject(root, "version", table->version);
    cJSON_AddNumberToObject(root, "workers", table->workers);
    cJSON_AddNumberToObject(root, "bytes_per_second", table->limits.bytes_per_second);
    cJSON_AddNumberToObject(root, "flops_per_second", table->limits.flops_per_second);
    cJSON_AddNumberToObject(root, "signal_ns", table->limits.signal_ns);
    if (table->rates.all > 0) {
        cJSON_AddNumberToObject(root, "plain_read_all", table->rates.all);
        cJSON_AddNumberToObject(root, "plain_read_one", table->rates.one);
    }
    cJSON *reads = cJSON_AddArrayToObject(root, "reads");
    for (int i = 0; i < table->n_reads; i++)
        cJSON_AddItemToArray(
            reads, numbers(table->reads[i].bytes, table->reads[i].bytes_per_second, 0, 2));
    cJSON *curves = cJSON_AddArrayToObject(root, "curves");
    for (int i = 0; i < table->n_curves; i++)
        cJSON_AddItemToArray(curves, curve_json(&table->curves[i]));
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    if (text) strbuf_printf(out, "%s%016" PRIx64 "\n%s", head, sum(text, strlen(text)), text);
    free(text);
    return text && !out->failed ? QP_OK : error_no_memory(error, "the table of costs", 0);
}

/* ---- reading ------------------------------------------------------------------------------- */

static qp_status get_text(const cJSON *root, const char *key, const char *where, char *out,
                          size_t size, qp_error *error)
{
    const char *text = "";
    TRY(json_get_string(root, key, where, &text, error));
    if (*text && snprintf(out, size, "%s", text) < (int)size) return QP_OK;
    return error_set(error, QP_FORMAT, "%s: \"%s\" must be a text of 1 to %zu bytes", where, key,
                     size - 1);
}

static qp_status get_number(const cJSON *root, const char *key, const char *where, double least,
                            double *out, qp_error *error)
{
    double value = NAN;
    TRY(json_get_double(root, key, where, &value, error));
    if (!(value >= least && value <= 1e18))
        return error_set(error, QP_FORMAT, "%s: \"%s\" must be %g to 1e18", where, key, least);
    *out = value;
    return QP_OK;
}

/* An array of rows of n finite numbers, none negative, the first of each row rising. */
static qp_status get_rows(const cJSON *root, const char *key, const char *where, int most, int n,
                          double (*rows)[3], int *count, qp_error *error)
{
    const cJSON *array = json_get(root, key), *row;
    int found = 0;
    if (!cJSON_IsArray(array) || cJSON_GetArraySize(array) > most)
        return error_set(error, QP_FORMAT, "%s: \"%s\" must be an array of at most %d", where, key,
                         most);
    cJSON_ArrayForEach(row, array)
    {
        bool good = cJSON_IsArray(row) && cJSON_GetArraySize(row) == n;
        for (int i = 0; good && i < n; i++) {
            const cJSON *value = cJSON_GetArrayItem(row, i);
            rows[found][i] = cJSON_IsNumber(value) ? value->valuedouble : -1;
            good = rows[found][i] >= 0 && rows[found][i] <= 1e18 && (i == 0 || rows[found][i] > 0);
        }
        if (!good || (found > 0 && rows[found][0] <= rows[found - 1][0]))
            return error_set(error, QP_FORMAT,
                             "%s: row %d of \"%s\" must have %d positive numbers, the first larger "
                             "than in the row before",
                             where, found, key, n);
        found++;
    }
    *count = found;
    return QP_OK;
}

static qp_status get_points(const cJSON *item, const char *key, const char *where,
                            cost_point points[COST_POINTS], int *n, qp_error *error)
{
    double rows[COST_POINTS][3];
    TRY(get_rows(item, key, where, COST_POINTS, 3, rows, n, error));
    for (int i = 0; i < *n; i++)
        points[i] = (cost_point){rows[i][0], rows[i][1], rows[i][2]};
    return QP_OK;
}

/* *known is false for an operator or type that this version of quipu does not have. */
static qp_status get_curve(const cJSON *item, const char *where, cost_curve *out, bool *known,
                           qp_error *error)
{
    char op_name[64], type_name[16];
    TRY(get_text(item, "op", where, op_name, sizeof op_name, error));
    TRY(get_text(item, "type", where, type_name, sizeof type_name, error));
    TRY(get_number(item, "fixed_ns", where, 0, &out->fixed_ns, error));
    TRY(get_number(item, "pass_bytes", where, 0, &out->pass_bytes, error));
    if (json_get(item, "signal_ns"))
        TRY(get_number(item, "signal_ns", where, 0, &out->signal_ns, error));
    TRY(get_points(item, "points", where, out->points, &out->n_points, error));
    if (out->n_points == 0)
        return error_set(error, QP_FORMAT, "%s: the curve of %s has no points", where, op_name);
    if (json_get(item, "small")) {
        TRY(get_number(item, "small_bytes", where, 1, &out->small_bytes, error));
        out->small_fixed_ns = out->fixed_ns;
        if (json_get(item, "small_fixed_ns"))
            TRY(get_number(item, "small_fixed_ns", where, 0, &out->small_fixed_ns, error));
        TRY(get_points(item, "small", where, out->small, &out->n_small, error));
    }
    if (json_get(item, "tiles"))
        TRY(get_points(item, "tiles", where, out->tiles, &out->n_tiles, error));
    if (json_get(item, "small_tiles"))
        TRY(get_points(item, "small_tiles", where, out->small_tiles, &out->n_small_tiles, error));
    out->type = dtype_from_name(type_name);
    *known = false;
    for (int op = 0; op < OP_COUNT; op++) {
        if (strcmp(op_get((op_code)op)->name, op_name) != 0) continue;
        out->op = (op_code)op;
        *known = out->type != DTYPE_COUNT;
    }
    return QP_OK;
}

static qp_status get_curves(const cJSON *root, const char *where, cost_table *out, qp_error *error)
{
    const cJSON *array = json_get(root, "curves"), *item;
    if (!cJSON_IsArray(array) || cJSON_GetArraySize(array) > COST_CURVES)
        return error_set(error, QP_FORMAT, "%s: \"curves\" must be an array of at most %d", where,
                         COST_CURVES);
    cJSON_ArrayForEach(item, array)
    {
        bool known = false;
        TRY(get_curve(item, where, &out->curves[out->n_curves], &known, error));
        out->n_curves += known;
    }
    return QP_OK;
}

static qp_status get_table(const cJSON *root, const char *where, cost_table *out, qp_error *error)
{
    double workers = 0, rows[COST_READS][3];
    TRY(get_text(root, "device", where, out->device, sizeof out->device, error));
    TRY(get_text(root, "machine", where, out->machine, sizeof out->machine, error));
    TRY(get_text(root, "version", where, out->version, sizeof out->version, error));
    TRY(get_number(root, "workers", where, 1, &workers, error));
    if (workers > SCHEDULE_MAX_WORKERS || workers != floor(workers))
        return error_set(error, QP_FORMAT, "%s: \"workers\" must be 1 to %d", where,
                         SCHEDULE_MAX_WORKERS);
    out->workers = (int)workers;
    machine_profile *limits = &out->limits;
    TRY(get_number(root, "bytes_per_second", where, 1, &limits->bytes_per_second, error));
    TRY(get_number(root, "flops_per_second", where, 1, &limits->flops_per_second, error));
    TRY(get_number(root, "signal_ns", where, 0, &limits->signal_ns, error));
    if (json_get(root, "plain_read_all")) {
        TRY(get_number(root, "plain_read_all", where, 1, &out->rates.all, error));
        TRY(get_number(root, "plain_read_one", where, 1, &out->rates.one, error));
    }
    TRY(get_rows(root, "reads", where, COST_READS, 2, rows, &out->n_reads, error));
    for (int i = 0; i < out->n_reads; i++)
        out->reads[i] = (cost_read){rows[i][0], rows[i][1]};
    return get_curves(root, where, out, error);
}

qp_status cost_parse(const char *text, size_t length, const char *where, cost_table *out,
                     qp_error *error)
{
    enum { HEAD = sizeof head - 1, DIGITS = 16 };
    *out = (cost_table){0};
    if (length < HEAD + DIGITS + 1 || memcmp(text, head, HEAD) != 0 || text[HEAD + DIGITS] != '\n')
        return error_set(error, QP_FORMAT, "%s: not a table of costs: it must begin with \"%s\"",
                         where, head);
    char wanted[DIGITS + 1];
    const char *rest = text + HEAD + DIGITS + 1;
    length -= HEAD + DIGITS + 1;
    snprintf(wanted, sizeof wanted, "%016" PRIx64, sum(rest, length));
    if (memcmp(wanted, text + HEAD, DIGITS) != 0)
        return error_set(error, QP_FORMAT, "%s: damaged: the checksum is wrong; measure anew",
                         where);
    cJSON *root;
    TRY(json_parse(rest, length, where, &root, error));
    qp_status status = get_table(root, where, out, error);
    cJSON_Delete(root);
    return status;
}

void cost_machine(char *text, size_t size)
{
    cpu_description cpu;
    strbuf features = {0};
    cpu_describe(&cpu);
    cpu_features_print(cpu_features(0), &features);
    snprintf(text, size, "%s: %s", cpu.model[0] ? cpu.model : "unknown processor",
             strbuf_text(&features));
    strbuf_free(&features);
}

static qp_status check_origin(const cost_table *table, const char *path, const cost_origin *origin,
                              qp_error *error)
{
    char processor[sizeof table->machine];
    cost_machine(processor, sizeof processor);
    const char *device = origin->device ? origin->device : "cpu";
    const char *machine = origin->machine ? origin->machine : processor;
    if (strcmp(table->device, device) != 0 || strcmp(table->machine, machine) != 0)
        return error_set(error, QP_FORMAT, "%s: measured on another machine (%s, %s)", path,
                         table->device, table->machine);
    if (strcmp(table->version, version_text) != 0)
        return error_set(error, QP_FORMAT, "%s: measured by version %s, this is %s", path,
                         table->version, version_text);
    if (table->workers != origin->workers)
        return error_set(error, QP_FORMAT, "%s: measured with %d workers, expected %d", path,
                         table->workers, origin->workers);
    return QP_OK;
}

qp_status cost_load(const char *path, const cost_origin *origin, cost_table *out, qp_error *error)
{
    enum { MOST_BYTES = 1 << 20 };
    char *text;
    size_t length;
    *out = (cost_table){0};
    TRY(file_read_text(path, MOST_BYTES, &text, &length, error));
    qp_status status = cost_parse(text, length, path, out, error);
    free(text);
    if (status == QP_OK) status = check_origin(out, path, origin, error);
    if (status != QP_OK) *out = (cost_table){0};
    return status;
}
