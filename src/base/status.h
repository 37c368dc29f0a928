#pragma once

// Errors of the world (file, request, peer, memory full) travel as Status or Result<T>. Errors of
// ours are BT_CHECK (check.h). Nothing of ours throws.

#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace baltoro {

// The code says who must act: the caller, time, or an operator.
enum class Code { kOk, kInvalidArgument, kNotFound, kResourceExhausted, kUnavailable, kInternal };

class [[nodiscard]] Status {
 public:
  Status() = default;  // OK, and free of allocation
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

inline Status InvalidArgument(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}

// A value, or the reason there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : held_(std::move(value)) {}  // NOLINT: converts, so that `return x;` reads well
  Result(Status why) : held_(std::move(why)) {  // NOLINT: likewise
    BT_CHECK(!std::get<Status>(held_).ok());
  }

  bool ok() const { return std::holds_alternative<T>(held_); }
  Status status() const { return ok() ? Status() : std::get<Status>(held_); }
  const T& value() const& {
    BT_CHECK(ok());
    return std::get<T>(held_);
  }
  T& value() & {
    BT_CHECK(ok());
    return std::get<T>(held_);
  }
  T&& value() && {
    BT_CHECK(ok());
    return std::get<T>(std::move(held_));
  }

 private:
  std::variant<T, Status> held_;
};

}  // namespace baltoro

#define BT_CONCAT_INNER(a, b) a##b
#define BT_CONCAT(a, b) BT_CONCAT_INNER(a, b)

#define BT_RETURN_IF_ERROR(expr)           \
  do {                                     \
    ::baltoro::Status bt_status = (expr);  \
    if (!bt_status.ok()) return bt_status; \
  } while (false)

#define BT_ASSIGN_OR_RETURN(target, expr) \
  BT_ASSIGN_OR_RETURN_INNER(BT_CONCAT(bt_result_, __LINE__), target, expr)
#define BT_ASSIGN_OR_RETURN_INNER(result, target, expr) \
  auto result = (expr);                                 \
  if (!result.ok()) return result.status();             \
  target = std::move(result).value()
