#pragma once

// TLS by OpenSSL, for the HTTP server and the blocking client: 1.2 and later, HTTP/1.1 by ALPN, no
// renegotiation.
//
// TlsContext is what all connections share; any thread may use it. TlsSession is one connection,
// over a non-blocking socket that somebody else watches: its calls return as those of the socket
// would, and belong to one thread.

#include <sys/types.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/status.h"

struct ssl_ctx_st;
struct ssl_st;

namespace baltoro {

// Whether clients show a certificate; the numbers are those of Python's ssl.VerifyMode.
enum class ClientCertificate { kIgnored = 0, kChecked = 1, kRequired = 2 };

// Files are PEM. The flags that name them in errors are those of `baltoro serve`.
struct TlsOptions {
  std::string certfile =
      {};  // the server's certificate, and behind it those that lead to its authority
  std::string keyfile = {};  // without a password; empty: it is in `certfile`
  std::string ca_certs =
      {};  // authorities that certificates of clients must come from, if any are asked
  ClientCertificate client = ClientCertificate::kIgnored;
  std::string ciphers = {};  // of TLS 1.2, as OpenSSL writes them; empty: its choice
};

class TlsContext {
 public:
  // Reads the files; there must be a certfile. An error names the flag, the file and what is wrong
  // with it.
  static Result<std::shared_ptr<TlsContext>> Load(const TlsOptions& options);
  // Trusts the authorities of this machine, or those of SSL_CERT_FILE and SSL_CERT_DIR; with
  // `insecure` any certificate does.
  static Result<std::shared_ptr<const TlsContext>> ForClient(bool insecure = false);
  // Reads the files again: connections from here on use what is in them. On an error, which is
  // Load's, all stays as it was.
  Status Refresh(const TlsOptions& options);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

 private:
  friend class TlsSession;
  explicit TlsContext(ssl_ctx_st* context) : context_(context) {}
  // A session over the socket, without a side; null: no memory.
  ssl_st* NewSession(int fd) const;

  mutable std::mutex mutex_;
  ssl_ctx_st* context_;  // under the mutex; sessions keep theirs alive by themselves
};

class TlsSession {
 public:
  // One side of a connection; a client expects a certificate for `host`, a name or an address.
  // Null: no memory. The socket outlives the session.
  static std::unique_ptr<TlsSession> Accept(const TlsContext& context, int fd);
  static std::unique_ptr<TlsSession> Connect(const TlsContext& context,
                                             int fd,
                                             const std::string& host);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  enum class Handshake { kDone, kUnfinished, kPlainHttp, kFailed };
  // Goes on with the handshake as far as the socket allows. kPlainHttp: the peer speaks HTTP. An
  // alert that says why it failed is sent by then.
  Handshake GoOn();
  // Why it failed, for the log; empty where the peer just went.
  const std::string& problem() const { return problem_; }

  // As recv and send: -1 with errno EAGAIN where the socket must be readable, or writable, first;
  // wanted() says which (POLLIN or POLLOUT). Bytes that had to wait are given again.
  ssize_t Receive(char* bytes, size_t size);
  ssize_t Send(std::string_view bytes);
  // Tells the peer that nothing more comes, so that it can tell an end from a cut. False: the
  // socket must be writable first.
  bool Finish();
  short wanted() const;

 private:
  explicit TlsSession(ssl_st* session) : session_(session) {}
  ssize_t Outcome(int done, size_t count);
  ssl_st* const session_;
  std::string problem_;
};

}  // namespace baltoro
