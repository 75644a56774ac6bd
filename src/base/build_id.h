/* A number for the code that runs: two builds that compute differently have different ones. */
#ifndef QUIPU_BASE_BUILD_ID_H
#define QUIPU_BASE_BUILD_ID_H

#include <stdint.h>

/* From the identifier that the linker puts into the program or the library, which is a hash of its
 * contents; without one, from the contents of the file. */
uint64_t build_id(void);

#endif
