#include "ops/cuda/rows/sample.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/sampling_rng.h"

namespace baltoro::cuda {
namespace {

bool HasPenalties(const SampleRow& row) {
  return row.repetition_penalty != 1 || row.frequency_penalty != 0 || row.presence_penalty != 0;
}

// Rows that are given draw nothing, so nothing of theirs is modified.
bool Draws(const SampleRow& row) {
  return row.given < 0;
}

int64_t MaskWords(int64_t vocab) {
  return (vocab + 31) / 32;
}

int64_t WordsOf(const SampleRow& row, int64_t vocab) {
  if (!Draws(row)) return 0;
  const size_t penalised = HasPenalties(row) ? row.prompt.size() + row.output.size() : 0;
  const auto lists =
      static_cast<int64_t>(penalised + row.banned.size() + 2 * row.logit_bias.size());
  return lists + (row.mask.empty() ? 0 : MaskWords(vocab));
}

// Appends lists to the words behind the rows.
class Words {
 public:
  Words(void* at, int64_t vocab) : at_(static_cast<char*>(at)), vocab_(vocab) {}

  int32_t size() const { return size_; }
  int32_t Ids(std::span<const int32_t> ids) {
    for (const int32_t id : ids) BT_CHECK(id >= 0 && id < vocab_);
    return Append(ids.data(), ids.size());
  }
  int32_t Append(const void* words, size_t count) {
    const int32_t begin = size_;
    if (count > 0) std::memcpy(at_ + int64_t{begin} * 4, words, count * 4);
    size_ += static_cast<int32_t>(count);
    return begin;
  }

 private:
  char* at_;
  int64_t vocab_;
  int32_t size_ = 0;
};

void AppendBias(const SampleRow& row, Words& words, SampleWant& want) {
  std::vector<std::pair<int32_t, float>> bias(row.logit_bias.begin(), row.logit_bias.end());
  std::ranges::stable_sort(bias, {}, &std::pair<int32_t, float>::first);
  std::vector<int32_t> ids;
  std::vector<float> values;
  for (const auto& [id, value] : bias) {
    ids.push_back(id);
    values.push_back(value);
  }
  want.bias = words.Ids(ids);
  words.Append(values.data(), values.size());
  want.bias_count = static_cast<int32_t>(ids.size());
}

SampleWant Pack(const SampleRow& row, int64_t vocab, Words& words) {
  SampleWant want = {};
  want.uniform = static_cast<uint64_t>(SamplingUniform(row.seed, row.index) * 0x1p53) << 11;
  want.logits_row = row.logits_row;
  want.given = row.given;
  want.top_k = row.top_k;
  want.top_logprobs = row.top_logprobs;
  want.temperature = row.temperature;
  want.top_p = row.top_p;
  want.min_p = row.min_p;
  want.presence = row.presence_penalty;
  want.frequency = row.frequency_penalty;
  want.repetition = row.repetition_penalty;
  want.mask = -1;
  if (!Draws(row)) {
    BT_CHECK(row.given < vocab);
    return want;
  }
  if (HasPenalties(row)) {
    want.prompt = words.Ids(row.prompt);
    want.prompt_count = static_cast<int32_t>(row.prompt.size());
    want.output = words.Ids(row.output);
    want.output_count = static_cast<int32_t>(row.output.size());
  }
  want.banned = words.Ids(row.banned);
  want.banned_count = static_cast<int32_t>(row.banned.size());
  if (!row.logit_bias.empty()) AppendBias(row, words, want);
  if (!row.mask.empty()) {
    const auto count = static_cast<size_t>(MaskWords(vocab));
    BT_CHECK(row.mask.size() >= count);
    want.mask = words.Append(row.mask.data(), count);
  }
  return want;
}

}  // namespace

SampleShape SampleShapeOf(std::span<const SampleRow> rows, int64_t vocab) {
  SampleShape shape;
  shape.rows = static_cast<int64_t>(rows.size());
  for (const SampleRow& row : rows) {
    shape.words += WordsOf(row, vocab);
    shape.top_max = std::max(shape.top_max, row.top_logprobs);
    shape.penalties = shape.penalties || (Draws(row) && HasPenalties(row));
  }
  shape.top_max = static_cast<int32_t>(std::min<int64_t>(shape.top_max, vocab));
  BT_CHECK(shape.words < int64_t{1} << 31);
  BT_CHECK(shape.top_max <= kSampleTopMax);
  return shape;
}

void PackSample(std::span<const SampleRow> rows,
                int64_t vocab,
                const SampleShape& shape,
                void* wants) {
  BT_CHECK(static_cast<int64_t>(rows.size()) == shape.rows);
  auto* to = static_cast<char*>(wants);
  Words words(to + rows.size() * sizeof(SampleWant), vocab);
  for (const SampleRow& row : rows) {
    const SampleWant want = Pack(row, vocab, words);
    std::memcpy(to, &want, sizeof(want));
    to += sizeof(want);
  }
  BT_CHECK(words.size() == shape.words);
}

void ReadSample(const SampleShape& shape, const void* answers, std::span<SampleResult> results) {
  BT_CHECK(static_cast<int64_t>(results.size()) == shape.rows);
  const auto* heads = static_cast<const SampleAnswer*>(answers);
  const auto* tops = reinterpret_cast<const SampleTop*>(heads + shape.rows);
  for (int64_t i = 0; i < shape.rows; ++i) {
    const SampleAnswer& head = heads[i];
    SampleResult& result = results[i];
    result.token = head.token;
    result.logprobs.clear();
    if (head.tops < 0) continue;
    result.logprobs.push_back({head.token, head.logprob, head.rank});
    for (int32_t k = 0; k < head.tops; ++k) {
      const SampleTop& top = tops[i * shape.top_max + k];
      result.logprobs.push_back({top.id, top.logprob, k + 1});
    }
  }
}

void Sample(const OpContext& ctx,
            TensorView logits,
            std::span<const SampleRow> rows,
            std::span<SampleResult> results) {
  BT_CHECK(rows.size() == results.size());
  if (rows.empty()) return;
  BT_CHECK(logits.rank == 2 && logits.dtype == DType::kF32 && logits.dim(1) > 0);
  for (const SampleRow& row : rows) {
    BT_CHECK(row.logits_row >= 0 && row.logits_row < logits.dim(0));
  }
  const int64_t vocab = logits.dim(1);
  const SampleShape shape = SampleShapeOf(rows, vocab);
  const size_t bytes = shape.want_bytes();
  void* const packed = ctx.staging->Allocate(bytes);
  PackSample(rows, vocab, shape, packed);
  void* const wants = ctx.scratch->Allocate(bytes);
  CheckCuda(cudaMemcpyAsync(wants, packed, bytes, cudaMemcpyHostToDevice, StreamOf(ctx)),
            "what is to be sampled");
  void* const answers = ctx.scratch->Allocate(shape.answer_bytes());
  LaunchSample(ctx, {.logits = logits, .shape = shape, .wants = wants, .answers = answers});
  const void* const read = Download(ctx, answers, shape.answer_bytes());
  CheckCuda(cudaStreamSynchronize(StreamOf(ctx)), "sampling");
  ReadSample(shape, read, results);
}

}  // namespace baltoro::cuda
