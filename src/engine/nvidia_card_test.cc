#include "engine/nvidia_card.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/support.h"

namespace baltoro {
namespace {

// A machine as its files show it.
class Machine {
 public:
  Machine& Has(const std::string& path, const std::string& text = "") {
    const std::filesystem::path file = dir_.path() + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
    return *this;
  }
  Machine& HasOnBus(const std::string& vendor, const std::string& kind) {
    const std::string device = "sys/bus/pci/devices/0000:1b:00.0/";
    return Has(device + "vendor", vendor).Has(device + "class", kind);
  }
  CardFacts Look(const char* visible = nullptr) const { return LookForCard(dir_.path(), visible); }

 private:
  test::TempDir dir_;
};

const Status kWhy(Code::kUnavailable, "GPU 0: the driver: cudaErrorInsufficientDriver");

TEST(NvidiaCardTest, AMachineWithoutACardGoesOnWithTheCpu) {
  EXPECT_TRUE(CheckCpuIsMeant(Machine().Look(), kWhy).ok());
  EXPECT_TRUE(CheckCpuIsMeant(Machine().HasOnBus("0x1002", "0x030000").Look(), kWhy).ok());
  // The sound of a card that was taken away, and the files of a driver without one.
  EXPECT_TRUE(CheckCpuIsMeant(Machine().HasOnBus("0x10de", "0x040300").Look(), kWhy).ok());
  EXPECT_TRUE(
      CheckCpuIsMeant(Machine().Has("dev/nvidiactl").Has("dev/nvidia-uvm").Look(), kWhy).ok());
}

TEST(NvidiaCardTest, ACardThatCannotBeUsedStopsWithTheReasonAndTheWayOn) {
  for (const char* why : {"there is no libbaltoro_cuda.so", "cudaErrorInsufficientDriver",
                          "GPU 0: there are 0 GPUs", "the GPU is a T4 of compute capability 7.5"}) {
    const Status status =
        CheckCpuIsMeant(Machine().Has("dev/nvidia0").Look(), Status(Code::kUnavailable, why));
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.message().find(why), std::string::npos);
    EXPECT_NE(status.message().find("/dev/nvidia0"), std::string::npos);
    EXPECT_NE(status.message().find("give --device cpu"), std::string::npos);
  }
}

TEST(NvidiaCardTest, ACardOnTheBusWithoutADriverStopsToo) {
  for (const char* kind : {"0x030000", "0x030200"}) {
    const Status status = CheckCpuIsMeant(Machine().HasOnBus("0x10de", kind).Look(), kWhy);
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.message().find("PCI 0000:1b:00.0"), std::string::npos);
    EXPECT_NE(status.message().find("docker run --gpus all"), std::string::npos);
    EXPECT_NE(status.message().find("give --device cpu"), std::string::npos);
  }
}

TEST(NvidiaCardTest, WhoHidesTheCardMeansTheCpu) {
  Machine machine;
  machine.Has("dev/nvidia0").HasOnBus("0x10de", "0x030200");
  for (const char* visible : {"", "-1", "NoDevFiles"}) {
    EXPECT_TRUE(CheckCpuIsMeant(machine.Look(visible), kWhy).ok()) << visible;
  }
  for (const char* visible : {"0", "1,2", "GPU-5c1d"}) {
    EXPECT_FALSE(CheckCpuIsMeant(machine.Look(visible), kWhy).ok()) << visible;
  }
}

}  // namespace
}  // namespace baltoro
