/* Reads fatbins: which kernels they hold, and the layout of their parameters.
 *
 * A fatbin is a header and entries, each of which is machine code (an ELF file) or PTX. Machine
 * code has a section .nv.info.NAME for each kernel, with records of a format, an attribute, and a
 * length or value. Only uncompressed machine code is read, which nvcc makes by default.
 */
#include "fake.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

typedef struct fatbin_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes; /* of the entries */
} fatbin_header;

typedef struct fatbin_entry {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t bytes;
} fatbin_entry;

enum {
    FATBIN_MAGIC = (int)0xba55ed50,
    KIND_ELF = 2,
    FORMAT_BYTES = 4, /* a length, then that many bytes; other formats are four bytes in all */
    PARAMETER_SMALL = 0x17, /* EIATTR_KPARAM_INFO */
    PARAMETER_LARGE = 0x45, /* the same for those of 16 KB and more */
};

static void add_parameter(struct CUfunc_st *function, const unsigned char *record, int attribute)
{
    uint16_t ordinal, large;
    uint32_t packed;
    memcpy(&ordinal, record + 4, sizeof ordinal);
    memcpy(&packed, record + 8, sizeof packed);
    memcpy(&large, record + 8, sizeof large);
    if (ordinal >= FAKE_MAX_PARAMETERS) abort();
    function->parameters[ordinal].bytes = attribute == PARAMETER_LARGE ? large : packed >> 18;
    if (function->n_parameters <= ordinal) function->n_parameters = ordinal + 1;
}

static void read_records(struct CUfunc_st *function, const unsigned char *at, size_t bytes)
{
    const unsigned char *end = at + bytes;
    while (at + 4 <= end) {
        uint16_t length;
        memcpy(&length, at + 2, sizeof length);
        if (at[0] == FORMAT_BYTES && (at[1] == PARAMETER_SMALL || at[1] == PARAMETER_LARGE))
            add_parameter(function, at + 4, at[1]);
        at += at[0] == FORMAT_BYTES ? 4 + length : 4;
    }
}

static bool read_elf(const unsigned char *elf, struct CUmod_st *module)
{
    static const char prefix[] = ".nv.info.";
    const size_t n_prefix = sizeof prefix - 1;
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)elf;
    if (memcmp(elf, ELFMAG, SELFMAG) != 0) return false;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(elf + header->e_shoff);
    const char *names = (const char *)elf + sections[header->e_shstrndx].sh_offset;
    for (int i = 0; i < header->e_shnum; i++) {
        const char *name = names + sections[i].sh_name;
        if (strncmp(name, prefix, n_prefix) != 0) continue;
        if (strncmp(name + n_prefix, "_Z", 2) == 0)
            continue; /* called by kernels, which are extern "C" */
        struct CUfunc_st *function = calloc(1, sizeof *function);
        if (!function || strlen(name + n_prefix) >= sizeof function->name) abort();
        strcpy(function->name, name + n_prefix);
        read_records(function, elf + sections[i].sh_offset, sections[i].sh_size);
        function->next = module->functions;
        module->functions = function;
    }
    return module->functions != NULL;
}

struct CUmod_st *fake_module_read(const void *image)
{
    const fatbin_header *header = image;
    const unsigned char *at = (const unsigned char *)image + header->header_bytes;
    const unsigned char *end = at + header->bytes;
    struct CUmod_st *module = calloc(1, sizeof *module);
    bool found = false;
    if (!module) abort();
    while (header->magic == (uint32_t)FATBIN_MAGIC && at < end && !found) {
        const fatbin_entry *entry = (const fatbin_entry *)at;
        if (entry->kind == KIND_ELF) found = read_elf(at + entry->header_bytes, module);
        at += entry->header_bytes + entry->bytes;
    }
    if (found) return module;
    fake_module_free(module);
    return NULL;
}

void fake_module_free(struct CUmod_st *module)
{
    while (module->functions) {
        struct CUfunc_st *function = module->functions;
        module->functions = function->next;
        free(function);
    }
    free(module);
}
