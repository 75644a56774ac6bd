/* Pre-tokenizers by the names that GGUF files use.
 *
 * A name stands for one or more expressions, applied one after the other, and for two habits of
 * encoding. The expressions are those of the models' own tokenizer.json files.
 */
#include "text/pre_tokenize.h"

#include <string.h>

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* Llama 3's, which Qwen 2 and others share but for how many digits make a word. */
#define LLAMA3(DIGITS)                                                                             \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" DIGITS                           \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

const char gpt2_pattern[] = GPT2;

enum { MAX_PATTERNS = 4 };

typedef struct pre_recipe {
    const char *name;  /* the usual one */
    const char *names; /* all of them, each between two spaces */
    bool ignore_merges;
    bool add_bos;
    const char *patterns[MAX_PATTERNS];
} pre_recipe;

static const pre_recipe recipes[] = {
    {"llama-bpe", " llama-bpe llama3 llama-v3 falcon3 ", true, true, {LLAMA3("\\p{N}{1,3}")}},
    {"dbrx", " dbrx smaug-bpe ", false, false, {LLAMA3("\\p{N}{1,3}")}},
    {"qwen2", " qwen2 deepseek-r1-qwen ", false, false, {LLAMA3("\\p{N}")}},
    {"gpt-2", " gpt-2 phi-2 mpt olmo ", false, false, {GPT2}},
    {"smollm", " smollm starcoder refact command-r codeshell ", false, false, {"\\p{N}", GPT2}},
    {"default",
     " default ",
     false,
     false,
     {"[\\p{P}\\$\\+<=>\\^~\\|]+",
      "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)", "\\p{N}+",
      "[0-9][0-9][0-9]"}},
};

static bool has_name(const pre_recipe *recipe, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = recipe->names; (at = strstr(at, name)) != NULL; at++) {
        if (at[-1] == ' ' && at[length] == ' ') return true;
    }
    return false;
}

qp_status pre_tokenizer_by_name(pre_tokenizer *pre, const char *name, bool *ignore_merges,
                                bool *add_bos, const char *where, qp_error *error)
{
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        const pre_recipe *recipe = &recipes[i];
        if (*name == '\0' || strchr(name, ' ') || !has_name(recipe, name)) continue;
        for (int k = 0; k < MAX_PATTERNS && recipe->patterns[k]; k++)
            TRY(pre_tokenizer_add_split(pre, recipe->patterns[k], SPLIT_ISOLATED, where, error));
        *ignore_merges = recipe->ignore_merges;
        *add_bos = recipe->add_bos;
        return QP_OK;
    }
    return error_set(error, QP_UNSUPPORTED,
                     "%s: pre-tokenizer \"%.64s\" is not one of those that quipu knows "
                     "(llama-bpe, smollm, gpt-2, qwen2, default, ...); use the model's "
                     "tokenizer.json instead",
                     where, name);
}

static bool are_patterns(const pre_tokenizer *pre, const pre_recipe *recipe)
{
    int count = 0;
    while (count < MAX_PATTERNS && recipe->patterns[count])
        count++;
    if (pre->count != count) return false;
    for (int k = 0; k < count; k++) {
        const pre_step *step = &pre->steps[k];
        const char *pattern = step->split ? regex_pattern(step->split) : NULL;
        if (!pattern || step->invert || step->behavior != SPLIT_ISOLATED ||
            strcmp(pattern, recipe->patterns[k]) != 0)
            return false;
    }
    return true;
}

const char *pre_tokenizer_name(const pre_tokenizer *pre, bool ignore_merges)
{
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        if (recipes[i].ignore_merges == ignore_merges && are_patterns(pre, &recipes[i]))
            return recipes[i].name;
    }
    return NULL;
}
