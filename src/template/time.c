/* strftime_now(): Python's strftime in the C locale, for the time that the caller gave.
 *
 * Implemented here because the C library's strftime uses the process's locale and time zone.
 */
#include "template/run.h"

#include <stdio.h>
#include <string.h>

typedef struct date {
    int64_t year, seconds;
    int month, day, hour, minute, second; /* month and day from 1 */
    int weekday;                          /* from Sunday, 0 */
    int yearday;                          /* from 0 */
} date;

static bool is_leap(int64_t year)
{
    return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

/* Days since 1970-01-01 to a date of the Gregorian calendar, counted in eras of 400 years that
 * begin on the first of March (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms"). */
static void civil_from_days(int64_t days, date *out)
{
    days += 719468;
    int64_t era = (days >= 0 ? days : days - 146096) / 146097, of_era = days - era * 146097;
    int64_t year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    int64_t of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    int64_t month = (5 * of_year + 2) / 153;
    out->day = (int)(of_year - (153 * month + 2) / 5 + 1);
    out->month = (int)(month < 10 ? month + 3 : month - 9);
    out->year = year_of_era + era * 400 + (out->month <= 2);
}

static date date_at(int64_t now, int32_t utc_offset)
{
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    date made = {.seconds = now};
    int64_t local = now + utc_offset, days = local / 86400, rest = local % 86400;
    if (rest < 0) {
        rest += 86400;
        days--;
    }
    civil_from_days(days, &made);
    made.hour = (int)(rest / 3600);
    made.minute = (int)(rest / 60 % 60);
    made.second = (int)(rest % 60);
    made.weekday = (int)(((days + 4) % 7 + 7) % 7);
    made.yearday = before[made.month - 1] + made.day - 1 + (made.month > 2 && is_leap(made.year));
    return made;
}

/* ISO 8601: a week begins on Monday and belongs to the year that its Thursday is in. */
static int iso_week(const date *date, int64_t *year)
{
    int thursday = date->yearday + 3 - (date->weekday + 6) % 7;
    int length = 365 + is_leap(date->year);
    *year = date->year;
    if (thursday < 0) {
        *year = date->year - 1;
        thursday += 365 + is_leap(*year);
    } else if (thursday >= length) {
        *year = date->year + 1;
        thursday -= length;
    }
    return thursday / 7 + 1;
}

static const char *const days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                   "Thursday", "Friday", "Saturday"};
static const char *const months[] = {"January",   "February", "March",    "April",
                                     "May",       "June",     "July",     "August",
                                     "September", "October",  "November", "December"};

/* A number with a minimal width; `pad` is the flag of the directive (0: `fill`, '-': no padding).
 */
static qp_status put(builder *out, char pad, char fill, int width, int64_t number)
{
    char text[32];
    if (pad == '_') fill = ' ';
    if (pad == '0') fill = '0';
    if (pad == '-') width = 0;
    snprintf(text, sizeof text, fill == '0' ? "%0*lld" : "%*lld", width, (long long)number);
    return builder_text(out, text);
}

static qp_status put_name(builder *out, char pad, const char *name, size_t length)
{
    char text[16];
    size_t n = strlen(name) < length ? strlen(name) : length;
    memcpy(text, name, n);
    for (size_t i = 0; i < n && pad == '^'; i++)
        if (text[i] >= 'a' && text[i] <= 'z') text[i] = (char)(text[i] - 32);
    return builder_put(out, text, n);
}

/* The number for a directive, formatted as Python and glibc do; *known: whether the directive is a
 * number.
 */
static qp_status put_number(builder *out, char pad, char directive, const date *date, bool *known)
{
    int64_t iso_year;
    const int week = iso_week(date, &iso_year), monday = (date->weekday + 6) % 7;
    const int hour12 = date->hour % 12 ? date->hour % 12 : 12;
    const struct {
        char directive, fill;
        int width;
        int64_t number;
    } numbers[] = {
        {'C', '0', 2, date->year / 100},
        {'Y', '0', 0, date->year},
        {'y', '0', 2, date->year % 100},
        {'G', '0', 4, iso_year},
        {'g', '0', 2, iso_year % 100},
        {'m', '0', 2, date->month},
        {'d', '0', 2, date->day},
        {'e', ' ', 2, date->day},
        {'j', '0', 3, date->yearday + 1},
        {'u', '0', 1, date->weekday ? date->weekday : 7},
        {'w', '0', 1, date->weekday},
        {'U', '0', 2, (date->yearday + 7 - date->weekday) / 7},
        {'W', '0', 2, (date->yearday + 7 - monday) / 7},
        {'V', '0', 2, week},
        {'H', '0', 2, date->hour},
        {'k', ' ', 2, date->hour},
        {'I', '0', 2, hour12},
        {'l', ' ', 2, hour12},
        {'M', '0', 2, date->minute},
        {'S', '0', 2, date->second},
        {'s', '0', 0, date->seconds},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i].directive != directive) continue;
        *known = true;
        return put(out, pad, numbers[i].fill, numbers[i].width, numbers[i].number);
    }
    *known = false;
    return QP_OK;
}

/* The directives that a directive abbreviates; NULL: it abbreviates none. */
static const char *long_form(char directive)
{
    static const struct {
        char directive;
        const char *format;
    } forms[] = {
        {'c', "%a %b %e %H:%M:%S %Y"},
        {'D', "%m/%d/%y"},
        {'x', "%m/%d/%y"},
        {'F', "%Y-%m-%d"},
        {'r', "%I:%M:%S %p"},
        {'R', "%H:%M"},
        {'T', "%H:%M:%S"},
        {'X', "%H:%M:%S"},
        {'f', "000000"}, /* always 0: the clock counts whole seconds */
        {'n', "\n"},
        {'t', "\t"},
        {'z', ""}, /* empty: the time is naive, like datetime.now() */
        {'Z', ""},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (forms[i].directive == directive) return forms[i].format;
    return NULL;
}

static qp_status put_directive(builder *out, char pad, char directive, const date *date)
{
    bool known;
    const char *format = long_form(directive);
    if (format) {
        for (; *format; format++)
            TRY(*format == '%' ? put_directive(out, 0, *++format, date)
                               : builder_put(out, format, 1));
        return QP_OK;
    }
    TRY(put_number(out, pad, directive, date, &known));
    if (known) return QP_OK;
    switch (directive) {
    case 'a':
        return put_name(out, pad, days[date->weekday], 3);
    case 'A':
        return put_name(out, pad, days[date->weekday], 9);
    case 'b':
    case 'h':
        return put_name(out, pad, months[date->month - 1], 3);
    case 'B':
        return put_name(out, pad, months[date->month - 1], 9);
    case 'p':
        return builder_text(out, date->hour < 12 ? "AM" : "PM");
    case 'P':
        return builder_text(out, date->hour < 12 ? "am" : "pm");
    case '%':
        return builder_text(out, "%");
    default:
        return run_fail(out->run, "strftime_now: unknown directive %%%c", directive);
    }
}

qp_status format_time(run *run, const string *format, value *out)
{
    builder made = {.run = run};
    /* Whether the year is one that Python's datetime supports. */
    if (run->options.now < -62135596800 || run->options.now > 253402300799)
        return run_fail(run, "strftime_now: the clock is outside of the years 1 to 9999");
    date date = date_at(run->options.now, run->options.utc_offset);
    for (size_t i = 0; i < format->length; i++) {
        char pad = 0;
        if (format->data[i] != '%') {
            TRY(builder_put(&made, format->data + i, 1));
            continue;
        }
        if (++i < format->length && strchr("-_0^", format->data[i]) && format->data[i])
            pad = format->data[i++];
        if (i >= format->length) return run_fail(run, "strftime_now: the format ends in '%%'");
        TRY(put_directive(&made, pad, format->data[i], &date));
    }
    return builder_finish(&made, out);
}
