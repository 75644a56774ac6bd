/* Tells the service manager (systemd, of Type=notify) how far the server is. */
#pragma once

/* Sends "READY=1", "STOPPING=1", ... where the manager listens; nothing where there is none. */
void notify_manager(const char *state);
