#include "worker/train/step/saver.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <optional>
#include <thread>

#include "tests/testing/status_matchers.h"
#include "tests/testing/within.h"
#include "tests/worker/train/checkpoint/small_checkpoint.h"

namespace nsa::train {
namespace {

constexpr LastSavePatience kPatience = {
    .first_wait = absl::Seconds(5), .longest_wait = absl::Minutes(1), .total = absl::Minutes(5)};

TEST(WaitAfter, DoublesUpToTheLongestWaitAndEndsBeforeTheTotalIsPassed) {
  struct Case {
    int failures;
    std::optional<absl::Duration> wait;
  };
  const Case cases[] =
      {
          {1, absl::Seconds(5)},  {2, absl::Seconds(10)}, {3, absl::Seconds(20)},
          {4, absl::Seconds(40)}, {5, absl::Minutes(1)},  {6, absl::Minutes(1)},
          {7, absl::Minutes(1)},  // 255 s of 300 s are used
          {8, std::nullopt},
      };
  for (const Case& c : cases) EXPECT_EQ(WaitAfter(c.failures, kPatience), c.wait) << c.failures;
}

TEST(WaitAfter, IsNothingWithoutPatience) {
  EXPECT_EQ(WaitAfter(1, {.total = absl::ZeroDuration()}), std::nullopt);
}

// One rank that counts its collectives.
class CountingRank final : public Comm {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  absl::Status CheckPeers() override { return absl::OkStatus(); }
  int reduced() const { return reduced_; }

 private:
  absl::Status DoReduceScatterSum(std::span<float>, std::span<const int64_t>, Wire) override {
    return absl::OkStatus();
  }
  absl::Status DoAllGather(std::span<float>, std::span<const int64_t>, Wire) override {
    return absl::OkStatus();
  }
  absl::Status DoAllReduce(Reduce, std::span<double>) override {
    ++reduced_;
    return absl::OkStatus();
  }
  absl::Status DoBroadcast(int, std::span<std::byte>) override { return absl::OkStatus(); }
  absl::Status DoExchangeInGroups(int, std::span<const std::byte>, std::span<std::byte>) override {
    return absl::OkStatus();
  }
  absl::Status DoBarrier() override { return absl::OkStatus(); }

  std::atomic<int> reduced_ = 0;
};

// The writer of the first checkpoint stands still. Ranks that wait for it do collectives, which
// show that they live.
TEST(Saver, WaitsTogetherForTheCheckpointBefore) {
  const TempDir dir;
  std::promise<void> may_write;
  const std::shared_future<void> allowed = may_write.get_future().share();
  CheckpointWriterOptions options = Options(dir);
  options.before_write = [&] { allowed.wait(); };
  auto writer = CheckpointWriter::Open(options);
  ASSERT_OK(writer);
  CountingRank comm;
  const RealClock clock;
  Saver saver({.writer = writer->get(), .comm = &comm, .clock = &clock});
  const Training training;
  EXPECT_OK(saver.Save({.tensors = training.state(), .state = State(1)}));
  const int before = comm.reduced();
  std::thread second(
      [&] { EXPECT_OK(saver.Save({.tensors = training.state(), .state = State(2)})); });
  EXPECT_TRUE(Within(absl::Seconds(60), [&] { return comm.reduced() >= before + 3; }));
  may_write.set_value();
  second.join();
  EXPECT_OK((*writer)->Drain());
  EXPECT_OK(ReadCheckpointState(CheckpointsDir(dir.path()) / CheckpointName(2)));
}

}  // namespace
}  // namespace nsa::train
