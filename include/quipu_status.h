/* How functions of quipu report failures. quipu.h includes this file. */
#ifndef QUIPU_STATUS_H
#define QUIPU_STATUS_H

typedef enum qp_status {
    QP_OK = 0,
    QP_INVALID,     /* an argument or a flag is wrong */
    QP_IO,          /* the operating system refused: open, read, write, map */
    QP_FORMAT,      /* a file or a text breaks its own format */
    QP_UNSUPPORTED, /* well formed, but quipu does not support it */
    QP_NO_MEMORY,   /* memory ran out, or is too small */
    QP_CANCELLED,   /* stopped on request */
    QP_DEVICE,      /* a GPU or its driver failed */
    QP_BUSY,        /* another call uses the engine: see the top of quipu.h */
} qp_status;

enum { QP_ERROR_SIZE = 1024 };

/* An error for a person to read: what is wrong, what was expected, what was found, what to do. */
typedef struct qp_error {
    qp_status status;
    char message[QP_ERROR_SIZE];
} qp_error;

#endif
