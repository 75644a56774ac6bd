/* Answers of a hub: names of files stay inside of the folder that they are for, hashes are
 * hexadecimal, and what is chosen is among what there is. The input's first line is the reference's
 * selection, the rest the answer.
 */
#include "hub/repository.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(bool good)
{
    if (!good) abort();
}

static void check_file(const repository_file *f)
{
    char path[HUB_NAME_SIZE + 2];
    snprintf(path, sizeof path, "/%s", f->name);
    must(f->name[0] && f->name[0] != '/' && strlen(f->name) < HUB_NAME_SIZE);
    must(!strstr(path, "/.") && !strstr(path, "//") && !strchr(path, '\\'));
    must(strlen(f->etag) == (f->large ? 64 : 40));
    must(strspn(f->etag, "0123456789abcdef") == strlen(f->etag));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *line = size ? memchr(data, '\n', size) : NULL;
    const size_t selected = line ? (size_t)(line - data) : 0, from = line ? selected + 1 : 0;
    hub_reference reference = {.owner = "o", .name = "m"};
    repository r = {0};
    qp_error error = {0};
    if (selected < sizeof reference.select) memcpy(reference.select, data, selected);
    if (memchr(reference.select, '\0', selected)) reference.select[0] = '\0';
    if (repository_parse((const char *)data + from, size - from, "answer", &r, &error) == QP_OK) {
        const size_t before = r.n_files;
        must(strlen(r.commit) == 40);
        for (size_t i = 0; i < r.n_files; i++)
            check_file(&r.files[i]);
        if (repository_choose(&r, &reference, &error) == QP_OK)
            must(r.n_files > 0 && r.n_files <= before);
        else
            must(error.message[0] != '\0');
    } else {
        must(error.message[0] != '\0');
    }
    repository_free(&r);
    return 0;
}
