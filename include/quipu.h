/* quipu: a Llama-family inference engine.
 *
 * The only public header. An engine is a loaded model with its plan and memory; a session is one
 * conversation in it: its tokens and their pages of the KV cache. Everything that can fail returns
 * a qp_status and writes a sentence into the qp_error that the caller owns.
 */
#ifndef QUIPU_H
#define QUIPU_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum qp_status {
    QP_OK = 0,
    QP_INVALID,     /* an argument or a flag is wrong */
    QP_IO,          /* the operating system refused: open, read, write, map */
    QP_FORMAT,      /* a file or a text breaks its own format */
    QP_UNSUPPORTED, /* well formed, but not something that quipu can do */
    QP_NO_MEMORY,   /* it does not fit */
    QP_CANCELLED,   /* stopped on request */
    QP_DEVICE,      /* a GPU or its driver failed */
} qp_status;

enum { QP_ERROR_SIZE = 1024 };

/* What went wrong, for a person: what is wrong, what was expected, what was found, what to do. */
typedef struct qp_error {
    qp_status status;
    char message[QP_ERROR_SIZE];
} qp_error;

#ifdef __cplusplus
}
#endif
#endif
