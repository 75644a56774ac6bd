/* What mpirun tells the processes that it starts: see option_world.h. */
#include "base/option_world.h"

#include <stdlib.h>

static bool read_pair(const char *own, const char *all, int *rank, int *size)
{
    if (!own || !all) return false;
    *rank = atoi(own);
    *size = atoi(all);
    return *rank >= 0 && *rank < *size;
}

bool option_world(int *rank, int *size)
{
    return read_pair(getenv("OMPI_COMM_WORLD_RANK"), getenv("OMPI_COMM_WORLD_SIZE"), rank, size);
}

void option_world_host(int *rank, int *size)
{
    if (read_pair(getenv("OMPI_COMM_WORLD_LOCAL_RANK"), getenv("OMPI_COMM_WORLD_LOCAL_SIZE"), rank,
                  size))
        return;
    *rank = 0;
    *size = 1;
}
