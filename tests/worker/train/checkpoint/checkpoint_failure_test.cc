// Checkpoints that cannot be written, or whose writer dies: the one at hand is lost, and nothing
// else.
#include <errno.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/run/process.h"
#include "gmock/gmock.h"
#include "tests/testing/file_size_limit.h"
#include "tests/testing/paths.h"
#include "tests/testing/small_model.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/checkpoint/small_checkpoint.h"
#include "worker/train/checkpoint/checkpoint.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(CheckpointFailure, AShardThatDoesNotComeCostsTheCheckpointOnly) {
  const TempDir dir;
  Said said;
  auto options = Options(dir, &said);
  options.world_size = 2;
  options.shard_timeout = absl::Milliseconds(30);
  auto writer = CheckpointWriter::Open(options);
  ASSERT_OK(writer);
  ASSERT_OK((*writer)->Save(Training(1).state(), State(4)));
  EXPECT_THAT((*writer)->Drain(), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                           HasSubstr("optimizer-00001-of-00002.safetensors")));
  EXPECT_THAT(Names(CheckpointsDir(dir.path())), ElementsAre(".lock"));
  const MutexLock lock(&said.mutex);
  EXPECT_THAT(said.records[0].error(), HasSubstr("not there after"));
  EXPECT_THAT(said.events, ElementsAre(HasSubstr("CHECKPOINT_FAILED step-00000004")));
}

TEST(CheckpointFailure, AnAbandonedWaitEndsAtOnceAndIsToldAsTheEndOfTheGang) {
  const TempDir dir;
  Said said;
  auto options = Options(dir, &said);
  options.world_size = 2;
  auto writer = CheckpointWriter::Open(options);
  ASSERT_OK((*writer)->Save(Training(1).state(), State(4)));
  (*writer)->Abandon("all_reduce: PEER_LOST: the next rank closed its connection");
  EXPECT_THAT((*writer)->Drain(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(Names(CheckpointsDir(dir.path())), ElementsAre(".lock"));
  const MutexLock lock(&said.mutex);
  EXPECT_EQ(said.records.size(), 0u) << "it is no failure, and counted as none";
  EXPECT_THAT(said.events, ElementsAre(AllOf(HasSubstr("CHECKPOINT_ABANDONED step-00000004"),
                                             HasSubstr("shard of rank 1"),
                                             HasSubstr("PEER_LOST: the next rank"))));
}

// When the gang ends because of a peer, an error of this rank's own disk is still reported.
TEST(CheckpointFailure, AFailedWriteOfAnEndingGangIsAFailure) {
  const TempDir dir;
  Said said;
  auto options = Options(dir, &said);
  options.world_size = 2;
  auto writer = CheckpointWriter::Open(options);
  const FileSizeLimit limit(50000);
  (*writer)->Abandon("PEER_LOST");
  ASSERT_OK((*writer)->Save(Training(1).state(), State(4)));
  EXPECT_FALSE((*writer)->Drain().ok());
  const MutexLock lock(&said.mutex);
  ASSERT_EQ(said.records.size(), 1u);
  EXPECT_NE(said.records[0].error(), "");
  EXPECT_THAT(said.events, ElementsAre(HasSubstr("CHECKPOINT_FAILED step-00000004")));
}

// Rank 0 removes the folder when it gives up, even if other ranks are writing in it. The test
// removes the folder as soon as a shard is begun, and repeats that until it happens before the
// shard's end.
TEST(CheckpointFailure, AShardWhoseFolderRankZeroRemovedIsGivenUp) {
  const TempDir dir;
  Said said;
  auto options = Options(dir, &said);
  options.rank = 1;
  options.world_size = 2;
  auto writer = CheckpointWriter::Open(options);
  ASSERT_OK(writer);
  absl::Status result;
  int64_t step = 0;
  while (!absl::IsNotFound(result) && step < 10000) {
    const auto folder = CheckpointsDir(dir.path()) / absl::StrCat(CheckpointName(++step), ".tmp-3");
    ASSERT_OK((*writer)->Save(Training(1).state(), State(step)));
    while (!std::filesystem::exists(folder / "optimizer-00001-of-00002.safetensors")) continue;
    std::error_code raced;  // a file may be created while the folder is emptied
    while (std::filesystem::exists(folder)) std::filesystem::remove_all(folder, raced);
    result = (*writer)->Drain();
  }
  EXPECT_THAT(result, StatusIs(absl::StatusCode::kNotFound));
  const MutexLock lock(&said.mutex);
  EXPECT_EQ(said.records.size(), 0u);
  EXPECT_THAT(said.events,
              ElementsAre(AllOf(HasSubstr("CHECKPOINT_ABANDONED " + CheckpointName(step)),
                                HasSubstr("rank 0 has removed its folder"))));
}

// What rank 0 takes over must be what the other rank wrote, on whatever file system they share.
TEST(CheckpointFailure, WeightsThatAnotherRankDidNotWriteCostTheCheckpointOnly) {
  const TempDir dir;
  Said said;
  auto options = Options(dir, &said);
  options.world_size = 2;
  auto zero = CheckpointWriter::Open(options);
  ASSERT_OK(zero);
  options.rank = 1;
  auto one = CheckpointWriter::Open(options);
  ASSERT_OK(one);
  const Training training(1);
  const auto part = [&](int64_t step) {
    return CheckpointsDir(dir.path()) / absl::StrCat(CheckpointName(step), ".tmp-3") /
           "weights-00001-of-00002.part";
  };
  const auto save = [&](int64_t step, const std::function<void()>& damage) {
    EXPECT_OK((*one)->Save(training.state(), State(step)));
    EXPECT_OK((*one)->Drain());
    damage();
    EXPECT_OK((*zero)->Save(training.state(), State(step)));
    return (*zero)->Drain();
  };
  EXPECT_THAT(
      save(1,
           [&] {
             std::fstream file(part(1), std::ios::in | std::ios::out | std::ios::binary);
             file.seekp(100) << 'x';
           }),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("weights-00001-of-00002.part: hash")));
  EXPECT_THAT(save(2, [&] { std::filesystem::resize_file(part(2), 100); }),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("weights-00001-of-00002.part: it ends too early")));
  EXPECT_THAT(Names(CheckpointsDir(dir.path())), ElementsAre(".lock"));
  EXPECT_OK(save(3, [] {}));
  EXPECT_EQ(FindNewestGood(dir.path())->entry.step, 3);
  const MutexLock lock(&said.mutex);
  EXPECT_THAT(said.events, ElementsAre(HasSubstr("CHECKPOINT_FAILED step-00000001"),
                                       HasSubstr("CHECKPOINT_FAILED step-00000002")));
}

TEST(CheckpointFailure, OneSnapshotServesForAllSaves) {
  const TempDir dir;
  std::set<const float*> copied_to;
  auto options = Options(dir);
  options.copy = [&](std::span<float> to, std::span<const float> from) {
    copied_to.insert(to.data());
    std::copy(from.begin(), from.end(), to.begin());
    return absl::OkStatus();
  };
  auto writer = CheckpointWriter::Open(options);
  ASSERT_OK(writer);
  const Training training(1);
  for (int64_t step = 1; step <= 3; ++step) {
    ASSERT_OK((*writer)->Save(training.state(), State(step)));
  }
  ASSERT_OK((*writer)->Drain());
  EXPECT_EQ(copied_to.size(), 3u) << "parameters and two moments, once";
}

TEST(CheckpointFailure, ASnapshotThatCannotBeCopiedIsAnErrorOfSave) {
  const TempDir dir;
  auto options = Options(dir);
  options.copy = [](std::span<float>, std::span<const float>) {
    return absl::InternalError("device lost");
  };
  auto writer = CheckpointWriter::Open(options);
  EXPECT_THAT((*writer)->Save(Training(1).state(), State(4)),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("device lost")));
  EXPECT_OK((*writer)->Drain());
}

void ExpectThatAFailedWriteCostsOneCheckpointOnly(const TempDir& dir, Said* said,
                                                  CheckpointWriter* writer,
                                                  const std::function<void(bool)>& fail) {
  const Training training(1);
  ASSERT_OK(writer->Save(training.state(), State(1)));
  ASSERT_OK(writer->Drain());
  fail(true);
  ASSERT_OK(writer->Save(training.state(), State(2)));
  EXPECT_FALSE(writer->Drain().ok());
  fail(false);
  EXPECT_THAT(Names(CheckpointsDir(dir.path())),
              ElementsAre(".lock", "latest.ckpt", "step-00000001"));
  EXPECT_EQ(std::filesystem::read_symlink(CheckpointsDir(dir.path()) / "latest.ckpt"),
            "step-00000001");
  EXPECT_EQ(FindNewestGood(dir.path())->entry.step, 1);
  ASSERT_OK(writer->Save(training.state(), State(3)));
  ASSERT_OK(writer->Drain());
  EXPECT_EQ(FindNewestGood(dir.path())->entry.step, 3);
  const MutexLock lock(&said->mutex);
  ASSERT_EQ(said->records.size(), 3u);
  EXPECT_NE(said->records[1].error(), "");
  EXPECT_EQ(said->records[2].error(), "");
  EXPECT_THAT(said->events, ElementsAre(HasSubstr("CHECKPOINT_FAILED step-00000002")));
}

TEST(CheckpointFailure, AFailedWriteCostsThatCheckpointOnly) {
  const TempDir dir;
  Said said;
  auto writer = CheckpointWriter::Open(Options(dir, &said));
  std::unique_ptr<FileSizeLimit> limit;
  ExpectThatAFailedWriteCostsOneCheckpointOnly(dir, &said, writer->get(), [&](bool on) {
    limit = on ? std::make_unique<FileSizeLimit>(50000) : nullptr;
  });
}

TEST(CheckpointFailure, AFullDiskCostsThatCheckpointOnly) {
  const TempDir dir;
  if (mount("tmpfs", dir.path().c_str(), "tmpfs", 0, "size=2m") != 0) {
    GTEST_SKIP() << "a small file system cannot be mounted here";
  }
  {
    Said said;
    auto writer = CheckpointWriter::Open(Options(dir, &said));
    ExpectThatAFailedWriteCostsOneCheckpointOnly(dir, &said, writer->get(), [&](bool on) {
      std::filesystem::remove(dir / "ballast");
      if (on) {
        std::ofstream ballast(dir / "ballast");
        while (ballast << std::string(4096, 'x') << std::flush) continue;
      }
    });
    const MutexLock lock(&said.mutex);
    EXPECT_THAT(said.records[1].error(), HasSubstr("No space left on device"));
  }
  umount(dir.path().c_str());
}

TEST(CheckpointFailure, KilledAtAnyMomentItsLastFinalNameIsWhole) {
  const TempDir dir;
  const std::string program = Program("checkpoint_writer");
  // The first checkpoint also measures how long one takes here, so that the kills are spread over
  // the time of three checkpoints.
  const absl::Duration before = RealClock().Monotonic();
  {
    auto writer = CheckpointWriter::Open(Options(dir));
    Training first;
    for (auto* values : {&first.parameters, &first.m, &first.v}) values->assign(values->size(), 1);
    ASSERT_OK((*writer)->Save(first.state(), State(1)));
    ASSERT_OK((*writer)->Drain());
  }
  double one = absl::ToDoubleMicroseconds(RealClock().Monotonic() - before);
  int64_t next = 2;
  for (int round = 0; round < 25; ++round) {
    const std::string log = dir / ("log-" + std::to_string(round));
    auto child = Spawn({.argv = {program, dir.path().string(), std::to_string(next)},
                        .environment = {},
                        .working_dir = {},
                        .output = log});
    ASSERT_OK(child);
    while (!std::filesystem::exists(log) || std::filesystem::file_size(log) == 0) usleep(200);
    usleep(static_cast<useconds_t>(3 * one * (round * 7 % 25) / 25));
    ASSERT_OK(SignalProcess(*child, SIGKILL));
    ASSERT_EQ(waitpid(child->pid, nullptr, 0), child->pid);
    const auto entries = ListCheckpoints(dir.path());
    ASSERT_OK(entries);
    for (const auto& entry : *entries) {
      ASSERT_THAT(VerifyCheckpoint(entry.path), IsEmpty()) << entry.path << " in round " << round;
    }
    ASSERT_FALSE(entries->empty());
    // latest.ckpt names a complete checkpoint, the newest one or the one before it.
    const auto link = CheckpointsDir(dir.path()) / "latest.ckpt";
    Training loaded(0);
    const auto state = LoadCheckpoint(
        CheckpointsDir(dir.path()) / std::filesystem::read_symlink(link), "", loaded.target());
    ASSERT_OK(state);
    EXPECT_GE(state->step(), entries->back().step - 1);
    for (const ParameterInfo& tensor : SmallLayout().tensors()) {
      EXPECT_THAT(std::span(loaded.parameters).subspan(tensor.offset, tensor.size),
                  testing::Each(static_cast<float>(state->step())));
    }
    EXPECT_THAT(loaded.v, testing::Each(static_cast<float>(state->step())));
    // The machine has become slower since the first checkpoint was timed: wait longer.
    if (entries->back().step < next) one *= 1.2;
    next = entries->back().step + 1;
  }
  EXPECT_GT(next, 5) << "hardly any checkpoint was written";
}

}  // namespace
}  // namespace nsa::train
