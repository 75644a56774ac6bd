/* Tokens of a template, one at a time.
 *
 * The lexer handles white space control (trim_blocks, lstrip_blocks, the signs - and +), comments
 * and raw blocks, so that the parser sees only text, names, literals and operators.
 */
#pragma once

#include "template/node.h"

typedef enum token_kind {
    TOKEN_END,
    TOKEN_DATA,
    TOKEN_PRINT_BEGIN,
    TOKEN_PRINT_END,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INT,
    TOKEN_FLOAT,
    TOKEN_ADD,
    TOKEN_SUB,
    TOKEN_MUL,
    TOKEN_POW,
    TOKEN_DIV,
    TOKEN_FLOORDIV,
    TOKEN_MOD,
    TOKEN_TILDE,
    TOKEN_EQ,
    TOKEN_NE,
    TOKEN_LT,
    TOKEN_LE,
    TOKEN_GT,
    TOKEN_GE,
    TOKEN_ASSIGN,
    TOKEN_DOT,
    TOKEN_COLON,
    TOKEN_PIPE,
    TOKEN_COMMA,
    TOKEN_SEMICOLON,
    TOKEN_LPAREN,
    TOKEN_RPAREN,
    TOKEN_LBRACKET,
    TOKEN_RBRACKET,
    TOKEN_LBRACE,
    TOKEN_RBRACE,
} token_kind;

typedef struct token {
    token_kind kind;
    uint32_t line, column;
    const string *text; /* of data, names and strings (escapes resolved) */
    value number;
    const char *start; /* as written, for messages */
    size_t length;
} token;

typedef enum lexer_mode { LEXER_TEXT, LEXER_BLOCK, LEXER_PRINT } lexer_mode;

typedef struct lexer {
    heap *heap;
    qp_error *error;
    const char *source;
    size_t length, at;
    lexer_mode mode;
    size_t marked; /* `line` and `column` are those of the mark */
    uint32_t line, column;
    size_t depth; /* open brackets */
    char closing[TEMPLATE_MAX_NESTING];
} lexer;

void lexer_start(lexer *lexer, heap *heap, const char *source, size_t length, qp_error *error);
qp_status lexer_next(lexer *lexer, token *out);

/* Fails with "chat template, line L, column C: ...". */
qp_status template_error_at(qp_error *error, qp_status status, uint32_t line, uint32_t column,
                            const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Decimal text to the nearest double, in any locale. The caller has checked the text. */
double template_parse_double(const char *text, size_t length);
