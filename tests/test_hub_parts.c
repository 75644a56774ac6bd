/* References to models, which files of a repository are chosen, and the cache of the hub on the
 * disk: by their rules, without a network.
 */
#define _GNU_SOURCE /* nftw() */
#include "test.h"

#include "hub/hub.h"
#include "hub/repository.h"

#include <ftw.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

static qp_error error;

/* ---- References -------------------------------------------------------------------------------
 */

static void references_are_read_and_printed(void **state)
{
    (void)state;
    static const struct {
        const char *text, *owner, *name, *select;
    } good[] = {
        {"o/m", "o", "m", ""},
        {"a-b_c.d/M.1", "a-b_c.d", "M.1", ""},
        {"o/m:Q4_K_M", "o", "m", "Q4_K_M"},
        {"o/m:folder/file.gguf", "o", "m", "folder/file.gguf"},
        {"o/m:a b.gguf", "o", "m", "a b.gguf"},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        hub_reference r;
        char text[3 * HUB_NAME_SIZE];
        assert_ok(hub_parse(good[i].text, &r, &error));
        assert_string_equal(r.owner, good[i].owner);
        assert_string_equal(r.name, good[i].name);
        assert_string_equal(r.select, good[i].select);
        assert_null(r.licence);
        hub_print_reference(&r, text, sizeof text);
        assert_string_equal(text, good[i].text);
    }
}

/* None of them could become a path outside of the cache, or two models one folder. */
static void hostile_references_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",           "/",        "o",        "o/",          "/m",
        "../m",       "o/..",     "./m",      "o/.",         "o/m/n",
        "o--p/m",     "o/m--n",   "o/m:",     "o/m:/etc",    "o/m:../x",
        "o/m:a/../b", "o/m:a/",   "o/m:a//b", "o/m:.hidden", "o/m:a/.b",
        "o/m:a\\b",   "o/m:a\"b", "o/m:a'b",  "o/m:a\nb",    "o/m:a\tb",
        "o/m:a\rb",   "o:q/m",    "o o/m",    "o/m\xc3\xa9", "o%2f/m",
        "o/m?x",      "~/m",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        hub_reference r;
        if (hub_parse(bad[i], &r, &error) != QP_INVALID) fail_msg("\"%s\" is taken", bad[i]);
    }
}

static void names_have_a_longest(void **state)
{
    (void)state;
    char text[2 * HUB_NAME_SIZE + 8] = "o/";
    hub_reference r;
    memset(text + 2, 'm', HUB_NAME_SIZE - 1);
    text[HUB_NAME_SIZE + 1] = '\0';
    assert_ok(hub_parse(text, &r, &error));
    assert_int_equal(strlen(r.name), HUB_NAME_SIZE - 1);
    strcat(text, "m");
    assert_int_equal(hub_parse(text, &r, &error), QP_INVALID);
}

static void short_names_stand_for_references(void **state)
{
    (void)state;
    int n = 0;
    for (const hub_short_name *known; (known = hub_short_name_at(n)); n++) {
        hub_reference r;
        char text[3 * HUB_NAME_SIZE];
        assert_true(hub_is_short_name(known->name));
        assert_ok(hub_parse(known->name, &r, &error));
        hub_print_reference(&r, text, sizeof text);
        assert_string_equal(text, known->reference);
        assert_string_equal(r.licence, known->licence);
        assert_string_equal(hub_nearest_name(known->name), known->name);
    }
    assert_true(n > 0);
    assert_null(hub_short_name_at(-1));
    assert_null(hub_short_name_at(n));
    assert_false(hub_is_short_name("o/m"));
    assert_null(hub_nearest_name("quite another thing"));
    hub_reference r;
    assert_int_equal(hub_parse("llama3.2:1c", &r, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "did you mean llama3.2:1b"));
}

/* ---- Which files ------------------------------------------------------------------------------
 */

enum { MOST = 24 };

/* The names, separated by spaces, that are chosen of `files` for o/m:SELECT; NULL: none. Static. */
static const char *chosen(const char *files, const char *select)
{
    static char names[MOST * HUB_NAME_SIZE];
    char copy[2000], *rest = copy;
    repository r = {.files = calloc(MOST, sizeof *r.files)};
    hub_reference reference = {.owner = "o", .name = "m"};
    strcpy(copy, files);
    strcpy(reference.select, select);
    for (char *name; (name = strtok_r(rest, " ", &rest));)
        strcpy(r.files[r.n_files++].name, name);
    const qp_status status = repository_choose(&r, &reference, &error);
    names[0] = '\0';
    for (size_t i = 0; i < r.n_files; i++)
        sprintf(names + strlen(names), "%s%s", i ? " " : "", r.files[i].name);
    repository_free(&r);
    return status == QP_OK ? names : NULL;
}

static void answers_of_no_hub_are_refused(void **state)
{
    (void)state;
    static const char *const answers[] = {
        "{}", "{\"sha\": \"12\", \"siblings\": []}",
        "{\"sha\": \"0000000000000000000000000000000000000000\", \"siblings\": {}}"};
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        repository r = {0};
        const qp_status status =
            repository_parse(answers[i], strlen(answers[i]), "answer", &r, &error);
        assert_int_equal(status, QP_FORMAT);
        assert_non_null(strstr(error.message, "answer: expected a commit (\"sha\")"));
        repository_free(&r);
    }
}

static void types_are_words_of_names(void **state)
{
    (void)state;
    static const struct {
        const char *file, *type;
        bool is;
    } cases[] = {
        {"m-Q4_K_M.gguf", "Q4_K_M", true}, {"m-q4_k_m.gguf", "Q4_K_M", true},
        {"m.Q8_0.gguf", "q8_0", true},     {"Q8_0.gguf", "Q8_0", true},
        {"m-Q4_K_M.gguf", "Q4_K", false},  {"m-Q4_K_M.gguf", "K_M", false},
        {"m-IQ4_XS.gguf", "Q4_XS", false}, {"m-Q8_01.gguf", "Q8_0", false},
        {"m-Q8_0.bin", "Q8_0", false},     {"m-BF16.gguf", "F16", false},
        {"m-F16.gguf", "F16", true},       {"x/m-F16-00001-of-00002.gguf", "F16", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (repository_is_of_type(cases[i].file, cases[i].type) != cases[i].is)
            fail_msg("%s of %s", cases[i].file, cases[i].type);
}

static void files_are_chosen(void **state)
{
    (void)state;
    static const struct {
        const char *files, *select, *expected;
    } cases[] = {
        {"a-Q8_0.gguf b-Q4_K_M.gguf c.txt", "", "b-Q4_K_M.gguf"},
        {"a-Q8_0.gguf a-F16.gguf", "", "a-Q8_0.gguf"},
        {"a-BF16.gguf a-F16.gguf a-Q4_0.gguf", "", "a-Q4_0.gguf"},
        {"a-F16.gguf a-BF16.gguf", "", "a-BF16.gguf"},
        {"a-Q8_0.gguf b-Q4_K_M.gguf", "Q8_0", "a-Q8_0.gguf"},
        {"a-Q8_0.gguf b-Q4_K_M.gguf", "a-Q8_0.gguf", "a-Q8_0.gguf"},
        {"z-Q8_0.gguf a-Q8_0.gguf m-Q8_0.gguf", "Q8_0", "a-Q8_0.gguf"},
        {"m-Q8_0.gguf z-Q8_0.gguf", "z-Q8_0.gguf", "z-Q8_0.gguf"},
        {"a-Q8_0.gguf config.json", "Q4_0", NULL},
        {"a-Q8_0.gguf config.json", "config.json", NULL},
        {"q-F16-00002-of-00002.gguf q-F16-00001-of-00002.gguf r-F16-00001-of-00002.gguf",
         "q-F16-00001-of-00002.gguf", "q-F16-00002-of-00002.gguf q-F16-00001-of-00002.gguf"},
        {"q-F16-0001-of-0002.gguf q-F16-0002-of-0002.gguf", "F16", "q-F16-0001-of-0002.gguf"},
        {"model.safetensors config.json README.md tokenizer.json x/config.json", "",
         "model.safetensors config.json tokenizer.json"},
        {"model-00001-of-00002.safetensors model-00002-of-00002.safetensors "
         "model.safetensors.index.json merges.txt "
         "vocab.json onnx/model.safetensors other.safetensors",
         "",
         "model-00001-of-00002.safetensors model-00002-of-00002.safetensors "
         "model.safetensors.index.json merges.txt "
         "vocab.json"},
        {"x/model.safetensors config.json", "", NULL},
        {"model.safetensors config.json", "Q8_0", NULL},
        {"adapter.safetensors config.json", "", NULL}, /* no weights of a model */
        {"README.md", "", NULL},
        {"", "", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *found = chosen(cases[i].files, cases[i].select);
        if (!found != !cases[i].expected || (found && strcmp(found, cases[i].expected) != 0))
            fail_msg("%s of \"%s\": %s", cases[i].select, cases[i].files,
                     found ? found : error.message);
    }
    assert_null(chosen("a-Q8_0.gguf c.txt model.safetensors", "Q4_0"));
    assert_non_null(strstr(
        error.message, "o/m has no file or type \"Q4_0\"; it has a-Q8_0.gguf, model.safetensors"));
    assert_null(chosen("c.txt", ""));
    assert_non_null(strstr(error.message,
                           "no file or type \"model\"; it has neither GGUF nor safetensors files"));
}

/* ---- The cache --------------------------------------------------------------------------------
 */

static char cache[PATH_MAX];
#define COMMIT "0123456789abcdef0123456789abcdef01234567"

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static const char *in_cache(const char *path)
{
    static char whole[PATH_MAX + 600];
    snprintf(whole, sizeof whole, "%s/%s", cache, path);
    return whole;
}

static bool is_there(const char *path)
{
    struct stat found;
    return lstat(in_cache(path), &found) == 0;
}

static int remove_one(const char *path, const struct stat *about, int type, struct FTW *at)
{
    (void)about;
    (void)type;
    (void)at;
    return remove(path);
}

/* o/m with two files, as the Python library leaves it. */
static int open_cache(void **state)
{
    (void)state;
    static const char *const folders[] = {"",
                                          "models--o--m",
                                          "models--o--m/blobs",
                                          "models--o--m/refs",
                                          "models--o--m/snapshots",
                                          "models--o--m/snapshots/" COMMIT};
    strcpy(cache, "/tmp/quipu-test-hub-XXXXXX");
    assert_non_null(mkdtemp(cache));
    for (size_t i = 1; i < sizeof folders / sizeof *folders; i++)
        assert_int_equal(mkdir(in_cache(folders[i]), 0755), 0);
    write_file(in_cache("models--o--m/refs/main"), COMMIT);
    write_file(in_cache("models--o--m/blobs/aa"), "12345");
    write_file(in_cache("models--o--m/blobs/bb"), "123");
    assert_int_equal(
        symlink("../../blobs/aa", in_cache("models--o--m/snapshots/" COMMIT "/m-Q8_0.gguf")), 0);
    assert_int_equal(
        symlink("../../blobs/bb", in_cache("models--o--m/snapshots/" COMMIT "/m-F16.gguf")), 0);
    return 0;
}

static int close_cache(void **state)
{
    (void)state;
    return nftw(cache, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static hub here(void)
{
    return (hub){.endpoint = "http://127.0.0.1:9", .cache = cache, .offline = true};
}

static qp_status find(const char *text, char path[HUB_PATH_SIZE])
{
    const hub h = here();
    hub_reference r;
    assert_ok(hub_parse(text, &r, &error));
    return hub_find(&h, &r, path, &error);
}

static void what_is_there_is_found(void **state)
{
    (void)state;
    char path[HUB_PATH_SIZE];
    assert_ok(find("o/m:Q8_0", path));
    assert_non_null(strstr(path, "/snapshots/" COMMIT "/m-Q8_0.gguf"));
    assert_ok(find("o/m:m-F16.gguf", path));
    assert_non_null(strstr(path, "m-F16.gguf"));
    assert_ok(find("o/m", path)); /* the first by name */
    assert_non_null(strstr(path, "m-F16.gguf"));
    assert_int_equal(find("o/m:Q4_0", path), QP_IO);
    assert_int_equal(find("o/other", path), QP_IO);
    assert_non_null(strstr(error.message, "quipu pull"));
    unlink(in_cache("models--o--m/blobs/aa")); /* the link is left */
    assert_int_equal(find("o/m:m-Q8_0.gguf", path), QP_IO);
    write_file(in_cache("models--o--m/refs/main"), "../../..");
    assert_int_equal(find("o/m:F16", path), QP_IO);
}

static void removed(const char *text, qp_status expected, uint64_t bytes)
{
    const hub h = here();
    hub_reference r;
    uint64_t freed = 77;
    assert_ok(hub_parse(text, &r, &error));
    assert_int_equal(hub_remove(&h, &r, &freed, &error), expected);
    assert_int_equal(freed, bytes);
}

static void a_file_goes_with_its_blob(void **state)
{
    (void)state;
    removed("o/m:Q8_0", QP_OK, 5);
    assert_false(is_there("models--o--m/blobs/aa"));
    assert_false(is_there("models--o--m/snapshots/" COMMIT "/m-Q8_0.gguf"));
    assert_true(is_there("models--o--m/blobs/bb"));
    assert_true(is_there("models--o--m/snapshots/" COMMIT "/m-F16.gguf"));
    removed("o/m:Q8_0", QP_IO, 0);
    removed("o/m", QP_OK, 3 + 40);
    assert_false(is_there("models--o--m"));
    assert_true(is_there(""));
}

/* What a link points to outside of the model is somebody else's. */
static void what_lies_elsewhere_stays(void **state)
{
    (void)state;
    static const char *const elsewhere[] = {"outside", "models--o--m/blobs-of-others",
                                            "models--o--m/other"};
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++) {
        char target[PATH_MAX + 600];
        write_file(in_cache(elsewhere[i]), "precious");
        strcpy(target, in_cache(elsewhere[i]));
        const char *link = in_cache("models--o--m/snapshots/" COMMIT "/x-BF16.gguf");
        assert_int_equal(symlink(target, link), 0);
        removed("o/m:BF16", QP_OK, 8);
        assert_true(is_there(elsewhere[i]));
        assert_false(is_there("models--o--m/snapshots/" COMMIT "/x-BF16.gguf"));
    }
    removed("o/m", QP_OK, 5 + 3 + 40 + 2 * 8);
    assert_true(is_there("outside"));
}

static qp_status count(void *context, const hub_entry *entry, qp_error *e)
{
    (void)e;
    char *names = context;
    sprintf(names + strlen(names), "%s=%d ", entry->reference, (int)entry->bytes);
    return QP_OK;
}

static qp_status stop(void *context, const hub_entry *entry, qp_error *e)
{
    (void)entry;
    ++*(int *)context;
    return error_set(e, QP_CANCELLED, "enough");
}

static void lists_are_sorted_and_end_when_asked(void **state)
{
    (void)state;
    const hub h = here();
    char names[2000] = "";
    int seen = 0;
    mkdir(in_cache("models--o--empty"), 0755);
    mkdir(in_cache("datasets--o--m"), 0755);
    write_file(in_cache("models--a-file"), "");
    assert_ok(hub_list(&h, count, names, &error));
    assert_string_equal(names, "o/m:m-F16.gguf=3 o/m:m-Q8_0.gguf=5 ");
    assert_int_equal(hub_list(&h, stop, &seen, &error), QP_CANCELLED);
    assert_int_equal(seen, 1);
}

int main(void)
{
#define IN_CACHE(test) cmocka_unit_test_setup_teardown(test, open_cache, close_cache)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(references_are_read_and_printed),
        cmocka_unit_test(hostile_references_are_refused),
        cmocka_unit_test(names_have_a_longest),
        cmocka_unit_test(short_names_stand_for_references),
        cmocka_unit_test(answers_of_no_hub_are_refused),
        cmocka_unit_test(types_are_words_of_names),
        cmocka_unit_test(files_are_chosen),
        IN_CACHE(what_is_there_is_found),
        IN_CACHE(a_file_goes_with_its_blob),
        IN_CACHE(what_lies_elsewhere_stays),
        IN_CACHE(lists_are_sorted_and_end_when_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
