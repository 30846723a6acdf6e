#include "common/run/rank_address.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

TEST(PortRange, ReadsOnePortOrTwo) {
  EXPECT_EQ(ParsePortRange("29500-29599")->first, 29500);
  EXPECT_EQ(ParsePortRange("29500-29599")->last, 29599);
  EXPECT_EQ(ParsePortRange("65535")->first, 65535);
  EXPECT_EQ(ParsePortRange("65535")->last, 65535);
}

TEST(PortRange, RefusesAnythingElse) {
  for (const char* text : {"", "0", "0-5", "5-4", "65536", "1-65536", "-5", "5-", "1-2-3", "a-b"}) {
    const auto range = ParsePortRange(text);
    EXPECT_FALSE(range.ok()) << text;
    EXPECT_THAT(std::string(range.status().message()), HasSubstr("write it as 29500-29599"));
  }
}

TEST(InterfaceOf, KnowsTheLoopbackInterfaceAndSaysWhatTheMachineHas) {
  EXPECT_EQ(InterfaceOf("127.0.0.1").value_or(""), "lo");
  const auto other = InterfaceOf("192.0.2.1");
  EXPECT_EQ(other.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("lo"));
  EXPECT_EQ(InterfaceOf("eth0").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(RankAddress, IsReadAsItWasWritten) {
  for (const std::string host : {"10.0.0.2", "fd00::2"}) {
    RankAddress address = {.host = host, .port = 41234};
    address.token[3] = 0xab;
    const auto read = ParseRankAddress(FormatRankAddress(address));
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(read->host, host);
    EXPECT_EQ(read->port, 41234);
    EXPECT_TRUE(SameToken(read->token, address.token));
    address.token[15] ^= 1;
    EXPECT_FALSE(SameToken(read->token, address.token));
  }
  EXPECT_EQ(RankAddress({.host = "fd00::2", .port = 7}).HostAndPort(), "[fd00::2]:7");
  EXPECT_EQ(RankAddress({.host = "10.0.0.2", .port = 7}).HostAndPort(), "10.0.0.2:7");
}

TEST(RankAddress, IsNotReadFromAnythingElse) {
  const std::string token(32, 'a');
  EXPECT_TRUE(ParseRankAddress("10.0.0.2 1 " + token + "\n").has_value());
  for (const std::string& text :
       {std::string(), "10.0.0.2 1 " + token, "10.0.0.2 0 " + token + "\n",
        "10.0.0.2 65536 " + token + "\n", "10.0.0.2 -1 " + token + "\n",
        "example.org 1 " + token + "\n", " 1 " + token + "\n",
        "10.0.0.2 1 " + token.substr(1) + "\n", "10.0.0.2 1 " + token + "aa\n",
        "10.0.0.2 1 " + token.substr(1) + "g\n", "10.0.0.2 1 " + token + " x\n"}) {
    EXPECT_FALSE(ParseRankAddress(text).has_value()) << text;
  }
}

TEST(BitsPerSecondOf, ReadsWhatTheKernelTells) {
  const TempDir folder;
  const auto tells = [&](const std::string& text) {
    std::filesystem::create_directories(folder / "eth1");
    std::ofstream(folder / "eth1/speed") << text;
    return BitsPerSecondOf("eth1", folder.path());
  };
  EXPECT_EQ(tells("10000\n"), 10'000'000'000);
  EXPECT_EQ(tells("-1\n"), 0) << "a virtual interface, or no cable";
  EXPECT_EQ(tells("4294967295\n"), 0) << "some drivers report -1 so";
  EXPECT_EQ(tells("fast\n"), 0);
  EXPECT_EQ(BitsPerSecondOf("eth2", folder.path()), 0) << "no such file";
  EXPECT_EQ(BitsPerSecondOf("lo"), 0) << "reading it is an error";
}

}  // namespace
}  // namespace nsa
