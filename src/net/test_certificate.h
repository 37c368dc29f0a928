#pragma once

// For tests: certificates made on the spot, for 127.0.0.1 and localhost, each its own authority.

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <string>

namespace baltoro::test {

struct CertificateFiles {
  std::string cert, key, locked_key;  // locked_key: the same with a password
};

// Files "NAME.pem", "NAME.key" and "NAME.locked" in `folder`.
inline CertificateFiles MakeCertificate(const std::string& folder, const std::string& name) {
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  X509* const cert = X509_new();
  X509_set_version(cert, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
  X509_gmtime_adj(X509_getm_notBefore(cert), -3600);
  X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
  X509_set_pubkey(cert, key);
  X509_NAME* const subject = X509_get_subject_name(cert);
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(cert, subject);
  for (const auto& [id, value] : {std::pair{NID_basic_constraints, "critical,CA:TRUE"},
                                  std::pair{NID_subject_alt_name, "IP:127.0.0.1,DNS:localhost"}}) {
    X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, id, value);
    X509_add_ext(cert, extension, -1);
    X509_EXTENSION_free(extension);
  }
  EXPECT_GT(X509_sign(cert, key, EVP_sha256()), 0);

  const CertificateFiles files{.cert = folder + "/" + name + ".pem",
                               .key = folder + "/" + name + ".key",
                               .locked_key = folder + "/" + name + ".locked"};
  const auto write = [](const std::string& path, const auto& print) {
    BIO* const file = BIO_new_file(path.c_str(), "w");
    EXPECT_NE(file, nullptr) << path;
    EXPECT_EQ(print(file), 1);
    BIO_free(file);
  };
  write(files.cert, [&](BIO* file) { return PEM_write_bio_X509(file, cert); });
  write(files.key, [&](BIO* file) {
    return PEM_write_bio_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
  });
  write(files.locked_key, [&](BIO* file) {
    return PEM_write_bio_PKCS8PrivateKey(file, key, EVP_aes_128_cbc(), "secret", 6, nullptr,
                                         nullptr);
  });
  X509_free(cert);
  EVP_PKEY_free(key);
  return files;
}

}  // namespace baltoro::test
