/* What conversations need so that a model's chat template takes them.
 *
 * Some templates refuse, by raise_exception(), what others want: ids of calls that have not nine
 * letters and digits (Mistral), or two calls in one message (Llama 3.1). A conversation that a
 * template refuses is changed, without a change of its meaning, and rendered again.
 */
#pragma once

#include "base/json.h"

/* Changes the messages; false: there was nothing to change. If memory is out, a part may be left as
 * it was. */
typedef bool conversation_change(cJSON *messages);

/* Gives each call, and the result of each, an id of nine letters and digits: of its own id, or, if
 * it has none, of its place. A result without an id belongs to the first call that has none yet. */
conversation_change conversation_shorten_ids;

/* Makes a message with several calls several messages, each with its result after it. */
conversation_change conversation_split_calls;
