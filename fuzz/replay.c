/* Gives every file of a corpus folder to a fuzz target, once: replay FOLDER...
 *
 * Stands in for libFuzzer in the ordinary builds, so that each input that was ever worth keeping is
 * tried again by gcc, by every sanitizer, on every run of the suites.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Whether `path` is a regular file that could be read. */
static int replay_file(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) return 0;
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        return 0;
    }
    /* Exactly as large as the input, so that a sanitizer sees a read past its end. */
    size_t size = (size_t)info.st_size;
    uint8_t *data = malloc(size ? size : 1);
    int whole = data && fread(data, 1, size, file) == size;
    if (whole) LLVMFuzzerTestOneInput(data, size);
    free(data);
    fclose(file);
    return whole;
}

int main(int argc, char **argv)
{
    int count = 0;
    for (int i = 1; i < argc; i++) {
        DIR *folder = opendir(argv[i]);
        for (struct dirent *entry; folder && (entry = readdir(folder));) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name);
            count += replay_file(path);
        }
        if (folder) closedir(folder);
    }
    printf("%d inputs replayed\n", count);
    return count > 0 ? 0 : 1;
}
