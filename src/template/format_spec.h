/* How to write a value: what Python's "..." % values and "...".format(values) have in common. The
 * first form can express only a part of it.
 */
#pragma once

#include "template/run.h"

enum { FORMAT_MAX_PRECISION = 100 };

typedef struct format_spec {
    const string *fill; /* one character */
    char align;         /* < > ^ = or 0 for the type's default */
    char sign;          /* + - or blank */
    char group;         /* , or _ between thousands, or 0 */
    bool alternate, zero;
    int64_t width, precision; /* precision < 0: not given */
    char type;                /* 0: not given */
} format_spec;

extern const string format_blank, format_zero; /* for `fill` */

/* Pads prefix and body to the width; `align` is the default alignment. `points`: characters of the
 * body, which has `length` bytes. */
qp_status format_put_padded(builder *out, const format_spec *spec, char align, const char *prefix,
                            const char *body, size_t length, size_t points);

qp_status format_put_int(builder *out, const format_spec *spec, int64_t number);
qp_status format_put_float(builder *out, const format_spec *spec, double number);
qp_status format_put_string(builder *out, const format_spec *spec, const string *text);

/* An optional number at *at. */
bool format_read_number(const string *text, size_t *at, int64_t *out);

/* Fails if a number is wanted with more digits than FORMAT_MAX_PRECISION. */
qp_status format_check_precision(run *run, const format_spec *spec);
