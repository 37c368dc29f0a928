#include "engine/constraint_preparer.h"

#include <exception>
#include <utility>

namespace baltoro {

ConstraintPreparer::ConstraintPreparer(std::shared_ptr<ConstraintFactory> factory,
                                       Wanted wanted,
                                       Done done)
    : factory_(std::move(factory)),
      wanted_(std::move(wanted)),
      done_(std::move(done)),
      thread_([this](const std::stop_token& stop) { Work(stop); }) {}

void ConstraintPreparer::Add(std::unique_ptr<Request> request) {
  const std::lock_guard lock(mutex_);
  requests_.push_back(std::move(request));
  added_.notify_one();
}

void ConstraintPreparer::Work(const std::stop_token& stop) {
  for (;;) {
    std::unique_ptr<Request> request;
    {
      std::unique_lock lock(mutex_);
      if (!added_.wait(lock, stop, [this] { return !requests_.empty(); })) return;
      if (stop.stop_requested()) return;
      request = std::move(requests_.front());
      requests_.pop_front();
    }
    Result<std::unique_ptr<TokenConstraint>> constraint =
        wanted_(request->id) ? Make(*request)
                             : Status(Code::kUnavailable, "the request was aborted");
    done_(std::move(request), std::move(constraint));
  }
}

Result<std::unique_ptr<TokenConstraint>> ConstraintPreparer::Make(const Request& request) {
  try {
    auto constraint = factory_->Make(request);
    if (constraint.ok() && constraint.value() == nullptr) {
      return Status(Code::kInternal, "the output's constraint could not be made");
    }
    return constraint;
  } catch (const std::exception&) {
    return Status(Code::kResourceExhausted, "the output's constraint ran out of memory");
  }
}

}  // namespace baltoro
