/* Judges sampled tokens: see samples.h.
 *
 * The tokens of a row in falling order of probability divide [0, 1) by what top_k and top_p leave
 * of them; a token's group is the 32nd part in which the middle of its piece lies. Rows and calls
 * are added up. With 10,000 tokens a right sampler's distance is about 0.02.
 */
#include "workbench/samples.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GROUPS = 32, TOKENS = 10000, LEAST_CALLS = 100, OUTSIDE = 255, ORDERS = 2 };

/* What top_p may leave beyond the first tokens whose sum reaches it, as in the package. */
static const double top_p_slack = 0.05;

struct samples {
    const arguments *arguments;
    int probs, top_k, top_p, out; /* indices of tensors; -1: the definition has none */
    int64_t rows, vocabulary;
    unsigned char *group; /* [rows][vocabulary]: OUTSIDE: such a token may not come */
    /* By top_k and top_p of the probabilities as they are, and by top_p of what top_k leaves. */
    double expected[ORDERS][GROUPS];
    double found[GROUPS], n_found;
};

/* --- one row --------------------------------------------------------------------------------- */

typedef struct candidate_token {
    double p;
    int64_t id;
} candidate_token;

static int by_probability(const void *a, const void *b)
{
    const candidate_token *x = a, *y = b;
    if (x->p != y->p) return x->p < y->p ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

/* The limit of a row: a scalar, or a tensor with one for each row. 0: none. */
static double limit_of(const samples *s, int t, int64_t row)
{
    const arguments *a = s->arguments;
    if (t < 0) return 0;
    if (a->definition->tensors[t].rank < 0) return a->scalars[t];
    const int64_t last = (int64_t)a->elements[t] - 1;
    return value_at(a->definition->tensors[t].type, (const char *)a->memory.data + a->offset[t],
                    (size_t)(row < last ? row : last));
}

/* How many of the sorted tokens top_k leaves: all that are as likely as the last. */
static int64_t count_top_k(const samples *s, const candidate_token *tokens, int64_t row)
{
    const double k = limit_of(s, s->top_k, row);
    int64_t n = s->vocabulary;
    if (!(k >= 1 && k < (double)n)) return n;
    n = (int64_t)k;
    while (n < s->vocabulary && tokens[n].p == tokens[n - 1].p)
        n++;
    return n;
}

/* How many of the first n tokens are needed for the sum `p`; at least one. */
static int64_t count_top_p(const candidate_token *tokens, int64_t n, double p)
{
    double sum = 0;
    int64_t count = 0;
    if (!(p > 0 && p < 1)) return n;
    while (count < n && (count == 0 || sum < p))
        sum += tokens[count++].p;
    return count;
}

static double sum_of(const candidate_token *tokens, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += tokens[i].p;
    return sum;
}

static void take_row(samples *s, candidate_token *tokens, int64_t row)
{
    const arguments *a = s->arguments;
    const char *probs = (const char *)a->memory.data + a->offset[s->probs];
    unsigned char *group = s->group + row * s->vocabulary;
    for (int64_t i = 0; i < s->vocabulary; i++) {
        const double p = value_at(a->definition->tensors[s->probs].type, probs,
                                  (size_t)(row * s->vocabulary + i));
        tokens[i] = (candidate_token){p > 0 ? p : 0, i};
    }
    qsort(tokens, (size_t)s->vocabulary, sizeof *tokens, by_probability);
    const int64_t n = count_top_k(s, tokens, row);
    const double p = limit_of(s, s->top_p, row), by_k = sum_of(tokens, n);
    const bool limited = p > 0 && p < 1;
    const int64_t most = count_top_p(tokens, n, limited ? p + top_p_slack : 0);
    const int64_t of[ORDERS] = {count_top_p(tokens, n, p),
                                count_top_p(tokens, n, limited ? p * by_k : 0)};
    const double whole = sum_of(tokens, most);
    const double sums[ORDERS] = {sum_of(tokens, of[0]), sum_of(tokens, of[1])};
    double before = 0;
    memset(group, OUTSIDE, (size_t)s->vocabulary);
    for (int64_t i = 0; i < most && whole > 0; before += tokens[i++].p) {
        if (tokens[i].p <= 0) break;
        int g = (int)((before + tokens[i].p / 2) / whole * GROUPS);
        if (g >= GROUPS) g = GROUPS - 1;
        group[tokens[i].id] = (unsigned char)g;
        for (int order = 0; order < ORDERS; order++)
            if (i < of[order]) s->expected[order][g] += tokens[i].p / sums[order];
    }
}

/* --- the definition -------------------------------------------------------------------------- */

static int find(const schema_definition *definition, const char *name)
{
    for (int t = 0; t < definition->n_inputs; t++)
        if (strcmp(definition->tensors[t].name, name) == 0) return t;
    return -1;
}

static qp_status check_form(const samples *s, qp_error *error)
{
    const arguments *a = s->arguments;
    const schema_definition *d = a->definition;
    const bool has_probs = s->probs >= 0 && d->tensors[s->probs].type->low == 0 &&
                           d->tensors[s->probs].type->high == 0 &&
                           (d->tensors[s->probs].rank == 1 || d->tensors[s->probs].rank == 2);
    const bool has_ids =
        d->n_outputs > 0 && d->tensors[s->out].rank >= 0 && d->tensors[s->out].type->low < 0;
    if (!has_probs || !has_ids || a->elements[s->probs] == 0)
        return error_set(
            error, QP_UNSUPPORTED,
            "%.100s: a definition of op_type sampling has an input \"probs\" of rows of "
            "probabilities, and its first output are whole numbers",
            d->name);
    if ((int64_t)a->elements[s->out] == s->rows) return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "%.100s: expected one token for each of %lld rows of \"probs\", the output "
                     "\"%.60s\" has %zu",
                     d->name, (long long)s->rows, d->tensors[s->out].name, a->elements[s->out]);
}

static qp_status measure(samples *s, qp_error *error)
{
    const arguments *a = s->arguments;
    const schema_definition *d = a->definition;
    s->probs = find(d, "probs");
    s->top_k = find(d, "top_k");
    s->top_p = find(d, "top_p");
    s->out = d->n_inputs;
    if (s->probs >= 0 && d->tensors[s->probs].rank >= 1) {
        const int last = d->tensors[s->probs].rank - 1;
        s->vocabulary = schema_size(d, a->workload, s->probs, last);
        s->rows = last ? schema_size(d, a->workload, s->probs, 0) : 1;
    }
    return check_form(s, error);
}

qp_status samples_create(const arguments *a, samples **out, qp_error *error)
{
    samples *s = *out = calloc(1, sizeof *s);
    if (!s) return error_no_memory(error, "samples", sizeof *s);
    s->arguments = a;
    TRY(measure(s, error));
    const size_t n = (size_t)(s->rows * s->vocabulary);
    candidate_token *tokens = malloc((size_t)s->vocabulary * sizeof *tokens);
    s->group = malloc(n);
    for (int64_t row = 0; tokens && s->group && row < s->rows; row++)
        take_row(s, tokens, row);
    free(tokens);
    return tokens && s->group ? QP_OK : error_no_memory(error, "samples", n);
}

void samples_free(samples *s)
{
    if (s) free(s->group);
    free(s);
}

/* --- judging --------------------------------------------------------------------------------- */

int samples_calls(const samples *s)
{
    const int64_t calls = (TOKENS + s->rows - 1) / s->rows;
    return calls > LEAST_CALLS ? (int)calls : LEAST_CALLS;
}

bool samples_add(samples *s, const char *memory, char *what, size_t size)
{
    const arguments *a = s->arguments;
    const schema_tensor *out = &a->definition->tensors[s->out];
    for (int64_t row = 0; row < s->rows; row++) {
        const double id = value_at(out->type, memory + a->offset[s->out], (size_t)row);
        if (!(id >= 0 && id < (double)s->vocabulary)) {
            snprintf(what, size, "%.60s: row %lld is token %.0f of a vocabulary of %lld", out->name,
                     (long long)row, id, (long long)s->vocabulary);
            return false;
        }
        const unsigned char g = s->group[row * s->vocabulary + (int64_t)id];
        if (g == OUTSIDE) {
            snprintf(what, size,
                     "%.60s: row %lld is token %.0f, which is not among those that may be drawn",
                     out->name, (long long)row, id);
            return false;
        }
        s->found[g]++;
        s->n_found++;
    }
    return true;
}

double samples_distance(const samples *s)
{
    double least = 1;
    for (int order = 0; order < ORDERS && s->n_found > 0; order++) {
        double sum = 0;
        for (int g = 0; g < GROUPS; g++)
            sum += fabs(s->found[g] / s->n_found - s->expected[order][g] / (double)s->rows);
        if (sum / 2 < least) least = sum / 2;
    }
    return least;
}
