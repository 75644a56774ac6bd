/* Log-probabilities of tokens: see logprobs.h. */
#include "server/logprobs.h"

#include <math.h>
#include <string.h>

enum { LANES = 16, BLOCK = 64 * LANES };

/* e^x for x <= 0, within 4e-6 of it; 0 from -87 on. Without branches or calls, so that
 * compilers make vectors of it. */
static float exp_of(float x)
{
    static const float of[] = {1,          0.69314718F, 0.24022651F, 0.05550411F,
                               0.0096181F, 0.0013333F,  0.00015403F};
    const float t = x > -87 ? x * 1.44269504F : -126;
    const int32_t whole = (int32_t)(t - 0.5F); /* the nearest */
    const float rest = t - (float)whole;
    const uint32_t power = (uint32_t)(whole + 127) << 23;
    float scale, sum = of[6];
    for (int i = 5; i >= 0; i--)
        sum = sum * rest + of[i];
    memcpy(&scale, &power, sizeof scale);
    return x > -87 ? sum * scale : 0;
}

static float sum_of_block(const float *row, size_t n, float most)
{
    float sums[LANES] = {0}, sum = 0;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t k = 0; k < LANES; k++)
            sums[k] += exp_of(row[i + k] - most);
    for (size_t k = 0; k < LANES; k++)
        sum += sums[k];
    for (; i < n; i++)
        sum += exp_of(row[i] - most);
    return sum;
}

double logprobs_sum(const float *row, size_t n)
{
    float most = row[0];
    double sum = 0;
    for (size_t i = 1; i < n; i++)
        most = row[i] > most ? row[i] : most;
    for (size_t i = 0; i < n; i += BLOCK)
        sum += (double)sum_of_block(row + i, n - i < BLOCK ? n - i : BLOCK, most);
    return (double)most + log(sum);
}

float logprob_of(const float *row, double sum, int32_t token)
{
    return (float)((double)row[token] - sum);
}

size_t logprobs_top(const float *row, size_t n, double sum, size_t wanted, token_top *top)
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
    for (size_t i = 0; i < count; i++)
        top[i].logprob = (float)((double)top[i].logprob - sum);
    return count;
}
