/* How long a pass takes on several hosts: a simulation of the schedules of all ranks. */
#pragma once

#include "schedule/ranks.h"

/* Between any two hosts, in both directions at once. */
typedef struct rank_network {
    double bytes_per_second; /* of a host */
    double latency_ns;       /* from the beginning of a message to its first byte's arrival */
} rank_network;

/* Simulates the queues of all ranks (schedule_predict()). An exchange begins when the last rank has
 * come to it. It takes the latency, the time in which a rank receives the rows of all others, or
 * sends its own to them, and what its copies cost. The costs in `ranks` are changed meanwhile.
 * *ns: of the pass. */
qp_status schedule_predict_ranks(schedule_ranks *ranks, const rank_network *network, double *ns,
                                 qp_error *error);

/* Bytes that a rank receives in a pass for which the costs of the schedules were chosen. */
double schedule_rank_bytes(const schedule_ranks *ranks, int rank);
