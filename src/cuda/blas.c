/* Large matrix products by cuBLASLt: see cuda/blas.h.
 *
 * cuBLASLt's matrices are column-major, so it computes out^T = weight x^T: its A is the weight,
 * transposed, its B is x, its C and D are the residual and out.
 */
#include "cuda/blas.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* cuBLASLt's own types and numbers, by its stable binary interface. */
typedef struct blas_handle *blas_handle;
typedef struct blas_object *blas_object; /* a description, a layout or a preference */
typedef struct blas_algorithm {
    uint64_t data[8];
} blas_algorithm;
typedef struct blas_choice {
    blas_algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} blas_choice;

enum {
    TYPE_F32 = 0,
    TYPE_BF16 = 14,
    TYPE_F8 = 28, /* E4M3 */
    COMPUTE_F32 = 68,
    DESCRIPTION_TRANSPOSE_A = 3,
    DESCRIPTION_SCALES_A = 17, /* addresses */
    DESCRIPTION_SCALES_B = 18,
    DESCRIPTION_FAST_SUMS = 25,
    DESCRIPTION_SCALE_MODE_A = 31,
    DESCRIPTION_SCALE_MODE_B = 32,
    SCALES_OF_ROWS = 3, /* F32 */
    TRANSPOSED = 1,
    PREFERENCE_WORKSPACE = 1,
    NOT_SUPPORTED = 15,
    CONFIG_TILE = 1,
    MAX_CHOICES = 8,
};

/* Where rows are short, writing a tile's float32 sums takes a good part of the time, and cuBLASLt
 * chooses tiles that are too large. These tiles were measured to be faster there, best first.
 */
static const uint32_t short_tiles[] = {20 /* 128x128 */, 201 /* 176x128 */, 197 /* 168x128 */,
                                       184 /* 144x128 */};
enum {
    N_SHORT_TILES = sizeof short_tiles / sizeof *short_tiles,
    SHORT_ROW = 2048,
    MANY_SUMS = 256 * 128 * 128 /* two tiles a multiprocessor */
};

#define BLAS_FUNCTIONS(FUNCTION)                                                                   \
    FUNCTION(create, "cublasLtCreate", (blas_handle * handle))                                     \
    FUNCTION(destroy, "cublasLtDestroy", (blas_handle handle))                                     \
    FUNCTION(layout_create, "cublasLtMatrixLayoutCreate",                                          \
             (blas_object * layout, int type, uint64_t rows, uint64_t columns, int64_t pitch))     \
    FUNCTION(layout_destroy, "cublasLtMatrixLayoutDestroy", (blas_object layout))                  \
    FUNCTION(description_create, "cublasLtMatmulDescCreate",                                       \
             (blas_object * description, int compute, int scale))                                  \
    FUNCTION(description_destroy, "cublasLtMatmulDescDestroy", (blas_object description))          \
    FUNCTION(description_set, "cublasLtMatmulDescSetAttribute",                                    \
             (blas_object description, int attribute, const void *value, size_t size))             \
    FUNCTION(preference_create, "cublasLtMatmulPreferenceCreate", (blas_object * preference))      \
    FUNCTION(preference_destroy, "cublasLtMatmulPreferenceDestroy", (blas_object preference))      \
    FUNCTION(preference_set, "cublasLtMatmulPreferenceSetAttribute",                               \
             (blas_object preference, int attribute, const void *value, size_t size))              \
    FUNCTION(choose, "cublasLtMatmulAlgoGetHeuristic",                                             \
             (blas_handle handle, blas_object description, blas_object a, blas_object b,           \
              blas_object c, blas_object d, blas_object preference, int wanted,                    \
              blas_choice *choices, int *found))                                                   \
    FUNCTION(config, "cublasLtMatmulAlgoConfigGetAttribute",                                       \
             (const blas_algorithm *algorithm, int attribute, void *value, size_t size,            \
              size_t *written))                                                                    \
    FUNCTION(multiply, "cublasLtMatmul",                                                           \
             (blas_handle handle, blas_object description, const void *alpha, const void *a,       \
              blas_object a_layout, const void *b, blas_object b_layout, const void *beta,         \
              const void *c, blas_object c_layout, void *d, blas_object d_layout,                  \
              const blas_algorithm *algorithm, void *workspace, size_t workspace_bytes,            \
              cuda_stream stream))

/* A plan for products of the same sizes: their descriptions and the algorithm. */
typedef struct blas_plan {
    cuda_product sizes; /* residual: 0 or 1 */
    blas_object description, a, b, c, d;
    blas_algorithm algorithm;
    bool unsupported;
} blas_plan;

enum {
    MAX_PLANS = 256,
    ALIKE_ROWS = 64, /* m that rounds up to the same multiple has the same algorithm */
};

struct cuda_blas {
    void *library;
    struct {
#define FUNCTION(member, symbol, parameters) int(*member) parameters;
        BLAS_FUNCTIONS(FUNCTION)
#undef FUNCTION
    } call;
    blas_handle handle;
    blas_plan plans[MAX_PLANS];
    int n_plans, next; /* the new plan replaces the oldest */
};

static qp_status check(int status, const char *function, qp_error *error)
{
    if (status == 0) return QP_OK;
    return error_set(error, status == NOT_SUPPORTED ? QP_UNSUPPORTED : QP_DEVICE,
                     "%s failed with status %d; use --device cpu if it stays so", function, status);
}

static void *open_library(void)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so",
                                        "/usr/local/cuda/lib64/libcublasLt.so", NULL};
    for (int i = 0; names[i]; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (library) return library;
    }
    return NULL;
}

bool cuda_blas_is_there(void)
{
    void *library = open_library();
    if (library) dlclose(library);
    return library != NULL;
}

static qp_status find_functions(cuda_blas *blas, qp_error *error)
{
    static const char *const symbols[] = {
#define FUNCTION(member, symbol, parameters) symbol,
        BLAS_FUNCTIONS(FUNCTION)
#undef FUNCTION
    };
    enum { N = sizeof symbols / sizeof *symbols };
    void *found[N];
    _Static_assert(sizeof found == sizeof blas->call, "a pointer for each function");
    for (int i = 0; i < N; i++) {
        found[i] = dlsym(blas->library, symbols[i]);
        if (!found[i])
            return error_set(error, QP_DEVICE, "libcublasLt lacks %s: it is too old", symbols[i]);
    }
    memcpy(&blas->call, found, sizeof found);
    return QP_OK;
}

qp_status cuda_blas_open(cuda_blas **out, qp_error *error)
{
    *out = NULL;
    cuda_blas *blas = calloc(1, sizeof *blas);
    if (!blas) return error_no_memory(error, "cuBLASLt", sizeof *blas);
    blas->library = open_library();
    qp_status status = QP_OK;
    if (!blas->library)
        status = error_set(error, QP_DEVICE,
                           "libcublasLt.so.13 is not there: large matrix products are made without "
                           "it, slower; it comes with the CUDA toolkit");
    if (status == QP_OK) status = find_functions(blas, error);
    if (status == QP_OK) status = check(blas->call.create(&blas->handle), "cublasLtCreate", error);
    if (status == QP_OK)
        *out = blas;
    else
        cuda_blas_close(blas);
    return status;
}

static void free_plan(cuda_blas *blas, blas_plan *plan)
{
    blas_object layouts[] = {plan->a, plan->b, plan->c, plan->d};
    for (int i = 0; i < 4; i++)
        if (layouts[i]) blas->call.layout_destroy(layouts[i]);
    if (plan->description) blas->call.description_destroy(plan->description);
    *plan = (blas_plan){0};
}

void cuda_blas_close(cuda_blas *blas)
{
    if (!blas) return;
    for (int i = 0; i < blas->n_plans; i++)
        free_plan(blas, &blas->plans[i]);
    if (blas->handle) blas->call.destroy(blas->handle);
    if (blas->library) dlclose(blas->library);
    free(blas);
}

/* A product's sizes, without its addresses. */
static cuda_product sizes_of(const cuda_product *product)
{
    cuda_product sizes = *product;
    sizes.x = sizes.weight = sizes.out = sizes.weight_scales = 0;
    sizes.residual = product->residual != 0;
    sizes.x_scales = product->x_scales != 0;
    return sizes;
}

static qp_status set(cuda_blas *blas, blas_object description, int attribute, const void *value,
                     size_t size, qp_error *error)
{
    return check(blas->call.description_set(description, attribute, value, size),
                 "cublasLtMatmulDescSetAttribute", error);
}

/* The scales' addresses of a product. */
static qp_status take_scales(cuda_blas *blas, blas_plan *plan, cuda_address weight, cuda_address x,
                             qp_error *error)
{
    const void *of_weight = (const void *)(uintptr_t)weight, *of_x = (const void *)(uintptr_t)x;
    TRY(set(blas, plan->description, DESCRIPTION_SCALES_A, &of_weight, sizeof of_weight, error));
    return set(blas, plan->description, DESCRIPTION_SCALES_B, &of_x, sizeof of_x, error);
}

/* Both sides are FP8 with a scale a row. The search for an algorithm refuses a description without
 * addresses, but does not read there. */
static qp_status describe_scales(cuda_blas *blas, blas_plan *plan, qp_error *error)
{
    enum { ANY_ADDRESS = 256 };
    const int mode = SCALES_OF_ROWS;
    const int8_t fast = 1;
    TRY(set(blas, plan->description, DESCRIPTION_SCALE_MODE_A, &mode, sizeof mode, error));
    TRY(set(blas, plan->description, DESCRIPTION_SCALE_MODE_B, &mode, sizeof mode, error));
    TRY(take_scales(blas, plan, ANY_ADDRESS, ANY_ADDRESS, error));
    return set(blas, plan->description, DESCRIPTION_FAST_SUMS, &fast, sizeof fast, error);
}

static qp_status describe(cuda_blas *blas, blas_plan *plan, const cuda_product *p, qp_error *error)
{
    const int transposed = TRANSPOSED;
    const uint64_t m = (uint64_t)p->m, n = (uint64_t)p->n, k = (uint64_t)p->k;
    static const char layout[] = "cublasLtMatrixLayoutCreate";
    TRY(check(blas->call.description_create(&plan->description, COMPUTE_F32, TYPE_F32),
              "cublasLtMatmulDescCreate", error));
    TRY(set(blas, plan->description, DESCRIPTION_TRANSPOSE_A, &transposed, sizeof transposed,
            error));
    if (p->x_scales) TRY(describe_scales(blas, plan, error));
    const int in = p->x_scales ? TYPE_F8 : TYPE_BF16, out = p->out_bf16 ? TYPE_BF16 : TYPE_F32;
    TRY(check(blas->call.layout_create(&plan->a, in, k, n, p->weight_pitch), layout, error));
    TRY(check(blas->call.layout_create(&plan->b, in, k, m, p->x_pitch), layout, error));
    int64_t pitch = p->residual ? p->residual_pitch : p->out_pitch;
    TRY(check(blas->call.layout_create(&plan->c, out, n, m, pitch), layout, error));
    return check(blas->call.layout_create(&plan->d, out, n, m, p->out_pitch), layout, error);
}

/* Of the algorithms that cuBLASLt proposes: the one with the best tile of that list, or else the
 * first. */
static blas_algorithm best_of(const cuda_blas *blas, const blas_choice *choices, int n)
{
    int best = 0, best_rank = N_SHORT_TILES;
    for (int i = 0; i < n && n > 1; i++) {
        uint32_t tile = 0;
        size_t written;
        if (blas->call.config(&choices[i].algorithm, CONFIG_TILE, &tile, sizeof tile, &written))
            continue;
        for (int rank = 0; rank < best_rank; rank++)
            if (short_tiles[rank] == tile) best = i, best_rank = rank;
    }
    return choices[best].algorithm;
}

static qp_status choose(cuda_blas *blas, blas_plan *plan, const cuda_product *p, qp_error *error)
{
    blas_object preference = NULL;
    const size_t workspace = CUDA_BLAS_WORKSPACE;
    blas_choice choices[MAX_CHOICES];
    const bool is_short = p->k <= SHORT_ROW && p->m * p->n >= MANY_SUMS && !p->x_scales;
    int found = 0, wanted = is_short ? MAX_CHOICES : 1;
    TRY(check(blas->call.preference_create(&preference), "cublasLtMatmulPreferenceCreate", error));
    qp_status status = check(
        blas->call.preference_set(preference, PREFERENCE_WORKSPACE, &workspace, sizeof workspace),
        "cublasLtMatmulPreferenceSetAttribute", error);
    if (status == QP_OK) {
        int result = blas->call.choose(blas->handle, plan->description, plan->a, plan->b, plan->c,
                                       plan->d, preference, wanted, choices, &found);
        plan->unsupported = result == NOT_SUPPORTED || (result == 0 && found == 0);
        if (!plan->unsupported) status = check(result, "cublasLtMatmulAlgoGetHeuristic", error);
    }
    blas->call.preference_destroy(preference);
    if (status == QP_OK && !plan->unsupported) plan->algorithm = best_of(blas, choices, found);
    return status;
}

static cuda_product rounded(const cuda_product *sizes)
{
    cuda_product whole = *sizes;
    whole.m = (whole.m + ALIKE_ROWS - 1) / ALIKE_ROWS * ALIKE_ROWS;
    return whole;
}

/* Takes the algorithm of a plan whose m rounds to the same, or searches for one for that m. A
 * search takes longer than the launch of a layer, and an algorithm that was not used before is
 * loaded when it first runs. Servers have passes of any m. */
static qp_status take_algorithm(cuda_blas *blas, blas_plan *plan, const cuda_product *sizes,
                                qp_error *error)
{
    const cuda_product whole = rounded(sizes);
    blas_plan search = {0};
    for (int i = 0; i < blas->n_plans; i++) {
        const blas_plan *other = &blas->plans[i];
        const cuda_product of = rounded(&other->sizes);
        if (other == plan || memcmp(&of, &whole, sizeof whole) != 0) continue;
        plan->algorithm = other->algorithm;
        plan->unsupported = other->unsupported;
        return QP_OK;
    }
    qp_status status = describe(blas, &search, &whole, error);
    if (status == QP_OK) status = choose(blas, &search, &whole, error);
    plan->algorithm = search.algorithm;
    plan->unsupported = search.unsupported;
    free_plan(blas, &search);
    return status;
}

static qp_status find_plan(cuda_blas *blas, const cuda_product *product, blas_plan **out,
                           qp_error *error)
{
    const cuda_product sizes = sizes_of(product);
    for (int i = 0; i < blas->n_plans; i++) {
        *out = &blas->plans[i];
        if (memcmp(&(*out)->sizes, &sizes, sizeof sizes) == 0) return QP_OK;
    }
    blas_plan *plan = &blas->plans[blas->next];
    blas->next = (blas->next + 1) % MAX_PLANS;
    if (blas->n_plans < MAX_PLANS) blas->n_plans++;
    free_plan(blas, plan);
    TRY(describe(blas, plan, product, error));
    TRY(take_algorithm(blas, plan, &sizes, error));
    plan->sizes = sizes; /* now plan_find() may return it */
    *out = plan;
    return QP_OK;
}

/* The plan for a product; QP_UNSUPPORTED where there is none. */
static qp_status supported_plan(cuda_blas *blas, const cuda_product *p, blas_plan **plan,
                                qp_error *error)
{
    TRY(find_plan(blas, p, plan, error));
    if (!(*plan)->unsupported) return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "cuBLASLt has no way for a product of %lld by %lld by %lld", (long long)p->m,
                     (long long)p->n, (long long)p->k);
}

qp_status cuda_blas_prepare(cuda_blas *blas, const cuda_product *product, qp_error *error)
{
    blas_plan *plan;
    return supported_plan(blas, product, &plan, error);
}

qp_status cuda_blas_multiply(cuda_blas *blas, const cuda_product *p, cuda_address workspace,
                             cuda_stream stream, qp_error *error)
{
    blas_plan *plan;
    TRY(supported_plan(blas, p, &plan, error));
    if (p->x_scales) TRY(take_scales(blas, plan, p->weight_scales, p->x_scales, error));
    const float one = 1, beta = p->residual ? 1 : 0;
    cuda_address c = p->residual ? p->residual : p->out;
    return check(blas->call.multiply(
                     blas->handle, plan->description, &one, (const void *)(uintptr_t)p->weight,
                     plan->a, (const void *)(uintptr_t)p->x, plan->b, &beta,
                     (const void *)(uintptr_t)c, plan->c, (void *)(uintptr_t)p->out, plan->d,
                     &plan->algorithm, (void *)(uintptr_t)workspace, CUDA_BLAS_WORKSPACE, stream),
                 "cublasLtMatmul", error);
}
