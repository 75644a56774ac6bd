/* The only file that is compiled again for a new version: see version.h. */
#include "base/version.h"

const char version_text[] = QUIPU_VERSION;
