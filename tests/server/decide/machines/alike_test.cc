#include "server/decide/machines/alike.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Makeup Machine(const std::string& name) {
  return {.name = name,
          .worker_hash = "1111111111111111",
          .cuda_worker_hash = "2222222222222222",
          .driver = "580.95",
          .nccl = "2.28.3",
          .capability = "8.0",
          .clock_offset = absl::ZeroDuration()};
}

Makeup WithClock(const std::string& name, double seconds) {
  Makeup machine = Machine(name);
  machine.clock_offset = absl::Seconds(seconds);
  return machine;
}

constexpr Demand kGpus = {.cuda = true};

TEST(Groups, HaveTheProgramsThatTheJobUses) {
  std::vector<Makeup> machines = {Machine("a"), Machine("b"), Machine("c")};
  EXPECT_THAT(Groups(machines, {}), ElementsAre(Group{0, 1, 2}));
  machines[1].worker_hash = "3333333333333333";
  EXPECT_THAT(Groups(machines, {}), ElementsAre(Group{0, 2}, Group{1}));
  EXPECT_THAT(Groups(machines, kGpus), ElementsAre(Group{0, 1, 2}));
  machines[0].cuda_worker_hash = "3333333333333333";
  EXPECT_THAT(Groups(machines, kGpus), ElementsAre(Group{1, 2}, Group{0}));
  machines[0] = machines[2];
  machines[0].driver = "575.57";
  EXPECT_THAT(Groups(machines, kGpus), ElementsAre(Group{1, 2}, Group{0}));
  machines[1].nccl = "2.27.3";
  EXPECT_THAT(Groups(machines, kGpus), ElementsAre(Group{0}, Group{1}, Group{2}));
  EXPECT_THAT(Groups(machines, {.cuda = true, .programs = false}), ElementsAre(Group{0, 1, 2}));
}

TEST(Groups, HaveGpusOfTheSameComputeCapability) {
  std::vector<Makeup> machines = {Machine("a"), Machine("b"), Machine("c")};
  machines[1].capability = "9.0";
  EXPECT_THAT(Groups(machines, kGpus), ElementsAre(Group{0, 2}, Group{1}));
  EXPECT_THAT(Groups(machines, {}), ElementsAre(Group{0, 1, 2})) << "CPU ranks do not use them";
  EXPECT_EQ(DifferencesOf(machines, kGpus).text, "b: GPUs of compute capability 9.0, a has 8.0");
  EXPECT_THAT(DifferencesOf(machines, kGpus).fix, HasSubstr("resources.require.gpu"));
  machines[2].nccl = "2.27.3";
  EXPECT_THAT(DifferencesOf(machines, kGpus).fix, HasSubstr("install the same version"));
}

TEST(MakeupOf, HasEachComputeCapabilityOnce) {
  v1::NodeInfo info;
  EXPECT_EQ(MakeupOf(info, {}).capability, "");
  for (const int capability : {90, 80, 90}) {
    info.add_gpus()->set_compute_capability(capability);
  }
  EXPECT_EQ(MakeupOf(info, {}).capability, "8.0 and 9.0");
}

TEST(Groups, OfOlderAgentsThatTellNothingAreOne) {
  const std::vector<Makeup> machines = {{.name = "a"}, {.name = "b"}, Machine("c")};
  EXPECT_THAT(Groups(machines, {}), ElementsAre(Group{0, 1}, Group{2}));
  EXPECT_THAT(Groups({}, {}), ElementsAre());
}

TEST(Groups, HaveClocksWithinASecond) {
  const std::vector<Makeup> machines = {WithClock("a", 1.9), WithClock("b", 0), WithClock("c", 1.0),
                                        WithClock("d", 0.95), WithClock("e", 40)};
  EXPECT_THAT(Groups(machines, {}), ElementsAre(Group{0, 2, 3}, Group{1, 2, 3}, Group{4}));
  EXPECT_THAT(Groups(machines, {.clocks = false}), ElementsAre(Group{0, 1, 2, 3, 4}));
}

TEST(Groups, AClockThatIsNotKnownAgreesWithAll) {
  std::vector<Makeup> machines = {WithClock("a", -5), Machine("b"), WithClock("c", 5)};
  machines[1].clock_offset.reset();
  EXPECT_THAT(Groups(machines, {}), ElementsAre(Group{0, 1}, Group{1, 2}));
  machines[0].clock_offset.reset();
  machines[2].clock_offset.reset();
  EXPECT_THAT(Groups(machines, {}), ElementsAre(Group{0, 1, 2}));
}

// A step of the coordinator's clock changes every offset by as much.
TEST(Groups, DoNotDependOnTheClockOfTheCoordinator) {
  const std::vector<Makeup> machines = {WithClock("a", 7200), WithClock("b", 7200.5)};
  EXPECT_THAT(Groups(machines, {}), ElementsAre(Group{0, 1}));
}

TEST(Differences, NameTheMachineAndWhatItHas) {
  std::vector<Makeup> machines = {Machine("gpu-01"), Machine("gpu-02"), Machine("gpu-03")};
  EXPECT_EQ(DifferencesOf(machines, kGpus).text, "");
  machines[1].nccl = "2.27.3";
  EXPECT_EQ(DifferencesOf(machines, kGpus).text, "gpu-02: NCCL 2.27.3, gpu-01 has 2.28.3");
  EXPECT_THAT(DifferencesOf(machines, kGpus).fix, HasSubstr("install the same version"));
  EXPECT_EQ(DifferencesOf(machines, {}).text, "") << "CPU ranks do not use NCCL";
  machines[1].nccl = "";
  machines[2].driver = "575.57";
  machines[2].cuda_worker_hash = "abcdef0123456789";
  EXPECT_EQ(DifferencesOf(machines, kGpus).text,
            "gpu-02: NCCL unknown, gpu-01 has 2.28.3; gpu-03: nsa-worker-cuda abcdef01, gpu-01 has "
            "22222222 and driver 575.57, gpu-01 has 580.95");
}

TEST(Differences, OfClocksSayHowFar) {
  const std::vector<Makeup> machines = {WithClock("a", 0), WithClock("b", 0.9),
                                        WithClock("c", -3.2), WithClock("d", 1.5)};
  const MachineDifferences differences = DifferencesOf(machines, {});
  // d agrees with b, but not with a, which b agrees with.
  EXPECT_EQ(differences.text, "c: clock 3.2 s behind that of a; d: clock 1.5 s ahead of that of a");
  EXPECT_THAT(differences.fix, HasSubstr("synchronize their clocks"));
}

TEST(Differences, AreTextsOfABoundedLength) {
  std::vector<Makeup> machines;
  for (int i = 0; i < 100; ++i) {
    machines.push_back(Machine("m" + std::to_string(i)));
    machines.back().worker_hash = std::to_string(i);
  }
  const std::string text = DifferencesOf(machines, {}).text;
  EXPECT_LT(text.size(), 300u);
  EXPECT_THAT(text, HasSubstr("…"));
  EXPECT_THAT(text, Not(HasSubstr("m5:")));
}

TEST(DemandOf, FollowsTheWaiversOfTheRules) {
  v1::JobSpec spec;
  EXPECT_TRUE(DemandOf(spec, true).programs && DemandOf(spec, true).clocks);
  (*spec.mutable_preflight()->mutable_waive())["MACHINES_DIFFER"] = "the same source";
  EXPECT_FALSE(DemandOf(spec, true).programs);
  EXPECT_TRUE(DemandOf(spec, true).clocks);
  (*spec.mutable_preflight()->mutable_waive())["CLOCKS_DIFFER"] = "no matter";
  EXPECT_FALSE(DemandOf(spec, true).clocks);
}

}  // namespace
}  // namespace nsa::server
