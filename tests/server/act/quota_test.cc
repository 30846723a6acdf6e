// Quotas of owners and the default limit, through submits, the queue and the list of use.
#include "common/base/reason.h"
#include "common/job/load.h"
#include "gmock/gmock.h"
#include "tests/server/act/harness.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const Asker kAda = {.name = "ada", .own_jobs_only = true};

class QuotaTest : public Harness {
 protected:
  void Configure(const std::string& yaml) {
    v1::CoordinatorConfig config;
    ASSERT_OK(LoadYamlText(yaml, "coordinator.yaml", &config).status());
    auto quotas = Quotas::Make(config.quotas());
    ASSERT_OK(quotas.status());
    scheduling_.quotas = *std::move(quotas);
    Restart();
  }
  absl::StatusOr<std::string> SubmitAs(const Asker& asker, const v1::JobSpec& spec,
                                       const std::string& request_id = "") {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec;
    request.set_request_id(request_id);
    const auto response = control().Submit(request, nullptr, asker);
    if (!response.ok()) return response.status();
    return response->job().id();
  }
};

TEST_F(QuotaTest, TheJobBeyondItIsRefusedUntilOneHasEnded) {
  Configure("quotas: [{owner: ada, jobs: 1}]");
  const auto first = SubmitAs(kAda, Spec("first"), "11111111-1111-4111-8111-111111111111");
  ASSERT_OK(first.status());
  const auto second = SubmitAs(kAda, Spec("second"));
  EXPECT_THAT(second, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("ada has 1 job")));
  EXPECT_EQ(ReasonOf(second.status()), Reason::kOverQuota);
  EXPECT_EQ(SubmitAs(kAda, Spec("first"), "11111111-1111-4111-8111-111111111111").value_or(""),
            *first)
      << "a repeated request is no other job";
  EXPECT_OK(SubmitAs({.name = "bob"}, Spec("bobs")).status());
  ASSERT_OK(Stop(*first, v1::STOP_MODE_NOW));
  const auto third = SubmitAs(kAda, Spec("third"));
  ASSERT_OK(third.status());
  const absl::Status resumed = Resume(*first);
  EXPECT_EQ(ReasonOf(resumed), Reason::kOverQuota) << resumed;
  EXPECT_EQ(Get(*first).state(), v1::Job::STATE_STOPPED) << "nothing has changed";
}

TEST_F(QuotaTest, RanksBeyondItWaitInTheQueueAndHoldNobodyBack) {
  Configure("quotas: [{owner: ada, ranks: 1}]");
  FakeAgent a = MakeAgent("a", 4);
  const auto first = SubmitAs(kAda, Spec("first"));
  const auto second = SubmitAs(kAda, Spec("second"));
  ASSERT_OK(first.status());
  ASSERT_OK(second.status());
  RunUntil(*first, v1::Job::STATE_RUNNING, {&a});
  EXPECT_EQ(Get(*second).state(), v1::Job::STATE_QUEUED);
  EXPECT_THAT(Get(*second).message(), HasSubstr("ada has 1 that run"));
  const auto other = SubmitAs({.name = "bob"}, Spec("bobs"));
  ASSERT_OK(other.status());
  RunUntil(*other, v1::Job::STATE_RUNNING, {&a});
  ASSERT_OK(Stop(*first, v1::STOP_MODE_NOW));
  RunUntil(*second, v1::Job::STATE_RUNNING, {&a});
}

TEST_F(QuotaTest, AJobThatIsNotInTheQueueYetHoldsNoneOfItsOwnersBack) {
  Configure("quotas: [{owner: ada, ranks: 1}]");
  FakeAgent a = MakeAgent("a", 4);
  v1::JobSpec tonight = Spec("tonight");
  tonight.set_not_before("+6h");
  const auto later = SubmitAs(kAda, tonight);
  const auto now = SubmitAs(kAda, Spec("now"));
  ASSERT_OK(later.status());
  ASSERT_OK(now.status());
  RunUntil(*now, v1::Job::STATE_RUNNING, {&a});
  EXPECT_EQ(Get(*later).state(), v1::Job::STATE_QUEUED);
  EXPECT_THAT(Get(*later).message(), Not(HasSubstr("ada has")));
}

TEST_F(QuotaTest, UseIsListedByOwnerAndASubmitterSeesItsOwn) {
  Configure("quotas: [{owner: ada, jobs: 4}]");
  FakeAgent a = MakeAgent("a", 4);
  const auto id = SubmitAs(kAda, Spec("first", 2));
  ASSERT_OK(id.status());
  ASSERT_OK(SubmitAs({.name = "bob"}, Spec("bobs")).status());
  RunUntil(*id, v1::Job::STATE_RUNNING, {&a});
  const v1::ListUseResponse all = control().Use({.name = "root"});
  ASSERT_EQ(all.owners_size(), 2);
  EXPECT_EQ(all.owners(0).owner(), "ada");
  EXPECT_EQ(all.owners(0).jobs(), 1);
  EXPECT_EQ(all.owners(0).ranks(), 2);
  EXPECT_EQ(all.owners(0).quota().jobs(), 4);
  EXPECT_EQ(all.owners(0).window_days(), 7);
  EXPECT_FALSE(all.owners(1).has_quota());
  const v1::ListUseResponse own = control().Use(kAda);
  ASSERT_EQ(own.owners_size(), 1);
  life().metrics.ObserveOwners(all);
  EXPECT_THAT(life().metrics.Text(),
              AllOf(HasSubstr("nsa_owner_jobs{owner=\"ada\"} 1"),
                    HasSubstr("nsa_owner_ranks{owner=\"ada\"} 2"),
                    HasSubstr("nsa_owner_quota_used_ratio{owner=\"ada\",quota=\"jobs\"} 0.25")));
  life().metrics.ObserveOwners({});
  EXPECT_THAT(life().metrics.Text(), Not(HasSubstr("owner=\"ada\"")));
}

TEST_F(QuotaTest, AJobWithoutALimitGetsTheDefault) {
  default_hours_ = 24;
  Restart();
  EXPECT_EQ(Get(Submit(Spec("without"))).spec().limits().hours(), 24);
  v1::JobSpec with = Spec("with");
  with.mutable_limits()->set_hours(2);
  EXPECT_EQ(Get(Submit(with)).spec().limits().hours(), 2);
}

TEST_F(QuotaTest, AMachineThatIsRequiredIsTakenAndAnotherIsNot) {
  FakeAgent a = MakeAgent("a", 4);
  FakeAgent b = MakeAgent("b", 2);
  (*a.node().mutable_labels())["rack"] = "a";
  (*b.node().mutable_labels())["rack"] = "b";
  Round({&a, &b});
  v1::JobSpec spec = Spec("wants-a");
  (*spec.mutable_resources()->mutable_require())["rack"] = "a";
  const std::string id = Submit(spec);
  RunUntil(id, v1::Job::STATE_RUNNING, {&a, &b});
  EXPECT_EQ(Get(id).ranks(0).node(), "a") << "the other one has fewer free slots";
  v1::JobSpec nowhere = Spec("nowhere");
  (*nowhere.mutable_resources()->mutable_require())["rack"] = "c";
  EXPECT_THAT(SubmitAs({}, nowhere),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("resources.require")));
  (*nowhere.mutable_preflight()->mutable_waive())["REQUIRE_UNMET"] = "it comes tomorrow";
  const std::string waits = Submit(nowhere);
  Round({&a, &b});
  EXPECT_THAT(Get(waits).message(),
              HasSubstr("requires rack: c (1 machine with a, 1 machine with b)"));
}

}  // namespace
}  // namespace nsa::server
