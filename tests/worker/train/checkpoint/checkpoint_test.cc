#include "worker/train/checkpoint/checkpoint.h"

#include <errno.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
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
#include "worker/train/model/parameters.h"

namespace nsa {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Checkpoint, RestoresParametersMomentsStepAndCursor) {
  const TempDir dir;
  const Training saved(0.25f);
  Said said;
  {
    auto writer = CheckpointWriter::Open(Options(dir, &said));
    ASSERT_OK(writer);
    ASSERT_OK((*writer)->Save(saved.state(), State(50, 2.5)));
    ASSERT_OK((*writer)->Drain());
  }
  const auto path = CheckpointsDir(dir.path()) / "step-00000050";
  EXPECT_THAT(VerifyCheckpoint(path), IsEmpty());
  EXPECT_THAT(Names(path), ElementsAre("model.safetensors", "optimizer-00000-of-00001.safetensors",
                                       "state.json"));
  EXPECT_EQ(std::filesystem::read_symlink(path.parent_path() / "latest.ckpt"), "step-00000050");
  Training loaded(9);
  const auto state = LoadCheckpoint(path, "abc", loaded.target());
  ASSERT_OK(state);
  EXPECT_EQ(loaded.parameters, saved.parameters);
  EXPECT_EQ(loaded.m, saved.m);
  EXPECT_EQ(loaded.v, saved.v);
  EXPECT_EQ(state->step(), 50);
  EXPECT_EQ(state->data().sequence(), 77);
  EXPECT_EQ(state->val_loss(), 2.5);
  EXPECT_EQ(state->world_size(), 1);
  EXPECT_GT(state->unix_nanos(), 0);
  const MutexLock lock(&said.mutex);
  ASSERT_EQ(said.records.size(), 1u);
  EXPECT_EQ(said.records[0].error(), "");
  EXPECT_EQ(said.records[0].path(), path.string());
  EXPECT_GT(said.records[0].bytes(), static_cast<int64_t>(saved.parameters.size()) * 12);
  EXPECT_GE(said.records[0].write_seconds(), 0);
  EXPECT_THAT(said.events, IsEmpty());
}

TEST(Checkpoint, AnyWorldSizeLoadsWhatAnyOtherWrote) {
  for (const int world : {1, 2, 3, 5}) {
    const TempDir dir;
    const Training saved(1.5f);
    std::vector<std::unique_ptr<CheckpointWriter>> writers;
    for (int rank = 0; rank < world; ++rank) {
      auto options = Options(dir);
      options.rank = rank;
      options.world_size = world;
      auto writer = CheckpointWriter::Open(options);
      ASSERT_OK(writer);
      writers.push_back(*std::move(writer));
    }
    // The last rank saves first: the ranks may save in any order.
    for (int rank = world - 1; rank >= 0; --rank) {
      ASSERT_OK(writers[rank]->Save(saved.state(), State(8)));
    }
    for (auto& writer : writers) ASSERT_OK(writer->Drain());
    const auto path = CheckpointsDir(dir.path()) / "step-00000008";
    EXPECT_EQ(Names(path).size(), 2u + world);
    Training loaded(9);
    const auto state = LoadCheckpoint(path, "abc", loaded.target());
    ASSERT_OK(state);
    EXPECT_EQ(state->world_size(), world);
    EXPECT_EQ(loaded.parameters, saved.parameters);
    EXPECT_EQ(loaded.m, saved.m);
    EXPECT_EQ(loaded.v, saved.v);
  }
}

TEST(Checkpoint, TheSnapshotIsTakenAtTheCall) {
  const TempDir dir;
  Training training(1);
  const std::vector<float> before = training.parameters;
  auto writer = CheckpointWriter::Open(Options(dir));
  ASSERT_OK(writer);
  ASSERT_OK((*writer)->Save(training.state(), State(1)));
  for (float& value : training.parameters) value = -1;  // training continues
  ASSERT_OK((*writer)->Drain());
  Training loaded(9);
  ASSERT_OK(LoadCheckpoint(CheckpointsDir(dir.path()) / "step-00000001", "", loaded.target()));
  EXPECT_EQ(loaded.parameters, before);
}

TEST(Checkpoint, AFlippedBitIsNamedAndNothingIsLoaded) {
  const TempDir dir;
  {
    auto writer = CheckpointWriter::Open(Options(dir));
    ASSERT_OK((*writer)->Save(Training(1).state(), State(1)));
    ASSERT_OK((*writer)->Save(Training(2).state(), State(2)));
  }
  const auto path = CheckpointsDir(dir.path()) / "step-00000002";
  {
    std::fstream file(path / "optimizer-00000-of-00001.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(5000);
    const char byte = static_cast<char>(file.get() ^ 4);
    file.seekp(5000);
    file.put(byte);
  }
  Training loaded(9);
  EXPECT_THAT(LoadCheckpoint(path, "", loaded.target()),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("step-00000002"),
                             HasSubstr("optimizer-00000-of-00001.safetensors: hash"))));
  EXPECT_EQ(loaded.parameters, Training(9).parameters);
  EXPECT_EQ(FindNewestGood(dir.path())->entry.step, 1);
}

TEST(Checkpoint, OfAnotherJobOrModelIsRefused) {
  const TempDir dir;
  {
    auto writer = CheckpointWriter::Open(Options(dir));
    ASSERT_OK((*writer)->Save(Training(1).state(), State(1)));
  }
  const auto path = CheckpointsDir(dir.path()) / "step-00000001";
  Training loaded(9);
  EXPECT_THAT(
      LoadCheckpoint(path, "other", loaded.target()),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("hash abc (this one has other)")));
  v1::JobSpec wider = SmallModel();
  wider.mutable_model()->set_mlp_ratio(2);
  const ParameterLayout layout(wider);
  std::vector<float> p(layout.size()), m(p), v(p);
  EXPECT_THAT(LoadCheckpoint(path, "", {&layout, p, m, v}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("mlp.fc1.weight")));
  wider.mutable_model()->set_mlp_ratio(4);
  wider.mutable_model()->set_n_layers(1);
  const ParameterLayout fewer(wider);
  EXPECT_THAT(LoadCheckpoint(path, "", {&fewer, std::span(p).first(fewer.size()), {}, {}}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another model")));
}

TEST(Checkpoint, RetentionRunsAfterEachWrite) {
  const TempDir dir;
  auto options = Options(dir);
  options.keep = 2;
  auto writer = CheckpointWriter::Open(options);
  ASSERT_OK(writer);
  const Training training(1);
  for (int64_t step = 1; step <= 6; ++step) {
    ASSERT_OK((*writer)->Save(training.state(), State(step, step == 2 ? 1.0 : 2.0)));
    ASSERT_OK((*writer)->Drain());
    if (step == 3) std::ofstream(CheckpointsDir(dir.path()) / "step-00000003" / "PINNED");
  }
  EXPECT_THAT(Names(CheckpointsDir(dir.path())),
              ElementsAre(".lock", "latest.ckpt", "step-00000002", "step-00000003", "step-00000005",
                          "step-00000006"));
}

TEST(Checkpoint, TheBestIsOneThatWasValidatedAtItsOwnStep) {
  const TempDir dir;
  auto writer = CheckpointWriter::Open(Options(dir));
  ASSERT_OK(writer);
  const Training training(1);
  // Steps 2, 4 and 6 are validated; other checkpoints contain the loss of an earlier validation.
  const std::map<int64_t, double> losses = {{1, 0.5}, {2, 3}, {3, 3}, {4, 1}, {5, 1}, {6, 2}};
  for (int64_t step = 1; step <= 9; ++step) {
    v1::CheckpointState state = State(step, losses.contains(step) ? losses.at(step) : 0.5);
    state.mutable_spec()->mutable_train()->set_eval_every(step <= 6 ? 2 : 100);
    ASSERT_OK((*writer)->Save(training.state(), state));
    ASSERT_OK((*writer)->Drain());
  }
  EXPECT_THAT(
      Names(CheckpointsDir(dir.path())),
      ElementsAre(".lock", "latest.ckpt", "step-00000004", "step-00000008", "step-00000009"));
}

TEST(Checkpoint, ARolledBackRunReplacesWhatItReachesAgain) {
  const TempDir dir;
  {
    auto writer = CheckpointWriter::Open(Options(dir));
    for (const int64_t step : {1, 2, 3})
      ASSERT_OK((*writer)->Save(Training(1).state(), State(step)));
  }
  std::ofstream(CheckpointsDir(dir.path()) / "step-00000003" / "model.safetensors") << "damaged";
  {
    auto writer = CheckpointWriter::Open(Options(dir));
    ASSERT_OK((*writer)->Save(Training(5).state(), State(3)));
    ASSERT_OK((*writer)->Drain());
  }
  Training loaded(9);
  ASSERT_OK(LoadCheckpoint(CheckpointsDir(dir.path()) / "step-00000003", "", loaded.target()));
  EXPECT_EQ(loaded.parameters, Training(5).parameters);
  EXPECT_THAT(Names(CheckpointsDir(dir.path())),
              ElementsAre(".lock", "latest.ckpt", "step-00000002", "step-00000003"));
}

TEST(Checkpoint, TheStartRemovesWhatDeadWritersLeft) {
  const TempDir dir;
  const auto checkpoints = CheckpointsDir(dir.path());
  for (const char* name :
       {"step-00000009.tmp-1", "step-00000004.tmp-deleted", "step-00000005", "notes.tmp-1"}) {
    std::filesystem::create_directories(checkpoints / name);
    std::ofstream(checkpoints / name / "half") << "half";
  }
  ASSERT_OK(CheckpointWriter::Open(Options(dir)));
  EXPECT_THAT(Names(checkpoints),
              ElementsAre(".lock", "latest.ckpt", "notes.tmp-1", "step-00000005"));
  EXPECT_EQ(std::filesystem::read_symlink(checkpoints / "latest.ckpt"), "step-00000005");
}

TEST(Checkpoint, TwoWorkersCannotTrainIntoOneFolder) {
  const TempDir dir;
  auto options = Options(dir);
  options.generation = 3;
  auto first = CheckpointWriter::Open(options);
  ASSERT_OK(first);
  char host[256] = {};
  ASSERT_EQ(gethostname(host, sizeof(host) - 1), 0);
  EXPECT_THAT(CheckpointWriter::Open(Options(dir)),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("OUT_DIR_BUSY: train.out_dir: " + dir.path().string()),
                             HasSubstr(absl::StrCat("by process ", getpid(), " (",
                                                    program_invocation_short_name, ") on ", host,
                                                    ", generation 3;")))));
  // The text in the lock file is shown whatever it contains.
  std::ofstream(CheckpointsDir(dir.path()) / ".lock") << "\xff\xfe\nmore";
  EXPECT_THAT(CheckpointWriter::Open(Options(dir)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("by \\xff\\xfe;")));
  std::ofstream(CheckpointsDir(dir.path()) / ".lock") << "";
  EXPECT_THAT(CheckpointWriter::Open(Options(dir)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("has not written its name;")));
  first->reset();
  EXPECT_OK(CheckpointWriter::Open(Options(dir)));
}

TEST(Checkpoint, AStepIsSavedOnce) {
  const TempDir dir;
  Said said;
  auto writer = CheckpointWriter::Open(Options(dir, &said));
  const Training training(1);
  ASSERT_OK((*writer)->Save(training.state(), State(4)));
  ASSERT_OK((*writer)->Save(training.state(), State(4)));
  ASSERT_OK((*writer)->Drain());
  const MutexLock lock(&said.mutex);
  EXPECT_EQ(said.records.size(), 1u);
}

TEST(Checkpoint, AShardThatDoesNotComeCostsTheCheckpointOnly) {
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

TEST(Checkpoint, AnAbandonedWaitEndsAtOnceAndIsToldAsTheEndOfTheGang) {
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
  EXPECT_THAT(said.events,
              ElementsAre(AllOf(HasSubstr("CHECKPOINT_ABANDONED step-00000004"),
                                HasSubstr("shard of rank 1"),
                                HasSubstr("PEER_LOST: the next rank closed its connection"))));
}

// When the gang ends because of a peer, an error of this rank's own disk is still reported.
TEST(Checkpoint, AFailedWriteOfAnEndingGangIsAFailure) {
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
TEST(Checkpoint, AShardWhoseFolderRankZeroRemovedIsGivenUp) {
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

// The second snapshot is used only for a Save() while the first one is being written.
TEST(CheckpointWriter, OneSnapshotServesForSavesThatDoNotMeet) {
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
    ASSERT_OK((*writer)->Drain());
  }
  EXPECT_EQ(copied_to.size(), 3u) << "parameters and two moments, once";
}

TEST(Checkpoint, ASnapshotThatCannotBeCopiedIsAnErrorOfSave) {
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

TEST(Checkpoint, AFailedWriteCostsThatCheckpointOnly) {
  const TempDir dir;
  Said said;
  auto writer = CheckpointWriter::Open(Options(dir, &said));
  std::unique_ptr<FileSizeLimit> limit;
  ExpectThatAFailedWriteCostsOneCheckpointOnly(dir, &said, writer->get(), [&](bool on) {
    limit = on ? std::make_unique<FileSizeLimit>(50000) : nullptr;
  });
}

TEST(Checkpoint, AFullDiskCostsThatCheckpointOnly) {
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

TEST(Checkpoint, KilledAtAnyMomentItsLastFinalNameIsWhole) {
  const TempDir dir;
  const std::string program = Program("checkpoint_writer");
  // The first checkpoint also measures how long one takes here, so that the kills are spread over
  // the time of three checkpoints.
  const absl::Time before = absl::Now();
  {
    auto writer = CheckpointWriter::Open(Options(dir));
    Training first;
    for (auto* values : {&first.parameters, &first.m, &first.v}) values->assign(values->size(), 1);
    ASSERT_OK((*writer)->Save(first.state(), State(1)));
    ASSERT_OK((*writer)->Drain());
  }
  double one = absl::ToDoubleMicroseconds(absl::Now() - before);
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
}  // namespace nsa
