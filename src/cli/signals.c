/* Signals, and standard descriptors that are closed: see cli.h. */
#include "cli/cli.h"

#include "file/mapping.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

volatile int cli_interrupted;
static volatile sig_atomic_t catching;

/* While no command catches interrupts, there are no half-written files, so the process may end at
 * once. It ends by the signal itself, so that a shell stops its loop too. */
static void on_interrupt(int number)
{
    static const char message[] = "\nquipu: interrupted\n";
    cli_interrupted = 1;
    if (catching) return;
    ssize_t ignored = write(STDERR_FILENO, message, sizeof message - 1);
    (void)ignored;
    signal(number, SIG_DFL);
    raise(number);
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
    signal(SIGPIPE, SIG_IGN); /* a closed pipe and a file that may not grow further are errors */
    signal(SIGXFSZ, SIG_IGN); /* of writing, reported like any other */
}

void cli_catch_interrupt(void)
{
    cli_interrupted = 0;
    catching = 1;
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
    cli_interrupted = 1;
}

void cli_catch_endings(void)
{
    cli_catch_interrupt();
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
