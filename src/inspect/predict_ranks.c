/* Simulation of several hosts: see predict_ranks.h.
 *
 * Each rank is simulated alone, with exchanges that last from when it comes to them until all have
 * what the others gave. How long that is depends on when the others come, which the simulation
 * tells: it is repeated until nothing changes. An exchange depends only on earlier ones, so each
 * repetition settles at least one more.
 */
#include "inspect/predict_ranks.h"

#include "op/all_gather/all_gather.h"
#include "op/exchange.h"
#include "schedule/predict.h"

#include <math.h>
#include <stdlib.h>

/* An exchange of one rank. */
typedef struct exchange {
    instruction *in;
    size_t place;     /* in the queues */
    double bytes;     /* that the rank gives to each other one */
    double copies_ns; /* what the schedule says that it costs */
} exchange;

typedef struct simulation {
    schedule_ranks *ranks;
    const rank_network *network;
    exchange *exchanges; /* [ranks][n], in the order of the program */
    double *begin;       /* [ranks][n]: ns */
    double total;
    int n;
} simulation;

/* Bytes of the rows that a rank gives. */
static double bytes_given(const schedule *s, int node)
{
    const program *p = s->program;
    int64_t sizes[AXES];
    op_call call;
    for (int axis = 0; axis < AXES; axis++)
        sizes[axis] = p->capacity.of[axis];
    sizes[AXIS_TOKENS] = s->options.tokens;
    program_set_outputs(sizes, 1);
    sizes[AXIS_SEQUENCES] = 1;
    program_bind(p, node, NULL, sizes, &call);
    const bool gathers = p->nodes[node].op == OP_ALL_GATHER;
    const int out = op_n_tensors(op_get(p->nodes[node].op)) - 1;
    const tensor *rows = &call.tensors[gathers ? ALL_GATHER_PART : out];
    return (double)tensor_elements(rows) * (double)dtype_block_bytes(rows->type);
}

static bool is_exchange(const instruction *in)
{
    return in->opcode != INSTRUCTION_NOOP && op_exchanges((op_code)in->opcode);
}

/* The exchanges of a rank, by node: at most `most`. */
static int find_exchanges(schedule *s, exchange *out, int most)
{
    int n = 0;
    for (int node = 0; node < s->n_nodes; node++) {
        if (!op_exchanges(s->program->nodes[node].op)) continue;
        for (int w = 0; w < s->options.workers; w++)
            for (int i = 0; i < s->length[w]; i++) {
                const size_t place = (size_t)w * (size_t)s->longest + (size_t)i;
                instruction *in = &s->instructions[place];
                if (!is_exchange(in) || (int)in->node != node || n == most) continue;
                out[n++] = (exchange){in, place, bytes_given(s, node), in->cost_ns};
            }
    }
    return n;
}

static int count_exchanges(const schedule *s)
{
    int n = 0;
    for (int node = 0; node < s->n_nodes; node++)
        if (op_exchanges(s->program->nodes[node].op) && !program_is_noop(s->program, node)) n++;
    return n;
}

static const exchange *exchange_of(const simulation *m, int rank, int number)
{
    return &m->exchanges[(size_t)rank * (size_t)m->n + (size_t)number];
}

static double received(const simulation *m, int rank, int number)
{
    double sum = 0;
    for (int r = 0; r < m->ranks->n; r++)
        if (r != rank) sum += exchange_of(m, r, number)->bytes;
    return sum;
}

/* Sets what an exchange costs a rank, from when the rank comes to it. True: it is another time. */
static bool set_cost(simulation *m, int rank, int number)
{
    const exchange *own = exchange_of(m, rank, number);
    double met = 0;
    for (int r = 0; r < m->ranks->n; r++)
        met = fmax(met, m->begin[(size_t)r * (size_t)m->n + (size_t)number]);
    const double sent = own->bytes * (m->ranks->n - 1);
    const double way = m->network->latency_ns +
                       fmax(sent, received(m, rank, number)) / m->network->bytes_per_second * 1e9;
    const double waits = met - m->begin[(size_t)rank * (size_t)m->n + (size_t)number];
    const double ns = fmin(waits + way + own->copies_ns, UINT32_MAX);
    const bool changes = fabs(ns - own->in->cost_ns) > 1;
    own->in->cost_ns = (uint32_t)ns;
    return changes;
}

static qp_status simulate(simulation *m, int rank, qp_error *error)
{
    schedule_prediction p = {0};
    qp_status status = schedule_predict(&m->ranks->schedules[rank], &p, error);
    for (int i = 0; status == QP_OK && i < m->n; i++)
        m->begin[(size_t)rank * (size_t)m->n + (size_t)i] = p.begin[exchange_of(m, rank, i)->place];
    m->total = fmax(m->total, p.total);
    prediction_free(&p);
    return status;
}

static qp_status repeat(simulation *m, qp_error *error)
{
    bool changes = true;
    for (int i = 0; changes && i <= m->n + 1; i++) {
        changes = false;
        m->total = 0;
        for (int r = 0; r < m->ranks->n; r++)
            TRY(simulate(m, r, error));
        for (int r = 0; r < m->ranks->n; r++)
            for (int number = 0; number < m->n; number++)
                changes = set_cost(m, r, number) || changes;
    }
    return QP_OK;
}

qp_status schedule_predict_ranks(schedule_ranks *ranks, const rank_network *network, double *ns,
                                 qp_error *error)
{
    simulation m = {.ranks = ranks, .network = network, .n = count_exchanges(&ranks->schedules[0])};
    const size_t count = (size_t)ranks->n * (size_t)m.n;
    m.exchanges = calloc(count + 1, sizeof *m.exchanges);
    m.begin = calloc(count + 1, sizeof *m.begin);
    qp_status status = m.exchanges && m.begin ? QP_OK : error_no_memory(error, "ranks", count);
    for (int r = 0; status == QP_OK && r < ranks->n; r++)
        if (find_exchanges(&ranks->schedules[r], &m.exchanges[(size_t)r * (size_t)m.n], m.n) != m.n)
            status = error_set(error, QP_INVALID, "rank %d makes other exchanges than rank 0", r);
    if (status == QP_OK) status = repeat(&m, error);
    *ns = m.total;
    for (size_t i = 0; status == QP_OK && i < count; i++) /* for another network */
        m.exchanges[i].in->cost_ns = (uint32_t)m.exchanges[i].copies_ns;
    free(m.exchanges);
    free(m.begin);
    return status;
}

double schedule_rank_bytes(const schedule_ranks *ranks, int rank)
{
    double sum = 0;
    for (int r = 0; r < ranks->n; r++) {
        const schedule *s = &ranks->schedules[r];
        for (int node = 0; r != rank && node < s->n_nodes; node++)
            if (op_exchanges(s->program->nodes[node].op) && !program_is_noop(s->program, node))
                sum += bytes_given(s, node);
    }
    return sum;
}
