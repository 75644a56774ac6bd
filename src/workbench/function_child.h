/* The processes in which functions run: see function.h. */
#pragma once

#include "workbench/function.h"

/* What may be asked, and the answers' codes; function.py has the same numbers. */
typedef enum function_question {
    FUNCTION_LOAD,
    FUNCTION_REFRESH, /* the inputs in memory are others */
    FUNCTION_RUN,     /* n times */
    FUNCTION_STORE,   /* writes the results to memory */
} function_question;

typedef enum function_code {
    FUNCTION_DONE,
    FUNCTION_RAISED, /* these have a text at the beginning of the memory */
    FUNCTION_NOT_LOADED,
    FUNCTION_WRONG_SHAPE,
    FUNCTION_WRONG_TYPE,
} function_code;

typedef struct function_process {
    const function_source *source;
    const arguments *arguments;
    const function_options *options;
    int shared;   /* descriptor of the memory */
    char *memory; /* arguments->total bytes */
    size_t bytes;
} function_process;

/* Children of a dialogue; the context is a function_process. */
void function_python(void *context, int socket, int judge);
void function_call(void *context, int socket, int judge);
