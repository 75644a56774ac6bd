/* Paired comparisons: see paired.h. */
#include "base/paired.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void sort_times(double *times, int n)
{
    qsort(times, (size_t)n, sizeof *times, ascending);
}

void paired_add(paired_ratio *p, double a, double b)
{
    if (p->n < PAIRED_MOST && a > 0 && b > 0) p->ratio[p->n++] = a / b;
}

/* How many ratios at either end lie outside of the interval: the most of which so many would be
 * above the true median by chance in 0.5% of cases. */
static int cut_of(int n)
{
    double chance = pow(0.5, n), sum = 0; /* of k of n, and of at most k */
    int k = 0;
    for (;; k++) {
        sum += chance;
        if (sum > 0.005) return k;
        chance *= (double)(n - k) / (k + 1);
    }
}

paired_interval paired_of(const paired_ratio *p)
{
    double sorted[PAIRED_MOST];
    const int n = p->n;
    paired_interval out = {.median = 1, .low = 0, .high = INFINITY};
    if (n == 0) return out;
    memcpy(sorted, p->ratio, (size_t)n * sizeof *sorted);
    sort_times(sorted, n);
    out.median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
    if (n < PAIRED_LEAST) return out;
    const int cut = cut_of(n) - 1; /* n >= 8: at least 0 */
    out.low = sorted[cut];
    out.high = sorted[n - 1 - cut];
    return out;
}

bool paired_is_quicker(const paired_ratio *p)
{
    return paired_of(p).high < 1;
}
