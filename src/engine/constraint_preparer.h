#pragma once

// Makes the constraints of requests, in the order in which they came, on a thread of its own, so
// that no other request waits for a grammar to be read.

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/status.h"
#include "request/request.h"

namespace baltoro {

class ConstraintPreparer {
 public:
  // Called on the preparer's thread.
  using Done = std::function<void(std::unique_ptr<Request> request,
                                  Result<std::unique_ptr<TokenConstraint>> constraint)>;

  // Whether the request still waits; asked on the preparer's thread. For one that does not, nothing
  // is made, and `done` gets an error.
  using Wanted = std::function<bool(RequestId id)>;

  ConstraintPreparer(std::shared_ptr<ConstraintFactory> factory, Wanted wanted, Done done);
  // Requests not yet begun are dropped without a word.
  ~ConstraintPreparer() = default;

  // Any thread. How many may wait is for the caller to bound.
  void Add(std::unique_ptr<Request> request);

 private:
  void Work(const std::stop_token& stop);
  Result<std::unique_ptr<TokenConstraint>> Make(const Request& request);

  const std::shared_ptr<ConstraintFactory> factory_;
  const Wanted wanted_;
  const Done done_;
  std::mutex mutex_;
  std::condition_variable_any added_;
  std::deque<std::unique_ptr<Request>> requests_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace baltoro
