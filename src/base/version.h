/* The program's version, and what it was built from. */
#pragma once

extern const char version_text[];   /* "0.2.0" */
extern const char version_commit[]; /* "1377960"; empty outside of a repository */
extern const char version_cuda[]; /* of the compiler of the GPU code, "13.0"; empty: no GPU code */
