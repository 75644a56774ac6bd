/* Costs of passes, as `quipu load --simulate` reads them: what is taken rises with the rows. */
#include "load/pass_costs.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pass_costs costs;
    qp_error error = {0};
    if (pass_costs_read((const char *)data, size, &costs, &error) != QP_OK) {
        if (!*error.message) abort();
        return 0;
    }
    if (costs.count < 1 || costs.count > PASS_COSTS_MOST) abort();
    if (!(costs.per_decoded >= 0) || !(costs.per_prompt >= 0)) abort();
    double before = 0;
    for (double rows = 1; rows < 100000; rows *= 1.7) {
        const double seconds = pass_costs_products(&costs, rows);
        if (!isfinite(seconds) || seconds < before) abort();
        before = seconds;
    }
    return 0;
}
