#include "ops/cuda/launch/kernel_table.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"

namespace baltoro::cuda {
namespace {

constexpr char kVariable[] = "BALTORO_KERNEL_TABLE";

void Tell(const std::string& line) {
  std::fputs((std::string(kVariable) + " " + line + "\n").c_str(), stderr);
}

Result<std::unique_ptr<Overrides>> Named() {
  const char* const path = std::getenv(kVariable);
  if (path == nullptr || *path == '\0') {
    return std::make_unique<Overrides>(std::vector<Override>(), nullptr);
  }
  return ReadKernelTable(path);
}

}  // namespace

Result<std::unique_ptr<Overrides>> ReadKernelTable(const std::string& path) {
  BT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kOverridesBytesMax, kVariable));
  auto table = Overrides::Parse(text, path + ":", Tell);
  if (table.ok()) return table;
  return InvalidArgument(std::string(kVariable) + " " + table.status().message());
}

Result<Overrides*> KernelTable() {
  // Plans point into it for as long as there are threads.
  static const auto* const held = new Result<std::unique_ptr<Overrides>>(Named());
  if (!held->ok()) return held->status();
  return held->value().get();
}

Status SetKernelTable(const std::vector<KernelEntries>& tables) {
  BT_ASSIGN_OR_RETURN(Overrides* const table, KernelTable());
  const auto tell = [](const std::string& line) { std::fputs((line + "\n").c_str(), stderr); };
  Overrides all({}, tell);
  for (const KernelEntries& one : tables) {
    BT_ASSIGN_OR_RETURN(const std::unique_ptr<Overrides> read,
                        Overrides::Parse(one.text, one.before_number, tell));
    all.Append(std::move(*read));
  }
  if (all.size() > kOverridesMax) {
    return InvalidArgument("tables of overrides have " + std::to_string(all.size()) +
                           " entries together: " + std::to_string(kOverridesMax) + " are the most");
  }
  table->Replace(std::move(all));
  return {};
}

Status ListenToChoices(ChoiceListener listener) {
  BT_ASSIGN_OR_RETURN(Overrides* const table, KernelTable());
  table->Listen(std::move(listener));
  return {};
}

}  // namespace baltoro::cuda
