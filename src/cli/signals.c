/* Signals, and standard descriptors that are closed: see cli.h. */
#include "cli/cli.h"

#include "base/replace_file.h"
#include "file/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* How long a command has to end by itself after it was asked to, in milliseconds. */
enum { GRACE_MS = 1500 };

volatile int cli_interrupted;
static volatile sig_atomic_t catching; /* interrupts; 2: of a conversation */
static volatile sig_atomic_t asked;    /* the signal that asked the command to end */
static volatile sig_atomic_t asked_at; /* seconds of a clock that only rises */

/* The process ends by the signal itself, so that a shell stops its loop too. */
static void end_by(int number)
{
    signal(number, SIG_DFL);
    raise(number);
}

/* What is under way does not come back: a disk, a driver or a kernel hangs, or the work is long. */
static void on_grace_over(int number)
{
    static const char message[] = "\nquipu: interrupted: what was under way was cut off\n";
    (void)number;
    ssize_t ignored = write(STDERR_FILENO, message, sizeof message - 1);
    (void)ignored;
    file_replacement_drop_all();
    end_by(asked ? asked : SIGTERM);
}

void cli_limit_ending(bool limit)
{
    const struct itimerval grace = {
        .it_value = {.tv_sec = GRACE_MS / 1000, .tv_usec = GRACE_MS % 1000 * 1000}};
    setitimer(ITIMER_REAL, limit ? &grace : &(struct itimerval){0}, NULL);
}

static sig_atomic_t seconds_now(void)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (sig_atomic_t)now.tv_sec;
}

/* An interrupt of a conversation ends the answer. Another one ends the program where the answer
 * has not ended meanwhile. */
static void on_caught(int number)
{
    const sig_atomic_t now = seconds_now();
    asked = number;
    if (catching == 1)
        cli_limit_ending(true);
    else if (cli_interrupted && now - asked_at > GRACE_MS / 1000)
        on_grace_over(0);
    if (!cli_interrupted) asked_at = now;
    cli_interrupted = 1;
}

/* While no command catches interrupts, there are no half-written files, so the process may end at
 * once. */
static void on_interrupt(int number)
{
    static const char message[] = "\nquipu: interrupted\n";
    if (catching) {
        on_caught(number);
        return;
    }
    cli_interrupted = 1;
    ssize_t ignored = write(STDERR_FILENO, message, sizeof message - 1);
    (void)ignored;
    end_by(number);
}

/* A page of a mapped file is gone, because the file was cut. */
static void on_lost_page(int number, siginfo_t *about, void *context)
{
    static const char before[] = "\nquipu: ",
                      after[] = ": the file was cut or written while it was in use, so quipu ends; "
                                "replace model files by renaming\n";
    const char *path = mapping_at(about->si_addr);
    (void)context;
    if (path) {
        ssize_t ignored = write(STDERR_FILENO, before, sizeof before - 1);
        ignored = write(STDERR_FILENO, path, strlen(path));
        ignored = write(STDERR_FILENO, after, sizeof after - 1);
        (void)ignored;
        _exit(1);
    }
    signal(number, SIG_DFL); /* the access that failed is tried again, and ends the process */
}

void cli_handle_signals(void)
{
    struct sigaction lost = {.sa_sigaction = on_lost_page, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &lost, NULL);
    struct sigaction action = {.sa_handler = on_interrupt}; /* reads are not restarted */
    sigaction(SIGINT, &action, NULL);
    signal(SIGALRM, on_grace_over);
    signal(SIGPIPE, SIG_IGN); /* a closed pipe and a file that may not grow further are errors */
    signal(SIGXFSZ, SIG_IGN); /* of writing, reported like any other */
}

static void catch_interrupt(int how)
{
    cli_limit_ending(false);
    cli_interrupted = 0;
    catching = how;
}

/* Waits until standard output, a pipe, has no reader any more. A command that hangs would not write
 * to it, and so never notice. */
static void *watch_reader(void *unused)
{
    struct pollfd output = {.fd = STDOUT_FILENO};
    (void)unused;
    while (poll(&output, 1, -1) < 0 && errno == EINTR) {
    }
    if (!(output.revents & POLLERR)) return NULL;
    const struct timespec grace = {GRACE_MS / 1000, GRACE_MS % 1000 * 1000000};
    nanosleep(&grace, NULL); /* in which a command that writes ends by itself */
    file_replacement_drop_all();
    end_by(SIGPIPE);
    return NULL;
}

static void start_watch(void)
{
    pthread_t thread;
    struct stat about;
    if (fstat(STDOUT_FILENO, &about) == 0 && S_ISFIFO(about.st_mode) &&
        pthread_create(&thread, NULL, watch_reader, NULL) == 0)
        pthread_detach(thread);
}

void cli_catch_interrupt(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    catch_interrupt(1);
    pthread_once(&once, start_watch);
}

void cli_catch_answers_interrupt(void)
{
    catch_interrupt(2);
}

void cli_release_interrupt(void)
{
    catching = 0;
}

static const int endings[] = {SIGTERM, SIGHUP, SIGQUIT};
enum { N_ENDINGS = sizeof endings / sizeof *endings };
static volatile sig_atomic_t ending; /* the signal that arrived */

static void on_ending(int number)
{
    ending = number;
    on_caught(number);
}

void cli_catch_endings(void)
{
    catch_interrupt(1);
    for (int i = 0; i < N_ENDINGS; i++) {
        struct sigaction action, found;
        sigaction(endings[i], NULL, &found);
        action = (struct sigaction){.sa_handler = on_ending};
        /* nohup lets a program ignore SIGHUP. */
        if (found.sa_handler != SIG_IGN) sigaction(endings[i], &action, NULL);
    }
}

void cli_release_endings(void)
{
    cli_release_interrupt();
    for (int i = 0; i < N_ENDINGS; i++) {
        struct sigaction found;
        sigaction(endings[i], NULL, &found);
        if (found.sa_handler == on_ending) signal(endings[i], SIG_DFL);
    }
    if (ending) raise(ending);
}

/* If the caller closed a standard descriptor, the next file opened would get its number, and
 * answers would be written into that file. A descriptor that refuses to be written (for standard
 * input, read) takes its place. */
void cli_fill_descriptors(void)
{
    static const int modes[] = {O_WRONLY, O_RDONLY, O_WRONLY};
    for (int fd = 0; fd < 3; fd++) {
        if (fcntl(fd, F_GETFD) < 0) open("/dev/null", modes[fd]);
    }
}
