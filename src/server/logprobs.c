/* Log-probabilities of tokens: see logprobs.h. */
#include "server/logprobs.h"

#include <math.h>
#include <string.h>

/* The logarithm of the sum of exponentials. */
static double log_sum(const float *row, size_t n)
{
    float most = row[0];
    double sum = 0;
    for (size_t i = 1; i < n; i++)
        most = row[i] > most ? row[i] : most;
    for (size_t i = 0; i < n; i++)
        sum += (double)expf(row[i] - most);
    return (double)most + log(sum);
}

float logprob_of(const float *row, size_t n, int32_t token)
{
    return (float)((double)row[token] - log_sum(row, n));
}

size_t logprobs_top(const float *row, size_t n, size_t wanted, token_top *top)
{
    size_t count = 0;
    if (wanted == 0) return 0;
    for (size_t i = 0; i < n; i++) {
        if (count == wanted && row[i] <= top[count - 1].logprob) continue;
        size_t at = count < wanted ? count++ : count - 1;
        for (; at > 0 && top[at - 1].logprob < row[i]; at--)
            top[at] = top[at - 1];
        top[at] = (token_top){.token = (int32_t)i, .logprob = row[i]};
    }
    const double sum = log_sum(row, n);
    for (size_t i = 0; i < count; i++)
        top[i].logprob = (float)((double)top[i].logprob - sum);
    return count;
}
