// Choices of norms, activations and routing, held to the launch table and to norm_choices.txt.

#include "ops/cuda/choose/choice_test_support.h"
#include "ops/cuda/choose/norm.h"
#include "ops/cuda/launch_table/questions_rows.h"

namespace baltoro::cuda {
namespace {

using choice_test::FixedSizes;
using choice_test::Launch;
using choice_test::Recorded;
using choice_test::Table;

constexpr char kTreeFile[] = BT_CHOICES "/norm_choices.txt";

RowsFacts Rows(DType type, int64_t rows, int64_t width) {
  return {
      .type = type, .rows = rows, .width = width, .row_bytes = rows > 1 ? width * SizeOf(type) : 0};
}

NormPlan PlanOf(const launch_table::NormCase& c, int64_t rows) {
  NormQuestion question{.x = Rows(DType::kF32, rows, c.width),
                        .out = Rows(DType::kBf16, rows, c.width)};
  if (c.part) question.part = Rows(*c.part, rows, c.width);
  question.codes_wanted = c.wanted == NormCopy::kCodes;
  question.order_wanted = c.wanted == NormCopy::kMatrixOrder;
  return ChooseNorm(question);
}

std::string KernelOf(const launch_table::NormCase& c, const NormPlan& plan) {
  const std::string part = !c.part ? "void" : *c.part == DType::kBf16 ? "__nv_bfloat16" : "float";
  const std::string copies = std::string(plan.copy == NormCopy::kCodes ? "true" : "false") + ", " +
                             (plan.copy == NormCopy::kMatrixOrder ? "true" : "false") + ">";
  switch (plan.kernel) {
    case NormWay::kRowEights1:
      return "norm:NormKernel<float, __nv_bfloat16, " + part + ", 1, " + copies;
    case NormWay::kRowEights4:
      return "norm:NormKernel<float, __nv_bfloat16, " + part + ", 4, " + copies;
    case NormWay::kRowCluster2:
      return "norm:SpreadNormKernel<2, " + copies;
    case NormWay::kRowCluster4:
      return "norm:SpreadNormKernel<4, " + copies;
    case NormWay::kRowCluster8:
      return "norm:SpreadNormKernel<8, " + copies;
    case NormWay::kRowsStreaming:
      return "norm_stream:StreamNormKernel<" + part + ", " + copies;
  }
  return "";
}

SwigluPlan PlanOfSwiglu(int64_t width, int64_t rows) {
  return ChooseSwiglu(
      {.x = Rows(DType::kBf16, rows, 2 * width), .out = Rows(DType::kBf16, rows, width)});
}

template <typename Plan>
Launch LaunchOf(const std::string& name, const Plan& plan) {
  return {.name = name,
          .grid = {static_cast<unsigned>(plan.blocks), 1, 1},
          .block = {static_cast<unsigned>(plan.threads), 1, 1}};
}

// Every question of the rows, answered by `launch_of(question's plan)`.
template <typename Norm, typename Swiglu, typename Route>
Table Answers(Norm norm, Swiglu swiglu, Route route) {
  Table table;
  std::set<std::string> asked;
  const auto add = [&](const std::string& name, const launch_table::RowRange& range, auto answer) {
    if (!asked.insert(name).second) return;
    table.Add(name, launch_table::Intervals(range, [&](int64_t rows, std::vector<Launch>& to) {
                to.push_back(answer(rows));
                return true;
              }));
  };
  for (const launch_table::NormCase& c : launch_table::NormCases()) {
    add(c.name, c.range, [&](int64_t rows) { return norm(c, PlanOf(c, rows)); });
  }
  for (const int64_t width : launch_table::SwigluWidths()) {
    add("swiglu" + launch_table::Of(width), {},
        [&](int64_t rows) { return swiglu(PlanOfSwiglu(width, rows)); });
  }
  for (const launch_table::RouteCase& c : launch_table::RouteCases()) {
    add("route" + c.name, {},
        [&](int64_t rows) { return route(ChooseRoute({.rows = rows, .params = c.params})); });
  }
  return table;
}

Table RecordedRows() {
  Table rows;
  for (const char* const words : {"norm of ", "swiglu of ", "route of "}) {
    rows.Take(Recorded().StartingWith(words));
  }
  rows.Take(Recorded().StartingWith("sum and norm of "));
  return rows;
}

TEST(NormChoiceTest, AsTheCardLaunched) {
  const Table recorded = RecordedRows();
  const FixedSizes sizes(recorded);
  const auto completed = [&](Launch launch) {
    sizes.Complete(launch);
    return launch;
  };

  const Table chosen = Answers(
      [&](const launch_table::NormCase& c, const NormPlan& plan) {
        Launch launch = LaunchOf(KernelOf(c, plan), plan);
        launch.shared_bytes = static_cast<unsigned>(plan.shared_bytes);
        return completed(launch);
      },
      [](const SwigluPlan& plan) {
        return LaunchOf("swiglu:SwigluKernel<__nv_bfloat16, __nv_bfloat16>", plan);
      },
      [](const RoutePlan& plan) {
        return LaunchOf(
            plan.kernel == RouteWay::kWarpEach ? "route:RouteByWarpsKernel" : "route:RouteKernel",
            plan);
      });

  choice_test::ExpectAsRecorded(chosen, recorded);
}

TEST(NormChoiceTest, AsInTheTree) {
  const auto text = [](const auto& plan) { return Launch{.name = Text(plan)}; };

  const Table chosen = Answers(
      [&](const launch_table::NormCase&, const NormPlan& plan) { return text(plan); }, text, text);

  choice_test::ExpectAsInTheTree(chosen, kTreeFile);
}

TEST(NormChoiceTest, CodesOfASwigluAreForProductsThatReadThem) {
  SwigluQuestion question{
      .x = Rows(DType::kBf16, 4, 512),
      .reader =
          MatrixFacts{.form = WeightForm::kFp8Block, .quantise_input = true, .n = 7168, .k = 256}};

  EXPECT_EQ(ChooseSwiglu(question).kernel, SwigluWay::kCodes);
  question.reader->quantise_input = false;
  EXPECT_EQ(ChooseSwiglu(question).kernel, SwigluWay::kNone);
}

TEST(NormChoiceTest, WithoutAlignmentNothingIsWrittenBesideTheRows) {
  NormQuestion question{.x = Rows(DType::kF32, 8, 7168),
                        .out = Rows(DType::kBf16, 8, 7168),
                        .part = Rows(DType::kF32, 8, 7168),
                        .codes_wanted = true};
  EXPECT_EQ(ChooseNorm(question).copy, NormCopy::kCodes);

  question.out.alignment = 8;

  const NormPlan plan = ChooseNorm(question);
  EXPECT_EQ(plan.copy, NormCopy::kNone);
  EXPECT_EQ(plan.kernel, NormWay::kRowEights1);
  EXPECT_FALSE(plan.vectors);
}

}  // namespace
}  // namespace baltoro::cuda
