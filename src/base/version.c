/* The only file that is recompiled for a new commit: see version.h. */
#include "base/version.h"

#include "quipu.h"

const char version_text[] = QP_VERSION;
const char version_commit[] = QUIPU_COMMIT;
const char version_cuda[] = QUIPU_CUDA;

const char *qp_version(void)
{
    return version_text;
}
