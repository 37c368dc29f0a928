#include "net/tls_refresh.h"

#include <sys/stat.h>

#include <utility>

namespace baltoro {

TlsRefresh::TlsRefresh(TlsOptions options)
    : options_(std::move(options)), used_(Read()), seen_(used_) {}

Result<TlsRefresh> TlsRefresh::Load(TlsOptions options) {
  // Stamped first: a file that changes while it is loaded counts as changed.
  TlsRefresh refresh(std::move(options));
  BT_ASSIGN_OR_RETURN(refresh.context_, TlsContext::Load(refresh.options_));
  return refresh;
}

TlsRefresh::Stamps TlsRefresh::Read() const {
  Stamps stamps;
  const std::string* const paths[] = {&options_.certfile, &options_.keyfile, &options_.ca_certs};
  for (size_t i = 0; i < stamps.size(); ++i) {
    struct stat found = {};
    if (paths[i]->empty() || stat(paths[i]->c_str(), &found) != 0) continue;
    stamps[i] = {.device = found.st_dev,
                 .inode = found.st_ino,
                 .bytes = found.st_size,
                 .changed_ns = found.st_mtim.tv_sec * 1'000'000'000 + found.st_mtim.tv_nsec};
  }
  return stamps;
}

std::optional<Status> TlsRefresh::Look() {
  const Stamps now = Read();
  const bool settled = std::exchange(seen_, now) == now;
  if (!settled || now == used_) return std::nullopt;
  used_ = now;
  return context_->Refresh(options_);
}

}  // namespace baltoro
