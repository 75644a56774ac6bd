/* Where a service manager listens for the state of the process; only options read the environment.
 */
#pragma once

/* NOTIFY_SOCKET: the path of a socket, or '@' and an abstract name; NULL: there is no manager. */
const char *option_notify_socket(void);
