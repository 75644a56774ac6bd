/* Whether one of two things is quicker, from times of both that were taken in turn.
 *
 * Other programs disturb two runs that follow each other in the same way, so the ratio of each pair
 * counts, and not its times. The interval is that of the median of the ratios by the sign test,
 * which assumes nothing of how times are distributed.
 */
#pragma once

#include <stdbool.h>

/* Sorts n times, or ratios of times, the quickest first. */
void sort_times(double *times, int n);

enum { PAIRED_LEAST = 8, PAIRED_MOST = 64 };

typedef struct paired_ratio {
    int n;
    double ratio[PAIRED_MOST]; /* a / b of each pair */
} paired_ratio;

/* Adds a pair of times; more than PAIRED_MOST are left out. */
void paired_add(paired_ratio *p, double a, double b);

/* The median of the ratios, and the bounds within which the true one lies in 99% of cases; with
 * fewer than PAIRED_LEAST pairs 0 and infinity. */
typedef struct paired_interval {
    double median, low, high;
} paired_interval;
paired_interval paired_of(const paired_ratio *p);

/* Whether a is quicker than b, outside of noise. */
bool paired_is_quicker(const paired_ratio *p);
