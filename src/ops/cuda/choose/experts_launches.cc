#include "ops/cuda/choose/experts_launches.h"

#include <sstream>

#include "ops/cuda/choose/experts_limits.h"

namespace baltoro::cuda {
namespace {

using Times = ExpectedLaunch::Times;

std::string Grid(int64_t x, int64_t y = 1) {
  return std::to_string(x) + (y > 1 ? "x" + std::to_string(y) : "");
}

// The launches of one plan, in order.
class Writer {
 public:
  Writer(const ExpertsQuestion& q, const ExpertsPlan& plan) : q_(q), plan_(plan) {}

  ExpectedLaunches Write() {
    switch (plan_.kernel) {
      case ExpertsKernel::kNone:
        Shared();
        break;
      case ExpertsKernel::kInt4OneLaunch1:
        Add("int4_one_launch1:SingleKernel", Grid(plan_.blocks));
        break;
      case ExpertsKernel::kInt4OneLaunch4:
        Add("int4_one_launch4:OneLaunchKernel", Grid(plan_.blocks));
        break;
      case ExpertsKernel::kInt4OneToken:
        Add("int4_one_token:SingleGateUpKernel<" + Chooses(),
            Grid(q_.intermediate() / 16, q_.top_k));
        Add("int4_one_token:SingleEndKernel<" + Chooses(), Grid(q_.hidden() / kSingleEndColumns));
        break;
      case ExpertsKernel::kInt4Entries:
      case ExpertsKernel::kInt4Digits:
      case ExpertsKernel::kInt4Streaming:
        Int4Streaming();
        break;
      case ExpertsKernel::kInt4GroupedSum:
        Shared();
        for (int32_t i = 0; i < plan_.parts; ++i) {
          Int4Sum(i + 1 < plan_.parts ? plan_.part : plan_.last_part);
        }
        break;
      case ExpertsKernel::kInt4Grouped:
        Shared();
        Sort(plan_.sort);
        Order(q_.tokens());
        Add("int4_grouped_gate_up:GateUpKernel<Many>", Grid(2 * plan_.blocks));
        Add("int4_grouped_down:GroupedDownKernel", Grid(2 * plan_.blocks));
        Combine();
        break;
      case ExpertsKernel::kFp8OneLaunch1:
        Add("fp8_one_launch1:JoinedSingleKernel", Grid(plan_.blocks));
        break;
      case ExpertsKernel::kFp8OneLaunch4:
      case ExpertsKernel::kFp8OneLaunch8:
        Quantise();
        Add(plan_.kernel == ExpertsKernel::kFp8OneLaunch4 ? "fp8_one_launch8:OneLaunchKernel<4>"
                                                          : "fp8_one_launch8:OneLaunchKernel<8>",
            Grid(plan_.blocks));
        break;
      case ExpertsKernel::kFp8Entries4:
        Add("fp8_entries4:GateUpKernel<" + Chooses(),
            Grid(q_.intermediate() / 4, q_.tokens() * q_.top_k));
        Add("fp8_entries4:EndKernel<" + Chooses(),
            Grid(q_.hidden() / (plan_.end_strips * 8), q_.tokens()));
        break;
      case ExpertsKernel::kFp8Streaming:
      case ExpertsKernel::kFp8GroupedSum:
      case ExpertsKernel::kFp8Grouped128:
        Fp8Sorted();
        break;
      case ExpertsKernel::kGroupedProducts:
        Grouped();
        break;
    }
    return launches_;
  }

 private:
  std::string Chooses() const {
    return plan_.chooser == ExpertsChooser::kKernel ? "true>" : "false>";
  }
  bool Prepared() const { return plan_.chooser == ExpertsChooser::kPreparation; }

  void Add(const std::string& name,
           const std::string& grid = {},
           int64_t threads = 0,
           int64_t shared_bytes = 0,
           Times times = Times::kOnce) {
    launches_.push_back({name, grid, threads, shared_bytes, times});
  }
  void Sort(const ExpertsSort& sort) {
    Add("bank_sort:SortKernel", Grid(sort.blocks), sort.threads);
  }
  void Prepare() {
    const bool sums = plan_.kernel == ExpertsKernel::kFp8GroupedSum;
    Add("bank_prepare:PrepareKernel<" + std::to_string(plan_.prepare_warps) +
            (sums ? ", true>" : ", false>"),
        {}, 32 * plan_.prepare_warps);
  }
  void Shared() {
    if (plan_.shared == SharedExperts::kOwnProduct) Add("", {}, 0, 0, Times::kSome);
  }
  void Quantise() {
    if (!q_.x_coded) Add("quantise:", {}, 0, 0, Times::kMaybe);
  }
  void Order(int64_t tokens) {
    if (!plan_.makes_ordered) return;
    Add("int4_grouped_gate_up:MatrixOrderKernel", Grid((q_.hidden() + 4095) / 4096, tokens));
  }
  void Combine() {
    Add(q_.out.type == DType::kF32 ? "bank_route:CombineKernel<float>"
                                   : "bank_route:CombineKernel<__nv_bfloat16>",
        Grid((q_.hidden() + 1023) / 1024, q_.tokens()));
  }

  void Int4Streaming() {
    const bool digits = plan_.kernel == ExpertsKernel::kInt4Digits;
    if (Prepared()) Prepare();
    if (plan_.shared == SharedExperts::kBeside) {
      const int64_t strips = q_.hidden() / (kBesideGroups * plan_.beside_rows);
      Add("shared_at_choice:SharedAtChoiceKernel<" + std::to_string(plan_.beside_rows) + ">",
          Grid(strips * ((q_.tokens() + kBesideTokens - 1) / kBesideTokens)));
    }
    Shared();
    if (plan_.sort.blocks > 0) Sort(plan_.sort);
    if (digits && !Prepared()) Add("int4_digits:DigitsKernel", Grid(q_.tokens()));
    Add(digits ? "int4_digits:DigitsGateUpKernel" : "int4_streaming:StreamProductKernel<Form<true",
        Grid(plan_.blocks));
    Add(digits ? "int4_digits_down:DigitsDownKernel"
               : "int4_streaming:StreamProductKernel<Form<false",
        Grid(plan_.blocks));
    if (plan_.shared == SharedExperts::kInBank) {
      Add("combine_with_shared:FinishKernel", Grid(q_.hidden() / kFinishColumns));
    } else {
      Combine();
    }
  }

  void Int4Sum(const ExpertsSum& part) {
    Sort(part.sort);
    Order(part.tokens);
    const bool middling = part.tile_rows == kMiddlingTileRows;
    Add(middling ? "int4_grouped_gate_up:GateUpKernel<Middling>"
                 : "int4_grouped_gate_up:GateUpKernel<Many>",
        Grid((middling ? 4 : 2) * plan_.blocks));
    Add(q_.out.type == DType::kF32 ? "int4_grouped_sum:DownSumKernel<float>"
                                   : "int4_grouped_sum:DownSumKernel<__nv_bfloat16>",
        Grid(part.blocks), 0, part.shared_bytes);
  }

  void Fp8Sorted() {
    Quantise();
    if (Prepared()) {
      Prepare();
    } else {
      Sort(plan_.parts > 0 ? plan_.part.sort : plan_.sort);
    }
    Shared();
    if (plan_.kernel == ExpertsKernel::kFp8Streaming) {
      Add("fp8_streaming:Fp8StreamKernel<true>", Grid(plan_.blocks));
      if (!plan_.rounded_by_down) Add("quantise:Fp8Kernel<F32Row>");
      Add("fp8_streaming:Fp8StreamKernel<false>", Grid(plan_.blocks));
      return Combine();
    }
    Add("fp8_tiles:Fp8TilesKernel<true>");
    if (plan_.kernel == ExpertsKernel::kFp8GroupedSum) {
      return Add(q_.out.type == DType::kF32 ? "fp8_grouped_sum:DownSumKernel<float>"
                                            : "fp8_grouped_sum:DownSumKernel<__nv_bfloat16>",
                 Grid(plan_.part.blocks), 0, plan_.part.shared_bytes);
    }
    Add("fp8_tiles:Fp8TilesKernel<false>|fp8_pairs:Fp8PairsKernel<");
    Combine();
  }

  void Product() {
    const std::string tiles = ", " + std::to_string(plan_.tile_rows / 8) + ">";
    std::string names;
    for (const char* const form : {"Bf16", "Fp8", "Fp8Codes", "Int4", "Int4Group", "Int8"}) {
      names += std::string(names.empty() ? "" : "|") + "product::Kernel<product::" + form + "Form" +
               tiles;
    }
    Add(plan_.wide ? "tiles128:WideKernel<|fp8_tiles:Fp8TilesKernel<" : names);
  }

  void Grouped() {
    Shared();
    Quantise();
    Sort(plan_.sort);
    Product();
    Add("quantise:");
    Product();
    Combine();
  }

  const ExpertsQuestion& q_;
  const ExpertsPlan& plan_;
  ExpectedLaunches launches_;
};

bool Begins(const std::string& name, const std::string& beginnings) {
  std::istringstream all(beginnings);
  bool any = beginnings.empty();
  for (std::string one; std::getline(all, one, '|');) any = any || name.starts_with(one);
  return any;
}

// A size as it is known of a row of an interval; empty where it is not.
std::string At(const std::string (&ends)[2], const RecordedLaunches& part, int64_t rows) {
  if (ends[0] == ends[1]) return ends[0];
  return rows == part.first ? ends[0] : rows == part.last ? ends[1] : std::string();
}

bool Matches(const RecordedLaunches& part,
             const RecordedLaunches::One& one,
             int64_t rows,
             const ExpectedLaunch& want) {
  const std::string grid = At(one.grid, part, rows), bytes = At(one.shared_bytes, part, rows);
  return Begins(one.name, want.name) && (want.grid.empty() || grid.empty() || grid == want.grid) &&
         (want.threads == 0 || one.threads == std::to_string(want.threads)) &&
         (want.shared_bytes == 0 || bytes.empty() || bytes == std::to_string(want.shared_bytes));
}

// Whether launches from `i` on are those expected from `j` on.
bool MatchFrom(const RecordedLaunches& part,
               int64_t rows,
               const ExpectedLaunches& expected,
               size_t i,
               size_t j) {
  if (j == expected.size()) return i == part.launches.size();
  const ExpectedLaunch& want = expected[j];
  if (want.times == Times::kMaybe && MatchFrom(part, rows, expected, i, j + 1)) return true;
  if (i == part.launches.size() || !Matches(part, part.launches[i], rows, want)) return false;
  if (want.times == Times::kSome && MatchFrom(part, rows, expected, i + 1, j)) return true;
  return MatchFrom(part, rows, expected, i + 1, j + 1);
}

void Split(const std::string& text, std::string (&ends)[2]) {
  const size_t at = text.find('>');
  ends[0] = text.substr(0, at);
  ends[1] = at == std::string::npos ? ends[0] : text.substr(at + 1);
}

RecordedLaunches::One ParseLaunch(const std::string& text) {
  RecordedLaunches::One one;
  // NAME GRID/THREADS/SHARED[/cCLUSTER]; a name may have spaces.
  const size_t space = text.rfind(' ');
  if (space == std::string::npos || text.find('/', space) == std::string::npos) {
    one.name = text;
    return one;
  }
  one.name = text.substr(0, space);
  std::istringstream sizes(text.substr(space + 1));
  std::string grid, bytes;
  std::getline(sizes, grid, '/');
  std::getline(sizes, one.threads, '/');
  std::getline(sizes, bytes, '/');
  Split(grid, one.grid);
  Split(bytes, one.shared_bytes);
  return one;
}

}  // namespace

ExpectedLaunches NotTaken() {
  return {{.name = "not taken", .grid = {}}};
}

ExpectedLaunches LaunchesOf(const ExpertsQuestion& q, const ExpertsPlan& plan) {
  return Writer(q, plan).Write();
}

std::vector<RecordedLaunches> ParseAnswer(const std::vector<std::string>& lines) {
  std::vector<RecordedLaunches> answer;
  for (const std::string& line : lines) {
    RecordedLaunches part;
    const size_t dots = line.find(".."), name = line.find("  ");
    part.first = std::stoll(line.substr(0, dots));
    part.last = std::stoll(line.substr(dots + 2, name - dots - 2));
    std::string rest = line.substr(name + 2);
    const size_t sum = rest.rfind(" #");
    if (sum != std::string::npos) rest.resize(sum);
    for (size_t at = 0; at != std::string::npos;) {
      const size_t plus = rest.find(" + ", at);
      part.launches.push_back(
          ParseLaunch(rest.substr(at, plus == std::string::npos ? plus : plus - at)));
      at = plus == std::string::npos ? plus : plus + 3;
    }
    answer.push_back(std::move(part));
  }
  return answer;
}

std::string DifferenceFrom(const std::vector<RecordedLaunches>& recorded,
                           int64_t rows,
                           const ExpectedLaunches& expected) {
  for (const RecordedLaunches& part : recorded) {
    if (rows < part.first || rows > part.last) continue;
    if (MatchFrom(part, rows, expected, 0, 0)) return {};
    std::string text = "  recorded:";
    for (const RecordedLaunches::One& one : part.launches) {
      text += " + " + one.name + " " + At(one.grid, part, rows) + "/" + one.threads + "/" +
              At(one.shared_bytes, part, rows);
    }
    text += "\n  expected:";
    for (const ExpectedLaunch& one : expected) {
      text += " + " + one.name + " " + one.grid + "/" + std::to_string(one.threads) + "/" +
              std::to_string(one.shared_bytes) +
              (one.times == Times::kMaybe  ? " maybe"
               : one.times == Times::kSome ? "..."
                                           : "");
    }
    return text;
  }
  return "  nothing is recorded of so many rows";
}

}  // namespace baltoro::cuda
