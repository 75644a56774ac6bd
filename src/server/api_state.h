/* The engine as it runs, for people and for monitoring. */
#pragma once

#include "server/call.h"

qp_status answer_engine(call *c, api_error *error);
qp_status answer_load(call *c, api_error *error);
qp_status answer_slots(call *c, api_error *error);
/* The next pass as a picture, and as a page with each of its instructions. */
qp_status answer_timeline(call *c, api_error *error);
qp_status answer_timeline_page(call *c, api_error *error);
qp_status answer_metrics(call *c, api_error *error);
