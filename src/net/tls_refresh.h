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
  // `context` was loaded from the files of `options` just now.
  TlsRefresh(std::shared_ptr<TlsContext> context, TlsOptions options);

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
  Stamps Read() const;

  const std::shared_ptr<TlsContext> context_;
  const TlsOptions options_;
  Stamps used_, seen_;
};

}  // namespace baltoro
