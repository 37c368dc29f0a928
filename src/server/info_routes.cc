// The routes that tell about the server itself.

#include <sys/utsname.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "base/log.h"
#include "base/process_use.h"
#include "server/query.h"
#include "server/route_path.h"
#include "server/server_internal.h"

namespace baltoro {

void Server::Health(HttpRequest /*request*/, Reply reply) {
  if (!Serving()) {
    const ApiError error = NotServing();
    return reply.Refuse(error, HealthBody(error));
  }
  const std::vector<int32_t> missing = MissingReplicas();
  if (missing.empty()) return reply.Send({.status = 200, .headers = {}, .body = ""});
  reply.SendJson(Json{{"replicas_missing", missing}}.dump());
}

// By the numbers that clients know. Each of them is a part of the whole that serves without it.
std::vector<int32_t> Server::MissingReplicas() const {
  std::vector<int32_t> missing;
  int32_t number = config_.first_replica;
  for (const ReplicaState& replica : engine_.replicas()) {
    if (!replica.health.ok()) missing.push_back(number);
    ++number;
  }
  return missing;
}

// An error as anywhere else, and what an operator asks next.
std::string Server::HealthBody(const ApiError& error) const {
  const auto health = engine_.health();
  if (!health || health->ok()) return ErrorBody(error);
  Json engine = {{"reason", Describe(health->trouble)},
                 {"failed_starts", health->failed_starts},
                 {"next_start_seconds", nullptr}};
  if (health->lost_node >= 0) engine["nodes_missing"] = {health->lost_node};
  if (!health->lost_replicas.empty()) engine["replicas_missing"] = health->lost_replicas;
  // Whole seconds, upwards: a moment that is not there yet is not 0.
  if (health->next_start) engine["next_start_seconds"] = std::ceil(*health->next_start);
  std::string body = ErrorBody(error);
  body.pop_back();
  return body + R"(,"engine":)" + engine.dump() + "}";
}

void Server::Version(HttpRequest /*request*/, Reply reply) {
  reply.SendJson(Json{{"version", config_.version}}.dump());
}

void Server::Load(HttpRequest /*request*/, Reply reply) {
  reply.SendJson(Json{{"server_load", active_.load()}}.dump());
}

void Server::MetricsText(HttpRequest /*request*/, Reply reply) {
  (void)UpdateMetrics();
  metrics_->UpdateDoor(
      {.held_bodies = http_->held_body_bytes(),
       .held_answers = http_->held_answer_bytes(),
       .log_drops = LogDropsOfProcess(),
       .process = UseOfProcess(),
       .spans = config_.spans != nullptr ? config_.spans->counts() : SpanCounts{},
       .pictures = pictures_ != nullptr ? pictures_->kept_counts() : PictureCache::Counts{}});
  reply.Send({.status = 200,
              .headers = {},
              .body = metrics_->Scrape(),
              .content_type = "text/plain; version=0.0.4; charset=utf-8"});
}

// What was settled at the start, and whether it serves.
Json Server::Info() const {
  Json engine;
  if (const auto info = engine_.info()) {
    engine = {{"model_type", info->model_type},
              {"max_model_len", info->max_model_len},
              {"vocab_size", info->vocab_size},
              {"kv_cache",
               {{"dtype", info->kv_cache_dtype},
                {"bytes", info->kv_cache_bytes},
                {"tokens", info->kv_cache_tokens},
                {"blocks", info->num_blocks}}},
              {"load_seconds", info->load_seconds},
              {"longest_step_seconds", info->longest_step_seconds}};
  }
  return {{"version", config_.version},
          {"models", names_.told()},
          {"status", Serving() ? "serving" : NotServing().message},
          {"started", started_unix_},
          {"prefix_caching", config_.enable_prefix_caching},
          {"engine", engine},
          {"pictures", PictureFacts()},
          {"plan", config_.plan}};
}

// With the dev mode and ?config_format=text or json, upstream's form: the same, and what the server
// was started with.
void Server::ServerInfo(HttpRequest request, Reply reply) {
  const auto dump = [](const Json& json, int indent = -1) {
    return json.dump(indent, ' ', false, Json::error_handler_t::replace);
  };
  if (!config_.dev_mode) return reply.SendJson(dump(Info()));
  const auto fields = ReadQuery(request.query);
  if (!fields) return Reject(reply, Rejection::kInvalid, BadRequest("query", kBadQuery));
  const auto asked = std::ranges::find(*fields, "config_format", &QueryFields::value_type::first);
  if (asked == fields->end()) return reply.SendJson(dump(Info()));
  const std::string& format = asked->second;
  if (format != "text" && format != "json") {
    return Reject(reply, Rejection::kInvalid,
                  BadRequest("config_format", "config_format: expected text or json"));
  }
  Json config = Info();
  config["flags"] = config_.given_flags;
  utsname system = {};
  uname(&system);
  reply.SendJson(dump({{"vllm_config", format == "json" ? config : Json(dump(config, 1))},
                       {"vllm_env", config_.environment},
                       {"system_env",
                        {{"os", std::string(system.sysname) + " " + system.release},
                         {"machine", system.machine},
                         {"processors", std::thread::hardware_concurrency()}}}}));
}

// What was computed before it is left to be overwritten, and no prompt from here on finds it.
void Server::ResetPrefixCache(HttpRequest /*request*/, Reply reply) {
  prefix_epoch_ += 1;
  BT_LOG_LIMITED(Info, "The prefix cache was reset: prompts of before are not found in it");
  reply.Send({.status = 200, .headers = {}, .body = ""});
}

void Server::StartProfile(HttpRequest /*request*/, Reply reply) {
  Profile(true, std::move(reply));
}

void Server::StopProfile(HttpRequest /*request*/, Reply reply) {
  Profile(false, std::move(reply));
}

// The engine answers when it has written what it recorded.
void Server::Profile(bool start, Reply reply) {
  if (start && !Serving()) return Reject(reply, Rejection::kEngine, NotServing());
  const size_t thread = reply.io_thread();
  const auto held = std::make_shared<Reply>(std::move(reply));
  const auto answer = [this, held, thread](const Status& status, const Json& said) {
    http_->Post(thread, [this, held, status, said] {
      if (!status.ok()) return Reject(*held, Rejection::kEngine, FromStatus(status));
      if (said.is_null()) return held->Send({.status = 200, .headers = {}, .body = ""});
      held->SendJson(said.dump(-1, ' ', false, Json::error_handler_t::replace));
    });
  };
  engine_.Profile({.start = start, .dir = config_.profile_dir, .gzip = config_.profile_gzip},
                  answer);
}

void Server::ListErrors(HttpRequest request, Reply reply) {
  Json list = Json::array();
  for (const RecentError& one : errors_.Of(JobOwner(request))) {
    list.push_back({{"time", one.unix_seconds},
                    {"method", one.method},
                    {"route", one.route},
                    {"status", one.error.status},
                    {"streamed", one.streamed},
                    {"type", one.error.type},
                    {"message", one.error.message},
                    {"param", one.error.param ? Json(*one.error.param) : Json()}});
  }
  reply.SendJson(Json{{"errors", list}}.dump(-1, ' ', false, Json::error_handler_t::replace));
}

Json Server::ModelCard(const std::string& name) const {
  const auto info = engine_.info();
  const Json permission = {{"id", "modelperm-" + name},
                           {"object", "model_permission"},
                           {"created", started_unix_},
                           {"allow_create_engine", false},
                           {"allow_sampling", true},
                           {"allow_logprobs", true},
                           {"allow_search_indices", false},
                           {"allow_view", true},
                           {"allow_fine_tuning", false},
                           {"organization", "*"},
                           {"group", nullptr},
                           {"is_blocking", false}};
  return {{"id", name},
          {"object", "model"},
          {"created", started_unix_},
          {"owned_by", "baltoro"},
          {"root", name},
          {"parent", nullptr},
          {"max_model_len", info ? Json(info->max_model_len) : Json()},
          {"permission", Json::array({permission})}};
}

void Server::Models(HttpRequest /*request*/, Reply reply) {
  Json list = Json::array();
  for (const std::string& name : names_.told()) list.push_back(ModelCard(name));
  reply.SendJson(Json{{"object", "list"}, {"data", list}}.dump());
}

void Server::Model(HttpRequest request, Reply reply) {
  const std::string name = *PathArgument("/v1/models/{model}", request.path);
  if (const auto error = CheckModel(name)) return Reject(reply, Rejection::kNotFound, *error);
  reply.SendJson(ModelCard(names_.ToldFor(name)).dump());
}

}  // namespace baltoro
