#pragma once

// Constraints that follow a script, for tests of everything around them:
//
//   "5,9 3 *"       first 5 or 9, then 3, then anything; then nothing more
//   "loop 5,9 3"    from the beginning again after the last
//
// and, before the first set of ids, words that make trouble:
//
//   make-error  make-throw  make-slow=MS   when it is made
//   make-hold                              made once the factory is told to Release()
//   slow=MS                                each mask takes that long
//   fill-throw=I  fill-error=I             the mask of output token I
//   accept-false=I  accept-throw=I         when output token I is taken
//
// It holds its user to the contract: masks come with every bit set, drafts are allowed ones, and
// nobody calls it while another does.

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "request/request.h"

namespace baltoro::test {

struct Script {
  bool loop = false;
  std::vector<std::vector<TokenId>> sets;  // empty: anything
  std::unordered_map<std::string, int> trouble;

  static Script Parse(const std::string& text) {
    Script script;
    std::istringstream words(text.substr(0, 1000));  // what follows is weight
    for (std::string word; words >> word;) {
      if (word == "loop") {
        script.loop = true;
      } else if (word == "*") {
        script.sets.emplace_back();
      } else if (std::isdigit(static_cast<unsigned char>(word[0])) != 0) {
        std::istringstream ids(word);
        auto& set = script.sets.emplace_back();
        for (std::string id; std::getline(ids, id, ',');) set.push_back(std::atoi(id.c_str()));
      } else {
        const size_t equals = word.find('=');
        script.trouble[word.substr(0, equals)] =
            equals == std::string::npos ? 0 : std::atoi(word.c_str() + equals + 1);
      }
    }
    return script;
  }
  // Null if nothing may come.
  const std::vector<TokenId>* At(size_t position) const {
    if (loop && !sets.empty()) position %= sets.size();
    return position < sets.size() ? &sets[position] : nullptr;
  }
  bool Allows(size_t position, TokenId token) const {
    const std::vector<TokenId>* set = At(position);
    if (set == nullptr) return false;
    return set->empty() || std::count(set->begin(), set->end(), token) > 0;
  }
  bool Troubles(const std::string& word, size_t position) const {
    const auto found = trouble.find(word);
    return found != trouble.end() && static_cast<size_t>(found->second) == position;
  }
  int MillisecondsOf(const std::string& word) const {
    const auto found = trouble.find(word);
    return found != trouble.end() ? found->second : 0;
  }
};

// What the constraints of one factory were asked.
struct ScriptedCalls {
  std::atomic<int> made = 0, alive = 0, fills = 0, accepts = 0, rolled_back = 0;
};

class ScriptedConstraint final : public TokenConstraint {
 public:
  ScriptedConstraint(Script script, std::shared_ptr<ScriptedCalls> calls)
      : script_(std::move(script)), calls_(std::move(calls)) {
    ++calls_->made;
    ++calls_->alive;
  }
  ~ScriptedConstraint() override { --calls_->alive; }

  void FillMask(std::span<const TokenId> drafted, std::span<uint32_t> mask) override {
    const Alone alone(busy_);
    ++calls_->fills;
    const int slow = script_.MillisecondsOf("slow");
    if (slow > 0) std::this_thread::sleep_for(std::chrono::milliseconds(slow));
    for (size_t i = 0; i < drafted.size(); ++i) {
      BT_CHECK(script_.Allows(position_ + i, drafted[i]));
    }
    for (const uint32_t word : mask) BT_CHECK(word == ~uint32_t{0});
    const size_t position = position_ + drafted.size();
    if (script_.Troubles("fill-throw", position)) throw std::bad_alloc();
    if (script_.Troubles("fill-error", position))
      error_ = InvalidArgument("too many ways to go on");
    const std::vector<TokenId>* set = script_.At(position);
    if (set != nullptr && set->empty()) return;
    for (uint32_t& word : mask) word = 0;
    if (set == nullptr) return;
    for (const TokenId id : *set) mask[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
  }
  bool Accept(TokenId token) override {
    const Alone alone(busy_);
    ++calls_->accepts;
    if (script_.Troubles("accept-throw", position_)) throw std::bad_alloc();
    if (script_.Troubles("accept-false", position_)) return false;
    if (!script_.Allows(position_, token)) return false;
    ++position_;
    return true;
  }
  void Rollback(int tokens) override {
    const Alone alone(busy_);
    BT_CHECK(tokens > 0 && static_cast<size_t>(tokens) <= position_);
    calls_->rolled_back += tokens;
    position_ -= static_cast<size_t>(tokens);
  }
  Status error() const override { return error_; }

 private:
  class Alone {
   public:
    explicit Alone(std::atomic<bool>& busy) : busy_(busy) { BT_CHECK(!busy_.exchange(true)); }
    ~Alone() { busy_ = false; }

   private:
    std::atomic<bool>& busy_;
  };
  const Script script_;
  const std::shared_ptr<ScriptedCalls> calls_;
  std::atomic<bool> busy_ = false;
  size_t position_ = 0;
  Status error_;
};

class ScriptedFactory final : public ConstraintFactory {
 public:
  Result<std::unique_ptr<TokenConstraint>> Make(const Request& request) override {
    Script script = Script::Parse(request.constraint.str());
    const int slow = script.MillisecondsOf("make-slow");
    if (slow > 0) std::this_thread::sleep_for(std::chrono::milliseconds(slow));
    if (script.trouble.contains("make-hold")) released_.wait(false);
    if (script.trouble.contains("make-error")) return InvalidArgument("the script makes no sense");
    if (script.trouble.contains("make-throw")) throw std::bad_alloc();
    std::unique_ptr<TokenConstraint> made =
        std::make_unique<ScriptedConstraint>(std::move(script), calls_);
    return made;
  }
  const ScriptedCalls& calls() const { return *calls_; }
  void Release() {
    released_ = true;
    released_.notify_all();
  }

 private:
  std::atomic<bool> released_ = false;
  std::shared_ptr<ScriptedCalls> calls_ = std::make_shared<ScriptedCalls>();
};

// A maker that hands out `factory`.
inline ConstraintFactoryMaker Hand(std::shared_ptr<ConstraintFactory> factory) {
  return [factory](const std::string&, int32_t) { return factory; };
}

}  // namespace baltoro::test
