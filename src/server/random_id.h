/* Names that cannot be guessed, for replies and calls of tools. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Fills out[0 .. size - 1) with random letters and digits, and ends it with a NUL. */
void random_id(char *out, size_t size);

uint64_t random_number(void);
