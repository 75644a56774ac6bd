/* Kernels that only tests load are not in the program: none of its images contains such an image or
 * a kernel whose name has one of their endings. The same search finds these endings in every image
 * of the tests, so it would find them in the program too. */
#include "kernels_for_tests.h"
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(program_holds_no_test_kernel)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
