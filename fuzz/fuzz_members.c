/* Members of a request that is passed on: found where cJSON finds them, in whatever else the text
 * has. */
#include "router/members.h"

#include <cjson/cJSON.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 300 };

/* Whether names in the text may be compared as they stand, and cJSON reads no more than JSON: it
 * takes control characters for spaces, and leaves out a mark of the byte order. */
static bool is_plain(const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (text[i] == '\\' || (unsigned char)text[i] == 0xef ||
            ((unsigned char)text[i] < 32 && !(text[i] && strchr("\t\r\n", text[i]))))
            return false;
    return true;
}

/* The last member of that name, as the servers of models take it. */
static const cJSON *last_of(const cJSON *object, const char *name)
{
    const cJSON *found = NULL, *item;
    cJSON_ArrayForEach(item, object) if (strcmp(item->string, name) == 0) found = item;
    return found;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size ? size : 1), found[MOST];
    if (!text) return 0;
    memcpy(text, data, size); /* of exactly this size: what is read beyond it shows */
    const bool there = member_text(text, size, "model", found, sizeof found);
    cJSON *object = cJSON_ParseWithLength(text, size);
    if (cJSON_IsObject(object) && is_plain(text, size)) {
        const char *wanted = cJSON_GetStringValue(last_of(object, "model"));
        const bool expected = wanted && strlen(wanted) < sizeof found;
        if (there != expected || (there && strcmp(found, wanted) != 0)) abort();
    }
    cJSON_Delete(object);
    free(text);
    return 0;
}
