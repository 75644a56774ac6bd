/* Whether cJSON ran out of memory. Functions that build a tree do not check each call: cJSON
 * accepts trees that lack a part. Instead its allocations are watched, and a reply whose tree may
 * be incomplete is not sent.
 */
#pragma once

#include <stdbool.h>

/* Watches cJSON's allocations from now on, in all threads. */
void json_memory_watch(void);

/* Before a tree is built: forgets what failed earlier in this thread. */
void json_memory_clear(void);

/* Whether an allocation has failed in this thread since then. */
bool json_memory_failed(void);
