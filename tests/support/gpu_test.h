#pragma once

// A test program for machines that have the CUDA toolkit and nothing else: cases registered by
// GPU_TEST(SubjectTest, ASentence), checks that print both sides, exit status 77 ("skipped") where
// there is no GPU. An argument runs the cases whose name contains it. GPU_TEST_SECONDS is for a
// tool that makes kernels a hundred times slower: it ends every case with its first step (StepDone)
// after so many seconds of the program, whose results are not looked at any more, and says so; and
// cases may be smaller (TimeIsShort).

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace baltoro::testing {

struct GpuCase {
  const char* name;
  void (*run)();
};

struct GpuCases {
  std::vector<GpuCase> all;
  bool failed = false;         // the case that runs now
  std::atomic<int> steps = 0;  // of it
  std::chrono::steady_clock::time_point start;
};

struct CaseOutOfTime {};
struct CaseSkipped {
  std::string why;
};

inline GpuCases& Cases() {
  static GpuCases cases;
  return cases;
}

struct GpuCaseRegistration {
  GpuCaseRegistration(const char* name, void (*run)()) { Cases().all.push_back({name, run}); }
};

inline void ReportFailure(const char* file, int line, const std::string& what) {
  Cases().failed = true;
  std::printf("  %s:%d: %s\n", file, line, what.c_str());
}

template <typename A, typename B>
void ReportUnequal(const char* file, int line, const char* what, const A& a, const B& b) {
  std::ostringstream text;
  text << what << ": " << a << " against " << b;
  ReportFailure(file, line, text.str());
}

inline bool TimeIsShort() {
  return std::getenv("GPU_TEST_SECONDS") != nullptr;
}

// Cases say so where they have waited for the device.
inline void StepDone() {
  GpuCases& cases = Cases();
  ++cases.steps;
  const char* const seconds = std::getenv("GPU_TEST_SECONDS");
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - cases.start;
  if (seconds != nullptr && taken.count() > std::atof(seconds)) throw CaseOutOfTime();
}

// Ends the case: this GPU is none that it is about.
inline void SkipCase(const std::string& why) {
  throw CaseSkipped{why};
}

inline int RunGpuCases(int argc, char** argv, int device_count) {
  if (device_count == 0) {
    std::printf("SKIPPED: no GPU that this build can use\n");
    return 77;
  }
  int failures = 0, ran = 0, skipped = 0;
  Cases().start = std::chrono::steady_clock::now();
  for (const GpuCase& one : Cases().all) {
    if (argc > 1 && std::strstr(one.name, argv[1]) == nullptr) continue;
    Cases().failed = false;
    std::printf("[ run    ] %s\n", one.name);
    std::fflush(stdout);
    Cases().steps = 0;
    std::string end = "    ok";
    try {
      one.run();
    } catch (const CaseOutOfTime&) {
      const int steps = Cases().steps;
      if (steps == 0) Cases().failed = true;
      end = "cut after " + std::to_string(steps) + (steps == 1 ? " step" : " steps");
    } catch (const CaseSkipped& reason) {
      std::printf("  SKIPPED: %s\n", reason.why.c_str());
      end = "  skip";
      ++skipped;
    }
    std::printf("[ %s ] %s\n", Cases().failed ? "FAILED" : end.c_str(), one.name);
    failures += Cases().failed;
    ++ran;
  }
  std::printf("%d of %d cases failed\n", failures, ran);
  if (failures == 0 && ran > 0 && skipped == ran) return 77;
  return failures != 0 || ran == 0;
}

}  // namespace baltoro::testing

#define GPU_TEST(subject, sentence)                                             \
  static void subject##_##sentence();                                           \
  static const ::baltoro::testing::GpuCaseRegistration subject##sentence##_reg( \
      #subject "." #sentence, subject##_##sentence);                            \
  static void subject##_##sentence()

#define GPU_EXPECT(condition)                                                            \
  do {                                                                                   \
    if (!(condition)) ::baltoro::testing::ReportFailure(__FILE__, __LINE__, #condition); \
  } while (false)

#define GPU_EXPECT_EQ(a, b)                                                            \
  do {                                                                                 \
    const auto bt_a = (a);                                                             \
    const auto bt_b = (b);                                                             \
    if (!(bt_a == bt_b))                                                               \
      ::baltoro::testing::ReportUnequal(__FILE__, __LINE__, #a " == " #b, bt_a, bt_b); \
  } while (false)

// Also for NaN on either side: it is a failure.
#define GPU_EXPECT_LE(a, b)                                                            \
  do {                                                                                 \
    const auto bt_a = (a);                                                             \
    const auto bt_b = (b);                                                             \
    if (!(bt_a <= bt_b))                                                               \
      ::baltoro::testing::ReportUnequal(__FILE__, __LINE__, #a " <= " #b, bt_a, bt_b); \
  } while (false)

// Ends the case if the Status is not OK.
#define GPU_ASSERT_OK(expr)                                                                    \
  do {                                                                                         \
    const ::baltoro::Status bt_status = (expr);                                                \
    if (!bt_status.ok()) {                                                                     \
      ::baltoro::testing::ReportFailure(__FILE__, __LINE__, #expr ": " + bt_status.message()); \
      return;                                                                                  \
    }                                                                                          \
  } while (false)
