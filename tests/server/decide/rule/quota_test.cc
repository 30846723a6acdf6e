// Quotas of owners: what is refused, what waits, and how GPU time is counted.
#include "server/decide/rule/quota.h"

#include "common/base/reason.h"
#include "common/job/load.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;

// An hour begins.
const absl::Time kThen = absl::FromUnixSeconds(1'800'000'000);

Quotas Make(const std::string& yaml) {
  v1::CoordinatorConfig config;
  EXPECT_OK(LoadYamlText(yaml, "coordinator.yaml", &config).status());
  auto quotas = Quotas::Make(config.quotas());
  EXPECT_OK(quotas.status());
  return quotas.ok() ? *quotas : Quotas();
}

absl::Status Refusal(const std::string& yaml) {
  v1::CoordinatorConfig config;
  EXPECT_OK(LoadYamlText(yaml, "coordinator.yaml", &config).status());
  return Quotas::Make(config.quotas()).status();
}

std::shared_ptr<v1::StoredJob> OwnedJob(const std::string& owner, const std::string& id, int ranks,
                                        v1::Job::State state = v1::Job::STATE_QUEUED) {
  auto job = std::make_shared<v1::StoredJob>();
  job->mutable_job()->set_id(id);
  job->mutable_job()->set_owner(owner);
  job->mutable_job()->set_state(state);
  job->mutable_job()->mutable_spec()->mutable_resources()->set_gpus(ranks);
  if (state == v1::Job::STATE_QUEUED) return job;
  for (int rank = 0; rank < ranks; ++rank) job->add_placements()->set_cuda_device("GPU-x");
  return job;
}

v1::JobSpec SpecOf(int ranks, int priority = 0) {
  v1::JobSpec spec;
  spec.mutable_resources()->set_gpus(ranks);
  spec.set_priority(priority);
  return spec;
}

TEST(Quota, HoldsForItsOwnerAndTheStarForAllOthers) {
  const Quotas quotas = Make("quotas: [{owner: ada, jobs: 3}, {owner: '*', jobs: 1}]");
  EXPECT_EQ(quotas.Of("ada")->jobs(), 3);
  EXPECT_EQ(quotas.Of("bob")->jobs(), 1);
  EXPECT_EQ(Make("quotas: [{owner: ada, jobs: 3}]").Of("bob"), nullptr);
  EXPECT_TRUE(Quotas().empty());
}

TEST(Quota, WrongEntriesAreNamed) {
  for (const auto& [yaml, where] : std::initializer_list<std::pair<const char*, const char*>>{
           {"quotas: [{jobs: 3}]", "quotas[0].owner"},
           {"quotas: [{owner: a}, {owner: a}]", "quotas[1].owner"},
           {"quotas: [{owner: a, jobs: -1}]", "quotas[0].jobs: -1"},
           {"quotas: [{owner: a, ranks: 70000}]", "quotas[0].ranks: 70000"},
           {"quotas: [{owner: a, highest_priority: 2000}]", "quotas[0].highest_priority: 2000"},
           {"quotas: [{owner: a, gpu_time: {}}]", "quotas[0].gpu_time.hours"},
           {"quotas: [{owner: a, gpu_time: {hours: -1}}]", "quotas[0].gpu_time.hours: -1"},
           {"quotas: [{owner: a, gpu_time: {hours: 1, days: 63}}]",
            "quotas[0].gpu_time.days: 63"}}) {
    EXPECT_THAT(Refusal(yaml), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(where)))
        << yaml;
  }
}

TEST(Quota, ARefusedSubmitSaysWhoAndHowMuch) {
  const Quotas quotas = Make(
      "quotas: [{owner: ada, jobs: 2, ranks: 8, highest_priority: 5, gpu_time: {hours: 10, "
      "days: 1}}]");
  const auto check = [&](const Taken& taken, const v1::JobSpec& spec) {
    return CheckQuota(*quotas.Of("ada"), "ada", taken, spec, kThen);
  };
  EXPECT_OK(check({.jobs = 1}, SpecOf(8, 5)));
  const std::pair<absl::Status, const char*> refused[] = {
      {check({}, SpecOf(1, 6)), "priority: 6 (at most 5 for ada"},
      {check({}, SpecOf(9)), "resources.gpus: 9 (at most 8 at a time for ada"},
      {check({.jobs = 2}, SpecOf(1)), "ada has 2 jobs in the queue or running (at most 2"}};
  for (const auto& [status, text] : refused) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(text)));
    EXPECT_EQ(ReasonOf(status), Reason::kOverQuota);
  }
}

TEST(Quota, UsedGpuTimeRefusesUntilItIsOutOfTheWindow) {
  const Quotas quotas = Make("quotas: [{owner: ada, gpu_time: {hours: 10, days: 1}}]");
  const v1::QuotaConfig& quota = *quotas.Of("ada");
  Taken taken;
  AddHours(GpuHoursUntil(kThen - absl::Hours(20), absl::Hours(1), 6), &taken.gpu_hours);
  AddHours(GpuHoursUntil(kThen, absl::Hours(1), 4), &taken.gpu_hours);
  const absl::Status refused = CheckQuota(quota, "ada", taken, SpecOf(1), kThen);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition,
                                HasSubstr("ada has used 10.0 GPU hours in the last 1 days")));
  // The six hours ended 20 h ago: four hours later they are out of the window.
  const absl::Time free = WhenBelow(absl::Hours(10), taken.gpu_hours, WindowOf(&quota), kThen);
  EXPECT_EQ(free, kThen + absl::Hours(4));
  EXPECT_OK(CheckQuota(quota, "ada", taken, SpecOf(1), free + absl::Seconds(1)));
  v1::JobSpec on_cpu = SpecOf(1);
  on_cpu.mutable_runtime()->set_device(v1::DEVICE_CPU);
  EXPECT_OK(CheckQuota(quota, "ada", taken, on_cpu, kThen)) << "it takes no GPU";
  const Quotas none = Make("quotas: [{owner: ada, gpu_time: {hours: 0}}]");
  EXPECT_FALSE(CheckQuota(*none.Of("ada"), "ada", {}, SpecOf(1), kThen).ok());
  EXPECT_EQ(WhenBelow(absl::ZeroDuration(), {}, absl::Hours(1), kThen), absl::InfiniteFuture());
}

TEST(Quota, RanksBeyondItWaitAndNobodyOvertakesAmongThem) {
  const Quotas quotas = Make("quotas: [{owner: ada, ranks: 4}]");
  auto later = OwnedJob("ada", "later", 1);
  later->set_queued_unix_nanos(2);
  auto urgent = OwnedJob("ada", "urgent", 2);
  urgent->mutable_job()->mutable_spec()->set_priority(9);
  urgent->set_queued_unix_nanos(3);
  auto first = OwnedJob("ada", "first", 2);
  first->set_queued_unix_nanos(1);
  const auto nothing = [](const std::string&) { return GpuHours(); };
  const auto held = HeldByQuota({OwnedJob("ada", "runs", 1, v1::Job::STATE_RUNNING), first, later,
                                 urgent, OwnedJob("bob", "other", 64)},
                                quotas, nothing, kThen);
  EXPECT_THAT(held, ElementsAre(Key("first"), Key("later")))
      << "1 that runs and 2 of the urgent one leave room for 1";
  EXPECT_THAT(held.at("first"), HasSubstr("needs 2 ranks; ada has 3"));
  EXPECT_THAT(HeldByQuota({first}, Quotas(), nothing, kThen), IsEmpty());
}

TEST(Quota, UsedGpuTimeHoldsQueuedJobsAndCountsWhatRunsNow) {
  const Quotas quotas = Make("quotas: [{owner: '*', gpu_time: {hours: 3}}]");
  auto runs = OwnedJob("ada", "runs", 2, v1::Job::STATE_RUNNING);
  runs->set_state_unix_nanos(absl::ToUnixNanos(kThen - absl::Hours(1)));
  const auto stored = [](const std::string&) {
    return GpuHoursUntil(kThen - absl::Hours(2), absl::Minutes(30), 2);
  };
  EXPECT_THAT(HeldByQuota({runs, OwnedJob("ada", "waits", 1)}, quotas, stored, kThen),
              ElementsAre(Key("waits")));
  EXPECT_THAT(
      HeldByQuota({runs, OwnedJob("ada", "waits", 1)}, quotas, stored, kThen - absl::Minutes(1)),
      IsEmpty());
}

TEST(GpuTime, BelongsToTheHoursInWhichItPassed) {
  const GpuHours hours = GpuHoursUntil(kThen + absl::Minutes(30), absl::Minutes(105), 2);
  ASSERT_EQ(hours.size(), 3u);
  const std::vector<int64_t> minutes = {15, 60, 30};
  size_t i = 0;
  for (const auto& [hour, milliseconds] : hours) {
    EXPECT_EQ(milliseconds, 2 * minutes[i++] * 60'000) << hour;
  }
  EXPECT_THAT(GpuHoursUntil(kThen, absl::Hours(1), 0), IsEmpty());
  EXPECT_THAT(GpuHoursUntil(kThen, -absl::Hours(1), 2), IsEmpty());
  EXPECT_LE(GpuHoursUntil(kThen, absl::Hours(24 * 3'650), 1).size(), 62u * 24 + 2)
      << "a clock that was set by years";
}

TEST(GpuTime, IsAddedWhereTheRunTimeOfAJobOnGpusGrows) {
  const auto before = OwnedJob("ada", "j", 4, v1::Job::STATE_RUNNING);
  v1::StoredJob after = *before;
  after.set_run_seconds(90);
  after.clear_placements();
  EXPECT_EQ(GpuTimeIn(GpuHoursAdded(*before, after, kThen), absl::Hours(1), kThen),
            absl::Minutes(6));
  v1::StoredJob resumed = after;
  resumed.set_earlier_run_seconds(90);
  resumed.clear_run_seconds();
  EXPECT_THAT(GpuHoursAdded(after, resumed, kThen), IsEmpty());
  auto on_cpu = *before;
  for (auto& place : *on_cpu.mutable_placements()) place.clear_cuda_device();
  EXPECT_THAT(GpuHoursAdded(on_cpu, after, kThen), IsEmpty());
}

}  // namespace
}  // namespace nsa::server
