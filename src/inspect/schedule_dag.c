/* Dependencies of a schedule: see schedule_dag.h. An instruction needs those that signal the
 * counters that it waits for in the same pass. */
#include "inspect/schedule_dag.h"

#include "file/mapping.h"
#include "schedule/instruction_text.h"
#include "schedule/neighbour.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dag_node {
    const instruction *in;
    int worker, place;
    double priority;
    bool needed; /* by another */
} dag_node;

typedef struct dag_nodes {
    const schedule *s;
    int n;
    dag_node *of;
    int *first, *next; /* [counters], [n]: the nodes that signal a counter, as lists; -1 ends */
} dag_nodes;

static int in_order(const void *a, const void *b)
{
    const instruction *x = ((const dag_node *)a)->in, *y = ((const dag_node *)b)->in;
    const int64_t keys[][2] = {{x->node, y->node},
                               /* joiners come before the node that they are for */
                               {x->opcode != INSTRUCTION_NOOP, y->opcode != INSTRUCTION_NOOP},
                               {x->tokens.begin, y->tokens.begin},
                               {x->units.begin, y->units.begin},
                               {x->part, y->part},
                               {x->signal, y->signal}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i][0] != keys[i][1]) return keys[i][0] < keys[i][1] ? -1 : 1;
    return 0;
}

static bool waits(const instruction *in, int w)
{
    return in->waits[w].counter && !(in->flags >> w & 1);
}

/* Paths from the end to the beginning; the end of a counter is that of its longest consumer. */
static void find_priorities(dag_nodes *d, double *longest)
{
    for (int i = d->n - 1; i >= 0; i--) {
        dag_node *node = &d->of[i];
        node->priority = node->in->cost_ns + (node->in->signal ? longest[node->in->signal] : 0);
        for (int w = 0; w < INSTRUCTION_WAITS; w++) {
            if (!waits(node->in, w)) continue;
            const uint32_t counter = node->in->waits[w].counter;
            const double path = node->priority + d->s->options.profile.signal_ns;
            if (path > longest[counter]) longest[counter] = path;
            for (int from = d->first[counter]; from >= 0; from = d->next[from])
                d->of[from].needed = true;
        }
    }
}

static qp_status make_nodes(const schedule *s, dag_nodes *d, qp_error *error)
{
    const size_t most = (size_t)s->options.workers * (size_t)s->longest;
    double *longest = calloc((size_t)s->n_counters, sizeof *longest);
    *d = (dag_nodes){.s = s,
                     .of = calloc(most + 1, sizeof *d->of),
                     .first = calloc((size_t)s->n_counters, sizeof *d->first),
                     .next = calloc(most + 1, sizeof *d->next)};
    const bool enough = d->of && d->first && d->next && longest;
    for (int w = 0; enough && w < s->options.workers; w++)
        for (int i = 0; i < s->length[w]; i++)
            d->of[d->n++] = (dag_node){.in = schedule_queue(s, w) + i, .worker = w, .place = i};
    if (enough) qsort(d->of, (size_t)d->n, sizeof *d->of, in_order);
    for (int c = 0; enough && c < s->n_counters; c++)
        d->first[c] = -1;
    for (int i = d->n - 1; enough && i >= 0; i--) {
        d->next[i] = d->first[d->of[i].in->signal];
        d->first[d->of[i].in->signal] = i;
    }
    if (enough) find_priorities(d, longest);
    free(longest);
    return enough ? QP_OK : error_no_memory(error, "the schedule's dependencies", most);
}

static void free_nodes(dag_nodes *d)
{
    free(d->of);
    free(d->first);
    free(d->next);
}

/* ---- print --------------------------------------------------------------------------------- */

/* "0-3 7" */
static void print_ids(const int *ids, int n, strbuf *out)
{
    for (int i = 0, last; i < n; i = last + 1) {
        for (last = i; last + 1 < n && ids[last + 1] == ids[last] + 1;)
            last++;
        strbuf_printf(out, "%s%d", i ? " " : "", ids[i]);
        if (last > i) strbuf_printf(out, "-%d", ids[last]);
    }
}

/* The nodes that a node needs; of the end (i == n) those that no other needs. ids: room for n. */
static int find_needs(const dag_nodes *d, int i, int *ids)
{
    int count = 0;
    for (int from = 0; i == d->n && from < d->n; from++)
        if (!d->of[from].needed) ids[count++] = from;
    for (int w = 0; i < d->n && w < INSTRUCTION_WAITS; w++) {
        if (!waits(d->of[i].in, w)) continue;
        for (int from = d->first[d->of[i].in->waits[w].counter]; from >= 0; from = d->next[from])
            ids[count++] = from;
    }
    return count;
}

static void print_node(const dag_nodes *d, int i, int *ids, strbuf *text, strbuf *out)
{
    const instruction *in = d->of[i].in;
    const program_node *node = &d->s->program->nodes[in->node];
    strbuf_printf(out, "%5d %10.1f %8.1f %-20s ", i, d->of[i].priority / 1e3, in->cost_ns / 1e3,
                  instruction_name(in->opcode));
    instruction_print_slice(in, text);
    strbuf_printf(out, "%-20s ", strbuf_text(text));
    strbuf_clear(text);
    print_ids(ids, find_needs(d, i, ids), text);
    strbuf_printf(out, "%-20s %s", strbuf_text(text), node->name);
    strbuf_clear(text);
    if (in->layer >= 0) strbuf_printf(out, " %d", in->layer);
    instruction_print_operands(d->s, in, out);
    strbuf_putc(out, '\n');
}

qp_status schedule_dag_print(const schedule *s, strbuf *out, qp_error *error)
{
    dag_nodes d;
    strbuf text = {0};
    qp_status status = make_nodes(s, &d, error);
    int *ids = calloc((size_t)d.n + 1, sizeof *ids);
    if (status == QP_OK && !ids) status = error_no_memory(error, "the list", (size_t)d.n);
    if (status == QP_OK)
        strbuf_printf(out, "\n%5s %10s %8s %-20s %-20s %-20s %s\n", "id", "priority us", "cost us",
                      "opcode", "slice", "needs", "step, layer, operands");
    for (int i = 0; status == QP_OK && i < d.n; i++)
        print_node(&d, i, ids, &text, out);
    if (status == QP_OK) {
        print_ids(ids, find_needs(&d, d.n, ids), &text);
        strbuf_printf(out, "%5d %10.1f %8.1f %-20s %-20s %-20s %s\n", d.n, 0.0, 0.0, "noop", "-",
                      strbuf_text(&text), "end");
    }
    strbuf_free(&text);
    free(ids);
    free_nodes(&d);
    return status;
}

/* ---- JSON ---------------------------------------------------------------------------------- */

void schedule_slice_json(const instruction *in, cJSON *item)
{
    const int slice[] = {in->part, in->parts, in->units.begin, in->units.end};
    cJSON_AddItemToObject(item, in->parts ? "part" : "units",
                          cJSON_CreateIntArray(slice + (in->parts ? 0 : 2), 2));
    const int tokens[] = {in->tokens.begin, in->tokens.end};
    if (in->tokens.end != INSTRUCTION_ALL_TOKENS)
        cJSON_AddItemToObject(item, "tokens", cJSON_CreateIntArray(tokens, 2));
}

static void add_work(const dag_nodes *d, const instruction *in, cJSON *item)
{
    const op_info *op = op_get((op_code)in->opcode);
    cJSON *operands = cJSON_AddObjectToObject(item, "operands");
    for (int t = 0; t < op_n_tensors(op); t++) {
        strbuf view = {0};
        if (in->operands[t] == 0) continue;
        instruction_print_view(d->s, in->operands[t], &view);
        cJSON_AddStringToObject(operands, op->tensors[t].name, strbuf_text(&view));
        strbuf_free(&view);
    }
    cJSON *params = cJSON_AddObjectToObject(item, "params");
    for (int i = 0; i < INSTRUCTION_PARAMS && op->params[i].name; i++)
        cJSON_AddNumberToObject(params, op->params[i].name, (double)in->params[i]);
    schedule_slice_json(in, item);
}

static cJSON *node_json(const dag_nodes *d, int i, int *ids)
{
    const dag_node *node = &d->of[i];
    const instruction *in = node->in;
    cJSON *item = cJSON_CreateObject();
    cJSON_AddNumberToObject(item, "id", i);
    cJSON_AddStringToObject(item, "opcode", instruction_name(in->opcode));
    cJSON_AddStringToObject(item, "step", d->s->program->nodes[in->node].name);
    cJSON_AddNumberToObject(item, "layer", in->layer);
    if (in->opcode != INSTRUCTION_NOOP) add_work(d, in, item);
    cJSON_AddNumberToObject(item, "cost_ns", in->cost_ns);
    cJSON_AddNumberToObject(item, "priority_ns", node->priority);
    cJSON_AddItemToObject(item, "needs", cJSON_CreateIntArray(ids, find_needs(d, i, ids)));
    cJSON_AddArrayToObject(item, "children");
    cJSON_AddNumberToObject(item, "worker", node->worker);
    cJSON_AddNumberToObject(item, "place", node->place);
    return item;
}

/* Each node's children from the needs of the nodes after it. */
static bool add_children(const cJSON *nodes, int n)
{
    const cJSON **of = calloc((size_t)n + 1, sizeof *of), *node, *need;
    int at = 0;
    if (!of) return false;
    cJSON_ArrayForEach(node, nodes)
    {
        of[at++] = cJSON_GetObjectItem(node, "children");
        cJSON_ArrayForEach(need, cJSON_GetObjectItem(node, "needs"))
            cJSON_AddItemToArray((cJSON *)of[need->valueint], cJSON_CreateNumber(at - 1));
    }
    free(of);
    return true;
}

qp_status schedule_dag_json(const schedule *s, cJSON *root, qp_error *error)
{
    dag_nodes d;
    qp_status status = make_nodes(s, &d, error);
    int *ids = calloc((size_t)d.n + 1, sizeof *ids);
    if (status == QP_OK && !ids) status = error_no_memory(error, "the list", (size_t)d.n);
    if (status == QP_OK) {
        cJSON *nodes = cJSON_AddArrayToObject(root, "nodes");
        for (int i = 0; i < d.n; i++)
            cJSON_AddItemToArray(nodes, node_json(&d, i, ids));
        if (!add_children(nodes, d.n)) status = error_no_memory(error, "the list", (size_t)d.n);
        cJSON *end = cJSON_AddObjectToObject(root, "end");
        cJSON_AddStringToObject(end, "opcode", "noop");
        cJSON_AddItemToObject(end, "needs", cJSON_CreateIntArray(ids, find_needs(&d, d.n, ids)));
    }
    free(ids);
    free_nodes(&d);
    return status;
}

/* ---- queues of another program ------------------------------------------------------------- */

/* order [n]: the instructions of all queues one after the other; lengths [workers]. */
static qp_status read_queues(const dag_nodes *d, const cJSON *queues, const char *path,
                             const instruction **order, int *lengths, qp_error *error)
{
    int n = 0, worker = 0;
    bool *seen = calloc((size_t)d->n + 1, sizeof *seen);
    if (!seen) return error_no_memory(error, "the queues", (size_t)d->n);
    qp_status status = QP_OK;
    const cJSON *queue, *id;
    cJSON_ArrayForEach(queue, queues)
    {
        cJSON_ArrayForEach(id, queue)
        {
            const double value = cJSON_IsNumber(id) ? id->valuedouble : -1;
            const int i = value >= 0 && value < d->n ? (int)value : -1;
            if (status == QP_OK && (i < 0 || i != value || seen[i]))
                status = error_set(error, QP_INVALID,
                                   "%s: queue %d has the id %g, expected each of 0 to %d once",
                                   path, worker, value, d->n - 1);
            if (status != QP_OK) break;
            seen[i] = true;
            order[n++] = d->of[i].in;
            lengths[worker]++;
        }
        worker++;
    }
    free(seen);
    if (status == QP_OK && n < d->n)
        status =
            error_set(error, QP_INVALID, "%s: %d instructions, expected all %d", path, n, d->n);
    return status;
}

static qp_status arrange(const dag_nodes *d, const cJSON *root, const char *path, schedule *out,
                         qp_error *error)
{
    const cJSON *queues = cJSON_GetObjectItem(root, "queues");
    const int workers = d->s->options.workers;
    if (!cJSON_IsArray(queues) || cJSON_GetArraySize(queues) != workers)
        return error_set(error, QP_FORMAT,
                         "%s: expected {\"queues\": [[id, ...], ...]} with %d queues, as many as "
                         "--workers",
                         path, workers);
    const instruction **order = calloc((size_t)d->n + 1, sizeof *order);
    int *lengths = calloc((size_t)workers, sizeof *lengths);
    qp_status status = order && lengths ? read_queues(d, queues, path, order, lengths, error)
                                        : error_no_memory(error, "the queues", (size_t)d->n);
    if (status == QP_OK) status = schedule_arrange(d->s, order, lengths, out, error);
    free(order);
    free(lengths);
    return status;
}

qp_status schedule_dag_arrange(const schedule *from, const char *path, schedule *out,
                               qp_error *error)
{
    enum { MOST = 256 << 20 };
    dag_nodes d;
    char *text;
    size_t length;
    cJSON *root = NULL;
    *out = (schedule){0};
    TRY(file_read_text(path, MOST, &text, &length, error));
    qp_status status = json_parse(text, length, path, &root, error);
    free(text);
    TRY(status);
    status = make_nodes(from, &d, error);
    if (status == QP_OK) status = arrange(&d, root, path, out, error);
    free_nodes(&d);
    cJSON_Delete(root);
    return status;
}
