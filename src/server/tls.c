/* TLS by OpenSSL: see tls.h. */
#include "server/tls.h"

#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509err.h>
#include <stdlib.h>

struct tls_context {
    SSL_CTX *context;
};

/* Of "http/1.1", which is all that the server speaks. */
static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *length,
                           const unsigned char *offered, unsigned n_offered, void *context)
{
    static const unsigned char ours[] = "\x08http/1.1";
    unsigned char *found;
    (void)ssl, (void)context;
    if (SSL_select_next_proto(&found, length, ours, sizeof ours - 1, offered, n_offered) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_NOACK;
    *out = found;
    return SSL_TLSEXT_ERR_OK;
}

static qp_status refuse(const char *option, const char *path, qp_error *error)
{
    const unsigned long code = ERR_peek_last_error();
    const char *why = ERR_reason_error_string(code);
    ERR_clear_error();
    if (ERR_GET_LIB(code) == ERR_LIB_X509 && ERR_GET_REASON(code) == X509_R_KEY_VALUES_MISMATCH)
        return error_set(error, QP_INVALID, "--tls-key %s: it is not the key of --tls-cert", path);
    return error_set(error, QP_FORMAT, "%s %s: %s; expected a file in PEM", option, path,
                     why ? why : "it cannot be read");
}

static qp_status fill(SSL_CTX *context, const char *certificate, const char *key, qp_error *error)
{
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_alpn_select_cb(context, choose_protocol, NULL);
    if (SSL_CTX_use_certificate_chain_file(context, certificate) != 1)
        return refuse("--tls-cert", certificate, error);
    if (SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1)
        return refuse("--tls-key", key, error);
    return QP_OK;
}

qp_status tls_read(tls_context **tls, const char *certificate, const char *key, qp_error *error)
{
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    if (!context) return error_no_memory(error, "TLS", 0);
    qp_status status = fill(context, certificate, key, error);
    if (status == QP_OK && !*tls && !(*tls = calloc(1, sizeof **tls)))
        status = error_no_memory(error, "TLS", sizeof **tls);
    if (status != QP_OK) {
        SSL_CTX_free(context);
        return status;
    }
    SSL_CTX_free((*tls)->context); /* open connections hold it */
    (*tls)->context = context;
    return QP_OK;
}

void tls_free(tls_context *tls)
{
    if (tls) SSL_CTX_free(tls->context);
    free(tls);
}

struct bufferevent *tls_accept(const tls_context *tls, struct event_base *base, int socket)
{
    SSL *ssl = SSL_new(tls->context);
    struct bufferevent *stream =
        ssl ? bufferevent_openssl_socket_new(base, socket, ssl, BUFFEREVENT_SSL_ACCEPTING,
                                             BEV_OPT_CLOSE_ON_FREE)
            : NULL;
    if (!stream) SSL_free(ssl);
    if (stream) bufferevent_openssl_set_allow_dirty_shutdown(stream, 1);
    return stream;
}

void tls_end(struct bufferevent *stream)
{
    SSL *ssl = bufferevent_openssl_get_ssl(stream);
    if (ssl) SSL_shutdown(ssl);
    ERR_clear_error();
}
