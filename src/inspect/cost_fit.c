/* From timed instructions to curves: see cost_fit.h.
 *
 * Times are added up before anything is divided, so that a curve gives back the sum of the times
 * that it was made from.
 */
#include "inspect/cost_fit.h"

#include <math.h>
#include <stdlib.h>

/* Intensities within a quarter of one another are taken together. */
static const double bin_ratio = 1.25;

static int bin_of(op_cost work)
{
    double intensity = work.bytes > 0 ? work.flops / work.bytes : 0;
    return intensity < 1e-3 ? -1000 : (int)lrint(log(intensity) / log(bin_ratio));
}

bool cost_add(cost_samples *samples, const cost_sample *about, op_cost work, double ns)
{
    if (!samples->of) samples->of = calloc(COST_SAMPLES, sizeof *samples->of);
    if (!samples->of) return false;
    const int bin = bin_of(work);
    int i = 0;
    for (; i < samples->count; i++) {
        const cost_sample *s = &samples->of[i];
        if (s->op == about->op && s->type == about->type && s->tiny == about->tiny &&
            s->small == about->small && s->tiled == about->tiled && s->alone == about->alone &&
            s->bin == bin && s->pass_bytes == about->pass_bytes)
            break;
    }
    if (i == COST_SAMPLES) return false;
    cost_sample *s = &samples->of[i];
    if (i == samples->count) {
        *s = *about;
        s->bin = bin;
        s->count = s->bytes = s->flops = s->ns = s->bytes_squared = s->bytes_ns = 0;
        s->rates = (cost_rates){0};
        samples->count++;
    }
    s->count++;
    s->bytes += work.bytes;
    s->flops += work.flops;
    s->ns += ns;
    s->bytes_squared += work.bytes * work.bytes;
    s->bytes_ns += work.bytes * ns;
    s->rates.all += about->rates.all * ns;
    s->rates.one += about->rates.one * ns;
    return true;
}

/* What is measured: three models, and two of them in tiles. */
typedef enum model_size { LARGE, SMALL, TINY, TILED, SMALL_TILED } model_size;

static bool is_of(const cost_sample *s, const cost_curve *curve, model_size size)
{
    const model_size own = s->tiny    ? TINY
                           : s->small ? (s->tiled ? SMALL_TILED : SMALL)
                           : s->tiled ? TILED
                                      : LARGE;
    return s->op == curve->op && s->type == curve->type && own == size;
}

/* All of a curve's samples of one bin; count 0 when there are none. */
static cost_sample gather(const cost_samples *samples, const cost_curve *curve, int bin,
                          model_size size, bool alone)
{
    cost_sample sum = {.op = curve->op, .type = curve->type, .bin = bin};
    for (int i = 0; i < samples->count; i++) {
        const cost_sample *s = &samples->of[i];
        if (!is_of(s, curve, size) || s->bin != bin || s->alone != alone) continue;
        sum.count += s->count;
        sum.bytes += s->bytes;
        sum.flops += s->flops;
        sum.ns += s->ns;
        sum.bytes_squared += s->bytes_squared;
        sum.bytes_ns += s->bytes_ns;
        sum.rates.all += s->rates.all;
        sum.rates.one += s->rates.one;
        if (s->pass_bytes > sum.pass_bytes) sum.pass_bytes = s->pass_bytes;
    }
    return sum;
}

enum { FIRST = INT32_MIN, NONE = INT32_MAX };

/* The lowest bin above `after` in which the curve has samples, or NONE. */
static int next_bin(const cost_samples *samples, const cost_curve *curve, model_size size,
                    int after)
{
    int bin = NONE;
    for (int i = 0; i < samples->count; i++) {
        const cost_sample *s = &samples->of[i];
        if (!is_of(s, curve, size) || s->alone) continue;
        if (s->bin > after && s->bin < bin) bin = s->bin;
    }
    return bin;
}

/* The ns at zero bytes of the line through the samples; false when all have one size. */
static bool line_begins(const cost_sample *s, double *ns)
{
    double spread = s->count * s->bytes_squared - s->bytes * s->bytes;
    if (!(spread > 0.01 * s->bytes * s->bytes)) return false;
    *ns = (s->bytes_squared * s->ns - s->bytes * s->bytes_ns) / spread;
    return true;
}

/* Two equations of the cost of an instruction and of a byte: the tiny model's, the large one's. */
static double beyond_bytes(const cost_sample *tiny, const cost_sample *large)
{
    double determinant = tiny->count * large->bytes - large->count * tiny->bytes;
    if (!(determinant > 0)) return 0;
    return (tiny->ns * large->bytes - large->ns * tiny->bytes) / determinant;
}

/* The cost of an instruction of the large model that reads no weights, by the contexts or rows that
 * it was measured with; false when it reads some, or all have one size. */
static bool find_beside_weights(const cost_sample *large, double *fixed)
{
    if (large->count == 0 || large->pass_bytes > 0 || !line_begins(large, fixed)) return false;
    *fixed = fmin(fmax(*fixed, 0), large->ns / large->count);
    return true;
}

/* The same of the small model, whose instructions have fewer heads. */
static double find_small_fixed(const cost_samples *samples, const cost_curve *curve)
{
    const int bin = next_bin(samples, curve, LARGE, FIRST);
    const int small_bin = next_bin(samples, curve, SMALL, FIRST);
    const cost_sample large = gather(samples, curve, bin, LARGE, false);
    cost_sample small = gather(samples, curve, small_bin, SMALL, false);
    double fixed = curve->fixed_ns;
    small.pass_bytes = large.pass_bytes; /* which of the small model all samples have */
    return find_beside_weights(&small, &fixed) ? fixed : curve->fixed_ns;
}

static double find_fixed(const cost_samples *samples, const cost_curve *curve)
{
    const int tiny_bin = next_bin(samples, curve, TINY, FIRST);
    const int bin = next_bin(samples, curve, LARGE, FIRST);
    const cost_sample large = gather(samples, curve, bin, LARGE, false);
    double fixed;
    if (find_beside_weights(&large, &fixed)) return fixed;
    if (tiny_bin == NONE) return 0;
    const cost_sample tiny = gather(samples, curve, tiny_bin, TINY, false);
    double most = tiny.ns / tiny.count;
    if (bin == NONE) return most;
    most = fmin(most, large.ns / large.count);
    if (!line_begins(&tiny, &fixed)) fixed = beyond_bytes(&tiny, &large);
    return fmin(fmax(fixed, 0), most);
}

/* ns per byte, without the fixed cost of the instructions. */
static double rate_of(const cost_sample *s, double fixed)
{
    double least = s->ns / 100; /* a rate must be positive */
    return fmax(s->ns - s->count * fixed, least) / fmax(s->bytes, 1);
}

/* The points of a model's samples; returns their number. *pass_bytes: the most weights of a pass.
 */
static int fit_points(const cost_samples *samples, const cost_table *table, const cost_curve *curve,
                      model_size size, double fixed_ns, cost_point points[COST_POINTS],
                      double *pass_bytes)
{
    int n = 0;
    for (int bin = next_bin(samples, curve, size, FIRST); bin != NONE && n < COST_POINTS;
         bin = next_bin(samples, curve, size, bin)) {
        cost_sample all = gather(samples, curve, bin, size, false);
        cost_sample alone = gather(samples, curve, bin, size, true);
        double ns = rate_of(&all, fixed_ns);
        if (all.pass_bytes > *pass_bytes) *pass_bytes = all.pass_bytes;
        const cost_point measured = {
            .intensity = all.bytes > 0 ? all.flops / all.bytes : 0,
            .ns_per_byte = ns,
            .alone = alone.count > 0 ? fmin(rate_of(&alone, fixed_ns) / ns, 1) : 1};
        const cost_rates rates = {all.rates.all / all.ns,
                                  alone.count > 0 ? alone.rates.one / alone.ns : 0};
        points[n++] = cost_at_rates(measured, table->workers, rates, table->rates);
    }
    return n;
}

static void fit_curve(const cost_samples *samples, const cost_table *table, cost_curve *curve)
{
    const bool tiny = next_bin(samples, curve, LARGE, FIRST) == NONE;
    curve->fixed_ns = find_fixed(samples, curve);
    const double fixed = curve->fixed_ns;
    double ignored = 0;
    curve->n_points = fit_points(samples, table, curve, tiny ? TINY : LARGE, fixed, curve->points,
                                 &curve->pass_bytes);
    if (curve->n_points == 0) return;
    const double small = curve->small_fixed_ns = find_small_fixed(samples, curve);
    curve->n_small =
        fit_points(samples, table, curve, SMALL, small, curve->small, &curve->small_bytes);
    if (curve->n_small > 0)
        curve->n_small_tiles =
            fit_points(samples, table, curve, SMALL_TILED, small, curve->small_tiles, &ignored);
    if (!tiny)
        curve->n_tiles = fit_points(samples, table, curve, TILED, fixed, curve->tiles, &ignored);
}

void cost_fit(const cost_samples *samples, cost_table *table)
{
    table->n_curves = 0;
    for (int i = 0; i < samples->count && table->n_curves < COST_CURVES; i++) {
        const cost_sample *s = &samples->of[i];
        if (s->alone || cost_find(table, s->op, s->type)) continue;
        cost_curve *curve = &table->curves[table->n_curves];
        *curve = (cost_curve){.op = s->op, .type = s->type};
        fit_curve(samples, table, curve);
        if (curve->n_points > 0) table->n_curves++;
    }
}
