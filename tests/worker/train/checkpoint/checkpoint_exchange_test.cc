// Folders of a checkpoint writer are replaced by links to another folder while it writes.
#include <filesystem>
#include <string>

#include "absl/time/clock.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "gmock/gmock.h"
#include "tests/testing/power_loss/precious_folder.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/checkpoint/small_checkpoint.h"
#include "worker/train/checkpoint/checkpoint.h"

namespace nsa::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// out_dir, or `checkpoints` in it, is replaced by a link during a run. Checkpoints fail until the
// folder is put back, and nothing is written or deleted in the link's target.
TEST(CheckpointExchange, AFolderExchangedForALinkIsNeitherWrittenNorDeletedThrough) {
  for (const std::string exchanged : {"out", "out/checkpoints"}) {
    const TempDir dir;
    const PreciousFolder precious(dir / "precious");
    Said said;
    auto options = Options(dir, &said);
    options.out_dir = *Folder::Make(dir / "out");
    auto writer = CheckpointWriter::Open(options);
    ASSERT_OK(writer);
    const Training training(1);
    for (const int64_t step : {1, 2}) {
      ASSERT_OK((*writer)->Save(training.state(), State(step)));
    }
    ASSERT_OK((*writer)->Drain());
    precious.TakeThePlaceOf(dir / exchanged);
    for (const int64_t step : {3, 4}) {
      ASSERT_OK((*writer)->Save(training.state(), State(step)));
      EXPECT_THAT((*writer)->Drain(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                               HasSubstr(exchanged + ": no longer the folder")));
    }
    precious.GiveBack(dir / exchanged);
    for (const int64_t step : {5, 6}) {
      ASSERT_OK((*writer)->Save(training.state(), State(step)));
    }
    ASSERT_OK((*writer)->Drain());
    precious.ExpectUntouched();
    EXPECT_THAT(Names(CheckpointsDir(dir / "out")),
                ElementsAre(".lock", "latest.ckpt", "step-00000005", "step-00000006"));
    const MutexLock lock(&said.mutex);
    EXPECT_THAT(said.events, ElementsAre(AllOf(HasSubstr("CHECKPOINT_FAILED step-00000003"),
                                               HasSubstr(exchanged + ": no longer the folder"),
                                               HasSubstr("put it back")),
                                         HasSubstr("CHECKPOINT_FAILED step-00000004")));
  }
}

// The exchange happens while rank 0 waits in the temporary folder for the other rank's shard.
TEST(CheckpointExchange, ATemporaryFolderExchangedForALinkFailsThatCheckpointAtOnce) {
  const TempDir dir;
  const PreciousFolder precious(dir / "precious");
  Said said;
  auto options = Options(dir, &said);
  options.world_size = 2;
  auto writer = CheckpointWriter::Open(options);
  ASSERT_OK(writer);
  ASSERT_OK((*writer)->Save(Training(1).state(), State(4)));
  const auto folder = CheckpointsDir(dir.path()) / "step-00000004.tmp-3";
  while (!std::filesystem::exists(folder / "model.safetensors")) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  precious.TakeThePlaceOf(folder);
  EXPECT_THAT((*writer)->Drain(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                           HasSubstr("step-00000004.tmp-3: no longer")));
  precious.ExpectUntouched();
  EXPECT_EQ(FindNewestGood(dir.path())->found, false);
  const MutexLock lock(&said.mutex);
  EXPECT_THAT(said.events, ElementsAre(HasSubstr("CHECKPOINT_FAILED step-00000004")));
}

TEST(CheckpointExchange, LinksInTheTemporaryFolderAreReplacedAndNotFollowed) {
  const TempDir dir;
  const PreciousFolder precious(dir / "precious");
  auto options = Options(dir);
  options.rank = 1;
  options.world_size = 2;
  auto writer = CheckpointWriter::Open(options);
  ASSERT_OK(writer);
  const auto folder = CheckpointsDir(dir.path()) / "step-00000004.tmp-3";
  const std::string shard = "optimizer-00001-of-00002.safetensors";
  const std::string weights = "weights-00001-of-00002.part";
  std::filesystem::create_directories(folder);
  for (const std::string& name : {shard, weights, shard + ".done", shard + ".done.tmp"}) {
    std::filesystem::create_symlink(precious.path() / shard, folder / name);
  }
  ASSERT_OK((*writer)->Save(Training(1).state(), State(4)));
  EXPECT_OK((*writer)->Drain());
  precious.ExpectUntouched();
  EXPECT_THAT(Names(folder), ElementsAre(shard, shard + ".done", weights));
  for (const std::string& name : {shard, shard + ".done", weights}) {
    EXPECT_FALSE(std::filesystem::is_symlink(folder / name)) << name;
  }
}

// Rank 0 fails and removes the folder before rank 1 writes its shard, which creates the folder
// again. The next attempt must not use that shard.
TEST(CheckpointExchange, AnAttemptTakesNoShardOfTheOneBefore) {
  const TempDir dir;
  auto options = Options(dir);
  options.world_size = 2;
  options.shard_timeout = absl::Milliseconds(50);
  auto zero = CheckpointWriter::Open(options);
  ASSERT_OK(zero);
  options.rank = 1;
  auto one = CheckpointWriter::Open(options);
  ASSERT_OK(one);
  const Training training(1);
  for (const int32_t attempt : {1, 2}) {
    ASSERT_OK((*zero)->Save(training.state(), State(4), {.attempt = attempt}));
    EXPECT_THAT((*zero)->Drain(),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("00001-of-00002")));
    ASSERT_OK((*one)->Save(training.state(), State(4), {.attempt = attempt}));
    EXPECT_OK((*one)->Drain());
  }
  EXPECT_FALSE(FindNewestGood(dir.path())->found);

  ASSERT_OK((*one)->Save(training.state(), State(4), {.attempt = 3}));
  ASSERT_OK((*one)->Drain());
  ASSERT_OK((*zero)->Save(training.state(), State(4), {.attempt = 3}));
  ASSERT_OK((*zero)->Drain());
  EXPECT_TRUE(FindNewestGood(dir.path())->found);
  EXPECT_THAT(Names(CheckpointsDir(dir.path())),
              ElementsAre(".lock", "latest.ckpt", "step-00000004"));
}

TEST(CheckpointExchange, RetentionLeavesWhatLinksLeadTo) {
  const TempDir dir;
  const PreciousFolder precious(dir / "precious");
  auto writer = CheckpointWriter::Open(Options(dir));
  ASSERT_OK(writer);
  const Training training(1);
  const auto save = [&](int64_t step) {
    EXPECT_OK((*writer)->Save(training.state(), State(step)));
    EXPECT_OK((*writer)->Drain());
  };
  for (const int64_t step : {1, 2}) save(step);
  const auto checkpoints = CheckpointsDir(dir.path());
  // A checkpoint that retention deletes next, one with a link in it, and a leftover of an earlier
  // step.
  precious.TakeThePlaceOf(checkpoints / "step-00000001");
  std::filesystem::create_directory_symlink(precious.path(), checkpoints / "step-00000002/inner");
  std::filesystem::create_directory_symlink(precious.path(), checkpoints / "step-00000001.tmp-2");
  for (const int64_t step : {3, 4}) save(step);
  precious.ExpectUntouched();
  EXPECT_THAT(Names(checkpoints),
              ElementsAre(".lock", "latest.ckpt", "step-00000001", "step-00000001.moved",
                          "step-00000003", "step-00000004"));
}

TEST(CheckpointExchange, AStartIntoALinkIsRefused) {
  const TempDir dir;
  const PreciousFolder precious(dir / "precious");
  std::filesystem::create_directory_symlink(precious.path(), CheckpointsDir(dir.path()));
  const auto refused = StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("symbolic link"));
  EXPECT_THAT(CheckpointWriter::Open(Options(dir)), refused);
  std::filesystem::remove(CheckpointsDir(dir.path()));
  std::filesystem::create_directory(CheckpointsDir(dir.path()));
  std::filesystem::create_symlink(precious.path() / ".lock", CheckpointsDir(dir.path()) / ".lock");
  EXPECT_THAT(CheckpointWriter::Open(Options(dir)), refused);
  precious.ExpectUntouched();
}

}  // namespace
}  // namespace nsa::train
