/* What mpirun tells the processes that it starts, in their environment. */
#pragma once

#include <stdbool.h>

/* This process's rank and the number of ranks; false: Open MPI's mpirun has not started it. */
bool option_world(int *rank, int *size);

/* The same among the processes of this host; 0 of 1 if it is not said. */
void option_world_host(int *rank, int *size);
