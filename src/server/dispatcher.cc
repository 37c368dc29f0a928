#include "server/dispatcher.h"

#include <utility>

#include "base/check.h"

namespace baltoro {

void Dispatcher::Start(size_t io_threads, Post post) {
  BT_CHECK(io_threads >= 1 && io_threads <= 256);
  post_ = std::move(post);
  for (size_t i = 0; i < io_threads; ++i) tables_.push_back(std::make_unique<Table>());
}

RequestId Dispatcher::NewId(size_t io_thread) {
  return RequestId{next_.fetch_add(1, std::memory_order_relaxed) << 8 | io_thread};
}

void Dispatcher::Register(RequestId id, std::shared_ptr<EventReceiver> receiver, int choice) {
  (*tables_[ThreadOf(id)])[static_cast<uint64_t>(id)] = {std::move(receiver), choice};
}

void Dispatcher::Forget(RequestId id) {
  tables_[ThreadOf(id)]->erase(static_cast<uint64_t>(id));
}

void Dispatcher::Deliver(std::vector<TokenEvent> events) {
  std::vector<std::vector<TokenEvent>> sorted(tables_.size());
  for (TokenEvent& event : events) {
    const size_t thread = ThreadOf(event.request);
    if (thread < sorted.size()) sorted[thread].push_back(std::move(event));
  }
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i].empty()) continue;
    post_(i, [table = tables_[i].get(), batch = std::move(sorted[i])]() mutable {
      Run(*table, std::move(batch));
    });
  }
}

void Dispatcher::Stop() {
  for (size_t i = 0; i < tables_.size(); ++i) {
    post_(i, [table = tables_[i].get()] {
      for (auto& [id, entry] : std::exchange(*table, {})) entry.receiver->OnServerStop();
    });
  }
}

void Dispatcher::Run(Table& table, std::vector<TokenEvent> events) {
  std::vector<std::shared_ptr<EventReceiver>> touched;
  touched.reserve(events.size());
  for (TokenEvent& event : events) {
    const auto found = table.find(static_cast<uint64_t>(event.request));
    if (found == table.end()) continue;
    const Entry entry = found->second;
    if (event.finish != FinishReason::kNone) table.erase(found);
    entry.receiver->OnEvent(std::move(event), entry.choice);
    // Choices of one exchange come one after the other, so this keeps most repeats out.
    if (touched.empty() || touched.back() != entry.receiver) touched.push_back(entry.receiver);
  }
  for (const auto& receiver : touched) receiver->OnStepEnd();
}

}  // namespace baltoro
