#pragma once

// New certificates for a server that runs: reads the files of its TLS again when they change.

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/status.h"
#include "net/tls.h"

namespace baltoro {

class TlsRefresh {
 public:
  // Loads a context from the files of `options`; what changes from here on is seen.
  static Result<TlsRefresh> Load(TlsOptions options);

  std::shared_ptr<TlsContext> context() const { return context_; }

  // Now and then, of one thread. A change is acted on when the files have not changed since the
  // look before, so that both of a pair are there. Nothing: no change. An error: what there is now
  // does not do, and the former files stay in use until the next change.
  std::optional<Status> Look();

 private:
  struct Stamp {
    dev_t device = 0;
    ino_t inode = 0;  // a file that was put in its place by a rename is another
    int64_t bytes = -1, changed_ns = 0;
    bool operator==(const Stamp&) const = default;
  };
  using Stamps = std::array<Stamp, 3>;
  explicit TlsRefresh(TlsOptions options);
  Stamps Read() const;

  TlsOptions options_;
  Stamps used_, seen_;
  std::shared_ptr<TlsContext> context_;
};

}  // namespace baltoro
