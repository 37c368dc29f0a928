#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>

#include "net/tls.h"

namespace baltoro {
namespace {

// OpenSSL's own socket writes without MSG_NOSIGNAL.
int SocketOf(BIO* bio) {
  return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio)));
}

int SendToSocket(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t count = send(SocketOf(bio), bytes, static_cast<size_t>(size), MSG_NOSIGNAL);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(count);
}

int ReceiveFromSocket(BIO* bio, char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t count = recv(SocketOf(bio), bytes, static_cast<size_t>(size), 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  return static_cast<int>(count);
}

long ControlSocket(BIO* /*bio*/, int command, long /*number*/, void* /*pointer*/) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

const BIO_METHOD* SocketMethod() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "baltoro socket");
    if (made == nullptr) return made;
    BIO_meth_set_write(made, SendToSocket);
    BIO_meth_set_read(made, ReceiveFromSocket);
    BIO_meth_set_ctrl(made, ControlSocket);
    return made;
  }();
  return method;
}

}  // namespace

SSL* TlsContext::NewSession(int fd) const {
  ERR_clear_error();
  SSL* session = nullptr;
  {
    const std::lock_guard lock(mutex_);
    session = SSL_new(context_);
  }
  BIO* const bio = BIO_new(SocketMethod());
  if (session == nullptr || bio == nullptr) {
    SSL_free(session);
    BIO_free(bio);
    ERR_clear_error();
    return nullptr;
  }
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
  BIO_set_init(bio, 1);
  SSL_set_bio(session, bio, bio);
  return session;
}

std::unique_ptr<TlsSession> TlsSession::Accept(const TlsContext& context, int fd) {
  SSL* const session = context.NewSession(fd);
  if (session == nullptr) return nullptr;
  SSL_set_accept_state(session);
  return std::unique_ptr<TlsSession>(new TlsSession(session));
}

std::unique_ptr<TlsSession> TlsSession::Connect(const TlsContext& context,
                                                int fd,
                                                const std::string& host) {
  SSL* const session = context.NewSession(fd);
  if (session == nullptr) return nullptr;
  std::unique_ptr<TlsSession> out(new TlsSession(session));
  SSL_set_connect_state(session);
  if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(session), host.c_str()) == 1) return out;
  ERR_clear_error();  // not an address, so a name
  if (SSL_set1_host(session, host.c_str()) != 1) return nullptr;
  if (SSL_set_tlsext_host_name(session, host.c_str()) != 1) return nullptr;
  return out;
}

TlsSession::~TlsSession() {
  SSL_free(session_);
}

TlsSession::Handshake TlsSession::GoOn() {
  ERR_clear_error();
  const int done = SSL_do_handshake(session_);
  if (done == 1) return Handshake::kDone;
  const int error = SSL_get_error(session_, done);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return Handshake::kUnfinished;
  const unsigned long code = ERR_peek_error();
  ERR_clear_error();
  const int reason = ERR_GET_REASON(code);
  if (error != SSL_ERROR_SSL || reason == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
    return Handshake::kFailed;
  }
  if (reason == SSL_R_HTTP_REQUEST) return Handshake::kPlainHttp;
  const char* const said = ERR_reason_error_string(code);
  problem_ = said == nullptr ? "OpenSSL does not say why" : said;
  const long verified = SSL_get_verify_result(session_);
  if (verified != X509_V_OK) {
    problem_ += std::string(": ") + X509_verify_cert_error_string(verified);
  }
  return Handshake::kFailed;
}

short TlsSession::wanted() const {
  return SSL_want_write(session_) ? POLLOUT : POLLIN;
}

ssize_t TlsSession::Outcome(int done, size_t count) {
  if (done == 1) return static_cast<ssize_t>(count);
  switch (SSL_get_error(session_, done)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      errno = EAGAIN;
      return -1;
    case SSL_ERROR_ZERO_RETURN:
      return 0;
    default:
      errno = ECONNRESET;
      return -1;
  }
}

ssize_t TlsSession::Receive(char* bytes, size_t size) {
  ERR_clear_error();
  size_t count = 0;
  const int done = SSL_read_ex(session_, bytes, size, &count);
  return Outcome(done, count);
}

ssize_t TlsSession::Send(std::string_view bytes) {
  ERR_clear_error();
  size_t count = 0;
  const int done = SSL_write_ex(session_, bytes.data(), bytes.size(), &count);
  return Outcome(done, count);
}

bool TlsSession::Finish() {
  ERR_clear_error();
  if (!SSL_is_init_finished(session_)) return true;
  const int done = SSL_shutdown(session_);
  return done >= 0 || SSL_get_error(session_, done) != SSL_ERROR_WANT_WRITE;
}

}  // namespace baltoro
