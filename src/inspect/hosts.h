/* What several hosts reach together, as predicted: a table and a picture. */
#pragma once

#include "base/strbuf.h"
#include "inspect/predict_ranks.h"

enum { HOSTS_NETWORKS = 4 };

typedef struct hosts_options {
    int most; /* hosts: 1, 2, 4, 8, ... and this number are predicted */
    plan_cut cut;
    int n_networks;
    struct {
        double gigabits, latency_us; /* gigabits 0: a network that takes no time */
    } networks[HOSTS_NETWORKS];
    bool json;
    strbuf *svg; /* gets a picture, or NULL */
} hosts_options;

/* Reads "10:30,100:5": Gbit/s and microseconds of up to HOSTS_NETWORKS networks. */
qp_status hosts_read_networks(const char *text, hosts_options *out, qp_error *error);

/* Predicts passes of the program of one rank, with a rank on each host and the schedule's workers
 * there. */
qp_status hosts_print(const program *program, const schedule_options *schedule,
                      const hosts_options *options, strbuf *out, qp_error *error);
