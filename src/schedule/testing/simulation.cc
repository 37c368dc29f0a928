#include "schedule/testing/simulation.h"

#include <algorithm>
#include <set>

#include "schedule/stop_rule.h"

namespace baltoro::test {

namespace {

constexpr int kBypassesMax = 64;
constexpr int kTicksToHeal = 1000;

}  // namespace

Simulation::Simulation(uint64_t seed, int ticks) : random_(seed), ticks_(ticks) {
  // Each kind of trouble is on in about half of the seeds.
  config_.num_blocks = Between(6, Chance(2) ? 14 : 60);
  config_.max_num_seqs = Between(1, Chance(2) ? 4 : 16);
  config_.max_num_batched_tokens = Chance(2) ? Between(1, 40) : Between(40, 300);
  config_.max_model_len = Chance(4) ? 100 : config_.num_blocks * kBlockTokens;
  config_.max_queued_requests = Between(2, 20);
  config_.enable_prefix_caching = !Chance(4);
  config_.priority_policy = Chance(2);
  config_.drafts_max = Chance(2) ? 0 : Between(1, 4);
  config_.prompt_logprob_rows_max = Between(1, 64);
  config_.watermark = Chance(2) ? 0 : 0.1;
  config_.hash_secret = {random_(), random_()};
  lag_ = Chance(2) ? 0 : 1;
  if (Chance(3)) {
    config_.stages = Between(2, 4);
    lag_ = config_.stages - 1;
  }
  arrival_one_in_ = Between(1, 12);
  abort_one_in_ = Chance(2) ? 1 << 30 : Between(4, 60);
  failures_ = Chance(2);
  prompt_logprobs_ = Chance(2);
  constraints_ = Chance(2);
  const int room = config_.num_blocks * kBlockTokens;
  prompt_max_ = Between(1, room * 2 / 3);
  output_max_ = Between(1, room / 3);
  if (Chance(3)) {  // memory pressure: short prompts that grow long, in a small cache
    config_.num_blocks = Between(6, 12);
    config_.max_num_seqs = Between(3, 12);
    config_.max_model_len = config_.num_blocks * kBlockTokens;
    config_.max_num_batched_tokens = Between(100, 300);
    config_.watermark = 0;
    arrival_one_in_ = Between(1, 30);
    prompt_max_ = Between(1, 70);
    output_max_ = config_.num_blocks * kBlockTokens - prompt_max_ - 20;
    if (Chance(2)) {  // a stream of urgent requests over a few patient ones
      urgent_ = true;
      config_.priority_policy = true;
      config_.max_num_seqs = config_.num_blocks;
      arrival_one_in_ = Between(4, 20);
    }
  }
  switch (seed % 7) {
    case 0:
      config_.share_prompts_only = true;
      break;
    case 1:
      config_.prompt_chunk = kBlockTokens * (1 + static_cast<int32_t>(seed / 7 % 3));
      config_.decode_rows = config_.drafts_max + 1 + static_cast<int32_t>(seed / 21 % 8);
      break;
    case 2:
      config_.prompt_chunk = 1 + static_cast<int32_t>(seed * 37 % 200);
      config_.decode_rows = config_.drafts_max + 1;
      break;
    default:
      break;
  }
  limits_ = Chance(2);
  if (Chance(2) && config_.prompt_chunk == 0) {
    config_.picture_rows = Between(20, 200);
    config_.picture_layers = Between(1, 6);
    config_.picture_patches_max = 4 * Between(20, 300);
    config_.picture_ranks = Between(1, 3);
    config_.picture_patches_shared = 4 * Between(0, 200);
    const auto most = std::min<int64_t>(config_.picture_rows, config_.picture_patches_max / 4);
    for (int i = 0; i < 8; ++i) {
      RequestPicture& picture = pictures_.emplace_back();
      picture.count = Between(1, Chance(2) ? 3 : static_cast<int>(most));
      picture.rows = 2;
      picture.columns = 2 * picture.count;
      picture.hash[0] = static_cast<uint8_t>(i + 1);
      picture.pixels = std::string(picture.hash.begin(), picture.hash.end());
    }
  }
  owners_ = Chance(2) ? 1 : Between(2, 4);
  scheduler_ = std::make_unique<Scheduler>(config_);
  fairness_ = std::make_unique<FairnessCheck>(config_);
  const FixedForms fixed{.prompt_chunk = config_.prompt_chunk,
                         .decode_rows = config_.decode_rows,
                         .prompt_logprob_rows_max = config_.prompt_logprob_rows_max};
  executor_ =
      std::make_unique<MockExecutor>(config_.num_blocks, config_.max_num_seqs, fixed, random_());
  executor_->HasPictures(config_.picture_rows, config_.picture_layers, config_.picture_ranks);
  for (int i = 0; i < 4; ++i) {
    auto& prefix = prefixes_.emplace_back(Between(1, prompt_max_));
    for (TokenId& token : prefix) token = Between(0, kVocab - 1);
  }
}

SimulationReport Simulation::Run() {
  for (int i = 0; i < ticks_ && report_.violation.empty(); ++i) Tick(true);
  // No more arrivals: everything accepted must end, and nothing may be left. Output tokens come one
  // a tick at the least, so the bound counts from the last of them.
  int64_t seen = report_.tokens;
  for (int quiet = 0; report_.violation.empty() && !(scheduler_->idle() && flights_.empty());
       ++quiet) {
    Tick(false);
    const int64_t now =
        report_.tokens + static_cast<int64_t>(scheduler_->stats().prompt_tokens_computed);
    if (now != seen) quiet = 0;
    seen = now;
    if (quiet > kTicksToHeal) Violate("no progress, though requests wait");
  }
  if (report_.violation.empty()) {
    if (!open_.empty()) Violate("a request never ended");
    if (scheduler_->pool().num_free() != config_.num_blocks) Violate("blocks were lost");
    if (scheduler_->pictures().held() != 0) Violate("pictures are held for nobody");
    if (scheduler_->queued_requests() != 0 || scheduler_->queued_tokens() != 0) {
      Violate("the empty queue counts requests");
    }
  }
  const SchedulerStats stats = scheduler_->stats();
  report_.preemptions = static_cast<int64_t>(stats.preemptions);
  report_.hit_tokens = static_cast<int64_t>(stats.prefix_hits);
  return report_;
}

void Simulation::Tick(bool faults) {
  if (faults && Chance(arrival_one_in_)) SubmitOne();
  if (faults && Chance(abort_one_in_)) AbortOne();
  if (scheduler_->plans_in_flight() <= lag_) PlanOne();
  if (faults && Chance(abort_one_in_)) AbortOne();
  const bool full = scheduler_->plans_in_flight() > lag_;
  if (!flights_.empty() && (full || Chance(2))) CommitOne();
  Receive();
  CheckBlocks();
  if (const std::string wrong = fairness_->CheckQueue(*scheduler_); !wrong.empty()) Violate(wrong);
}

// From less than the smallest chunk to more than a step can have.
StepCosts Simulation::RandomCosts() {
  StepCosts costs;
  if (Chance(4)) return costs;
  ++report_.limited_steps;
  costs.prompt_token = 1;
  costs.prompt_key = Chance(2) ? 0 : 0.01 * Between(1, 10);
  costs.decode_token = Chance(2) ? 0 : Between(1, 20);
  costs.decode_key = Chance(2) ? 0 : 0.001 * Between(1, 10);
  costs.fixed = Between(0, 20);
  costs.picture_patch = Chance(2) ? 0 : 0.1 * Between(1, 10);
  costs.limit = Between(1, 400);
  costs.limit_alone = costs.limit * Between(1, 4);
  return costs;
}

Request Simulation::RandomRequest() {
  Request request;
  request.id = RequestId{next_id_++};
  const int salt = Between(0, 1);
  request.cache_salt = salt == 0 ? "" : "salt";
  request.sampling.seed = static_cast<uint64_t>(salt);
  request.prompt = prefixes_[Between(0, 3)];
  if (Chance(2)) request.prompt.resize(Between(1, static_cast<int>(request.prompt.size())));
  const int more = Chance(2) ? Between(0, 20) : 0;
  for (int i = 0; i < more; ++i) request.prompt.push_back(Between(0, kVocab - 1));
  if (!pictures_.empty() && Chance(2)) AddPictures(request);
  request.stop.max_tokens = Between(1, output_max_);
  request.stop.min_tokens = Chance(3) ? Between(0, request.stop.max_tokens) : 0;
  request.stop.eos_ids = {0};
  request.stop.ignore_eos = !Chance(3);
  if (Chance(4)) request.stop.stop_ids = {1, 2};
  request.priority = Between(0, 2);
  request.owner = static_cast<uint64_t>(Between(1, owners_));
  if (request.owner == 1 && owners_ > 1 && Chance(2)) request.owner = 2;  // one asks for most
  if (urgent_) {
    request.priority = Chance(8) ? 1 : 0;
    if (request.priority == 0) request.stop.max_tokens = Between(1, 120);
  }
  if (prompt_logprobs_ && Chance(4)) request.sampling.prompt_logprobs = 0;
  if (failures_ && Chance(6)) {
    request.prompt[0] = kFailBase + Between(0, std::min(request.stop.max_tokens, 5) - 1);
  } else if (constraints_ && Chance(4)) {
    request.prompt[0] = kEndBase + Between(0, std::min(request.stop.max_tokens, 40));
    request.constraint = "ends";
  }
  return request;
}

// In places that many requests have in common, and never at the end.
void Simulation::AddPictures(Request& request) {
  constexpr TokenId kPlaceholder = 3;
  int32_t at = -5;  // some begin with one
  for (int i = Between(1, 3); i > 0; --i) {
    at += Between(1, 4) * 5;
    if (at >= std::ssize(request.prompt)) return;
    RequestPicture picture = pictures_[random_() % pictures_.size()];
    picture.begin = at;
    request.prompt.insert(request.prompt.begin() + at, static_cast<size_t>(picture.count),
                          kPlaceholder);
    at += picture.count;
    request.pictures.push_back(std::move(picture));
  }
}

void Simulation::SubmitOne() {
  Request request = RandomRequest();
  Client client;
  client.request = request;
  client.arrival = next_id_;
  if (!request.constraint.empty()) {
    client.end_at = request.prompt[0] - kEndBase;
  } else if (request.prompt[0] >= kFailBase) {
    client.fail_at = request.prompt[0] - kFailBase;
  }
  client.chain = ChainStart(request.sampling.seed);
  auto picture = request.pictures.begin();
  for (int32_t position = 0; position < std::ssize(request.prompt); ++position) {
    client.chain = ChainNext(client.chain, request.prompt[static_cast<size_t>(position)]);
    while (picture != request.pictures.end() && picture->begin + picture->count <= position) {
      ++picture;
    }
    if (picture == request.pictures.end() || picture->begin > position) continue;
    client.chain =
        ChainPicture(client.chain, PictureValue(picture->hash, position - picture->begin));
  }
  executor_->Expect(request.id, request.pictures);
  const auto prompt_count = static_cast<int64_t>(request.prompt.size());
  client.tokens_max =
      static_cast<int32_t>(std::min(prompt_count + request.stop.max_tokens, config_.max_model_len));
  const bool can_run =
      prompt_count < config_.max_model_len && BlocksFor(client.tokens_max) <= config_.num_blocks;
  const auto id = static_cast<uint64_t>(request.id);
  const Status status = scheduler_->Submit(request);
  if (can_run == (status.code() == Code::kInvalidArgument)) {
    return Violate("a request was refused wrongly, or not refused: " + status.message());
  }
  if (!status.ok()) return;
  fairness_->Accepted(request);
  ++report_.requests;
  clients_.emplace(id, std::move(client));
  open_.push_back(id);
  if (scheduler_->queued_requests() > config_.max_queued_requests) {
    Violate("the queue is longer than its limit");
  }
  const int64_t tokens_max = int64_t{8} * config_.num_blocks * kBlockTokens;
  if (scheduler_->queued_tokens() > tokens_max) Violate("more tokens wait than the limit");
}

void Simulation::AbortOne() {
  if (open_.empty()) return;
  const uint64_t id = open_[random_() % open_.size()];
  ++report_.aborts;
  scheduler_->Abort(RequestId{id});
  Receive();
  Client& client = clients_.at(id);
  client.aborted = true;
  if (!client.ended) Violate("an abort was not answered at once");
}

void Simulation::PlanOne() {
  if (limits_ && Chance(4)) costs_ = RandomCosts();
  fairness_->Before(*scheduler_);
  const int32_t wanted = Between(0, config_.drafts_max + 1);
  StepPlan plan = scheduler_->Plan(costs_, wanted);
  if (plan.drafts_wanted != std::min(wanted, config_.drafts_max)) {
    Violate("another number of drafts is asked for than is wanted");
  }
  if (const std::string wrong = fairness_->After(*scheduler_, plan, costs_); !wrong.empty()) {
    return Violate(wrong);
  }
  CheckLimits(plan);
  CheckDrafts(plan);
  CountBypasses();
  if (plan.empty()) return;
  Trace(plan.step);
  for (const SlotId slot : plan.retired) Trace(static_cast<uint64_t>(slot));
  if (!plan.encodes.empty()) ++report_.encodes;
  for (const PlannedSequence& sequence : plan.sequences) {
    Trace(static_cast<uint64_t>(sequence.slot));
    Trace(static_cast<uint64_t>(sequence.first_position));
    if (sequence.sampled_rows > 1) ++report_.draft_steps;
  }
  for (const TokenId token : plan.tokens) Trace(static_cast<uint64_t>(token));
  for (const BlockId block : plan.new_blocks) Trace(static_cast<uint64_t>(block));
  StepResult result = executor_->Run(plan);
  for (size_t i = 0; i < result.sequences.size(); ++i) {
    if (plan.sequences[i].sampled_rows > static_cast<int32_t>(result.sequences[i].tokens.size())) {
      ++report_.refusals;
    }
  }
  if (!executor_->violation().empty()) Violate(executor_->violation());
  flights_.push_back({.plan = std::move(plan), .result = std::move(result)});
}

void Simulation::CommitOne() {
  if (!report_.violation.empty()) return;
  const Flight flight = std::move(flights_.front());
  flights_.pop_front();
  scheduler_->Commit(flight.result);
}

void Simulation::Receive() {
  std::set<RequestId> seen;
  for (const TokenEvent& event : scheduler_->TakeEvents()) {
    Trace(static_cast<uint64_t>(event.request));
    for (const TokenId token : event.tokens) Trace(static_cast<uint64_t>(token));
    Trace(static_cast<uint64_t>(event.finish));
    if (!seen.insert(event.request).second) Violate("two events of one request in one step");
    const auto found = clients_.find(static_cast<uint64_t>(event.request));
    if (found == clients_.end()) return Violate("an event of an unknown request");
    CheckEvent(found->second, event);
  }
}

void Simulation::CheckEvent(Client& client, const TokenEvent& event) {
  if (client.ended) return Violate("an event after the final one");
  const bool first = client.received == 0;
  CheckTokens(client, event);
  if (client.request.sampling.prompt_logprobs >= 0 && first &&
      (!event.tokens.empty() || event.finish == FinishReason::kStop)) {
    const auto& rows = event.prompt_logprobs;
    if (rows.size() != client.request.prompt.size()) return Violate("prompt logprobs are missing");
    for (size_t p = 1; p < rows.size(); ++p) {
      if (rows[p].size() != 1 || rows[p][0].id != client.request.prompt[p] ||
          rows[p][0].logprob != static_cast<float>(p)) {
        return Violate("prompt logprobs are of the wrong token");
      }
    }
    if (event.cached_tokens != 0) Violate("prompt logprobs without computing the prompt");
  } else if (!event.prompt_logprobs.empty()) {
    Violate("prompt logprobs that nobody asked for");
  }
  if (event.finish == FinishReason::kNone) return;
  client.ended = true;
  std::erase(open_, static_cast<uint64_t>(event.request));
  fairness_->Ended(event.request, client.received);
  if (event.finish == FinishReason::kError) {
    ++report_.failures;
    if (client.fail_at != client.received) Violate("a request failed that should not");
  }
}

void Simulation::CheckTokens(Client& client, const TokenEvent& event) {
  const Request& request = client.request;
  const std::vector<TokenId> banned = BannedUntilMin(request.stop);
  StopDecision stop;
  for (const TokenId token : event.tokens) {
    if (stop.finish != FinishReason::kNone) return Violate("a token after the stop");
    const TokenId wanted =
        OracleToken(client.chain, client.received, request.stop.min_tokens, banned);
    if (token != wanted) return Violate("a token is not the oracle's");
    if (client.fail_at == client.received) return Violate("a failed step yielded a token");
    if (client.end_at == client.received) return Violate("a token after the constraint's end");
    client.chain = ChainNext(client.chain, token);
    ++client.received;
    ++report_.tokens;
    stop = DecideStop(request.stop, token, client.received,
                      client.tokens_max - static_cast<int32_t>(request.prompt.size()));
  }
  if (client.end_at == client.received && event.finish == FinishReason::kStop &&
      stop.finish == FinishReason::kNone) {
    ++report_.constraint_ends;
    return;
  }
  const bool stopped = event.finish == FinishReason::kStop || event.finish == FinishReason::kLength;
  if (event.finish != stop.finish && (stopped || stop.finish != FinishReason::kNone)) {
    Violate("the finish reason is wrong");
  }
  if (event.stop_token != stop.stop_token) Violate("the stop token is wrong");
}

void Simulation::CheckBlocks() {
  const BlockPool& pool = scheduler_->pool();
  std::vector<int32_t> owners(config_.num_blocks);
  scheduler_->ForEachSequence([&](const Sequence& sequence) {
    for (size_t b = 0; b < sequence.blocks.size(); ++b) {
      const BlockId block = sequence.blocks[b];
      ++owners[static_cast<size_t>(block)];
      const bool writable = static_cast<int32_t>(b) >= sequence.computed / kBlockTokens;
      if (writable && pool.owners(block) != 1) Violate("a writable block has several owners");
    }
    if (sequence.preemptions > Sequence::kPreemptionsMax) Violate("preempted too often");
  });
  int32_t free = 0;
  for (int32_t b = 0; b < config_.num_blocks; ++b) {
    if (owners[b] != pool.owners(BlockId{b})) Violate("owners are counted wrongly");
    free += owners[b] == 0 ? 1 : 0;
    if (scheduler_->prefix_cache().Holds(BlockId{b}) && executor_->IsPoisoned(BlockId{b})) {
      Violate("a block of a failed step can be found");
    }
  }
  if (free != pool.num_free() || free != static_cast<int32_t>(pool.FreeList().size())) {
    Violate("free blocks are counted wrongly");
  }
  for (const Flight& flight : flights_) {
    for (const BlockId block : executor_->WrittenBlocks(flight.plan)) {
      if (owners[static_cast<size_t>(block)] == 0) Violate("a step in flight writes a free block");
    }
  }
}

void Simulation::CheckLimits(const StepPlan& plan) {
  const int32_t more = std::max(config_.prompt_chunk - 1, 0);
  if (plan.num_tokens() > config_.max_num_batched_tokens + more)
    Violate("the step has too many tokens");
  if (scheduler_->stats().running > config_.max_num_seqs) Violate("too many sequences run");
  if (config_.stages > 1) CheckPipeline(plan);
  int32_t rows = 0;
  for (const PlannedSequence& planned : plan.sequences) {
    if (planned.prompt_logprobs) rows += planned.token_count;
    if (planned.sampled_rows > 1 + config_.drafts_max) Violate("too many drafts");
    if (planned.token_count < 1) Violate("an empty sequence is planned");
  }
  if (rows > config_.prompt_logprob_rows_max) Violate("too many prompt logprob rows");
  scheduler_->ForEachSequence([&](const Sequence& sequence) {
    // The last token of all is sampled, never computed.
    if (sequence.planned >= sequence.tokens_max) Violate("a position beyond the length is planned");
  });
}

// Who samples has blocks for drafts behind its last position, unless all are taken; and drafts keep
// nobody else from its token.
void Simulation::CheckDrafts(const StepPlan& plan) {
  if (config_.drafts_max == 0) return;
  std::unordered_map<int32_t, const PlannedSequence*> by_slot;
  int32_t drafts = 0;
  for (const PlannedSequence& planned : plan.sequences) {
    by_slot.emplace(static_cast<int32_t>(planned.slot), &planned);
    drafts += std::max(planned.sampled_rows - 1, 0);
  }
  const int32_t free = scheduler_->pool().num_free();
  scheduler_->ForEachSequence([&](const Sequence& sequence) {
    if (static_cast<int32_t>(sequence.blocks.size()) > BlocksFor(sequence.tokens_max)) {
      Violate("blocks are held beyond the length");
    }
    const auto found = by_slot.find(static_cast<int32_t>(sequence.slot));
    if (found == by_slot.end()) {
      const bool waits = sequence.state == SequenceState::kRunning && sequence.in_flight == 0 &&
                         sequence.available() == 1 && config_.prompt_chunk == 0;
      // Others had room for drafts, and this one for none of its own.
      if (waits && drafts > 0 && free > 0 && config_.stages == 1) {
        Violate("drafts of others keep a sequence from its token");
      }
      return;
    }
    const PlannedSequence& planned = *found->second;
    if (planned.sampled_rows == 0) return;
    const int32_t end = std::min(planned.first_position + planned.token_count + plan.drafts_wanted,
                                 sequence.tokens_max);
    if (free > 0 && static_cast<int32_t>(sequence.blocks.size()) < BlocksFor(end)) {
      Violate("no blocks for drafts, though some are free");
    }
  });
}

// Stages know no token but those that they are told, and each finds something to do.
void Simulation::CheckPipeline(const StepPlan& plan) {
  if (std::ranges::count(plan.tokens, kSampledToken) > 0) {
    Violate("a stage is told to compute a token that is not known");
  }
  const auto decodes = static_cast<int32_t>(
      std::ranges::count_if(plan.sequences, [&](const PlannedSequence& planned) {
        if (config_.prompt_chunk > 0) return DecodesInSlot(planned);
        return planned.token_count == 1 && planned.sampled_rows == 1;
      }));
  const int32_t ends_of_prompts = static_cast<int32_t>(plan.admitted.size()) + 1;
  const int32_t running = scheduler_->stats().running;
  if (decodes > (running + config_.stages - 1) / config_.stages + ends_of_prompts) {
    Violate("one plan has more than its share of the decoding sequences");
  }
}

bool Simulation::DecodesInSlot(const PlannedSequence& planned) const {
  bool decodes = false;
  scheduler_->ForEachSequence([&](const Sequence& sequence) {
    if (sequence.slot == planned.slot) decodes = planned.first_position >= sequence.prompt_count;
  });
  return decodes;
}

// Who starts now, and who of the same owner has waited for longer at the same priority?
void Simulation::CountBypasses() {
  std::vector<const Client*> started;
  std::vector<Client*> waiting;
  scheduler_->ForEachSequence([&](const Sequence& sequence) {
    Client& client = clients_.at(static_cast<uint64_t>(sequence.request.id));
    if (sequence.state == SequenceState::kWaiting) waiting.push_back(&client);
    if (sequence.state == SequenceState::kRunning && !client.started) started.push_back(&client);
    client.started = sequence.state != SequenceState::kWaiting;
  });
  for (const Client* early : started) {
    for (Client* late : waiting) {
      const bool equal =
          early->request.owner == late->request.owner &&
          (!config_.priority_policy || early->request.priority == late->request.priority);
      if (equal && early->arrival > late->arrival && ++late->bypassed > kBypassesMax) {
        Violate("a request was overtaken too often");
      }
    }
  }
}

void Simulation::Trace(uint64_t value) {
  report_.trace = (report_.trace ^ value) * 0x100000001b3 + 0x9e3779b97f4a7c15;
}

void Simulation::Violate(const std::string& what) {
  if (report_.violation.empty()) report_.violation = what;
}

}  // namespace baltoro::test
