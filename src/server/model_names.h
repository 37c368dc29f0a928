#pragma once

// The names of the one model: which are told, and which are understood.

#include <string>
#include <string_view>
#include <vector>

namespace baltoro {

class ModelNames {
 public:
  // `given`: at least one. An absolute path is understood, for clients that were told it, and never
  // told: where the model lies is nobody's business. In its place stands its last part.
  explicit ModelNames(const std::vector<std::string>& given);

  // For /v1/models; at least one.
  const std::vector<std::string>& told() const { return told_; }
  // Of answers and metrics.
  const std::string& first() const { return told_.front(); }
  // Exactly one of them. The empty name is none.
  bool Knows(std::string_view name) const;
  // What is told of a name that is known.
  std::string ToldFor(std::string_view name) const;

 private:
  std::vector<std::string> told_;
  std::vector<std::string> paths_;
};

}  // namespace baltoro
