/* Slices for messages: see slice.h. */
#include "file/slice.h"

#include <stdio.h>

const char *slice_quote(text_slice slice, char text[SLICE_QUOTE_SIZE])
{
    size_t used = 0;
    for (size_t i = 0; i < slice.length; i++) {
        unsigned char c = (unsigned char)slice.data[i];
        if (used + 8 > SLICE_QUOTE_SIZE) { /* room for \xNN, the dots and the NUL */
            memcpy(text + used, "...", 4);
            return text;
        }
        if (c < 0x20 || c >= 0x7f || c == '"' || c == '\\')
            used += (size_t)snprintf(text + used, 5, "\\x%02x", c);
        else
            text[used++] = (char)c;
    }
    text[used] = '\0';
    return text;
}
