/* Hash values with a secret: see keyed_hash.h. */
#include "base/keyed_hash.h"

#include "base/clock.h"
#include "base/platform.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

static hash_key process_key;
static pthread_once_t process_key_once = PTHREAD_ONCE_INIT;

static void draw_key(void)
{
    if (platform_random(&process_key, sizeof process_key)) return;
    /* Early at boot the system has no random bits yet; then the time and an address are used. */
    process_key.k[0] = hash_mix(clock_ns() ^ (uint64_t)getpid() << 40);
    process_key.k[1] = hash_mix(process_key.k[0] ^ (uintptr_t)&process_key);
}

hash_key hash_key_get(void)
{
    pthread_once(&process_key_once, draw_key);
    return process_key;
}

typedef struct sip_state {
    uint64_t a, b, c, d;
} sip_state;

static inline uint64_t rotate(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static inline void sip_round(sip_state *s)
{
    s->a += s->b;
    s->c += s->d;
    s->b = rotate(s->b, 13) ^ s->a;
    s->d = rotate(s->d, 16) ^ s->c;
    s->a = rotate(s->a, 32) + s->d;
    s->c += s->b;
    s->b = rotate(s->b, 17) ^ s->c;
    s->d = rotate(s->d, 21) ^ s->a;
    s->c = rotate(s->c, 32);
}

static inline void sip_word(sip_state *s, uint64_t word)
{
    s->d ^= word;
    sip_round(s);
    s->a ^= word;
}

uint64_t keyed_hash(hash_key key, const void *bytes, size_t length)
{
    sip_state s = {key.k[0] ^ 0x736f6d6570736575u, key.k[1] ^ 0x646f72616e646f6du,
                   key.k[0] ^ 0x6c7967656e657261u, key.k[1] ^ 0x7465646279746573u};
    const unsigned char *at = bytes;
    size_t left = length;
    for (; left >= 8; at += 8, left -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        sip_word(&s, word);
    }
    uint64_t word = (uint64_t)length << 56;
    for (size_t i = 0; i < left; i++)
        word |= (uint64_t)at[i] << 8 * i;
    sip_word(&s, word);
    s.c ^= 0xff;
    for (int i = 0; i < 3; i++)
        sip_round(&s);
    return s.a ^ s.b ^ s.c ^ s.d;
}
