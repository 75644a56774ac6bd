/* Packed weights in files: the next engine maps them, with the same bits; a file that is damaged,
 * cut off, of another model or open to others does no harm; old files make room. */
#include "engine_test.h"
#include "model_files.h"

#include "base/cpu.h"
#include "base/files.h"

#include <dirent.h>

enum { LENGTH = 6, NAME = 4096 };

static const int32_t tokens[LENGTH] = {1, 7, 3, 60, 42, 5};
static const char first_model[] = "golden/models/llama-blocks32.gguf";
static const char second_model[] = "golden/models/llama-blocks256.gguf";

static char folder[64];

/* Everything that engines said. */
static char said[1 << 14];

static void hear(void *context, qp_log_level level, const char *message)
{
    (void)context, (void)level;
    strncat(said, message, sizeof said - strlen(said) - 2);
    strcat(said, "\n");
}

/* The logits of a model, with the folder or without. */
static float *logits_of(const char *model, uint64_t most, bool keeps, size_t *bytes)
{
    said[0] = '\0';
    qp_engine *e = open_engine((qp_engine_options){.model = model,
                                                   .context = 32,
                                                   .max_outputs = LENGTH,
                                                   .device = "cpu",
                                                   .threads = 2,
                                                   .log = hear,
                                                   .cache_packed = keeps ? folder : NULL,
                                                   .cache_packed_size = most});
    *bytes = (size_t)qp_engine_get_info(e)->vocab_size * LENGTH * sizeof(float);
    float *rows = eval_fresh(e, tokens, LENGTH);
    qp_engine_close(e);
    return rows;
}

/* Opens the model with the folder: its logits are those of one without, and the log has `text`. */
static void check(const char *model, uint64_t most, const char *text)
{
    size_t bytes;
    float *plain = logits_of(model, 0, false, &bytes);
    float *kept = logits_of(model, most, true, &bytes);
    assert_memory_equal(plain, kept, bytes);
    if (!strstr(said, text)) fail_msg("expected \"%s\", found: %s", text, said);
    free(plain);
    free(kept);
}

/* How many files the folder has, and the path of the last one found. */
static int count_files(char path[NAME])
{
    int n = 0;
    DIR *open = opendir(folder);
    for (struct dirent *e; open && (e = readdir(open));) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, NAME, "%s/%s", folder, e->d_name);
        n++;
    }
    if (open) closedir(open);
    return n;
}

static int begin(void **state)
{
    (void)state;
    folder_make(folder);
    return 0;
}

static int end(void **state)
{
    char path[NAME];
    (void)state;
    while (count_files(path) > 0)
        unlink(path);
    return rmdir(folder);
}

static void the_next_engine_maps_them(void **state)
{
    char path[NAME];
    (void)state;
    check(first_model, 0, "kept for the next start");
    check(first_model, 0, "mapped from");
    assert_int_equal(count_files(path), 1);
    struct stat s;
    assert_int_equal(stat(path, &s), 0);
    assert_int_equal(s.st_mode & 0777, 0600);
    check(second_model, 0, "kept for the next start");
    assert_int_equal(count_files(path), 2);
    check(first_model, 0, "mapped from");
    check(second_model, 0, "mapped from");
}

static void flip(const char *path, off_t at)
{
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseeko(file, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    const int byte = fgetc(file);
    assert_int_equal(fseeko(file, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    fputc(byte ^ 4, file);
    assert_int_equal(fclose(file), 0);
}

/* Each time the weights are packed again, and the file is replaced. */
static void damage_is_found(void **state)
{
    enum { DATA_AT = 2 << 20 };
    char path[NAME];
    static const off_t places[] = {0, 17, 33, 41, 49, 57, DATA_AT, DATA_AT + 12345, -1};
    (void)state;
    check(first_model, 0, "kept for the next start");
    assert_int_equal(count_files(path), 1);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        flip(path, places[i]);
        check(first_model, 0, "is damaged");
        assert_non_null(strstr(said, "kept for the next start"));
        check(first_model, 0, "mapped from");
    }
    struct stat s;
    assert_int_equal(stat(path, &s), 0);
    const off_t lengths[] = {0, 10, 60, DATA_AT, s.st_size - 1};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        assert_int_equal(truncate(path, lengths[i]), 0);
        check(first_model, 0, "is cut off");
        check(first_model, 0, "mapped from");
    }
    assert_int_equal(chmod(path, 0666), 0);
    check(first_model, 0, "others may write it");
    check(first_model, 0, "mapped from");
}

/* A model file that was written again is another one. */
static void another_file_is_another_model(void **state)
{
    char path[NAME], copy[128];
    strbuf bytes = {0};
    qp_error error;
    (void)state;
    folder_make(copy);
    assert_ok(files_read(first_model, 1 << 26, &bytes, &error));
    folder_write(copy, "model.gguf", bytes.data, bytes.length);
    snprintf(path, sizeof path, "%s/model.gguf", copy);
    check(path, 0, "kept for the next start");
    folder_write(copy, "model.gguf", bytes.data, bytes.length);
    check(path, 0, "kept for the next start");
    strbuf_free(&bytes);
    folder_remove(copy);
}

static void old_files_make_room(void **state)
{
    char path[NAME];
    struct stat s;
    (void)state;
    check(first_model, 1024, "are allowed");
    assert_int_equal(count_files(path), 0);
    check(first_model, 0, "kept for the next start");
    assert_int_equal(count_files(path), 1);
    assert_int_equal(stat(path, &s), 0);
    check(second_model, (uint64_t)s.st_size + (2 << 20), "made room");
    assert_int_equal(count_files(path), 1);
    check(second_model, 0, "mapped from");
}

static void a_folder_that_cannot_be_written(void **state)
{
    char kept[sizeof folder];
    (void)state;
    memcpy(kept, folder, sizeof folder);
    strcpy(folder, "/proc/nowhere");
    check(first_model, 0, "packed weights are not kept: /proc/nowhere");
    memcpy(folder, kept, sizeof folder);
    check("synthetic:tiny", 0, "no file holds this model's weights");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_next_engine_maps_them, begin, end),
        cmocka_unit_test_setup_teardown(damage_is_found, begin, end),
        cmocka_unit_test_setup_teardown(another_file_is_another_model, begin, end),
        cmocka_unit_test_setup_teardown(old_files_make_room, begin, end),
        cmocka_unit_test_setup_teardown(a_folder_that_cannot_be_written, begin, end),
    };
    if (cpu_features(0) == 0) return 77; /* references pack nothing */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
