/* The cache of models and how it is filled: see hub.h for its layout. */
#include "hub/repository.h"
#include "base/files.h"
#include "base/names.h"
#include "base/replace_file.h"
#include "hub/transfer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- paths --------------------------------------------------------------------------------- */

/* A path as printf() makes it; QP_INVALID where it is too long. */
static qp_status make_path(char *path, qp_error *error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static qp_status make_path(char *path, qp_error *error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int length = vsnprintf(path, HUB_PATH_SIZE, format, args);
    va_end(args);
    if (length >= 0 && length < HUB_PATH_SIZE) return QP_OK;
    return files_path_too_long(path, error);
}

static qp_status repository_folder(const hub *hub, const hub_reference *r, char *path,
                                   qp_error *error)
{
    return make_path(path, error, "%s/models--%s--%s", hub->cache, r->owner, r->name);
}

/* Makes the folders above a file. */
static qp_status make_folders(const char *file, qp_error *error)
{
    char folder[HUB_PATH_SIZE];
    TRY(make_path(folder, error, "%s", file));
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(folder, 0777) != 0 && errno != EEXIST)
            return error_set(error, QP_IO, "%s cannot be made: %s", folder, strerror(errno));
        *slash = '/';
    }
    return QP_OK;
}

/* ---- looking up ---------------------------------------------------------------------------- */

/* The commit of "main" at the last fetch. */
static bool read_commit(const char *folder, char commit[65])
{
    char path[HUB_PATH_SIZE];
    if (make_path(path, NULL, "%s/refs/main", folder) != QP_OK) return false;
    FILE *file = fopen(path, "r");
    size_t length = file ? fread(commit, 1, 64, file) : 0;
    if (file) fclose(file);
    commit[length] = '\0';
    commit[strspn(commit, "0123456789abcdef")] = '\0';
    return strlen(commit) == 40;
}

typedef struct listing {
    char **names; /* [count], sorted, without names that begin with a dot */
    int count;
} listing;

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void listing_free(listing *l)
{
    for (int i = 0; i < l->count; i++)
        free(l->names[i]);
    free(l->names);
}

/* A folder's members; none if it cannot be read. */
static listing read_folder(const char *folder)
{
    listing out = {0};
    DIR *open = opendir(folder);
    struct dirent *entry;
    while (open && (entry = readdir(open))) {
        if (entry->d_name[0] == '.') continue;
        char **names = realloc(out.names, (size_t)(out.count + 1) * sizeof *names);
        if (!names) break;
        out.names = names;
        if (!(names[out.count] = strdup(entry->d_name))) break;
        out.count++;
    }
    if (open) closedir(open);
    if (out.count) qsort(out.names, (size_t)out.count, sizeof *out.names, by_name);
    return out;
}

/* Whether a GGUF file of a snapshot matches the reference; without a selection any does. */
static bool selects(const hub_reference *r, const char *file)
{
    if (!name_ends_with(file, ".gguf")) return false;
    return !*r->select || strcmp(file, r->select) == 0 || repository_is_of_type(file, r->select);
}

/* Finds the reference in a snapshot: a GGUF file, else the folder of a safetensors model. */
static bool find_in_snapshot(const char *snapshot, const hub_reference *r, char *path)
{
    listing files = read_folder(snapshot);
    bool found = false, weights = false, sizes = false;
    for (int i = 0; i < files.count && !found; i++) {
        found = selects(r, files.names[i]) &&
                make_path(path, NULL, "%s/%s", snapshot, files.names[i]) == QP_OK &&
                access(path, R_OK) == 0;
        weights |= strstr(files.names[i], ".safetensors") != NULL;
        sizes |= strcmp(files.names[i], "config.json") == 0;
    }
    listing_free(&files);
    if (found || *r->select || !weights || !sizes) return found;
    return make_path(path, NULL, "%s", snapshot) == QP_OK;
}

qp_status hub_find(const hub *hub, const hub_reference *r, char path[HUB_PATH_SIZE],
                   qp_error *error)
{
    char folder[HUB_PATH_SIZE], snapshot[HUB_PATH_SIZE], commit[65], name[3 * HUB_NAME_SIZE];
    TRY(repository_folder(hub, r, folder, error));
    if (read_commit(folder, commit)) {
        TRY(make_path(snapshot, error, "%s/snapshots/%s", folder, commit));
        if (*r->select && strchr(r->select, '/')) {
            TRY(make_path(path, error, "%s/%s", snapshot, r->select));
            if (access(path, R_OK) == 0) return QP_OK;
        } else if (find_in_snapshot(snapshot, r, path)) {
            return QP_OK;
        }
    }
    hub_print_reference(r, name, sizeof name);
    return error_set(error, QP_IO, "%s is not in %s; fetch it with: quipu pull %s", name,
                     hub->cache, name);
}

/* ---- fetching ------------------------------------------------------------------------------ */

/* Computes the hash by which the hub identifies a file: SHA-256, or SHA-1 of "blob SIZE\0" and the
 * content. */
static qp_status hash_file(const char *path, const repository_file *file, char hex[65],
                           qp_error *error)
{
    static unsigned char block[1 << 20];
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    FILE *from = fopen(path, "rb");
    if (!from) return error_set(error, QP_IO, "%s cannot be read: %s", path, strerror(errno));
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool fine =
        context && EVP_DigestInit_ex(context, file->large ? EVP_sha256() : EVP_sha1(), NULL);
    if (fine && !file->large) {
        char head[64];
        int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)file->bytes);
        fine = EVP_DigestUpdate(context, head, (size_t)n + 1);
    }
    for (size_t n; fine && (n = fread(block, 1, sizeof block, from)) > 0;)
        fine = EVP_DigestUpdate(context, block, n);
    fine = fine && !ferror(from) && EVP_DigestFinal_ex(context, digest, &length);
    EVP_MD_CTX_free(context);
    fclose(from);
    if (!fine) return error_set(error, QP_IO, "%s cannot be read and hashed", path);
    for (unsigned i = 0; i < length && i < 32; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    return QP_OK;
}

static bool is_whole(const char *blob, uint64_t bytes)
{
    struct stat found;
    return stat(blob, &found) == 0 && S_ISREG(found.st_mode) && (uint64_t)found.st_size == bytes;
}

/* Removes the list of a blob's parts that are there; an end between the two may have left it. */
static qp_status remove_marks(const char *blob, qp_error *error)
{
    char marks[HUB_PATH_SIZE];
    TRY(make_path(marks, error, "%s.quipu.parts", blob));
    unlink(marks);
    return QP_OK;
}

/* Fetches a file's bytes, checks them, and renames the file to its hash. */
static qp_status fetch_blob(const hub *hub, const hub_reference *r, const repository *repo,
                            const repository_file *file, const char *blob, qp_error *error)
{
    char part[HUB_PATH_SIZE], url[8 * HUB_NAME_SIZE], hex[65] = "";
    TRY(make_path(part, error, "%s.quipu", blob));
    TRY(make_folders(part, error));
    snprintf(url, sizeof url, "%s/%s/%s/resolve/%s/%s", hub->endpoint, r->owner, r->name,
             repo->commit, file->name);
    TRY(transfer_file(hub, url, part, file->bytes, error));
    TRY(hash_file(part, file, hex, error));
    if (strcmp(hex, file->etag) != 0) {
        unlink(part);
        TRY(remove_marks(blob, error));
        return error_set(error, QP_IO,
                         "%s: expected the hash %s, found %s; the fetched file was removed: try "
                         "again",
                         file->name, file->etag, hex);
    }
    TRY(file_rename(part, blob, error));
    return remove_marks(blob, error);
}

/* Links the blob into the snapshot by a relative path, as huggingface_hub does. */
static qp_status link_blob(const char *folder, const repository *repo, const repository_file *file,
                           qp_error *error)
{
    char link[HUB_PATH_SIZE];
    strbuf target = {0};
    TRY(make_path(link, error, "%s/snapshots/%s/%s", folder, repo->commit, file->name));
    TRY(make_folders(link, error));
    strbuf_puts(&target, "../../");
    for (const char *slash = strchr(file->name, '/'); slash; slash = strchr(slash + 1, '/'))
        strbuf_puts(&target, "../");
    strbuf_printf(&target, "blobs/%s", file->etag);
    unlink(link);
    bool made = !target.failed && symlink(strbuf_text(&target), link) == 0;
    strbuf_free(&target);
    return made ? QP_OK : error_set(error, QP_IO, "%s cannot be made: %s", link, strerror(errno));
}

static qp_status write_commit(const char *folder, const char *commit, qp_error *error)
{
    char path[HUB_PATH_SIZE];
    file_replacement to;
    TRY(make_path(path, error, "%s/refs/main", folder));
    TRY(make_folders(path, error));
    TRY(file_replacement_begin(path, 0666, &to, error));
    const qp_status status = fputs(commit, to.stream) >= 0 ? file_replacement_end(&to, error)
                                                           : file_replacement_failed(&to, error);
    file_replacement_drop(&to);
    return status;
}

/* Fetches the missing files, then publishes them as a snapshot. */
static qp_status fetch_files(const hub *hub, const hub_reference *r, const char *folder,
                             const repository *repo, qp_error *error)
{
    uint64_t total = 0;
    char blob[HUB_PATH_SIZE];
    for (size_t i = 0; i < repo->n_files; i++) {
        TRY(make_path(blob, error, "%s/blobs/%s", folder, repo->files[i].etag));
        if (!is_whole(blob, repo->files[i].bytes)) total += repo->files[i].bytes;
    }
    if (hub->progress && total) progress_begin(hub->progress, "fetching", total);
    for (size_t i = 0; i < repo->n_files; i++) {
        const repository_file *file = &repo->files[i];
        TRY(make_path(blob, error, "%s/blobs/%s", folder, file->etag));
        TRY(is_whole(blob, file->bytes) ? remove_marks(blob, error)
                                        : fetch_blob(hub, r, repo, file, blob, error));
    }
    if (hub->progress && total) progress_end(hub->progress);
    for (size_t i = 0; i < repo->n_files; i++)
        TRY(link_blob(folder, repo, &repo->files[i], error));
    return write_commit(folder, repo->commit, error);
}

/* Locks the repository, so that one process fetches it at a time; others wait. */
static qp_status lock_folder(const char *folder, int *lock, qp_error *error)
{
    char path[HUB_PATH_SIZE];
    TRY(make_path(path, error, "%s/.quipu.lock", folder));
    TRY(make_folders(path, error));
    *lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (*lock < 0) return error_set(error, QP_IO, "%s cannot be made: %s", path, strerror(errno));
    while (flock(*lock, LOCK_EX) != 0) {
        if (errno != EINTR)
            return error_set(error, QP_IO, "%s cannot be locked: %s", path, strerror(errno));
    }
    return QP_OK;
}

qp_status hub_pull(const hub *hub, const hub_reference *r, char path[HUB_PATH_SIZE],
                   qp_error *error)
{
    char folder[HUB_PATH_SIZE];
    repository repo;
    int lock = -1;
    if (hub->offline)
        return error_set(error, QP_IO,
                         "%s/%s: HF_HUB_OFFLINE is set, so nothing is fetched; unset it", r->owner,
                         r->name);
    TRY(repository_folder(hub, r, folder, error));
    qp_status status = repository_read(hub, r, &repo, error);
    if (status == QP_OK) status = repository_choose(&repo, r, error);
    if (status == QP_OK) status = lock_folder(folder, &lock, error);
    if (status == QP_OK) status = fetch_files(hub, r, folder, &repo, error);
    if (lock >= 0) close(lock);
    if (status == QP_OK && strstr(repo.files[0].name, ".gguf"))
        status =
            make_path(path, error, "%s/snapshots/%s/%s", folder, repo.commit, repo.files[0].name);
    else if (status == QP_OK)
        status = make_path(path, error, "%s/snapshots/%s", folder, repo.commit);
    repository_free(&repo);
    return status;
}

/* ---- lists and removal --------------------------------------------------------------------- */

/* Owner and name of "models--OWNER--NAME". */
static bool parse_folder(const char *folder, hub_reference *out)
{
    static const char prefix[] = "models--";
    char text[3 * HUB_NAME_SIZE];
    if (strncmp(folder, prefix, sizeof prefix - 1) != 0) return false;
    snprintf(text, sizeof text, "%s", folder + sizeof prefix - 1);
    char *separator = strstr(text, "--");
    if (!separator) return false;
    memmove(separator + 1, separator + 2, strlen(separator + 2) + 1);
    *separator = '/';
    return hub_parse(text, out, NULL) == QP_OK;
}

static uint64_t file_bytes(const char *path)
{
    struct stat found;
    return stat(path, &found) == 0 && S_ISREG(found.st_mode) ? (uint64_t)found.st_size : 0;
}

/* Calls back for the models of a repository's snapshot: each GGUF file, or the whole folder. */
static qp_status visit_snapshot(const char *snapshot, hub_reference r, hub_visitor *visit,
                                void *context, qp_error *error)
{
    hub_entry entry, whole = {0};
    listing files = read_folder(snapshot);
    qp_status status = QP_OK;
    bool any = false;
    for (int i = 0; i < files.count && status == QP_OK; i++) {
        if (make_path(entry.path, NULL, "%s/%s", snapshot, files.names[i]) != QP_OK) continue;
        entry.bytes = file_bytes(entry.path);
        whole.bytes += entry.bytes;
        if (!selects(&r, files.names[i]) || entry.bytes == 0) continue;
        any = true;
        snprintf(entry.reference, sizeof entry.reference, "%s/%s:%.255s", r.owner, r.name,
                 files.names[i]);
        status = visit(context, &entry, error);
    }
    listing_free(&files);
    if (any || status != QP_OK || !find_in_snapshot(snapshot, &r, whole.path)) return status;
    hub_print_reference(&r, whole.reference, sizeof whole.reference);
    return visit(context, &whole, error);
}

qp_status hub_list(const hub *hub, hub_visitor *visit, void *context, qp_error *error)
{
    listing folders = read_folder(hub->cache);
    qp_status status = QP_OK;
    for (int i = 0; i < folders.count && status == QP_OK; i++) {
        char folder[HUB_PATH_SIZE], snapshot[HUB_PATH_SIZE], commit[65];
        hub_reference r;
        if (!parse_folder(folders.names[i], &r) ||
            make_path(folder, NULL, "%s/%s", hub->cache, folders.names[i]) != QP_OK ||
            !read_commit(folder, commit) ||
            make_path(snapshot, NULL, "%s/snapshots/%s", folder, commit) != QP_OK)
            continue;
        status = visit_snapshot(snapshot, r, visit, context, error);
    }
    listing_free(&folders);
    return status;
}

/* Removes a folder and everything in it; adds the size of its files to *bytes. Links are not
 * followed. */
static qp_status remove_tree(const char *folder, uint64_t *bytes, qp_error *error)
{
    char path[HUB_PATH_SIZE];
    struct stat found;
    DIR *open = opendir(folder);
    struct dirent *entry;
    qp_status status = QP_OK;
    while (open && status == QP_OK && (entry = readdir(open))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        status = make_path(path, error, "%s/%s", folder, entry->d_name);
        if (status != QP_OK || lstat(path, &found) != 0) continue;
        if (S_ISDIR(found.st_mode)) {
            status = remove_tree(path, bytes, error);
        } else if (unlink(path) == 0) {
            if (S_ISREG(found.st_mode)) *bytes += (uint64_t)found.st_size;
        } else {
            status = error_set(error, QP_IO, "%s cannot be removed: %s", path, strerror(errno));
        }
    }
    if (open) closedir(open);
    if (status != QP_OK || rmdir(folder) == 0) return status;
    return error_set(error, QP_IO, "%s cannot be removed: %s", folder, strerror(errno));
}

qp_status hub_remove(const hub *hub, const hub_reference *r, uint64_t *bytes, qp_error *error)
{
    char folder[HUB_PATH_SIZE], path[HUB_PATH_SIZE], blob[HUB_PATH_SIZE];
    *bytes = 0;
    TRY(hub_find(hub, r, path, error));
    if (!*r->select) {
        TRY(repository_folder(hub, r, folder, error));
        return remove_tree(folder, bytes, error);
    }
    uint64_t size = file_bytes(path);
    char blobs[HUB_PATH_SIZE + 8];
    TRY(repository_folder(hub, r, folder, error));
    bool linked = realpath(folder, blobs) && realpath(path, blob);
    if (linked) strcat(blobs, "/blobs/");
    linked = linked && strncmp(blob, blobs, strlen(blobs)) == 0; /* of this model */
    if (unlink(path) != 0 || (linked && unlink(blob) != 0))
        return error_set(error, QP_IO, "%s cannot be removed: %s", path, strerror(errno));
    *bytes = size;
    return QP_OK;
}
