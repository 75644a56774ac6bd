/* What mpirun tells the processes that it starts: see option_world.h. */
#include "base/option_world.h"

#include <stdlib.h>

bool option_world(int *rank, int *size)
{
    const char *own = getenv("OMPI_COMM_WORLD_RANK"), *all = getenv("OMPI_COMM_WORLD_SIZE");
    if (!own || !all) return false;
    *rank = atoi(own);
    *size = atoi(all);
    return *rank >= 0 && *rank < *size;
}
