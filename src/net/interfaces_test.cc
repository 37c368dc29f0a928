#include "net/interfaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace baltoro {
namespace {

const InterfaceAddress kThere[] = {{"lo", "127.0.0.1"},       {"lo", "::1", true},
                                   {"docker0", "172.17.0.1"}, {"eth0", "10.0.0.2"},
                                   {"eth0", "fd00::2", true}, {"eth1", "10.1.0.2"}};

std::string Chosen(std::string_view wish, InterfaceNames names, bool six = false) {
  const Result<InterfaceAddress> found = ChooseInterface(wish, names, six, kThere);
  return found.ok() ? found.value().address : found.status().message();
}

TEST(InterfacesTest, WholeNamesAreTriedInTheirOrder) {
  EXPECT_EQ(Chosen("eth1", InterfaceNames::kWhole), "10.1.0.2");
  EXPECT_EQ(Chosen("ib0,eth0", InterfaceNames::kWhole), "10.0.0.2");
  EXPECT_THAT(Chosen("eth", InterfaceNames::kWhole), ::testing::HasSubstr("eth1 10.1.0.2"));
}

TEST(InterfacesTest, NcclNamesBeginningsWholeNamesAndExceptions) {
  EXPECT_EQ(Chosen("eth", InterfaceNames::kPrefix), "10.0.0.2");
  EXPECT_EQ(Chosen("=eth1", InterfaceNames::kPrefix), "10.1.0.2");
  EXPECT_THAT(Chosen("=eth", InterfaceNames::kPrefix), ::testing::HasSubstr("no interface"));
  EXPECT_EQ(Chosen("^docker,eth0", InterfaceNames::kPrefix), "10.1.0.2");
}

TEST(InterfacesTest, TheHeadsFamilyIsTakenWhereThereIsOne) {
  EXPECT_EQ(Chosen("eth0", InterfaceNames::kWhole, /*six=*/true), "fd00::2");
  EXPECT_EQ(Chosen("eth1", InterfaceNames::kWhole, /*six=*/true), "10.1.0.2");
}

TEST(InterfacesTest, AnAddressOfNobodyHereIsRefused) {
  EXPECT_TRUE(CheckOwnAddress("10.0.0.2", kThere).ok());
  EXPECT_THAT(CheckOwnAddress("141.xx.xx.1", kThere).message(),
              ::testing::HasSubstr("there are lo 127.0.0.1"));
}

TEST(InterfacesTest, ThisMachineHasALoopbackInterface) {
  const std::vector<InterfaceAddress> there = InterfaceAddresses();
  EXPECT_TRUE(std::ranges::any_of(
      there, [](const auto& each) { return each.name == "lo" && each.loopback && each.running; }));
}

}  // namespace
}  // namespace baltoro
