/* NOTIFY_SOCKET: see option_notify.h. */
#include "base/option_notify.h"

#include <stdlib.h>

const char *option_notify_socket(void)
{
    const char *path = getenv("NOTIFY_SOCKET");
    return path && (*path == '/' || *path == '@') ? path : NULL;
}
