/* Starts and ends processes of models: see models.h. */
#include "router/models.h"

#include "base/clock.h"
#include "router/process.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEATHS_MOST = 5, ENDING_SECONDS = 10 };

static void make_room(models *all);

static void say(const models *all, qp_log_level level, const model *m, const char *what)
{
    char line[1024];
    snprintf(line, sizeof line, "%s: %s", m->name, what);
    if (all->options->log) all->options->log(NULL, level, line);
}

const char *model_state_name(const model *m)
{
    static const char *const names[] = {"unloaded", "loading", "loading",
                                        "loading",  "loaded",  "unloading"};
    return names[m ? m->state : MODEL_STOPPED];
}

static void set_state(model *m, model_state state)
{
    m->state = state;
    m->since = clock_ns();
}

static bool takes_memory(const model *m)
{
    return m->state == MODEL_LOADING || m->state == MODEL_READY || m->state == MODEL_ENDING;
}

uint64_t models_memory(const models *all)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < all->count; i++)
        if (takes_memory(all->items[i])) bytes += all->items[i]->needs;
    return bytes;
}

/* ---- What waits ------------------------------------------------------------------------------ */

/* All that wait go on, or are told why not. */
static void release(model *m, const char *why)
{
    waiting *w = m->first;
    m->first = NULL;
    m->last = &m->first;
    for (waiting *next; w; w = next) {
        next = w->next;
        if (!why) m->active++;
        w->go(w, why ? NULL : m, why);
    }
}

void models_forget(models *all, waiting *w)
{
    for (size_t i = 0; i < all->count; i++) {
        model *m = all->items[i];
        for (waiting **at = &m->first; *at; at = &(*at)->next) {
            if (*at != w) continue;
            *at = w->next;
            if (m->last == &w->next) m->last = at;
            return;
        }
    }
}

/* ---- A process ------------------------------------------------------------------------------- */

/* It ends by itself then. */
static void close_link(model *m)
{
    if (m->readable) event_free(m->readable);
    if (m->link >= 0) close(m->link);
    if (m->end >= 0) close(m->end);
    m->readable = NULL;
    m->link = m->end = -1;
}

static void end_process(model *m)
{
    if (m->state == MODEL_STOPPED || m->state == MODEL_ENDING) return;
    const bool took = takes_memory(m);
    close_link(m);
    if (!took) m->needs = 0;
    set_state(m, MODEL_ENDING);
    m->leaving = false;
}

static void end_if_done(model *m)
{
    if (m->active == 0 && m->state == MODEL_READY && (m->leaving || m->keep == 0)) end_process(m);
}

static void fail(model *m, const char *why)
{
    snprintf(m->why, sizeof m->why, "the model %.100s was not loaded: %.350s", m->name, why);
    end_process(m);
    release(m, m->why);
    make_room(m->all);
}

static void take_line(model *m, const char *line)
{
    if (strncmp(line, "needs ", 6) == 0 && m->state == MODEL_COUNTING) {
        m->needs = strtoull(line + 6, NULL, 10);
        set_state(m, MODEL_WAITING);
        make_room(m->all);
    } else if (strcmp(line, "ready") == 0 && m->state == MODEL_LOADING) {
        set_state(m, MODEL_READY);
        m->deaths = 0;
        m->used = clock_ns();
        say(m->all, QP_LOG_NOTICE, m, "loaded");
        release(m, NULL);
        end_if_done(m);
        make_room(m->all);
    } else if (strncmp(line, "failed ", 7) == 0) {
        fail(m, line + 7);
    }
}

/* Nothing comes at the end: on_ended() then hears that the process has gone. */
static void on_readable(evutil_socket_t link, short events, void *context)
{
    (void)events;
    model *m = context;
    char bytes[512];
    const ssize_t n = read(link, bytes, sizeof bytes);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (n <= 0) {
        event_del(m->readable);
        return;
    }
    for (ssize_t i = 0; i < n && m->link == link; i++) {
        if (bytes[i] != '\n') {
            if (m->in_line < sizeof m->line - 1) m->line[m->in_line++] = bytes[i];
            continue;
        }
        m->line[m->in_line] = '\0';
        m->in_line = 0;
        take_line(m, m->line);
    }
}

static qp_status start(model *m, const catalog_entry *e, qp_error *error)
{
    models *all = m->all;
    const process_command command = {
        e->path,    m->name,     m->socket, all->options->arguments, all->options->n_arguments,
        e->options, e->n_options};
    TRY(process_start(&command, &m->process, &m->link, &m->end, error));
    m->readable = event_new(all->base, m->link, EV_READ | EV_PERSIST, on_readable, m);
    set_state(m, MODEL_COUNTING);
    m->needs = 0;
    m->in_line = 0;
    m->stamp = catalog_stamp(e);
    *m->why = '\0';
    if (!m->readable || event_add(m->readable, NULL) != 0) {
        end_process(m);
        return error_no_memory(error, "a process", 0);
    }
    return QP_OK;
}

/* ---- Room ------------------------------------------------------------------------------------ */

/* After its answers, also those that wait until it is ready. */
static void leave(model *m)
{
    m->leaving = true;
    if (m->state != MODEL_READY && !m->first) end_process(m);
    end_if_done(m);
}

/* The one that was used longest ago of those that may be ended; NULL: none. */
static model *oldest(models *all)
{
    model *found = NULL;
    for (size_t i = 0; i < all->count; i++) {
        model *m = all->items[i];
        if (m->state != MODEL_READY || m->leaving) continue;
        if (!found || (m->active == 0) > (found->active == 0) ||
            ((m->active == 0) == (found->active == 0) && m->used < found->used))
            found = m;
    }
    return found;
}

static model *first_waiting(models *all)
{
    model *found = NULL;
    for (size_t i = 0; i < all->count; i++) {
        model *m = all->items[i];
        if (m->state == MODEL_WAITING && (!found || m->since < found->since)) found = m;
    }
    return found;
}

/* Bytes that are free once those that leave have ended. */
static uint64_t memory_to_come(const models *all)
{
    uint64_t taken = 0;
    for (size_t i = 0; i < all->count; i++) {
        const model *m = all->items[i];
        if (takes_memory(m) && !m->leaving && m->state != MODEL_ENDING) taken += m->needs;
    }
    return all->options->memory > taken ? all->options->memory - taken : 0;
}

/* Lets the model that has waited longest load, or ends others for it. */
static void make_room(models *all)
{
    const double gib = 1 << 30;
    for (model *m; (m = first_waiting(all));) {
        if (m->needs > all->options->memory) {
            char why[256];
            snprintf(
                why, sizeof why,
                "it needs %.2f GiB, and models may take %.2f GiB together (--models-memory); a "
                "smaller --context or --parallel takes less",
                (double)m->needs / gib, (double)all->options->memory / gib);
            fail(m, why);
            return; /* which has made room again */
        }
        if (models_memory(all) + m->needs <= all->options->memory) {
            set_state(m, MODEL_LOADING);
            if (send(m->link, "go\n", 3, MSG_NOSIGNAL) != 3) close_link(m);
            continue;
        }
        for (model *o; memory_to_come(all) < m->needs && (o = oldest(all));) {
            say(all, QP_LOG_NOTICE, o, "ends, because its memory is needed");
            leave(o);
        }
        return;
    }
}

static void restart(model *m)
{
    qp_error error = {0};
    const catalog_entry *e = catalog_find(&m->all->known, m->name);
    if (!e)
        release(m, "the model is no longer there");
    else if (start(m, e, &error) != QP_OK)
        release(m, error.message);
}

/* `killed`: by a signal, as by the system where memory runs out, or by a person. */
static void reap(model *m, bool killed)
{
    const bool unexpected = m->state != MODEL_ENDING;
    const bool loads = m->state != MODEL_READY;
    close_link(m);
    set_state(m, MODEL_STOPPED);
    m->process = 0;
    m->needs = 0;
    m->leaving = false;
    if (unexpected) say(m->all, QP_LOG_WARNING, m, "its process has ended unexpectedly");
    if (unexpected && loads && !(killed && ++m->deaths < DEATHS_MOST))
        release(m, "the process of the model ended while it was loaded; the server's log says why");
    else if (m->first)
        restart(m); /* for what came meanwhile */
    make_room(m->all);
}

static void on_ended(evutil_socket_t number, short events, void *context)
{
    (void)number, (void)events;
    models *all = context;
    for (size_t i = 0; i < all->count; i++) {
        model *m = all->items[i];
        int how;
        if (m->process > 0 && waitpid(m->process, &how, WNOHANG) == m->process)
            reap(m, WIFSIGNALED(how));
    }
}

/* A process that hangs is killed. */
static void check_time(model *m, uint64_t now)
{
    const double limit = m->all->options->load_timeout, spent = (double)(now - m->since) * 1e-9;
    if (m->process <= 0) return;
    if (m->state == MODEL_ENDING && spent >= ENDING_SECONDS) kill(m->process, SIGKILL);
    if ((m->state == MODEL_COUNTING || m->state == MODEL_LOADING) && limit > 0 && spent >= limit) {
        char why[128];
        snprintf(why, sizeof why, "it was not ready after %g seconds (--load-timeout)", limit);
        kill(m->process, SIGKILL);
        fail(m, why);
    }
}

/* Twice a second: those that nobody has used for long, and those that take too long. */
static void on_tick(evutil_socket_t number, short events, void *context)
{
    (void)number, (void)events;
    models *all = context;
    const uint64_t now = clock_ns();
    for (size_t i = 0; i < all->count; i++) {
        model *m = all->items[i];
        if (m->state == MODEL_READY && m->active == 0 && m->keep != UINT64_MAX &&
            now - m->used >= m->keep)
            leave(m);
        check_time(m, now);
    }
}

/* ---- From outside ---------------------------------------------------------------------------- */

qp_status models_open(models *all, const router_options *options, struct event_base *base,
                      qp_error *error)
{
    const struct timeval half = {.tv_usec = 500000};
    all->options = options;
    all->base = base;
    all->keep = options->keep_alive > 0 ? (uint64_t)(options->keep_alive * 1e9) : UINT64_MAX;
    snprintf(all->folder, sizeof all->folder, "/tmp/quipu-models-XXXXXX");
    if (!mkdtemp(all->folder))
        return error_set(error, QP_IO, "no folder for sockets in /tmp: %s", strerror(errno));
    all->ended = evsignal_new(base, SIGCHLD, on_ended, all);
    all->tick = event_new(base, -1, EV_PERSIST, on_tick, all);
    if (!all->ended || !all->tick || event_add(all->ended, NULL) != 0 ||
        event_add(all->tick, &half) != 0)
        return error_no_memory(error, "the server's events", 0);
    return QP_OK;
}

/* A process that is still there after some seconds is killed. */
static void end_for_good(model *m)
{
    const struct timespec pause = {.tv_nsec = 20000000};
    close_link(m);
    for (int i = 0; m->process > 0; i++) {
        if (waitpid(m->process, NULL, WNOHANG) != 0) return;
        if (i == 250) kill(m->process, SIGKILL);
        nanosleep(&pause, NULL);
    }
}

void models_close(models *all)
{
    for (size_t i = 0; i < all->count; i++) {
        close_link(all->items[i]); /* all end at the same time */
        release(all->items[i], "the server ends");
    }
    for (size_t i = 0; i < all->count; i++) {
        end_for_good(all->items[i]);
        unlink(all->items[i]->socket);
        free(all->items[i]->name);
        free(all->items[i]);
    }
    if (*all->folder) rmdir(all->folder);
    if (all->ended) event_free(all->ended);
    if (all->tick) event_free(all->tick);
    free(all->items);
    catalog_free(&all->known);
}

static model *find(const models *all, const char *name)
{
    for (size_t i = 0; i < all->count; i++)
        if (strcmp(all->items[i]->name, name) == 0) return all->items[i];
    return NULL;
}

static model *make(models *all, const char *name)
{
    model **grown = realloc(all->items, (all->count + 1) * sizeof *grown);
    model *m = grown ? calloc(1, sizeof *m) : NULL;
    if (grown) all->items = grown;
    if (m) m->name = strdup(name);
    if (!m || !m->name) return free(m), NULL;
    m->all = all;
    m->link = m->end = -1;
    m->last = &m->first;
    m->keep = all->keep;
    snprintf(m->socket, sizeof m->socket, "%s/%zu.sock", all->folder, all->count);
    all->items[all->count++] = m;
    return m;
}

/* NULL: no memory. */
static model *find_or_make(models *all, const catalog_entry *e)
{
    model *m = find(all, e->name);
    return m ? m : make(all, e->name);
}

void models_keep(models *all, const char *name, uint64_t keep)
{
    const catalog_entry *e = catalog_find(&all->known, name);
    model *m = e ? find_or_make(all, e) : NULL;
    if (m) m->keep = keep;
}

qp_status models_ask(models *all, const char *name, waiting *w, qp_error *error)
{
    const catalog_entry *e = catalog_find(&all->known, name);
    if (!e) return error_set(error, QP_IO, "there is no model %.200s here", name);
    model *m = find_or_make(all, e);
    if (!m) return error_no_memory(error, "a model", sizeof *m);
    if (m->state == MODEL_READY && !m->leaving) {
        m->active++;
        w->go(w, m, NULL);
        return QP_OK;
    }
    if (m->state == MODEL_STOPPED) TRY(start(m, e, error));
    w->next = NULL;
    *m->last = w;
    m->last = &w->next;
    return QP_OK;
}

void models_answered(model *m)
{
    m->active--;
    m->used = clock_ns();
    end_if_done(m);
}

bool models_runs(const models *all, const char *name)
{
    const catalog_entry *e = catalog_find(&all->known, name);
    const model *m = e ? find(all, e->name) : NULL;
    return m && m->state != MODEL_STOPPED && m->state != MODEL_ENDING;
}

void models_end(models *all, const char *name)
{
    const catalog_entry *e = catalog_find(&all->known, name);
    if (models_runs(all, name)) leave(find(all, e->name));
}

qp_status models_list(models *all, qp_error *error)
{
    TRY(catalog_read(all->options->models, &all->known, error));
    for (size_t i = 0; i < all->count; i++) {
        model *m = all->items[i];
        const catalog_entry *e = catalog_find(&all->known, m->name);
        if (m->state == MODEL_READY && !m->leaving && (!e || catalog_stamp(e) != m->stamp)) {
            say(all, QP_LOG_NOTICE, m, "ends, because its files have changed");
            leave(m);
        }
    }
    return QP_OK;
}

model *models_last(models *all)
{
    model *found = NULL;
    for (size_t i = 0; i < all->count; i++) {
        model *m = all->items[i];
        if (m->state == MODEL_READY && (!found || m->used > found->used)) found = m;
    }
    return found;
}

void models_renew(models *all)
{
    for (size_t i = 0; i < all->count; i++)
        if (all->items[i]->state == MODEL_READY) leave(all->items[i]);
}
