/* Files of costs: what is read is finite, and is read again from what it is written as. An input
 * that begins with a brace gets the first line that a file has, with the right checksum. */
#include "base/hash.h"
#include "schedule/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void must(bool good)
{
    if (!good) abort();
}

static void check_points(const cost_point *points, int n)
{
    must(n >= 0 && n <= COST_POINTS);
    for (int i = 0; i < n; i++)
        must(isfinite(points[i].intensity) && isfinite(points[i].ns_per_byte));
}

static uint64_t checksum_of(const uint8_t *text, size_t length)
{
    uint64_t hash = length;
    for (size_t i = 0; i < length; i++)
        hash = hash_mix(hash ^ text[i]);
    return hash;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static cost_table table, again;
    qp_error error = {0};
    strbuf text = {0};
    if (size && data[0] == '{')
        strbuf_printf(&text, "quipu costs 1 %016llx\n",
                      (unsigned long long)checksum_of(data, size));
    strbuf_append(&text, (const char *)data, size);
    const qp_status status = cost_parse(strbuf_text(&text), text.length, "input", &table, &error);
    strbuf_free(&text);
    if (status != QP_OK) {
        must(error.message[0] != '\0');
        return 0;
    }
    must(table.n_curves >= 0 && table.n_curves <= COST_CURVES);
    must(table.n_reads >= 0 && table.n_reads <= COST_READS);
    for (int i = 0; i < table.n_curves; i++) {
        check_points(table.curves[i].points, table.curves[i].n_points);
        check_points(table.curves[i].tiles, table.curves[i].n_tiles);
    }
    strbuf first = {0}, second = {0};
    must(cost_print(&table, &first, &error) == QP_OK);
    must(cost_parse(first.data, first.length, "again", &again, &error) == QP_OK);
    must(cost_print(&again, &second, &error) == QP_OK);
    must(strcmp(first.data, second.data) == 0);
    strbuf_free(&first);
    strbuf_free(&second);
    return 0;
}
