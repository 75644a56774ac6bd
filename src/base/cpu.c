/* The processor's features, from CPUID and XGETBV, on ARM from Linux's hardware capabilities: see
 * cpu.h.
 *
 * Bits and leaves: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2A, CPUID;
 * the states that the operating system must save, volume 1, chapter 13. ARM's: Linux,
 * Documentation/arch/arm64/elf_hwcaps.rst and cpu-feature-registers.rst; parts of MIDR_EL1: each
 * core's Technical Reference Manual.
 */
#include "base/cpu.h"

#include "base/platform.h"
#include "base/threads.h"

#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum { EAX, EBX, ECX, EDX };

/* XCR0: what the operating system saves when it switches threads. */
enum {
    SAVES_AVX = 0x6,     /* XMM, upper halves of YMM */
    SAVES_AVX512 = 0xe6, /* and mask registers, ZMM */
    SAVES_AMX = 0x60000, /* tile configuration, tile data */
};

/* Entries of the auxiliary vector, in place of leaves: AT_HWCAP, AT_HWCAP2. */
enum { HWCAP = 16, HWCAP2 = 26 };

typedef struct feature_row {
    const char *name; /* as /proc/cpuinfo has it */
    uint32_t feature;
    uint32_t needs; /* without these the feature is of no use */
    uint8_t leaf, subleaf, reg, bit;
    uint32_t saved; /* required bits of XCR0 */
} feature_row;

static const feature_row table[] = {
    {"avx2", CPU_AVX2, 0, 7, 0, EBX, 5, SAVES_AVX},
    {"fma", CPU_FMA, 0, 1, 0, ECX, 12, SAVES_AVX},
    {"f16c", CPU_F16C, 0, 1, 0, ECX, 29, SAVES_AVX},
    {"avx_vnni", CPU_AVX_VNNI, CPU_AVX2, 7, 1, EAX, 4, SAVES_AVX},
    {"avx512f", CPU_AVX512F, CPU_LEVEL_AVX2, 7, 0, EBX, 16, SAVES_AVX512},
    {"avx512bw", CPU_AVX512BW, CPU_AVX512F, 7, 0, EBX, 30, SAVES_AVX512},
    {"avx512vl", CPU_AVX512VL, CPU_AVX512F, 7, 0, EBX, 31, SAVES_AVX512},
    {"avx512dq", CPU_AVX512DQ, CPU_AVX512F, 7, 0, EBX, 17, SAVES_AVX512},
    {"avx512vbmi", CPU_AVX512VBMI, CPU_AVX512BW, 7, 0, ECX, 1, SAVES_AVX512},
    {"avx512_vnni", CPU_AVX512_VNNI, CPU_AVX512F, 7, 0, ECX, 11, SAVES_AVX512},
    {"avx512_bf16", CPU_AVX512_BF16, CPU_AVX512F, 7, 1, EAX, 5, SAVES_AVX512},
    {"avx512_fp16", CPU_AVX512_FP16, CPU_AVX512F, 7, 0, EDX, 23, SAVES_AVX512},
    {"amx_tile", CPU_AMX_TILE, CPU_AVX512F, 7, 0, EDX, 24, SAVES_AMX},
    {"amx_int8", CPU_AMX_INT8, CPU_AMX_TILE, 7, 0, EDX, 25, SAVES_AMX},
    {"amx_bf16", CPU_AMX_BF16, CPU_AMX_TILE, 7, 0, EDX, 22, SAVES_AMX},
#if defined(__x86_64__)
    {"sse2", CPU_VECTORS, 0, 1, 0, EDX, 26, 0},
#elif defined(__aarch64__)
    {"asimd", CPU_VECTORS, 0, HWCAP, 0, 0, 1, 0},
#else
    {"vectors", CPU_VECTORS, 0, 0, 0, 0, 0, 0},
#endif
    {"asimddp", CPU_DOTPROD, CPU_VECTORS, HWCAP, 0, 0, 20, 0},
    {"i8mm", CPU_I8MM, CPU_DOTPROD, HWCAP2, 0, 0, 13, 0},
    {"bf16", CPU_BF16, CPU_VECTORS, HWCAP2, 0, 0, 14, 0},
};

enum { TABLE_SIZE = sizeof table / sizeof *table };

uint32_t cpu_without(uint32_t features, uint32_t off)
{
    features &= ~off;
    /* The table is in topological order, so one pass is enough. */
    for (int i = 0; i < TABLE_SIZE; i++)
        if ((features & table[i].needs) != table[i].needs) features &= ~table[i].feature;
    return features;
}

#if defined(__x86_64__)

/* XCR0, or 0 where the operating system does not save extended state. */
static uint64_t saved_states(void)
{
    unsigned eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & bit_OSXSAVE)) return 0;
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static uint32_t detect(void)
{
    uint64_t saved = saved_states();
    uint32_t features = 0;
    for (int i = 0; i < TABLE_SIZE; i++) {
        unsigned regs[4];
        const feature_row *row = &table[i];
        if (row->leaf == HWCAP || row->leaf == HWCAP2 ||
            !__get_cpuid_count(row->leaf, row->subleaf, &regs[EAX], &regs[EBX], &regs[ECX],
                               &regs[EDX]))
            continue;
        if ((saved & row->saved) == row->saved && regs[row->reg] >> row->bit & 1)
            features |= row->feature;
    }
    if (features & CPU_AMX_TILE && !platform_permit_amx()) features &= ~(uint32_t)CPU_AMX_TILE;
    return features;
}

static bool is_amd(void)
{
    unsigned eax, name[3];
    return __get_cpuid(0, &eax, &name[0], &name[2], &name[1]) &&
           memcmp(name, "AuthenticAMD", sizeof name) == 0;
}

static void model_name(char out[64])
{
    unsigned words[12] = {0};
    for (unsigned i = 0; i < 3; i++)
        if (!__get_cpuid(0x80000002 + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2],
                         &words[4 * i + 3]))
            return;
    /* 48 bytes, padded with blanks on either side by some processors. */
    char text[sizeof words + 1] = {0};
    memcpy(text, words, sizeof words);
    size_t length = strlen(text);
    while (length && text[length - 1] == ' ')
        text[--length] = '\0';
    snprintf(out, 64, "%s", text + strspn(text, " "));
}

#else

#if defined(__aarch64__)

static uint32_t detect(void)
{
    uint32_t features = 0;
    for (int i = 0; i < TABLE_SIZE; i++) {
        const feature_row *row = &table[i];
        if ((row->leaf == HWCAP || row->leaf == HWCAP2) &&
            platform_hardware_bits(row->leaf) >> row->bit & 1)
            features |= row->feature;
    }
    return features;
}

/* Implementer and part of MIDR_EL1, which Linux reads for programs (HWCAP_CPUID). */
static const struct core {
    uint16_t implementer, part;
    const char *name;
} cores[] = {
    {0x41, 0xd03, "ARM Cortex-A53"},    {0x41, 0xd05, "ARM Cortex-A55"},
    {0x41, 0xd07, "ARM Cortex-A57"},    {0x41, 0xd08, "ARM Cortex-A72"},
    {0x41, 0xd0b, "ARM Cortex-A76"},    {0x41, 0xd0c, "ARM Neoverse N1"},
    {0x41, 0xd40, "ARM Neoverse V1"},   {0x41, 0xd49, "ARM Neoverse N2"},
    {0x41, 0xd4f, "ARM Neoverse V2"},   {0x41, 0xd84, "ARM Neoverse V3"},
    {0x61, 0x022, "Apple M1 (small)"},  {0x61, 0x023, "Apple M1"},
    {0x61, 0x028, "Apple M1 Pro, Max"}, {0x61, 0x032, "Apple M2 (small)"},
    {0x61, 0x033, "Apple M2"},          {0xc0, 0xac3, "Ampere-1"},
    {0xc0, 0xac4, "Ampere-1A"},
};

static void model_name(char out[64])
{
    enum { HAS_CPUID = 11 };
    uint64_t midr = 0;
    out[0] = '\0';
    if (!(platform_hardware_bits(HWCAP) >> HAS_CPUID & 1)) return;
    __asm__("mrs %0, MIDR_EL1" : "=r"(midr));
    const unsigned implementer = midr >> 24 & 0xff, part = midr >> 4 & 0xfff;
    snprintf(out, 64, "ARM core 0x%03x of implementer 0x%02x", part, implementer);
    for (size_t i = 0; i < sizeof cores / sizeof *cores; i++)
        if (cores[i].implementer == implementer && cores[i].part == part)
            snprintf(out, 64, "%s", cores[i].name);
}

#else

static uint32_t detect(void)
{
    return CPU_VECTORS;
}

static void model_name(char out[64])
{
    out[0] = '\0';
}

#endif

static bool is_amd(void)
{
    return false;
}

#endif

uint32_t cpu_features(uint32_t off)
{
    return cpu_without(detect(), off);
}

bool cpu_has_bf16(uint32_t features)
{
    return features & (CPU_AVX512_BF16 | CPU_BF16);
}

bool cpu_multiplies_bf16(uint32_t features)
{
    return features & CPU_BF16 ||
           (features & CPU_AVX512_BF16 && (features & CPU_AMX_BF16 || is_amd()));
}

const char *cpu_slow_form(uint32_t features)
{
    if (!(features & CPU_VECTORS))
        return "kernels run as references, without vectors: this is the slowest form, for tests";
#if defined(__x86_64__)
    if ((features & CPU_LEVEL_AVX2) != CPU_LEVEL_AVX2)
        return "kernels run in vectors of SSE2, several times slower than with AVX2, which this "
               "processor lacks or QUIPU_CPU_MASK hides";
#elif !defined(__aarch64__)
    return "kernels run in the compiler's vectors: quipu has none for this architecture, and this "
           "is its slow form";
#endif
    return NULL;
}

static qp_status unknown_feature(const char *name, size_t length, qp_error *error)
{
    strbuf known = {0};
    cpu_features_print(CPU_ALL, &known);
    error_set(error, QP_INVALID, "unknown CPU feature '%.*s'; known are: all %s",
              (int)(length > 40 ? 40 : length), name, strbuf_text(&known));
    strbuf_free(&known);
    return QP_INVALID;
}

qp_status cpu_features_parse(const char *list, uint32_t *out, qp_error *error)
{
    uint32_t features = 0;
    for (const char *name = list; *(name += strspn(name, ", ")); name += strcspn(name, ", ")) {
        size_t length = strcspn(name, ", ");
        uint32_t found = length == 3 && memcmp(name, "all", 3) == 0 ? CPU_ALL : 0;
        for (int i = 0; i < TABLE_SIZE; i++)
            if (strlen(table[i].name) == length && memcmp(table[i].name, name, length) == 0)
                found = table[i].feature;
        if (!found) return unknown_feature(name, length, error);
        features |= found;
    }
    *out = features;
    return QP_OK;
}

void cpu_features_print(uint32_t features, strbuf *out)
{
    bool any = false;
    for (int i = 0; i < TABLE_SIZE; i++) {
        if (!(features & table[i].feature)) continue;
        strbuf_printf(out, "%s%s", any ? " " : "", table[i].name);
        any = true;
    }
}

void cpu_describe(cpu_description *out)
{
    *out = (cpu_description){.processors = threads_available(),
                             .l1d = platform_cache_bytes(1),
                             .l2 = platform_cache_bytes(2),
                             .l3 = platform_cache_bytes(3)};
    model_name(out->model);
}
