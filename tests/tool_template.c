/* Renders chat templates, for the scripts that compare with jinja2.
 *
 *     tool_template < REQUESTS
 *
 * A request is a line of JSON: {"template": TEXT, "context": OBJECT}. The answer is a line {"text":
 * TEXT}, or
 * {"error": MESSAGE}.
 */
#include "base/json.h"
#include "template/template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static qp_status render(const char *line, size_t length, strbuf *out, qp_error *error)
{
    cJSON *request;
    template *compiled = NULL;
    TRY(json_parse_exact(line, length, "request", &request, error));
    const char *source = cJSON_GetStringValue(json_get(request, "template"));
    qp_status status = template_compile(source, strlen(source), &compiled, error);
    if (status == QP_OK)
        status = template_render(compiled, json_get(request, "context"), NULL, out, error);
    template_free(compiled);
    cJSON_Delete(request);
    return status;
}

int main(void)
{
    char *line = NULL;
    size_t room = 0;
    for (ssize_t length; (length = getline(&line, &room, stdin)) > 0;) {
        qp_error error;
        strbuf out = {0};
        cJSON *answer = cJSON_CreateObject();
        if (render(line, (size_t)length, &out, &error) == QP_OK)
            cJSON_AddStringToObject(answer, "text", strbuf_text(&out));
        else
            cJSON_AddStringToObject(answer, "error", error.message);
        char *text = cJSON_PrintUnformatted(answer);
        puts(text);
        fflush(stdout);
        free(text);
        cJSON_Delete(answer);
        strbuf_free(&out);
    }
    free(line);
    return 0;
}
