/* What a system can confine, for `quipu doctor`. */
#include "workbench/sandbox.h"
#include "workbench/workbench.h"

static void print_json(const sandbox_features *s, strbuf *out)
{
    strbuf_printf(out,
                  "  \"sandbox\": {\"seccomp\": %s, \"landlock\": %d, \"namespaces\": %s},\n  ",
                  s->filter ? "true" : "false", s->landlock, s->namespaces ? "true" : "false");
}

void workbench_sandbox(bool json, strbuf *out)
{
    char why[160];
    const sandbox_features s = sandbox_examine();
    if (json) {
        print_json(&s, out);
        return;
    }
    strbuf_printf(out, "sandbox          %s", s.filter ? "system calls (seccomp)" : "no seccomp");
    if (s.landlock)
        strbuf_printf(out, ", files (Landlock %d)", s.landlock);
    else
        strbuf_puts(out, ", no Landlock");
    strbuf_puts(out, s.namespaces ? ", namespaces\n" : ", no namespaces\n");
    if (sandbox_missing(why, sizeof why))
        strbuf_printf(out, "                 %s: kernels in C need --unconfined too\n", why);
}
