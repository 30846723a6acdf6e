#include "common/base/reason.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/status.h"

namespace nsa {
namespace {

std::vector<Reason> All() {
  std::vector<Reason> all;
  for (int i = 0; i < kReasonCount; ++i) all.push_back(static_cast<Reason>(i));
  return all;
}

absl::Status Outer(const absl::Status& inner) {
  NSA_RETURN_IF_ERROR(inner);
  return absl::OkStatus();
}

absl::StatusOr<int> OuterOr(const absl::StatusOr<int>& inner) {
  NSA_ASSIGN_OR_RETURN(const int value, inner);
  return value + 1;
}

TEST(Reason, EveryWordIsUniqueAndUpperCase) {
  std::set<std::string> seen;
  for (const Reason reason : All()) {
    const std::string word = Word(reason);
    EXPECT_TRUE(seen.insert(word).second) << word;
    EXPECT_EQ(word.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"), std::string::npos)
        << word;
    EXPECT_LT(word.size(), 40U) << word << ": as long as the message between ranks has room for";
  }
}

TEST(Reason, EveryWordLeadsBackToItsReason) {
  for (const Reason reason : All()) EXPECT_EQ(ReasonFromWord(Word(reason)), reason) << Word(reason);
}

TEST(Reason, AWordOfAnotherVersionIsNoReason) {
  EXPECT_EQ(ReasonFromWord("ADDED_LATER"), std::nullopt);
  EXPECT_EQ(ReasonFromWord("INTERNAL"), std::nullopt);
  EXPECT_EQ(ReasonFromWord("peer_lost"), std::nullopt);
  EXPECT_EQ(ReasonFromWord(""), std::nullopt);
  absl::Status newer = absl::InternalError("x");
  newer.SetPayload("nsa.dev/reason", absl::Cord("ADDED_LATER"));
  EXPECT_EQ(ReasonOf(newer), std::nullopt);
}

TEST(Reason, TravelsInsideAStatus) {
  for (const Reason reason : All()) {
    const absl::Status status = WithReason(absl::UnavailableError("gone"), reason);
    EXPECT_EQ(ReasonOf(status), reason) << Word(reason);
    EXPECT_EQ(status.message(), "gone");
  }
  EXPECT_EQ(ReasonOf(absl::UnavailableError("PEER_LOST: only words")), std::nullopt);
  EXPECT_EQ(WithReason(absl::OkStatus(), Reason::kPeerLost), absl::OkStatus());
}

TEST(Reason, SurvivesEveryLayerThatPassesAStatusOn) {
  const absl::Status lost =
      ReasonError(absl::StatusCode::kUnavailable, Reason::kPeerLost, "the next rank is gone");
  EXPECT_EQ(lost.message(), "PEER_LOST: the next rank is gone");
  const absl::Status annotated = Annotate(Annotate(Outer(lost), "gradients"), "step 7");
  EXPECT_EQ(annotated.message(), "step 7: gradients: PEER_LOST: the next rank is gone");
  EXPECT_EQ(annotated.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(annotated), Reason::kPeerLost);
  EXPECT_EQ(ReasonOf(OuterOr(lost).status()), Reason::kPeerLost);
  EXPECT_EQ(ReasonOf(WithMessage(lost, "other words")), Reason::kPeerLost);
  EXPECT_EQ(WithMessage(lost, "other words").message(), "other words");
}

TEST(Reason, ALaterReasonReplacesAnEarlierOne) {
  const absl::Status first = WithReason(absl::InternalError("x"), Reason::kDataStalled);
  EXPECT_EQ(ReasonOf(WithReason(first, Reason::kPeerLost)), Reason::kPeerLost);
}

TEST(Reason, OnlyWhatFailedOrWasRefusedIsFinal) {
  for (const Reason reason : All()) {
    const ReasonInfo& info = InfoOf(reason);
    if (info.use == ReasonUse::kEvent || info.use == ReasonUse::kWaiting) {
      EXPECT_FALSE(info.final) << info.word;
    }
    if (info.use == ReasonUse::kFailed || info.use == ReasonUse::kRefused) {
      EXPECT_NE(info.fault, Fault::kNone) << info.word;
    }
    if (info.final) {
      EXPECT_NE(info.fault, Fault::kMachine) << info.word;
    }
  }
}

// The properties of reasons on which restarts depend.
TEST(Reason, SaysWhatARestartDoes) {
  const auto is = [](Reason reason, ReasonUse use, bool final, Fault fault) {
    const ReasonInfo& info = InfoOf(reason);
    EXPECT_EQ(info.use, use) << info.word;
    EXPECT_EQ(info.final, final) << info.word;
    EXPECT_EQ(info.fault, fault) << info.word;
  };
  is(Reason::kPeerLost, ReasonUse::kFailed, false, Fault::kMachine);
  is(Reason::kNodeLost, ReasonUse::kFailed, false, Fault::kMachine);
  is(Reason::kPreempted, ReasonUse::kFailed, false, Fault::kMachine);
  is(Reason::kDataStalled, ReasonUse::kFailed, false, Fault::kJob);
  is(Reason::kRankKilled, ReasonUse::kFailed, false, Fault::kJob);
  is(Reason::kOutOfMemory, ReasonUse::kFailed, false, Fault::kJob);
  is(Reason::kHang, ReasonUse::kFailed, false, Fault::kJob);
  is(Reason::kNonfiniteLoss, ReasonUse::kFailed, true, Fault::kJob);
  is(Reason::kDiverged, ReasonUse::kFailed, true, Fault::kJob);
  is(Reason::kNoValidCheckpoint, ReasonUse::kFailed, true, Fault::kJob);
  is(Reason::kCheckpointsMissing, ReasonUse::kRefused, false, Fault::kMachine);
  is(Reason::kOutDirBusy, ReasonUse::kRefused, false, Fault::kMachine);
  is(Reason::kPreflightRefused, ReasonUse::kRefused, false, Fault::kJob);
  is(Reason::kJobHasEnded, ReasonUse::kRequestRefused, true, Fault::kAsked);
}

}  // namespace
}  // namespace nsa
