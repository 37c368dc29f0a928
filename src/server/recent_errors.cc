#include "server/recent_errors.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace baltoro {

void RecentErrors::Add(RecentError error) {
  std::string& message = error.error.message;
  if (message.size() > kMessageBytes) {
    message.resize(kMessageBytes);
    size_t half = 0;
    if (Utf8IncompleteTail(message, half)) message.resize(message.size() - half);
    message += "...";
  }
  if (error.error.param)
    error.error.param->resize(std::min(error.error.param->size(), size_t{128}));
  const std::lock_guard lock(mutex_);
  errors_.push_front(std::move(error));
  if (errors_.size() > kKept) errors_.pop_back();
}

std::vector<RecentError> RecentErrors::Of(std::string_view client) const {
  std::vector<RecentError> out;
  const std::lock_guard lock(mutex_);
  for (const RecentError& error : errors_) {
    if (error.client == client) out.push_back(error);
  }
  return out;
}

}  // namespace baltoro
