/* Kernels that only tests load are not in the program: none of its images contains such an image or
 * a kernel whose name has one of their endings. The same search finds these endings in every image
 * of the tests, so it would find them in the program too. And the images of the megakernel's
 * kernels for a model. */
#include "kernels_for_tests.h"
#include "lower/lower.h"
#include "test.h"

static const char *const endings[] = {"_delayed", "_no_waits"};

/* Bytes of a fatbin, by its header: magic, version, the header's size, the size of the rest. */
static size_t fatbin_bytes(const void *data)
{
    struct {
        uint32_t magic;
        uint16_t version, header_bytes;
        uint64_t bytes;
    } header;
    memcpy(&header, data, sizeof header);
    assert_int_equal(header.magic, 0xba55ed50);
    return header.header_bytes + header.bytes;
}

static bool contains(const cuda_image *image, const char *word)
{
    const char *at = image->data, *end = at + fatbin_bytes(at);
    size_t length = strlen(word);
    for (; (at = memchr(at, word[0], (size_t)(end - at))) != NULL; at++)
        if ((size_t)(end - at) >= length && memcmp(at, word, length) == 0) return true;
    return false;
}

static bool has_test_kernel(const cuda_image *image)
{
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (contains(image, endings[i])) return true;
    return false;
}

static void program_holds_no_test_kernel(void **state)
{
    (void)state;
    if (!cuda_images[0].name) skip_because("the build has no GPU code");
    assert_non_null(cuda_test_images[0].name);
    for (const cuda_image *test = cuda_test_images; test->name; test++) {
        assert_true(has_test_kernel(test));
        for (const cuda_image *image = cuda_images; image->name; image++)
            assert_string_not_equal(image->name, test->name);
    }
    for (const cuda_image *image = cuda_images; image->name; image++)
        if (has_test_kernel(image)) fail_msg("image %s holds a kernel for tests", image->name);
}

static void assert_in_program(const char *name, const char *ending)
{
    char whole[64];
    snprintf(whole, sizeof whole, "%s%s", name, ending);
    const cuda_image *image = cuda_images;
    while (image->name && strcmp(image->name, whole) != 0)
        image++;
    if (cuda_images[0].name && !image->name) fail_msg("there is no image %s", whole);
}

static void models_have_images(void **state)
{
    (void)state;
    static const struct {
        const char *model, *one, *several; /* sequences */
    } cases[] = {
        {"synthetic:tiny:BF16", "mega", "mega_batch"},
        {"synthetic:tiny-qwen2:BF16", "mega", "mega_batch_families"},   /* biases */
        {"synthetic:tiny-qwen3:BF16", "mega", "mega_batch_families"},   /* norms of heads */
        {"synthetic:tiny-smollm3:BF16", "mega", "mega_batch_families"}, /* layers without RoPE */
        {"synthetic:tiny-mistral:BF16", "mega", "mega_batch_families"}, /* a window */
        {"synthetic:tiny:F16", "mega_f16", "mega_batch_f16"},
        {"synthetic:tiny:Q8_0", "mega_q8_0", "mega_batch_mixed"},
        {"synthetic:tiny-qwen2:Q4_0", "mega_q4_0", "mega_batch_q4_0"},
        {"synthetic:tiny:Q4_K+Q6_K", "mega_q4_k", "mega_batch_mixed"},
        {"synthetic:tiny-qwen3:Q4_K", "mega_q4_k_families", "mega_batch_mixed"},
        {"synthetic:tiny:Q4_1", "mega_mixed", "mega_batch_mixed"}};
    const model_options sizes_only = {.sizes_only = true};
    qp_error error;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model *m;
        program p;
        assert_ok(model_open(cases[i].model, &sizes_only, &m, &error));
        plan_options options = plan_default_options(model_get_config(m));
        options.context = 400; /* longer than the window */
        assert_ok(lower_build(model_get_config(m), m, &options, &p, &error));
        assert_string_equal(mega_image(&p), cases[i].one);
        assert_string_equal(mega_batch_image(&p), cases[i].several);
        assert_in_program(cases[i].one, "");
        assert_in_program(cases[i].one, "_choosing");
        assert_in_program(cases[i].several, "");
        program_free(&p);
        model_close(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(program_holds_no_test_kernel),
                                       cmocka_unit_test(models_have_images)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
