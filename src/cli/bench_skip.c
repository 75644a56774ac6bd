/* quipu bench --skip: what parts of a pass cost, by leaving them out.
 *
 * One engine runs all tests. Between two runs its schedule is replaced by one in which the
 * instructions of a kind are noops, or in which nothing waits. The kinds take turns, and the
 * quickest run of each counts, because other programs disturb that least. The range of the share is
 * that of all rounds, each compared with the whole pass of its round. Workers do different
 * kinds of work at the same time, so what the kinds save need not add up to a pass.
 */
#include "cli/bench.h"

#include "base/names.h"
#include "base/status.h"
#include "inspect/part.h"
#include "text/json_string.h"

#include <string.h>

enum { MOST_ROWS = 64 };

/* A row: what is left out, and the quickest run. */
typedef struct skip_row {
    char kinds[256]; /* empty: nothing */
    double seconds;
    double least, most; /* of a round: the share of its whole pass that is saved */
} skip_row;

typedef struct skip_table {
    skip_row rows[MOST_ROWS]; /* the first leaves out nothing */
    int n_rows;
} skip_table;

static skip_row *add_row(skip_table *t)
{
    skip_row *row = &t->rows[t->n_rows++];
    *row = (skip_row){.seconds = 0};
    return row;
}

/* The first row, then that of --skip, or one of each kind and of the waits. */
static qp_status list_rows(const bench *b, skip_table *t)
{
    strbuf all = {0};
    add_row(t);
    TRY(part_print_kinds(b->engine, &all, b->call->error));
    const char *kinds = strbuf_text(&all);
    if (strcmp(b->skip, "all") != 0)
        snprintf(add_row(t)->kinds, sizeof t->rows->kinds, "%s", b->skip);
    else
        for (char name[NAME_SIZE]; t->n_rows < MOST_ROWS - 1 && names_next(&kinds, name);)
            snprintf(add_row(t)->kinds, sizeof t->rows->kinds, "%s", name);
    if (strcmp(b->skip, "all") == 0) snprintf(add_row(t)->kinds, sizeof t->rows->kinds, "waits");
    strbuf_free(&all);
    return QP_OK;
}

/* `kinds`: NULL leaves out nothing. */
static qp_status leave_out(bench *b, const char *kinds)
{
    const qp_schedule_options schedule = cli_schedule(b->call);
    pass_part part = cli_part(b->call);
    part.skip = kinds;
    return part_reschedule(b->engine, &schedule, &part, b->call->error);
}

static qp_status take_turns(bench *b, skip_table *t, bool one_by_one, int64_t count)
{
    const cli_settings *s = b->call->settings;
    const char *kind = one_by_one ? "tg" : "pp";
    double whole = 0; /* seconds of the round's pass without gaps */
    const size_t depth = (size_t)s->depth, warm = one_by_one && count > 4 ? 4 : (size_t)count;
    for (int64_t run = 0; run <= s->repetitions; run++) { /* the first one warms up */
        bench_show_run(kind, count, run, s->repetitions);
        for (int i = 0; i < t->n_rows; i++) {
            skip_row *row = &t->rows[i];
            double seconds;
            TRY(leave_out(b, i > 0 ? row->kinds : NULL));
            TRY(bench_time_run(b, depth, run ? (size_t)count : warm, one_by_one, &seconds));
            if (i == 0) whole = seconds;
            const double share = 1 - seconds / whole;
            if (run && (run == 1 || seconds < row->seconds)) row->seconds = seconds;
            if (run && (run == 1 || share < row->least)) row->least = share;
            if (run && (run == 1 || share > row->most)) row->most = share;
        }
    }
    bench_show_run(kind, count, s->repetitions + 1, s->repetitions);
    return QP_OK;
}

/* Milliseconds of a prompt, or of a pass of generation. */
static double ms_of(const skip_row *row, bool one_by_one, int64_t count)
{
    return 1e3 * row->seconds / (double)(one_by_one ? count : 1);
}

static void print_row(const skip_table *t, int i, bool one_by_one, int64_t count, int format,
                      strbuf *out)
{
    static const char *const rows[] = {"| %s | %s%lld | %.3f | %.3f | %.1f%% | %.1f to %.1f%% |\n",
                                       "\"%s\",%s%lld,%.4f,%.4f,%.2f,%.2f,%.2f\n"};
    const skip_row *row = &t->rows[i];
    const double all = ms_of(&t->rows[0], one_by_one, count), ms = ms_of(row, one_by_one, count);
    const char *kind = one_by_one ? "tg" : "pp", *name = i ? row->kinds : "nothing";
    if (format != JSON) {
        strbuf_printf(out, rows[format], name, kind, (long long)count, ms, all - ms,
                      100 * (all - ms) / all, 100 * row->least, 100 * row->most);
        return;
    }
    strbuf_puts(out, out->length > 1 ? ",\n {\"left_out\": " : "{\"left_out\": ");
    json_put_string(out, name, strlen(name));
    strbuf_printf(out,
                  ", \"test\": \"%s%lld\", \"ms\": %.4f, \"ms_less\": %.4f, "
                  "\"share_least\": %.4f, \"share_most\": %.4f}",
                  kind, (long long)count, ms, all - ms, row->least, row->most);
}

static qp_status run_test(bench *b, skip_table *t, bool one_by_one, int64_t count, strbuf *out)
{
    if (count == 0) return QP_OK;
    TRY(take_turns(b, t, one_by_one, count));
    for (int i = 0; i < t->n_rows; i++)
        print_row(t, i, one_by_one, count, b->call->settings->format, out);
    return QP_OK;
}

qp_status bench_skip(bench *b, strbuf *out)
{
    static const char *const heads[] = {
        ("| left out | test | ms | ms less | share | in all rounds |\n"
         "|---|---|---|---|---|---|\n"),
        "left_out,test,ms,ms_less,share,share_least,share_most\n", "["};
    const cli_settings *s = b->call->settings;
    skip_table t = {.n_rows = 0};
    double seconds;
    TRY(list_rows(b, &t));
    strbuf_puts(out, heads[s->format]);
    if (s->depth) TRY(bench_time_run(b, 0, (size_t)s->depth, false, &seconds));
    TRY(run_test(b, &t, false, s->n_prompt, out));
    TRY(run_test(b, &t, true, s->n_generate, out));
    if (s->format == JSON) strbuf_puts(out, "]\n");
    return QP_OK;
}
