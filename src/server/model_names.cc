#include "server/model_names.h"

#include <algorithm>

#include "base/check.h"

namespace baltoro {
namespace {

bool Contains(const std::vector<std::string>& list, std::string_view item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

// "/models/Kimi-K2/" -> "Kimi-K2"
std::string LastPart(std::string_view path) {
  while (path.ends_with('/')) path.remove_suffix(1);
  path.remove_prefix(path.rfind('/') + 1);
  return path.empty() ? "model" : std::string(path);
}

}  // namespace

ModelNames::ModelNames(const std::vector<std::string>& given) {
  BT_CHECK(!given.empty());
  for (const std::string& name : given) {
    const bool path = name.starts_with('/');
    if (path) paths_.push_back(name);
    std::string told = path ? LastPart(name) : name;
    if (!Contains(told_, told)) told_.push_back(std::move(told));
  }
}

std::string ModelNames::ToldFor(std::string_view name) const {
  return name.starts_with('/') ? LastPart(name) : std::string(name);
}

bool ModelNames::Knows(std::string_view name) const {
  return !name.empty() && (Contains(told_, name) || Contains(paths_, name));
}

}  // namespace baltoro
