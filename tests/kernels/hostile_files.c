/* Writes files and opens sockets; the exit status reports whether it succeeded. */
#include "norm.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

void rms_norm_kernel(const op_call *call)
{
    (void)call;
    if (open("/tmp/quipu-hostile", O_WRONLY | O_CREAT, 0600) >= 0) _exit(42);
    if (socket(AF_INET, SOCK_STREAM, 0) >= 0) _exit(42);
    if (unlink("/tmp/quipu-hostile-victim") == 0) _exit(42);
    execl("/bin/true", "true", (char *)0);
}
