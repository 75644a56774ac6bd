/* The service manager's protocol: see sd_notify(3) and notify.h. */
#include "server/notify.h"

#include "base/option_notify.h"

#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void notify_manager(const char *state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = option_notify_socket();
    size_t length = path ? strlen(path) : 0;
    if (!length || length >= sizeof address.sun_path) return;
    memcpy(address.sun_path, path, length);
    if (*path == '@') address.sun_path[0] = '\0'; /* an abstract name */
    int sender = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (sender < 0) return;
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    ssize_t sent =
        sendto(sender, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&address, size);
    (void)sent; /* if it fails, the manager's time limit reports it */
    close(sender);
}
