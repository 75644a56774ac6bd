/* Prints lists of launches: quipu plan --device cuda. */
#pragma once

#include "base/strbuf.h"
#include "vm/cuda/launch_list.h"

#include <cJSON.h>

/* Prints an unindented line for each entry: the plan's steps that it runs, its kernel, the forms of
 * its input and output; then a line for each launch, and for each step of a chain. */
void launch_list_print(const launch_setting *setting, const launch_list *list, strbuf *out);

/* Prints the same as an array of entries. */
cJSON *launch_list_json(const launch_setting *setting, const launch_list *list);
