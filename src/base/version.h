/* The program's version, as the build says it. */
#ifndef QUIPU_BASE_VERSION_H
#define QUIPU_BASE_VERSION_H

extern const char version_text[]; /* "0.1.0" */

#endif
