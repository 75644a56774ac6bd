/* --prompt-cache: cached prompts stay in a folder over a restart.
 *
 * The folder has one file of pages for each model (engine/prefix_file.h), and the file "owners"
 * with a secret. The numbers that keep prompts of different API keys apart are made with it, so a
 * key has the same number after a restart and the files tell nothing about keys.
 */
#pragma once

#include "base/keyed_hash.h"
#include "server/server.h"

/* Makes the folder if there is none, and reads or makes its secret. */
qp_status prompt_cache_open(const char *folder, hash_key *secret, qp_error *error);

/* Fills the prefix tree of an engine that nothing else uses yet. What cannot be used is logged as a
 * warning. */
void prompt_cache_restore(const server_options *options, qp_engine *engine);

/* Saves the tree of an engine without sequences. A failure is logged, and the old file stays. */
void prompt_cache_save(const server_options *options, qp_engine *engine);
