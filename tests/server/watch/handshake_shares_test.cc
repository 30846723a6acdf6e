#include "server/watch/handshake_shares.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace nsa::server {
namespace {

constexpr absl::Duration kStart = absl::Seconds(1'000);

// With the shares of HandshakeShares::Limits: a neighbour has 0.25 s of handshakes at once and
// 0.1 s a second, all that are not trusted 0.5 s together and 0.3 s a second.
class HandshakeSharesTest : public testing::Test {
 protected:
  // New strangers make handshakes, each within its own share, until the next one must wait.
  void StrangersUseUpTheirShare(absl::Duration now) {
    const auto next = [&] { return absl::StrCat("198.51.100.", strangers_); };
    for (; shares_.May(next(), /*trusted=*/false, now); ++strangers_) {
      shares_.Note(next(), /*trusted=*/false, absl::Milliseconds(200), now);
    }
  }

  HandshakeShares shares_{HandshakeShares::Limits()};
  int strangers_ = 1;
};

TEST_F(HandshakeSharesTest, ANeighbourWithAKnownClientIsTrustedForAnHour) {
  shares_.Trust("192.0.2.7", kStart);
  const absl::Duration end = kStart + absl::Hours(1);
  const absl::Duration shortly_before = end - absl::Seconds(1);
  shares_.Forget(shortly_before);
  StrangersUseUpTheirShare(shortly_before);
  EXPECT_TRUE(shares_.May("192.0.2.7", /*trusted=*/false, shortly_before));
  StrangersUseUpTheirShare(end);
  EXPECT_FALSE(shares_.May("192.0.2.7", /*trusted=*/false, end));
  EXPECT_TRUE(shares_.May("192.0.2.7", /*trusted=*/true, end)) << "one of its clients is known now";
}

TEST_F(HandshakeSharesTest, HandshakesOfTheTrustedTakeNothingFromStrangers) {
  ASSERT_TRUE(shares_.May("198.51.100.1", /*trusted=*/false, kStart));
  ASSERT_TRUE(shares_.May("192.0.2.7", /*trusted=*/true, kStart));
  shares_.Note("192.0.2.7", /*trusted=*/true, absl::Seconds(1), kStart);
  shares_.Trust("192.0.2.8", kStart);
  ASSERT_TRUE(shares_.May("192.0.2.8", /*trusted=*/false, kStart));
  shares_.Note("192.0.2.8", /*trusted=*/false, absl::Seconds(1), kStart);
  EXPECT_TRUE(shares_.May("198.51.100.1", /*trusted=*/false, kStart));
  EXPECT_FALSE(shares_.May("192.0.2.7", /*trusted=*/true, kStart)) << "its own share is used up";
  EXPECT_FALSE(shares_.May("192.0.2.8", /*trusted=*/false, kStart)) << "its own share is used up";
}

TEST_F(HandshakeSharesTest, ANeighbourThatHasUsedTooMuchIsNotForgottenUntilThatIsMadeUpFor) {
  ASSERT_TRUE(shares_.May("198.51.100.1", /*trusted=*/false, kStart));
  // 0.2 s more than its share, which takes 2 s.
  shares_.Note("198.51.100.1", /*trusted=*/false, absl::Milliseconds(450), kStart);
  shares_.Forget(kStart + absl::Seconds(1));
  EXPECT_FALSE(shares_.May("198.51.100.1", /*trusted=*/false, kStart + absl::Seconds(1)));
  EXPECT_TRUE(shares_.May("198.51.100.1", /*trusted=*/false, kStart + absl::Seconds(3)));
}

}  // namespace
}  // namespace nsa::server
