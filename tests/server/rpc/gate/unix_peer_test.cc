#include "server/rpc/gate/unix_peer.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>

#include "common/base/fd.h"
#include "gtest/gtest.h"
#include "tests/testing/fakes/fake_clock.h"

namespace nsa::server {
namespace {

TEST(UnixPeer, IsTheProcessAtTheOtherEnd) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  const Fd one(pair[0]);
  const Fd other(pair[1]);
  const UnixPeer peer = PeerOf(one.get());
  EXPECT_EQ(peer.pid, getpid());
  EXPECT_EQ(peer.uid, geteuid());
  EXPECT_NE(peer.login, peer.uid);
}

TEST(UnixPeer, HasTheNumbersOfItsUsersAsOrigin) {
  EXPECT_EQ(OriginOf({.pid = 7, .uid = 1'000, .login = std::nullopt}), "unix:1000");
  EXPECT_EQ(OriginOf({.pid = 7, .uid = 0, .login = 1'000}), "unix:0-1000");
}

TEST(UnixPeer, OnlyUsersOfThisMachineHaveNames) {
  EXPECT_EQ(NameOfUser(0), "root");
  EXPECT_EQ(NameOfUser(987'654'321), "");
}

class UnixNamesTest : public ::testing::Test {
 protected:
  std::string Find(uid_t uid) {
    ++lookups_;
    return uid == 0 ? "root" : uid == 1'000 ? name_ : "";
  }

  FakeClock clock_;
  std::string name_ = "ada";
  std::atomic<int> lookups_ = 0;
  UnixNames names_{clock_, [this](uid_t uid) { return Find(uid); }};
};

TEST_F(UnixNamesTest, AreShownInTheOriginsOfTheUnixSocketOnly) {
  EXPECT_EQ(names_.Shown("unix:1000"), "unix:ada");
  EXPECT_EQ(names_.Shown("unix:0-1000"), "unix:root (login ada)");
  EXPECT_EQ(names_.Shown("unix:1234"), "unix:1234") << "nobody's";
  EXPECT_EQ(names_.Shown("unix:0-1234"), "unix:root (login 1234)");
  for (const char* other : {"ipv4:10.0.0.7:51234", "ipv6:%5B::1%5D:80", "live page", "unix:", "",
                            "unix:ada", "unix:0-", "unix:-1"}) {
    EXPECT_EQ(names_.Shown(other), other);
  }
}

TEST_F(UnixNamesTest, AreLookedUpOnceAMinute) {
  EXPECT_EQ(names_.Shown("unix:1000"), "unix:ada");
  name_ = "eve";
  clock_.Advance(absl::Seconds(59));
  EXPECT_EQ(names_.Shown("unix:1000"), "unix:ada");
  EXPECT_EQ(lookups_.load(), 1);
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(names_.Shown("unix:1000"), "unix:eve");
  EXPECT_EQ(lookups_.load(), 2);
}

TEST(UnixNames, ADirectoryThatDoesNotAnswerHoldsACallUpOnceAMinute) {
  FakeClock clock;
  const auto answers = std::make_shared<std::promise<void>>();
  const auto lookups = std::make_shared<std::atomic<int>>(0);
  UnixNames names(clock, [lookups, answered = answers->get_future().share()](uid_t) {
    ++*lookups;
    answered.wait();
    return std::string("ada");
  });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(names.Shown("unix:1000"), "unix:1000");
  EXPECT_EQ(lookups->load(), 1);
  answers->set_value();
  clock.Advance(absl::Minutes(2));
  EXPECT_EQ(names.Shown("unix:1000"), "unix:ada");
}

}  // namespace
}  // namespace nsa::server
