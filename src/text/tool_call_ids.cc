#include "text/tool_call_ids.h"

#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/keyed_hash.h"

namespace baltoro {
namespace {

// Ids are compared without regard to characters that some API does not allow in them.
std::string Plain(std::string_view id) {
  std::string out(id);
  for (char& c : out) {
    const bool kept = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                      c == '-' || c == '_';
    if (!kept) c = '_';
  }
  return out;
}

std::string TextOf(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

struct Call {
  std::string given;  // the client's id
  std::string name;
  std::string id;
  bool answered = false;
};

class Normaliser {
 public:
  void Assistant(Json& message) {
    turn_ = calls_.size();
    by_name_.clear();
    const auto list = message.find("tool_calls");
    if (list == message.end() || !list->is_array()) return;
    for (Json& call : *list) {
      Call known;
      known.given = TextOf(call, "id");
      known.name = TextOf(call["function"], "name");
      known.id = ToolCallId(known.name, static_cast<int64_t>(calls_.size()));
      call["id"] = known.id;
      by_id_[known.given].push_back(calls_.size());
      by_plain_[Plain(known.given)].push_back(calls_.size());
      by_name_[known.name].push(calls_.size());
      calls_.push_back(std::move(known));
    }
  }

  // The results that follow one another: those with a known id first, so that a guess never takes a
  // call from one of them.
  void Results(const std::vector<Json*>& results) {
    std::vector<Json*> unknown;
    for (Json* result : results) {
      const std::string given = TextOf(*result, "tool_call_id");
      Call* call = Latest(by_id_, given);
      if (call == nullptr) call = Latest(by_plain_, Plain(given));
      if (given.empty() || call == nullptr) {
        unknown.push_back(result);
      } else {
        Answer(*call, *result);
      }
    }
    for (Json* result : unknown) {
      if (Call* call = Guess(TextOf(*result, "name"))) Answer(*call, *result);
    }
  }

  int64_t calls() const { return static_cast<int64_t>(calls_.size()); }

 private:
  template <typename Places>
  using IndexOf = std::unordered_map<std::string, Places, KeyedStringHash>;
  using Index = IndexOf<std::vector<size_t>>;

  static void Answer(Call& call, Json& result) {
    call.answered = true;
    result["tool_call_id"] = call.id;
  }

  // The unanswered one, or else the last: a client may send a result again.
  Call* Latest(Index& index, const std::string& id) {
    const auto found = index.find(id);
    if (found == index.end()) return nullptr;
    std::vector<size_t>& candidates = found->second;
    while (candidates.size() > 1 && calls_[candidates.back()].answered) candidates.pop_back();
    return &calls_[candidates.back()];
  }

  // The first unanswered call of that name in the last turn, or else the first unanswered one.
  Call* Guess(const std::string& name) {
    if (const auto found = by_name_.find(name); !name.empty() && found != by_name_.end()) {
      std::queue<size_t>& candidates = found->second;
      while (!candidates.empty() && calls_[candidates.front()].answered) candidates.pop();
      if (!candidates.empty()) return &calls_[candidates.front()];
    }
    while (turn_ < calls_.size() && calls_[turn_].answered) ++turn_;
    return turn_ < calls_.size() ? &calls_[turn_] : nullptr;
  }

  std::vector<Call> calls_;
  Index by_id_, by_plain_;               // from a client's id to its calls, in order
  IndexOf<std::queue<size_t>> by_name_;  // calls of the last assistant message
  size_t turn_ = 0;                      // the first of them that may be unanswered
};

}  // namespace

std::string ToolCallId(std::string_view name, int64_t index) {
  return "functions." + std::string(name) + ":" + std::to_string(index);
}

int64_t NormaliseToolCallIds(Json& messages) {
  Normaliser normaliser;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string role = TextOf(messages[i], "role");
    if (role == "assistant") {
      normaliser.Assistant(messages[i]);
    } else if (role == "tool") {
      std::vector<Json*> results;
      while (i < messages.size() && TextOf(messages[i], "role") == "tool") {
        results.push_back(&messages[i++]);
      }
      --i;
      normaliser.Results(results);
    }
  }
  return normaliser.calls();
}

int64_t CountToolCalls(const Json& messages) {
  int64_t calls = 0;
  for (const Json& message : messages) {
    const auto list = message.find("tool_calls");
    if (list != message.end() && list->is_array()) calls += static_cast<int64_t>(list->size());
  }
  return calls;
}

}  // namespace baltoro
