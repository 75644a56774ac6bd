/* Random names: see random_id.h. */
#include "server/random_id.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/platform.h"

uint64_t random_number(void)
{
    uint64_t number;
    if (!platform_random(&number, sizeof number)) number = hash_mix(clock_ns());
    return number;
}

void random_id(char *out, size_t size)
{
    static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    uint64_t number = 0;
    for (size_t i = 0; i + 1 < size; i++, number /= 62) {
        if (i % 10 == 0) number = random_number(); /* 62^10 is less than 2^64 */
        out[i] = letters[number % 62];
    }
    out[size - 1] = '\0';
}
