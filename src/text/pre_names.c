/* Pre-tokenizers by the names that GGUF files use.
 *
 * A name stands for one or more expressions, applied one after the other, and for two rules of
 * encoding. The expressions are those of the models' own tokenizer.json files.
 */
#include "text/pre_tokenize.h"

#include <string.h>

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* Llama 3's, which Qwen 2 and others share except for the number of digits in a word. */
#define LLAMA3(DIGITS)                                                                             \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" DIGITS                           \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Mistral Nemo's: a word is capitals followed by small letters, or ends in capitals. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define TEKKEN                                                                                     \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER            \
    "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* The same of GPT-4o, with contractions, and digits by threes. */
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define GPT4O                                                                                      \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?" UPPER       \
    "+" LOWER "*" CONTRACTION                                                                      \
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* DeepSeek LLM's letters, of scripts that have upper and lower case. Six are written as bytes,
 * because normalization would change them. */
/* clang-format off */
#define CASED_LETTERS \
    "[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-" \
    "ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\xE1\xBD\xBDᾀ-ᾴᾶ-ᾼ\xE1\xBE\xBEῂ-ῄῆ-ῌῐ-\xE1\xBF\x93ῖ-" \
    "\xE1\xBF\x9Bῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\xE2\x84\xA6ℨ\xE2\x84\xAA-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮ" \
    "ⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
/* clang-format on */

/* Chinese characters, and all characters between U+0800 and U+4E00 and between U+AC00 and
 * U+D7FF. */
#define EAST_ASIAN "[一-龥ࠀ-一가-퟿]+"

const char gpt2_pattern[] = GPT2;

enum { MAX_PATTERNS = 6 };

typedef struct pre_recipe {
    const char *name;  /* the most common rules */
    const char *names; /* all of them, each between two spaces */
    pre_habits habits;
    const char *patterns[MAX_PATTERNS];
} pre_recipe;

static const pre_recipe recipes[] = {
    {"llama-bpe",
     " llama-bpe llama3 llama-v3 falcon3 ",
     {.ignore_merges = true, .add_bos = true},
     {LLAMA3("\\p{N}{1,3}")}},
    {"gpt-4o", " gpt-4o ", {0}, {GPT4O}},
    {"dbrx", " dbrx smaug-bpe glm4 chatglm-bpe ", {0}, {LLAMA3("\\p{N}{1,3}")}},
    {"qwen2", " qwen2 ", {.nfc = true}, {LLAMA3("\\p{N}")}},
    {"deepseek-r1-qwen", " deepseek-r1-qwen ", {0}, {LLAMA3("\\p{N}")}},
    {"tekken", " tekken ", {.ignore_merges = true, .add_bos = true}, {TEKKEN}},
    {"deepseek-llm",
     " deepseek-llm ",
     {0},
     {"[\r\n]", "\\s?" CASED_LETTERS, "\\s?[!-/:-~！-／：-～‘-‟　-。]+", "\\s+$", EAST_ASIAN,
      "\\p{N}"}},
    {"deepseek-coder",
     " deepseek-coder ",
     {0},
     {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", EAST_ASIAN, "\\p{N}"}},
    {"gpt-2", " gpt-2 phi-2 mpt olmo ", {0}, {GPT2}},
    {"smollm", " smollm starcoder refact command-r codeshell ", {0}, {"\\p{N}", GPT2}},
    {"default",
     " default ",
     {0},
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

qp_status pre_tokenizer_by_name(pre_tokenizer *pre, const char *name, pre_habits *habits,
                                const char *where, qp_error *error)
{
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        const pre_recipe *recipe = &recipes[i];
        if (*name == '\0' || strchr(name, ' ') || !has_name(recipe, name)) continue;
        for (int k = 0; k < MAX_PATTERNS && recipe->patterns[k]; k++)
            TRY(pre_tokenizer_add_split(pre, recipe->patterns[k], SPLIT_ISOLATED, where, error));
        *habits = recipe->habits;
        return QP_OK;
    }
    return error_set(
        error, QP_UNSUPPORTED,
        "%s: pre-tokenizer \"%.64s\" is not one of those that quipu knows "
        "(llama-bpe, qwen2, tekken, deepseek-llm, smollm, gpt-2, default, ...); use the model's "
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

const char *pre_tokenizer_name(const pre_tokenizer *pre, pre_habits habits)
{
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        const pre_habits *own = &recipes[i].habits;
        if (own->ignore_merges == habits.ignore_merges && own->nfc == habits.nfc &&
            are_patterns(pre, &recipes[i]))
            return recipes[i].name;
    }
    return NULL;
}
