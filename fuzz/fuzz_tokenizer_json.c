/* Any bytes as a tokenizer.json, and then as a text that it encodes and decodes. */
#include "round_trip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qp_error error;
    tokenizer *tokenizer;
    if (tokenizer_parse_json((const char *)data, size, "fuzz", &tokenizer, &error) != QP_OK)
        return 0;
    round_trip(tokenizer, data, size);
    tokenizer_free(tokenizer);
    return 0;
}
