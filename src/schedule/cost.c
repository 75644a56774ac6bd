/* What instructions cost: see cost.h. */
#include "schedule/cost.h"

#include "schedule/draft.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const cost_curve *cost_find(const cost_table *table, op_code op, dtype type)
{
    for (int i = 0; table && i < table->n_curves; i++) {
        if (table->curves[i].op == op && table->curves[i].type == type) return &table->curves[i];
    }
    return NULL;
}

static double between(double a, double b, double share)
{
    return exp(log(a) + share * (log(b) - log(a)));
}

/* Interpolates on the curve, linearly in the logarithms of both axes. Below the first point only
 * bytes count, above the last only FLOPs. */
static cost_point point_at(const cost_point *points, int n_points, double intensity)
{
    int last = n_points - 1, i = 0;
    if (intensity <= points[0].intensity || last == 0) return points[0];
    if (intensity >= points[last].intensity) {
        double more = points[last].intensity > 0 ? intensity / points[last].intensity : 1;
        return (cost_point){intensity, points[last].ns_per_byte * more, points[last].alone};
    }
    while (points[i + 1].intensity < intensity)
        i++;
    const cost_point *a = &points[i], *b = &points[i + 1];
    double from = log(fmax(a->intensity, 1e-3)), to = log(fmax(b->intensity, 1e-3));
    double share = to > from ? fmax(log(fmax(intensity, 1e-3)) - from, 0) / (to - from) : 0;
    return (cost_point){intensity, between(a->ns_per_byte, b->ns_per_byte, share),
                        a->alone + share * (b->alone - a->alone)};
}

cost_point cost_at_rates(cost_point at, int workers, cost_rates from, cost_rates to)
{
    /* Of one that takes the rest of plain reads' time for other things, or reads caches. */
    const double most_shared = 0.9, least_reading = 0.75, cached = 1.25;
    if (!(from.all > 0 && from.one > 0 && to.all > 0 && to.one > 0)) return at;
    const double read_all = 1e9 * workers / from.all, read_one = 1e9 / from.one;
    const double alone = at.alone * at.ns_per_byte;
    if (at.ns_per_byte * cached < read_all) return at;
    const bool reads = alone * least_reading < read_one && alone * cached > read_one;
    const bool limited = at.alone < most_shared;
    const double memory = limited ? at.ns_per_byte : fmin(read_all, at.ns_per_byte);
    const double core = reads ? alone * from.one / to.one : alone;
    const double rest = at.ns_per_byte / fmax(alone, memory);
    at.ns_per_byte = rest * fmax(core, memory * from.all / to.all);
    at.alone = fmin(core / at.ns_per_byte, 1);
    return at;
}

double cost_read_rate(const cost_table *table, double bytes)
{
    if (table->n_reads == 0) return table->limits.bytes_per_second;
    const cost_read *reads = table->reads;
    int last = table->n_reads - 1, i = 0;
    if (bytes <= reads[0].bytes) return reads[0].bytes_per_second;
    if (bytes >= reads[last].bytes) return reads[last].bytes_per_second;
    while (reads[i + 1].bytes < bytes)
        i++;
    double share = log(bytes / reads[i].bytes) / log(reads[i + 1].bytes / reads[i].bytes);
    return between(reads[i].bytes_per_second, reads[i + 1].bytes_per_second, share);
}

/* Weights that stay in a cache from pass to pass are read faster than those of the model that was
 * measured, if no small one was: by the ratio of plain reads, as far as bytes decide the cost. */
static double residence(const cost_table *table, const cost_curve *curve, const cost_point *at,
                        double pass_bytes)
{
    if (table->n_reads == 0 || pass_bytes <= 0 || curve->pass_bytes <= 0) return 1;
    double faster = cost_read_rate(table, curve->pass_bytes) / cost_read_rate(table, pass_bytes);
    double memory = curve->points[0].ns_per_byte / at->ns_per_byte;
    return memory < 1 ? 1 + (faster - 1) * memory * memory : faster;
}

/* How near a pass is to that of the small model: 1 if it reads as few bytes of weights, 0 if it
 * reads as many as the large one. By the rates of plain reads, if those tell the two models apart.
 */
static double smallness(const cost_table *table, const cost_curve *curve, double pass_bytes)
{
    const double most = table->n_reads ? table->reads[table->n_reads - 1].bytes : 0;
    const double large_bytes = curve->pass_bytes > 0 ? curve->pass_bytes : most;
    const double small = cost_read_rate(table, curve->small_bytes);
    const double large = cost_read_rate(table, large_bytes);
    double share = 0;
    if (pass_bytes <= 0 || large_bytes <= curve->small_bytes) return 0;
    if (small > 1.1 * large)
        share = log(cost_read_rate(table, pass_bytes) / large) / log(small / large);
    else
        share = log(large_bytes / pass_bytes) / log(large_bytes / curve->small_bytes);
    return fmin(fmax(share, 0), 1);
}

/* A model's point. Tiles change it by a factor, which was measured at few intensities. */
static cost_point model_at(const cost_point *points, int n_points, const cost_point *tiles,
                           int n_tiles, double intensity)
{
    cost_point at = point_at(points, n_points, intensity);
    if (n_tiles == 0) return at;
    const double near = fmin(fmax(intensity, tiles[0].intensity), tiles[n_tiles - 1].intensity);
    const cost_point whole = point_at(points, n_points, near);
    const cost_point tile = point_at(tiles, n_tiles, near);
    at.ns_per_byte *= tile.ns_per_byte / whole.ns_per_byte;
    at.alone = tile.alone;
    return at;
}

/* The cost of a byte, by what was measured with models that are like this one. */
static cost_point cost_at(const cost_table *table, const cost_curve *curve, double intensity,
                          double pass_bytes, bool tiled)
{
    cost_point at = model_at(curve->points, curve->n_points, curve->tiles,
                             tiled ? curve->n_tiles : 0, intensity);
    if (curve->n_small == 0) {
        at.ns_per_byte *= residence(table, curve, &at, pass_bytes);
        return at;
    }
    const cost_point small = model_at(curve->small, curve->n_small, curve->small_tiles,
                                      tiled ? curve->n_small_tiles : 0, intensity);
    const double share = smallness(table, curve, pass_bytes);
    return (cost_point){intensity, between(at.ns_per_byte, small.ns_per_byte, share),
                        at.alone + share * (small.alone - at.alone)};
}

cost_estimate cost_estimate_of(const cost_table *table, const machine_profile *limits, int workers,
                               op_code op, dtype type, op_cost work, double pass_bytes, bool tiled)
{
    const cost_curve *curve = cost_find(table, op, type);
    if (!curve) {
        double bytes = 1e9 * work.bytes / (limits->bytes_per_second / workers);
        double flops = 1e9 * work.flops / (limits->flops_per_second / workers);
        return (cost_estimate){
            .ns = fmax(bytes, flops), .alone = 1, .memory_bound = bytes >= flops};
    }
    const double intensity = work.bytes > 0 ? work.flops / work.bytes : 0;
    const cost_point at = cost_at_rates(cost_at(table, curve, intensity, pass_bytes, tiled),
                                        workers, table->rates, table->now);
    const cost_point large = point_at(curve->points, curve->n_points, intensity);
    const double share = curve->n_small > 0 ? smallness(table, curve, pass_bytes) : 0;
    return (cost_estimate){.fixed_ns =
                               curve->fixed_ns + share * (curve->small_fixed_ns - curve->fixed_ns),
                           .signal_ns = curve->signal_ns,
                           .ns = work.bytes * at.ns_per_byte,
                           .alone = fmin(fmax(at.alone, 1.0 / workers), 1),
                           .memory_bound = large.ns_per_byte < 2 * curve->points[0].ns_per_byte};
}

/* ---- while a draft is made ----------------------------------------------------------------- */

/* A batch of the size that costs are for: one sequence, of whose `context` positions the last
 * `rows` are new. Operators read these sizes from the index tensors. */
typedef struct usual_batch {
    int64_t sizes[AXES];
    int32_t qo_indptr[2], kv_indptr[2], last_page_len[1];
    program_memory memory; /* the index tensors */
} usual_batch;

static void usual_init(usual_batch *u, const draft *d, int64_t rows, int64_t context)
{
    int64_t page_size = d->out->program->options.page_size,
            pages = (context + page_size - 1) / page_size;
    *u = (usual_batch){.qo_indptr = {0, (int32_t)rows},
                       .kv_indptr = {0, (int32_t)pages},
                       .last_page_len = {(int32_t)(context - (pages - 1) * page_size)}};
    u->sizes[AXIS_TOKENS] = rows;
    u->sizes[AXIS_SEQUENCES] = 1;
    u->sizes[AXIS_SEQUENCE_ENDS] = 2;
    u->sizes[AXIS_PAGE_REFS] = pages;
    program_set_outputs(u->sizes, 1);
    u->sizes[AXIS_LONGEST_Q] = rows;
    u->sizes[AXIS_LONGEST_KV] = context;
    u->sizes[AXIS_PAGES] = d->out->program->capacity.of[AXIS_PAGES];
    u->sizes[AXIS_POSITIONS] = d->out->program->capacity.of[AXIS_POSITIONS];
    program_sizes sizes;
    memcpy(sizes.of, u->sizes, sizeof u->sizes);
    program_set_phase(&sizes);
    memcpy(u->sizes, sizes.of, sizeof u->sizes);
    u->memory.data[PLAN_QO_INDPTR] = u->qo_indptr;
    u->memory.data[PLAN_KV_INDPTR] = u->kv_indptr;
    u->memory.data[PLAN_KV_LAST_PAGE_LEN] = u->last_page_len;
}

int64_t cost_usual_rows(const draft *d, int node)
{
    const program_axis axis = d->out->program->nodes[node].row_axis;
    return axis == AXIS_OUTPUTS || axis == AXIS_WANTED ? 1 : d->out->options.tokens;
}

dtype cost_type_of(const schedule *s, int node, bool *weights)
{
    uint64_t most = 0;
    dtype type = DTYPE_F32;
    bool found = false;
    for (int i = 0; i < OP_MAX_TENSORS; i++) {
        const program_view *view = &s->program->views[s->program->nodes[node].operands[i]];
        if (view->rank == 0) continue;
        const program_area *area = &s->program->areas[view->area];
        bool weight = area->base == BASE_WEIGHT && view->rank > 1;
        bool cache = area->base == BASE_K_CACHE || area->base == BASE_V_CACHE;
        if (weight ? found && area->bytes <= most : found || !cache) continue;
        found = weight;
        most = area->bytes;
        type = view->type;
    }
    if (weights) *weights = found;
    return type;
}

double cost_pass_bytes(const schedule *s)
{
    double sum = 0;
    for (int i = 0; i < s->program->n_areas; i++) {
        const program_area *area = &s->program->areas[i];
        if (area->base == BASE_WEIGHT && area->first_node < s->n_nodes) sum += (double)area->bytes;
    }
    return sum;
}

qp_status cost_begin(draft *d, qp_error *error)
{
    size_t nodes = (size_t)d->out->n_nodes;
    d->memory_bound = calloc(nodes, sizeof *d->memory_bound);
    if (!d->memory_bound) return error_no_memory(error, "the schedule", nodes);
    d->pass_bytes = cost_pass_bytes(d->out);
    return QP_OK;
}

/* Only index tensors have data. */
static op_cost work_of(const draft *d, int node, usual_batch *batch)
{
    op_call call;
    program_bind(d->out->program, node, &batch->memory, batch->sizes, &call);
    return op_cost_of(op_get(d->out->program->nodes[node].op), &call);
}

cost_estimate cost_of_rows(draft *d, int node, int64_t begin, int64_t rows)
{
    schedule *s = d->out;
    const schedule_options *o = &s->options;
    const program_node *about = &s->program->nodes[node];
    usual_batch batch;
    if (rows == 0) return (cost_estimate){.alone = 1};
    bool tokens = about->row_axis == AXIS_TOKENS;
    usual_init(&batch, d, tokens ? rows : 1, tokens ? o->context - o->tokens + begin + rows : 1);
    op_cost work = work_of(d, node, &batch);
    cost_estimate out =
        cost_estimate_of(o->costs, &o->profile, o->workers, about->op, cost_type_of(s, node, NULL),
                         work, d->pass_bytes, tokens && o->setting == SCHEDULE_THROUGHPUT);
    if (begin > 0) return out;
    s->costs[node].alone = (float)out.alone;
    s->costs[node].signal_ns = (float)out.signal_ns;
    d->memory_bound[node] = out.memory_bound;
    return out;
}
