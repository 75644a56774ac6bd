/* The linker's identifier of the program or library that this code is in: see build_id.h. */
#define _GNU_SOURCE
#include "base/build_id.h"

#include "base/checked.h"
#include "base/keyed_hash.h"

#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

typedef struct search {
    uintptr_t address; /* of code whose object is looked for */
    bool found;
    uint64_t id;
} search;

static bool holds(const struct dl_phdr_info *object, uintptr_t address)
{
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        const uintptr_t begin = object->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && address >= begin && address < begin + part->p_memsz)
            return true;
    }
    return false;
}

/* Looks for the note in a segment of notes. */
static void read_notes(const char *at, size_t bytes, search *s)
{
    const char *end = at + bytes;
    while ((size_t)(end - at) >= sizeof(ElfW(Nhdr))) {
        const ElfW(Nhdr) *note = (const void *)at;
        const char *name = at + sizeof *note, *value = name + round_up(note->n_namesz, 4);
        const char *next = value + round_up(note->n_descsz, 4);
        if (next > end) return;
        if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 && memcmp(name, "GNU", 4) == 0) {
            s->id = keyed_hash((hash_key){{1, 2}}, value, note->n_descsz);
            s->found = true;
        }
        at = next;
    }
}

static int visit(struct dl_phdr_info *object, size_t size, void *context)
{
    search *s = context;
    (void)size;
    if (!holds(object, s->address)) return 0;
    for (int i = 0; i < object->dlpi_phnum && !s->found; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type == PT_NOTE)
            read_notes((const char *)(object->dlpi_addr + part->p_vaddr), part->p_memsz, s);
    }
    return 1;
}

static uint64_t hash_program(void)
{
    char buffer[1 << 16];
    uint64_t sum = 0;
    FILE *self = fopen("/proc/self/exe", "rbe");
    for (size_t n; self && (n = fread(buffer, 1, sizeof buffer, self)) > 0;)
        sum = keyed_hash((hash_key){{sum, n}}, buffer, n);
    if (self) fclose(self);
    return sum;
}

uint64_t build_id(void)
{
    search s = {.address = (uintptr_t)build_id};
    dl_iterate_phdr(visit, &s);
    return s.found ? s.id : hash_program();
}
