/* Files of sessions: whatever is loaded is a session of tokens of the vocabulary, and what is
 * refused leaves the session empty and gives its pages back.
 *
 * If the input's first byte is even, the rest is the file. If it is odd, the rest are edits of a
 * good file: offset (2 bytes), value, and a fourth byte that nothing reads. With bit 1 checksums
 * are made anew, so that hostile numbers pass them; with bit 2 the file is cut at the last edit. */
#include "engine/engine.h"
#include "engine/page_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEADER = 64, SESSION = 24, PAGE = 4, TOKENS = 10, MOST = 1 << 16 };

static struct {
    qp_engine *engine;
    int fd;
    char path[32];
    uint8_t good[MOST];
    size_t size, record;
} state = {.fd = -1};

static void must(bool good)
{
    if (!good) abort();
}

static void open_state(void)
{
    qp_error error;
    qp_session *s;
    int32_t tokens[TOKENS];
    char path[] = "/tmp/quipu-fuzz-XXXXXX", saved[sizeof path + 4];
    const qp_engine_options options = {.size = sizeof options,
                                       .model = "synthetic:tiny",
                                       .device = "cpu",
                                       .threads = 1,
                                       .context = 32,
                                       .page_size = PAGE,
                                       .max_sessions = 1};
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = i;
    must(qp_engine_open(&options, &state.engine, &error) == QP_OK);
    must(qp_session_open(state.engine, &s, &error) == QP_OK);
    const qp_input input = {.session = s, .tokens = tokens, .count = TOKENS};
    must(qp_eval(state.engine, &input, 1, NULL, NULL, NULL, &error) == QP_OK);
    state.fd = mkstemp(path);
    snprintf(saved, sizeof saved, "%s.too", path);
    must(state.fd >= 0 && qp_session_save(s, saved, &error) == QP_OK);
    qp_session_close(s);
    FILE *file = fopen(saved, "rb");
    must(file != NULL);
    state.size = fread(state.good, 1, MOST, file);
    must(state.size < MOST);
    state.record = (state.size - HEADER - SESSION) / ((TOKENS + PAGE - 1) / PAGE);
    fclose(file);
    unlink(saved);
    unlink(path);
    snprintf(state.path, sizeof state.path, "/proc/self/fd/%d", state.fd);
}

static void seal(uint8_t *file, size_t size)
{
    uint64_t sum, print;
    memcpy(&print, file + 16, sizeof print);
    sum = page_file_sum(file, HEADER - 8);
    memcpy(file + HEADER - 8, &sum, sizeof sum);
    sum = page_file_sum(file + HEADER, SESSION - 8);
    memcpy(file + HEADER + SESSION - 8, &sum, sizeof sum);
    for (size_t at = HEADER + SESSION, i = 0; at + state.record <= size; at += state.record, i++) {
        sum = keyed_hash((hash_key){{print, i}}, file + at, state.record - 8);
        memcpy(file + at + state.record - 8, &sum, sizeof sum);
    }
}

static void put(const void *bytes, size_t n)
{
    must(ftruncate(state.fd, 0) == 0 && lseek(state.fd, 0, SEEK_SET) == 0);
    must(write(state.fd, bytes, n) == (ssize_t)n);
}

static void write_file(const uint8_t *data, size_t size)
{
    static uint8_t file[MOST];
    size_t length = state.size;
    if (size == 0 || !(data[0] & 1)) {
        put(size ? data + 1 : data, size ? size - 1 : 0);
        return;
    }
    memcpy(file, state.good, state.size);
    for (size_t i = 1; i + 4 <= size; i += 4) {
        const size_t at = (data[i] | (size_t)data[i + 1] << 8) % state.size;
        file[at] = data[i + 2];
        if (data[0] & 4) length = at;
    }
    if (data[0] & 2) seal(file, state.size);
    put(file, length);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qp_error error = {0};
    qp_session *s;
    size_t count;
    if (!state.engine) open_state();
    write_file(data, size);
    must(qp_session_open(state.engine, &s, &error) == QP_OK);
    const qp_status status = qp_session_load(s, state.path, &error);
    const int32_t *tokens = qp_session_tokens(s, &count);
    must(status == QP_OK || (count == 0 && strstr(error.message, state.path)));
    for (size_t i = 0; i < count; i++)
        must(tokens[i] >= 0 && tokens[i] < qp_engine_get_info(state.engine)->vocab_size);
    qp_session_close(s);
    must(state.engine->pages.n_free == state.engine->pages.n_pages);
    return 0;
}
