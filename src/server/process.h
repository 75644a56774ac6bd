/* What the process itself takes: memory, processor time, open files. */
#pragma once

/* 0: the system does not say. */
typedef struct process_usage {
    double resident_bytes;  /* of memory, in RAM */
    double heap_bytes;      /* that malloc() has given out, with what it keeps for each thread */
    double cpu_seconds;     /* of all threads, since the start */
    double open_files;      /* descriptors, sockets too */
    double open_files_most; /* that the process may have */
} process_usage;

process_usage process_measure(void);
