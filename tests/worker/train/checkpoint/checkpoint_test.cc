#include "worker/train/checkpoint/checkpoint.h"

#include <errno.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "gmock/gmock.h"
#include "tests/testing/small_model.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/checkpoint/small_checkpoint.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {
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
  std::string model_hash;
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
    ASSERT_EQ(state->files_size(), 1 + world);
    EXPECT_EQ(state->files(0).name(), "model.safetensors");
    if (world == 1) model_hash = state->files(0).xxh3_128();
    EXPECT_EQ(state->files(0).xxh3_128(), model_hash);
    EXPECT_EQ(loaded.parameters, saved.parameters);
    EXPECT_EQ(loaded.m, saved.m);
    EXPECT_EQ(loaded.v, saved.v);
  }
}

// One share is empty.
TEST(Checkpoint, IsTheSameWhereEachRankHasAndLoadsAShareOnly) {
  const TempDir dir;
  const Training saved(1.5f);
  const int64_t total = SmallLayout().size();
  const std::vector<Slice> shares = {{0, 64}, {64, 64}, {64, total}};
  std::vector<std::unique_ptr<CheckpointWriter>> writers;
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    auto options = Options(dir);
    options.rank = static_cast<int32_t>(rank);
    options.world_size = static_cast<int32_t>(shares.size());
    options.slice = shares[rank];
    auto writer = CheckpointWriter::Open(options);
    ASSERT_OK(writer);
    writers.push_back(*std::move(writer));
  }
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    TrainingState state = {.layout = &SmallLayout()};
    state.read = [&, rank](StatePart part, const Slice& wanted, std::span<float> to) {
      EXPECT_EQ(wanted.size(), static_cast<int64_t>(to.size()));
      EXPECT_EQ(wanted, shares[rank]);
      const std::vector<float>& from = part == StatePart::kParameters    ? saved.parameters
                                       : part == StatePart::kFirstMoment ? saved.m
                                                                         : saved.v;
      std::copy(from.begin() + wanted.begin, from.begin() + wanted.end, to.begin());
      return absl::OkStatus();
    };
    ASSERT_OK(writers[rank]->Save(state, State(8)));
  }
  for (auto& writer : writers) ASSERT_OK(writer->Drain());
  const auto path = CheckpointsDir(dir.path()) / "step-00000008";
  EXPECT_THAT(VerifyCheckpoint(path), IsEmpty());
  Training loaded(9);
  ASSERT_OK(LoadCheckpoint(path, "abc", loaded.target()));
  EXPECT_EQ(loaded.parameters, saved.parameters);
  EXPECT_EQ(loaded.m, saved.m);
  EXPECT_EQ(loaded.v, saved.v);

  for (const Slice& share : {Slice{0, 32}, Slice{48, 160}, Slice{64, total}, Slice{32, 32}}) {
    std::vector<float> p(total), m(share.size()), v(share.size());
    ASSERT_OK(LoadCheckpoint(path, "abc", {&SmallLayout(), p, m, v, share}));
    EXPECT_EQ(p, saved.parameters);
    p.assign(share.size(), 0);
    ASSERT_OK(LoadCheckpoint(path, "abc", {&SmallLayout(), p, m, v, share, share}));
    EXPECT_TRUE(std::equal(p.begin(), p.end(), saved.parameters.begin() + share.begin));
    EXPECT_TRUE(std::equal(m.begin(), m.end(), saved.m.begin() + share.begin));
    EXPECT_TRUE(std::equal(v.begin(), v.end(), saved.v.begin() + share.begin));
  }
}

TEST(Checkpoint, AnErrorOfTheStatesReaderIsTheSaves) {
  const TempDir dir;
  auto writer = CheckpointWriter::Open(Options(dir));
  ASSERT_OK(writer);
  TrainingState state = {.layout = &SmallLayout()};
  state.read = [](StatePart, const Slice&, std::span<float>) {
    return absl::UnavailableError("a rank is lost");
  };
  EXPECT_THAT((*writer)->Save(state, State(8)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("snapshot: a rank is lost")));
  EXPECT_FALSE(FindNewestGood(dir.path())->found);
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

// Training goes on while a checkpoint is written, up to the next Save().
TEST(Checkpoint, TheSnapshotIsNotFilledAgainBeforeItIsWritten) {
  const TempDir dir;
  std::atomic<bool> writing{false};
  int copies = 0;
  auto options = Options(dir);
  options.before_write = [&] { writing = true; };
  options.copy = [&](std::span<float> to, std::span<const float> from) {
    EXPECT_FALSE(writing);
    ++copies;
    std::copy(from.begin(), from.end(), to.begin());
    return absl::OkStatus();
  };
  options.on_record = [&](const v1::CheckpointRecord&) { writing = false; };
  options.keep = 10;
  auto writer = CheckpointWriter::Open(options);
  ASSERT_OK(writer);
  for (int64_t step = 1; step <= 5; ++step) {
    ASSERT_OK((*writer)->Save(Training(static_cast<float>(step)).state(), State(step)));
  }
  ASSERT_OK((*writer)->Drain());
  EXPECT_EQ(copies, 5 * 3);
  for (int64_t step = 1; step <= 5; ++step) {
    Training loaded(9);
    ASSERT_OK(
        LoadCheckpoint(CheckpointsDir(dir.path()) / CheckpointName(step), "abc", loaded.target()));
    EXPECT_EQ(loaded.parameters, Training(static_cast<float>(step)).parameters) << step;
  }
}

TEST(Checkpoint, ARankAllocatesOneSnapshotOfItsSlice) {
  const TempDir dir;
  const int64_t total = SmallLayout().size();
  for (const int world : {1, 2}) {
    for (int rank = 0; rank < world; ++rank) {
      std::vector<int64_t> floats;
      auto options = Options(dir);
      options.rank = rank;
      options.world_size = world;
      options.layout = &SmallLayout();
      options.allocate = [&](int64_t count) {
        floats.push_back(count);
        return std::shared_ptr<float>(new float[static_cast<size_t>(count)],
                                      std::default_delete<float[]>());
      };
      const auto writer = CheckpointWriter::Open(options);
      ASSERT_OK(writer);
      ASSERT_OK((*writer)->Drain());
      EXPECT_THAT(floats, ElementsAre(3 * total / world)) << "weights and two moments";
    }
  }
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

TEST(Checkpoint, RetentionLeavesAsManyAsKeepForTheirUpload) {
  const TempDir dir;
  auto options = Options(dir);
  options.keep = 2;
  std::atomic<int64_t> uploaded{0};
  options.may_delete = [&](int64_t step) { return step <= uploaded; };
  auto writer = CheckpointWriter::Open(options);
  ASSERT_OK(writer);
  const Training training(1);
  const auto save = [&](int64_t step) {
    ASSERT_OK((*writer)->Save(training.state(), State(step, 0)));
    ASSERT_OK((*writer)->Drain());
  };
  for (const int64_t step : {1, 2, 3, 4, 5}) save(step);
  EXPECT_THAT(Names(CheckpointsDir(dir.path())),
              ElementsAre(".lock", "latest.ckpt", "step-00000002", "step-00000003", "step-00000004",
                          "step-00000005"))
      << "two that are kept, two that wait";
  uploaded = 3;
  save(6);
  EXPECT_THAT(
      Names(CheckpointsDir(dir.path())),
      ElementsAre(".lock", "latest.ckpt", "step-00000004", "step-00000005", "step-00000006"));
}

TEST(Checkpoint, RetentionTouchesOnlyFoldersOfItsOwnJob) {
  const TempDir dir;
  auto options = Options(dir);
  options.keep = 2;
  const Training training(1);
  const auto save = [&](int64_t step, const std::string& job_id) {
    auto writer = CheckpointWriter::Open(options);
    ASSERT_OK(writer);
    v1::CheckpointState state = State(step, 0);
    state.set_job_id(job_id);
    ASSERT_OK((*writer)->Save(training.state(), state));
    ASSERT_OK((*writer)->Drain());
  };
  for (const int64_t step : {1, 2}) save(step, "another");
  for (const int64_t step : {3, 4}) save(step, "own");
  std::ofstream(CheckpointsDir(dir.path()) / "step-00000003" / "state.json") << "damaged";
  for (const int64_t step : {5, 6, 7}) save(step, "own");
  EXPECT_THAT(Names(CheckpointsDir(dir.path())),
              ElementsAre(".lock", "latest.ckpt", "step-00000001", "step-00000002", "step-00000003",
                          "step-00000006", "step-00000007"));
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

}  // namespace
}  // namespace nsa::train
