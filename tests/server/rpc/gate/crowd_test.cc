#include "server/rpc/gate/crowd.h"

#include <optional>
#include <string>

#include "gtest/gtest.h"

namespace nsa::server {
namespace {

constexpr absl::Duration kStart = absl::Seconds(1'000);

// Six connections, of them four strangers; of one neighbour four, of them three strangers.
constexpr GateLimits kSmall = {
    .connections = 6, .strangers = 4, .of_neighbour = 4, .strangers_of_neighbour = 3};

TEST(Crowd, TheStrangerThatHasSaidLeastAndIsOldestMakesRoom) {
  Crowd crowd(kSmall);
  Crowd::Member speaks = crowd.Add(1, "a");
  crowd.Note(&speaks, true, false);
  crowd.Add(2, "b");
  const Crowd::Member third = crowd.Add(3, "c");
  EXPECT_TRUE(crowd.HasRoom("d"));
  crowd.Add(4, "c");
  EXPECT_FALSE(crowd.HasRoom("d"));
  EXPECT_EQ(crowd.Victim("d"), 2u);
  EXPECT_EQ(crowd.Victim("c"), 3u) << "its own before others'";
  crowd.Remove(third);
  EXPECT_EQ(crowd.Victim("c"), 4u);
  EXPECT_EQ(crowd.strangers(), 3);
}

TEST(Crowd, ANeighbourWithTooManyDisplacesOnlyItsOwn) {
  Crowd crowd(kSmall);
  crowd.Add(1, "elsewhere");
  for (uint64_t id = 2; id <= 4; ++id) crowd.Add(id, "a");
  EXPECT_FALSE(crowd.HasRoom("a"));
  EXPECT_EQ(crowd.Victim("a"), 2u);
}

TEST(Crowd, AKnownClientNeverMakesRoom) {
  Crowd crowd({.connections = 2, .strangers = 2, .of_neighbour = 2, .strangers_of_neighbour = 2});
  Crowd::Member first = crowd.Add(1, "a");
  Crowd::Member second = crowd.Add(2, "a");
  crowd.Note(&first, true, true);
  EXPECT_EQ(crowd.Victim("a"), 2u);
  crowd.Note(&second, true, true);
  EXPECT_EQ(crowd.known(), 2);
  EXPECT_FALSE(crowd.HasRoom("b"));
  EXPECT_EQ(crowd.Victim("b"), std::nullopt);
  crowd.Note(&first, true, false);  // it is known, whatever a later look says
  EXPECT_EQ(crowd.known(), 2);
  crowd.Remove(first);
  EXPECT_TRUE(crowd.HasRoom("b"));
  EXPECT_EQ(crowd.strangers(), 0);
}

constexpr GateLimits kHandshakes = {
    .handshakes = {.of_neighbour = 0.1, .of_neighbour_burst = 0.2, .all = 0.2, .all_burst = 0.5}};

TEST(Crowd, HandshakesOfANeighbourHaveAShareOfTheProcessor) {
  Crowd crowd(kHandshakes);
  const Crowd::Member greedy = crowd.Add(1, "greedy");
  const Crowd::Member other = crowd.Add(2, "other");
  ASSERT_TRUE(crowd.MayHandshake(greedy, kStart));
  crowd.NoteHandshake(greedy, absl::Milliseconds(300), kStart);  // 100 ms too much
  EXPECT_FALSE(crowd.MayHandshake(greedy, kStart + absl::Milliseconds(900)));
  EXPECT_TRUE(crowd.MayHandshake(other, kStart + absl::Milliseconds(900)));
  EXPECT_TRUE(crowd.MayHandshake(greedy, kStart + absl::Milliseconds(1'100)));
}

TEST(Crowd, ManyNeighboursTogetherLeaveThoseOfKnownClientsTheirShare) {
  Crowd crowd(kHandshakes);
  Crowd::Member client = crowd.Add(1, "trusted");
  crowd.Note(&client, true, true);
  const Crowd::Member next = crowd.Add(2, "trusted");
  for (uint64_t id = 3; id < 6; ++id) {
    const Crowd::Member stranger = crowd.Add(id, std::to_string(id));
    ASSERT_TRUE(crowd.MayHandshake(stranger, kStart));
    crowd.NoteHandshake(stranger, absl::Milliseconds(190), kStart);
  }
  const Crowd::Member late = crowd.Add(6, "late");
  EXPECT_FALSE(crowd.MayHandshake(late, kStart));
  EXPECT_TRUE(crowd.MayHandshake(next, kStart));
  crowd.NoteHandshake(next, absl::Milliseconds(150), kStart);
  EXPECT_TRUE(crowd.MayHandshake(late, kStart + absl::Milliseconds(400)))
      << "what a trusted neighbour takes is not that of others";
}

TEST(Crowd, ANeighbourIsTrustedForAnHourAfterItsKnownClientHasLeft) {
  Crowd crowd(kHandshakes);
  Crowd::Member client = crowd.Add(1, "trusted");
  crowd.Note(&client, true, true);
  crowd.Forget(kStart);
  crowd.Remove(client);
  // Whoever else is there has used up what neighbours without a known client have together.
  const Crowd::Member flood = crowd.Add(2, "flood");
  ASSERT_TRUE(crowd.MayHandshake(flood, kStart + absl::Minutes(59)));
  crowd.NoteHandshake(flood, absl::Hours(1), kStart + absl::Minutes(59));
  crowd.Forget(kStart + absl::Minutes(59));
  const Crowd::Member again = crowd.Add(3, "trusted");
  EXPECT_TRUE(crowd.MayHandshake(again, kStart + absl::Minutes(59)));
  EXPECT_FALSE(crowd.MayHandshake(again, kStart + absl::Minutes(61)));
}

TEST(Crowd, OpeningAgainGivesNoNewShare) {
  Crowd crowd(kHandshakes);
  const Crowd::Member first = crowd.Add(1, "a");
  ASSERT_TRUE(crowd.MayHandshake(first, kStart));
  crowd.NoteHandshake(first, absl::Milliseconds(300), kStart);
  crowd.Remove(first);
  crowd.Forget(kStart);
  const Crowd::Member second = crowd.Add(2, "a");
  EXPECT_FALSE(crowd.MayHandshake(second, kStart));
  crowd.Remove(second);
  crowd.Forget(kStart + absl::Minutes(1));
  EXPECT_TRUE(crowd.MayHandshake(crowd.Add(3, "a"), kStart + absl::Minutes(1)));
}

}  // namespace
}  // namespace nsa::server
