/* Features of GPUs: see features.h. */
#include "cuda/features.h"

#include <stddef.h>

/* From which compute capability on GPUs have a feature; instructions of sm_90a have no successor.
 */
static const struct {
    cuda_feature feature;
    int first, last; /* 10 major + minor */
    const char *name;
} features[] = {
    {CUDA_WGMMA, 90, 90, "wgmma"},
    {CUDA_CODE_90A, 90, 90, "code for sm_90a"},
    {CUDA_BULK_COPY, 90, 999, "bulk copies"},
    {CUDA_TRANSACTION_BARRIERS, 90, 999, "transaction barriers"},
    {CUDA_DEPENDENT_LAUNCH, 90, 999, "dependent launch"},
    {CUDA_CLUSTERS, 90, 999, "clusters"},
    {CUDA_E4M3, 89, 999, "E4M3"},
};
enum { N_FEATURES = sizeof features / sizeof *features };

uint32_t cuda_features_of(int major, int minor)
{
    const int capability = 10 * major + minor;
    uint32_t found = 0;
    for (int i = 0; i < N_FEATURES; i++)
        if (capability >= features[i].first && capability <= features[i].last)
            found |= features[i].feature;
    return found;
}

const char *cuda_feature_missing(uint32_t has, uint32_t needed)
{
    for (int i = 0; i < N_FEATURES; i++)
        if (features[i].feature & needed & ~has) return features[i].name;
    return NULL;
}
