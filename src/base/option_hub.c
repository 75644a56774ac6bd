/* Environment variables of Hugging Face's tools: see option_hub.h. */
#include "base/option_hub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* huggingface_hub's cache folder; false where no variable gives it. */
static bool find_home(char *out, size_t size)
{
    const char *home = variable("HF_HOME"), *cache = variable("XDG_CACHE_HOME"),
               *user = variable("HOME");
    int length = home    ? snprintf(out, size, "%s", home)
                 : cache ? snprintf(out, size, "%s/huggingface", cache)
                 : user  ? snprintf(out, size, "%s/.cache/huggingface", user)
                         : -1;
    return length >= 0 && (size_t)length < size;
}

/* The first line of a file, without blanks around it. */
static void read_token(const char *path, char *out, size_t size)
{
    FILE *file = fopen(path, "r");
    char line[1024] = "";
    if (!file) return;
    if (!fgets(line, sizeof line, file)) line[0] = '\0';
    fclose(file);
    char *begin = line + strspn(line, " \t");
    begin[strcspn(begin, " \t\r\n")] = '\0';
    snprintf(out, size, "%s", begin);
}

static bool is_true(const char *value)
{
    static const char *const words[] = {"1", "on", "yes", "true"};
    for (size_t i = 0; value && i < sizeof words / sizeof *words; i++)
        if (strcasecmp(value, words[i]) == 0) return true;
    return false;
}

bool option_hub_read(option_hub *out)
{
    char home[2048] = "", token_path[2100];
    const char *endpoint = variable("HF_ENDPOINT"), *cache = variable("HF_HUB_CACHE");
    const char *token = variable("HF_TOKEN"), *at = variable("HF_TOKEN_PATH");
    bool has_home = find_home(home, sizeof home);
    *out = (option_hub){.offline = is_true(variable("HF_HUB_OFFLINE"))};
    if (!cache && !has_home) return false;
    snprintf(out->endpoint, sizeof out->endpoint, "%s",
             endpoint ? endpoint : "https://huggingface.co");
    for (size_t n = strlen(out->endpoint); n > 0 && out->endpoint[n - 1] == '/'; n--)
        out->endpoint[n - 1] = '\0';
    if (cache)
        snprintf(out->cache, sizeof out->cache, "%s", cache);
    else
        snprintf(out->cache, sizeof out->cache, "%s/hub", home);
    snprintf(token_path, sizeof token_path, "%s%s", at ? at : home, at ? "" : "/token");
    if (token)
        snprintf(out->token, sizeof out->token, "%s", token);
    else
        read_token(token_path, out->token, sizeof out->token);
    return true;
}
