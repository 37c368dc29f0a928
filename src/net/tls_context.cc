#include "net/tls.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <cstdint>
#include <utility>

#include "base/file.h"
#include "base/log.h"

namespace baltoro {
namespace {

constexpr uint64_t kPemBytesMax = 4 << 20;  // a bundle of all public authorities takes 220 KiB
constexpr int kChainMax = 16;               // certificates between the server's and its authority
constexpr std::string_view kCertFlag = "--ssl-certfile", kKeyFlag = "--ssl-keyfile",
                           kCaFlag = "--ssl-ca-certs", kCipherFlag = "--ssl-ciphers";

template <auto free>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    free(object);
  }
};
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Memory = std::unique_ptr<BIO, Free<BIO_free>>;
using Context = std::unique_ptr<SSL_CTX, Free<SSL_CTX_free>>;

// The newest of OpenSSL's errors, which are then forgotten.
std::string Reason() {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason == nullptr ? "OpenSSL does not say why" : reason;
}

Status Refuse(std::string_view flag, const std::string& path, const std::string& what) {
  return InvalidArgument(fmt::format("{} {}: {}", flag, path, what));
}

// A file's text, for OpenSSL to read, and gone from memory after it: it may hold a key.
struct Pem {
  std::string text;
  Memory memory;
  Pem() = default;
  Pem(Pem&&) = default;
  ~Pem() { OPENSSL_cleanse(text.data(), text.size()); }
};

Result<Pem> OpenPem(const std::string& path, std::string_view flag) {
  Pem pem;
  BT_ASSIGN_OR_RETURN(pem.text, ReadFile(path, kPemBytesMax, flag));
  ERR_clear_error();
  pem.memory.reset(BIO_new_mem_buf(pem.text.data(), static_cast<int>(pem.text.size())));
  if (pem.memory == nullptr) return Status(Code::kResourceExhausted, Reason());
  return pem;
}

// Calls `take`, which owns what it gets, for each certificate of a file.
template <typename Take>
Status ReadCertificates(const std::string& path, std::string_view flag, const Take& take) {
  BT_ASSIGN_OR_RETURN(const Pem pem, OpenPem(path, flag));
  for (int count = 0;; ++count) {
    Certificate certificate(PEM_read_bio_X509(pem.memory.get(), nullptr, nullptr, nullptr));
    if (certificate == nullptr) {
      if (ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE) {
        return Refuse(flag, path, fmt::format("certificate {}: {}", count + 1, Reason()));
      }
      ERR_clear_error();
      if (count > 0) return {};
      return Refuse(flag, path, "has no certificate in PEM form (-----BEGIN CERTIFICATE-----)");
    }
    BT_RETURN_IF_ERROR(take(count, std::move(certificate)));
  }
}

void WarnOfDates(const X509* certificate, const std::string& path) {
  const bool ended = X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0;
  const bool to_come = X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0;
  if (!ended && !to_come) return;
  BT_LOG(Warning, "{} {}: the certificate {}; clients will refuse it", kCertFlag, path,
         ended ? "has expired" : "is not valid yet");
}

Status UseCertificates(SSL_CTX* context, const std::string& path) {
  return ReadCertificates(path, kCertFlag, [&](int count, Certificate certificate) -> Status {
    if (count == 0) {
      if (SSL_CTX_use_certificate(context, certificate.get()) != 1) {
        return Refuse(kCertFlag, path, Reason());
      }
      WarnOfDates(certificate.get(), path);
      return {};
    }
    if (count > kChainMax) {
      return Refuse(kCertFlag, path, fmt::format("more than {} certificates", kChainMax + 1));
    }
    if (SSL_CTX_add0_chain_cert(context, certificate.get()) != 1) {
      return Refuse(kCertFlag, path, fmt::format("certificate {}: {}", count + 1, Reason()));
    }
    certificate.release();  // NOLINT: the context has it
    return {};
  });
}

// OpenSSL asks for a password; there is none, and it must not ask at the terminal.
int NoPassword(char* /*buffer*/, int /*size*/, int /*writes*/, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

Status UseKey(SSL_CTX* context, const TlsOptions& options) {
  const bool apart = !options.keyfile.empty();
  const std::string& path = apart ? options.keyfile : options.certfile;
  const std::string_view flag = apart ? kKeyFlag : kCertFlag;
  BT_ASSIGN_OR_RETURN(const Pem pem, OpenPem(path, flag));
  bool asked = false;
  const Key key(PEM_read_bio_PrivateKey(pem.memory.get(), nullptr, NoPassword, &asked));
  if (asked) {
    ERR_clear_error();
    return Refuse(flag, path,
                  "the key has a password, for which nobody can be asked; `openssl pkey -in KEY "
                  "-out NEW` writes it without");
  }
  if (key == nullptr) {
    // Where there is no key OpenSSL says as little as of a wrong one.
    const bool none = pem.text.find("PRIVATE KEY-----") == std::string::npos;
    const std::string reason = Reason();
    if (!none) return Refuse(flag, path, "the key cannot be read: " + reason);
    return Refuse(flag, path,
                  std::string("has no private key in PEM form (-----BEGIN PRIVATE KEY-----)") +
                      (apart ? "" : "; --ssl-keyfile names a file of its own"));
  }
  // It compares them too.
  if (SSL_CTX_use_PrivateKey(context, key.get()) == 1) return {};
  const int reason = ERR_GET_REASON(ERR_peek_last_error());
  const bool other = reason == X509_R_KEY_VALUES_MISMATCH || reason == X509_R_KEY_TYPE_MISMATCH;
  const std::string said = Reason();
  if (!other) return Refuse(flag, path, said);
  return Refuse(
      flag, path,
      fmt::format("the key is not that of the certificate in {} {}", kCertFlag, options.certfile));
}

Status AskClients(SSL_CTX* context, const TlsOptions& options) {
  if (options.client == ClientCertificate::kIgnored) return {};
  BT_RETURN_IF_ERROR(ReadCertificates(
      options.ca_certs, kCaFlag, [&](int count, const Certificate& certificate) -> Status {
        if (X509_STORE_add_cert(SSL_CTX_get_cert_store(context), certificate.get()) == 1 &&
            SSL_CTX_add_client_CA(context, certificate.get()) == 1) {
          return {};
        }
        return Refuse(kCaFlag, options.ca_certs,
                      fmt::format("certificate {}: {}", count + 1, Reason()));
      }));
  const bool required = options.client == ClientCertificate::kRequired;
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | (required ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0),
                     nullptr);
  return {};
}

// Of what the client offers, HTTP/1.1; a client that offers other protocols alone is refused.
int ChooseProtocol(SSL* /*session*/,
                   const unsigned char** out,
                   unsigned char* out_bytes,
                   const unsigned char* offered,
                   unsigned int offered_bytes,
                   void* /*none*/) {
  static constexpr unsigned char kOurs[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_bytes, kOurs, sizeof(kOurs), offered, offered_bytes) !=
      OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

Result<Context> NewContext(const SSL_METHOD* side) {
  ERR_clear_error();
  Context context(SSL_CTX_new(side));
  if (context == nullptr) return Status(Code::kResourceExhausted, Reason());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  // A record that had to wait may lie elsewhere by then; a connection between two requests holds no
  // buffers.
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                      SSL_MODE_RELEASE_BUFFERS);
  return context;
}

Result<Context> ServerContext(const TlsOptions& options) {
  BT_ASSIGN_OR_RETURN(Context context, NewContext(TLS_server_method()));
  // Sessions are kept by clients (tickets), none here; those of checked clients need a name.
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  static constexpr unsigned char kName[] = "baltoro";
  SSL_CTX_set_session_id_context(context.get(), kName, sizeof(kName) - 1);
  SSL_CTX_set_alpn_select_cb(context.get(), ChooseProtocol, nullptr);
  if (!options.ciphers.empty() &&
      SSL_CTX_set_cipher_list(context.get(), options.ciphers.c_str()) != 1) {
    return InvalidArgument(
        fmt::format("{} {}: OpenSSL knows no such cipher (`openssl ciphers` "
                    "lists them)",
                    kCipherFlag, options.ciphers));
  }
  BT_RETURN_IF_ERROR(UseCertificates(context.get(), options.certfile));
  BT_RETURN_IF_ERROR(UseKey(context.get(), options));
  BT_RETURN_IF_ERROR(AskClients(context.get(), options));
  return context;
}

}  // namespace

Result<std::shared_ptr<TlsContext>> TlsContext::Load(const TlsOptions& options) {
  BT_ASSIGN_OR_RETURN(Context context, ServerContext(options));
  return std::shared_ptr<TlsContext>(new TlsContext(context.release()));
}

Status TlsContext::Refresh(const TlsOptions& options) {
  BT_ASSIGN_OR_RETURN(Context context, ServerContext(options));
  const std::lock_guard lock(mutex_);
  SSL_CTX_free(std::exchange(context_, context.release()));
  return {};
}

Result<std::shared_ptr<const TlsContext>> TlsContext::ForClient(bool insecure) {
  BT_ASSIGN_OR_RETURN(Context context, NewContext(TLS_client_method()));
  if (SSL_CTX_set_default_verify_paths(context.get()) != 1) {
    return Status(Code::kUnavailable, "the authorities of this machine: " + Reason());
  }
  SSL_CTX_set_verify(context.get(), insecure ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, nullptr);
  return std::shared_ptr<const TlsContext>(new TlsContext(context.release()));
}

TlsContext::~TlsContext() {
  SSL_CTX_free(context_);
}

}  // namespace baltoro
