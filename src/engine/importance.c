/* The importance of inputs: see importance.h. The engine hands out the tensors of its passes
 * (qp_engine_options.on_tensor), and the program says which of them a product reads.
 */
#include "engine/importance.h"

#include "engine/engine.h"
#include "engine/observer.h"
#include "op/linear/linear.h"
#include "op/linear_experts/linear_experts.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

/* A tensor as the last step before a product leaves it. */
typedef struct input {
    char name[OBSERVER_NAME_SIZE]; /* as it is handed out; "": there is none */
    int step;
} input;

typedef struct product {
    importance *of;
    input x, ids;
    int64_t first; /* columns before its own */
    int64_t each;  /* rows of x for each token: 1 for all its experts, or top_k */
} product;

typedef struct kept {
    void *data; /* [capacity] */
    int64_t rows, pitch;
} kept;

typedef struct collector {
    importance_list *list;
    product *products; /* [list->n] */
    kept x, ids;       /* of the mixture that a pass has come to */
    qp_error error;
} collector;

/* ---- Products -------------------------------------------------------------------------------- */

static input find_input(const program *p, int node, int operand)
{
    input found = {.step = p->nodes[node].step - 1};
    const int id = program_tensor_of(p, node, operand);
    while (found.step > 0 && !program_step_access(p, found.step, (plan_tensor_id)id).write)
        found.step--;
    observer_name_tensor(p, found.step, (plan_tensor_id)id, found.name);
    return found;
}

static qp_status add_product(const program *p, int node, int operand, collector *c, qp_error *error)
{
    const program_weight *w = program_weight_of(p, node, operand);
    const bool experts = p->nodes[node].op == OP_LINEAR_EXPERTS;
    const int x_operand = experts ? LINEAR_EXPERTS_X : LINEAR_X;
    if (!w || p->nodes[node].layer < 0) return QP_OK;
    const program_view *x = program_operand(p, node, x_operand);
    importance *of = &c->list->of[c->list->n];
    *of = (importance){.slot = w->slot,
                       .layer = p->nodes[node].layer,
                       .n_experts = experts ? p->config.n_experts : 1,
                       .columns = x->shape[x->rank - 1]};
    const size_t n = (size_t)(of->n_experts * of->columns);
    of->sums = calloc(n + (size_t)of->n_experts, sizeof *of->sums);
    if (!of->sums) return error_no_memory(error, "the importance of inputs", n);
    of->counts = of->sums + n;
    product *added = &c->products[c->list->n++];
    *added = (product){.of = of,
                       .x = find_input(p, node, x_operand),
                       .first = x->first_column,
                       .each = experts ? x->shape[1] : 1};
    if (experts) added->ids = find_input(p, node, LINEAR_EXPERTS_IDS);
    return QP_OK;
}

static qp_status keep_room(const program *p, kept *k, qp_error *error)
{
    size_t bytes = 1;
    for (int id = 0; id < p->n_tensors; id++)
        if (p->tensors[id].bytes > bytes) bytes = p->tensors[id].bytes;
    k->data = malloc(bytes);
    return k->data ? QP_OK : error_no_memory(error, "a tensor", bytes);
}

static qp_status find_products(const program *p, collector *c, qp_error *error)
{
    const size_t most = 2 * (size_t)p->n_nodes;
    c->list->of = calloc(most, sizeof *c->list->of);
    c->products = calloc(most, sizeof *c->products);
    if (!c->list->of || !c->products)
        return error_no_memory(error, "the importance of inputs", most);
    for (int node = 0; node < p->n_nodes; node++) {
        if (p->nodes[node].op == OP_LINEAR) TRY(add_product(p, node, LINEAR_WEIGHT, c, error));
        if (p->nodes[node].op != OP_LINEAR_EXPERTS) continue;
        TRY(add_product(p, node, LINEAR_EXPERTS_WEIGHT, c, error));
        TRY(add_product(p, node, LINEAR_EXPERTS_UP_WEIGHT, c, error));
    }
    TRY(keep_room(p, &c->x, error));
    return keep_room(p, &c->ids, error);
}

/* ---- A pass ---------------------------------------------------------------------------------- */

static qp_status add_row(importance *of, int64_t expert, const float *row, qp_error *error)
{
    double *sums = of->sums + expert * of->columns, all = 0;
    for (int64_t i = 0; i < of->columns; i++) {
        sums[i] += (double)row[i] * row[i];
        all += sums[i];
    }
    of->counts[expert]++;
    if (all < FLT_MAX) return QP_OK;
    return error_set(error, QP_FORMAT,
                     "layer %lld: inputs of %s are not finite, so they have no importance",
                     (long long)of->layer, weight_get_info(of->slot)->name);
}

/* x (rows, pitch), and the experts of each row, if there are any. */
static qp_status add_rows(const product *p, const kept *x, const kept *ids, qp_error *error)
{
    const int64_t top_k = ids ? ids->pitch : 1;
    for (int64_t row = 0; row < x->rows; row++)
        for (int64_t j = 0; j < top_k; j++) {
            const int64_t expert = ids ? ((const int32_t *)ids->data)[row * top_k + j] : 0;
            const int64_t at = p->first + (p->each == 1 ? 0 : j * p->of->columns);
            if (expert < 0) continue;
            TRY(add_row(p->of, expert, (const float *)x->data + row * x->pitch + at, error));
        }
    return QP_OK;
}

static kept rows_of(const qp_tensor *t)
{
    kept k = {.data = (void *)t->data, .rows = t->dims[0], .pitch = 1};
    for (int d = 1; d < t->rank; d++)
        k.pitch *= t->dims[d];
    return k;
}

static void keep(const qp_tensor *t, kept *to)
{
    const kept from = rows_of(t);
    memcpy(to->data, t->data, t->bytes);
    to->rows = from.rows;
    to->pitch = from.pitch;
}

/* A mixture's rows are added when both they and their experts are there. */
static qp_status on_tensor(void *context, const qp_tensor *t)
{
    collector *c = context;
    for (size_t i = 0; i < c->list->n; i++) {
        const product *p = &c->products[i];
        const kept now = rows_of(t);
        const bool mixes = p->ids.name[0] != '\0', x_is_last = p->x.step > p->ids.step;
        if (strcmp(t->name, p->x.name) == 0) {
            if (!mixes) TRY(add_rows(p, &now, NULL, &c->error));
            if (mixes && x_is_last) TRY(add_rows(p, &now, &c->ids, &c->error));
            if (mixes && !x_is_last) keep(t, &c->x);
        }
        if (mixes && strcmp(t->name, p->ids.name) == 0) {
            keep(t, &c->ids);
            if (!x_is_last) TRY(add_rows(p, &c->x, &c->ids, &c->error));
        }
    }
    return QP_OK;
}

/* ---- A text ---------------------------------------------------------------------------------- */

/* The BOS token that plain text begins with, or -1. */
static qp_status find_bos(const qp_vocabulary *vocabulary, int32_t *bos, qp_error *error)
{
    qp_tokens tokens = {0};
    const qp_status status = qp_tokenize(vocabulary, "", 0, QP_BOS_DEFAULT, &tokens, error);
    *bos = status == QP_OK && tokens.count > 0 ? tokens.data[0] : -1;
    qp_tokens_free(&tokens);
    return status;
}

static qp_status read_chunks(qp_engine *e, qp_session *session, const qp_tokens *tokens,
                             importance_progress *chunk_done, void *context,
                             const volatile int *cancel, importance_list *out, qp_error *error)
{
    int32_t bos;
    const size_t whole = tokens->count / IMPORTANCE_CHUNK, n = whole ? whole : 1;
    TRY(find_bos(qp_engine_vocabulary(e), &bos, error));
    for (size_t i = 0; i < n; i++) {
        int32_t *chunk = tokens->data + i * IMPORTANCE_CHUNK;
        const qp_input input = {
            .session = session, .tokens = chunk, .count = whole ? IMPORTANCE_CHUNK : tokens->count};
        if (bos >= 0) chunk[0] = bos;
        TRY(qp_session_truncate(session, 0, error));
        TRY(qp_eval(e, &input, 1, NULL, NULL, cancel, error));
        out->n_chunks = i + 1;
        if (chunk_done) chunk_done(context, i + 1, n);
    }
    return QP_OK;
}

static qp_status measure(qp_engine *e, const char *text, size_t length,
                         importance_progress *chunk_done, void *context, const volatile int *cancel,
                         collector *c, qp_error *error)
{
    qp_tokens tokens = {0};
    qp_session *session = NULL;
    if (!qp_engine_vocabulary(e))
        return error_set(error, QP_INVALID, "the model has no vocabulary to read a text with");
    qp_status status = find_products(&e->program, c, error);
    if (status == QP_OK)
        status = qp_tokenize(qp_engine_vocabulary(e), text, length, QP_BOS_DEFAULT, &tokens, error);
    if (status == QP_OK && tokens.count < 2)
        status = error_set(error, QP_INVALID, "the text has no words");
    if (status == QP_OK) status = qp_session_open(e, &session, error);
    if (status == QP_OK)
        status = read_chunks(e, session, &tokens, chunk_done, context, cancel, c->list, error);
    qp_session_close(session);
    qp_tokens_free(&tokens);
    return status;
}

qp_status importance_measure(const qp_engine_options *given, const char *text, size_t length,
                             importance_progress *chunk_done, void *context,
                             const volatile int *cancel, importance_list *out, qp_error *error)
{
    qp_engine *e = NULL;
    qp_engine_options options = *given;
    collector c = {.list = out};
    options.context = IMPORTANCE_CHUNK;
    options.device = "cpu";         /* every step of the plan is one of the machine's */
    options.rules = "-wanted_rows"; /* rows of the last layer matter, too */
    options.on_tensor = on_tensor;
    options.tensor_context = &c;
    qp_status status = qp_engine_open(&options, &e, error);
    if (status == QP_OK) status = measure(e, text, length, chunk_done, context, cancel, &c, error);
    if (status != QP_OK && c.error.message[0]) *error = c.error;
    qp_engine_close(e);
    free(c.products);
    free(c.x.data);
    free(c.ids.data);
    return status;
}

void importance_free(importance_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        free(list->of[i].sums);
    free(list->of);
    *list = (importance_list){0};
}
