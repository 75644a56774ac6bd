/* A view of any rank and strides, row by row: for code that visits every element. */
#pragma once

#include "tensor/tensor.h"

#include <stddef.h>

/* Rows of a view: its dimensions but the last, counted from the last to the first. */
int64_t view_rows(const tensor *view);
void *view_row(const tensor *view, int64_t row);

/* Writes "[2, 0, 17]" for an element of a row. */
const char *view_index(const tensor *view, int64_t row, int64_t i, char *text, size_t size);
