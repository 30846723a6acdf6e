// Runs whose out_dir, or the disk below it, has been changed or cannot be used.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "common/base/log.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "spdlog/sinks/sink.h"
#include "tests/testing/power_loss/precious_folder.h"
#include "tests/testing/within.h"
#include "tests/worker/train/step/trainer_jobs.h"
#include "worker/train/step/trainer.h"

namespace nsa::train {
namespace {

using ::testing::HasSubstr;

TEST(Trainer, AStartThatIsRefusedLeavesTheFilesOfTheRunThatOwnsThemAlone) {
  for (const int world : {1, 2}) {
    const TempDir dir;
    RunJob(dir, Job(dir), StopAt(2, 0, world));
    const auto content = [&] {
      std::map<std::string, std::string> files;
      for (const auto& entry : std::filesystem::directory_iterator(dir / "out")) {
        if (entry.is_regular_file()) files[entry.path().filename()] = ReadFile(entry.path());
      }
      return files;
    };
    const auto before = content();
    ASSERT_TRUE(before.contains("metrics.json"));
    ASSERT_EQ(before.contains("heartbeat_rank1.jsonl"), world == 2);
    // Rows after the checkpoint: a rank that opened its files too early would remove them.
    const std::string last = "heartbeat_rank" + std::to_string(world - 1) + ".jsonl";
    std::ofstream(dir / "out" / last, std::ios::app) << "{\"step\":3,\"msg\":\"progress\"}\n";
    const auto alive = content();
    ASSERT_NE(alive, before);
    const auto expect_refused = [&](const RunOptions& options, const std::string& why) {
      const TempDir runs;
      const auto results = RunJob(runs, Job(dir), options);
      EXPECT_THAT(results[0].finished.text(), HasSubstr(why));
      for (const RankResult& result : results) {
        EXPECT_NE(result.finished.outcome(), v1::OUTCOME_UNSPECIFIED) << "every rank says its end";
        EXPECT_NE(result.finished.outcome(), v1::OUTCOME_COMPLETED);
        EXPECT_TRUE(result.steps.empty());
      }
      EXPECT_EQ(content(), alive) << world << " ranks: " << why;
      return results[0].finished;
    };
    expect_refused({.world = world, .job_id = "job-2"}, "belongs to job job-1");
    // A worker of this job that still runs, of an earlier gang.
    const auto holder = CheckpointWriter::Open({.out_dir = *Folder::Make(dir / "out")});
    ASSERT_TRUE(holder.ok());
    const v1::WorkerFinished busy = expect_refused({.world = world}, "being trained into");
    EXPECT_EQ(busy.reason(), "OUT_DIR_BUSY");
    EXPECT_EQ(busy.outcome(), v1::OUTCOME_FAILED) << "another time it may be free";
  }
}

// A job that runs until it is asked to stop, with frequent checkpoints.
v1::JobSpec EndlessJob(const TempDir& dir) {
  v1::JobSpec spec = Job(dir);
  spec.mutable_train()->set_steps(1'000'000'000);
  spec.mutable_restart()->set_hang_timeout_seconds(60);  // so that a failing test ends
  spec.mutable_train()->set_log_every(1);
  return spec;
}

bool HasCheckpointAfter(const std::filesystem::path& out_dir, int64_t step) {
  const auto entries = ListCheckpoints(out_dir);
  return entries.ok() && !entries->empty() && entries->back().step > step;
}

// While two ranks train, out_dir or `checkpoints` in it is replaced by a link to another folder and
// later put back. Only the checkpoints in between fail, and the failures are reported.
TEST(Trainer, AFolderExchangedForALinkCostsCheckpointsUntilItIsPutBack) {
  for (const std::string exchanged : {"out", "out/checkpoints"}) {
    const TempDir dir;
    const PreciousFolder precious(dir / "precious");
    const RunOptions options{.world = 2};
    const auto journal = RunFolder(dir, options, 0) / "journal";
    std::thread somebody([&] {
      EXPECT_TRUE(Within(absl::Seconds(60), [&] { return HasCheckpointAfter(dir / "out", 0); }));
      precious.TakeThePlaceOf(dir / exchanged);
      EXPECT_TRUE(Within(absl::Seconds(60),
                         [&] { return ReadJournal(journal).HasEvent("CHECKPOINT_FAILED"); }));
      precious.GiveBack(dir / exchanged);
      const RankResult now = ReadJournal(journal);
      EXPECT_TRUE(Within(absl::Seconds(60), [&] {
        return HasCheckpointAfter(dir / "out", now.checkpoints.back().step());
      }));
      AskToStop(RunFolder(dir, options, 0) / "control.sock");
    });
    const auto results = RunJob(dir, EndlessJob(dir), options);
    somebody.join();
    precious.ExpectUntouched();
    for (const RankResult& result : results) {
      EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_STOPPED) << result.finished.text();
    }
    const int64_t last = results[0].finished.step();
    EXPECT_TRUE(VerifyCheckpoint(CheckpointsDir(dir / "out") / CheckpointName(last)).empty());
    std::string told;
    for (const RankResult& result : results) {
      for (const v1::WorkerEvent& event : result.events) told += event.text() + "\n";
    }
    EXPECT_THAT(told, HasSubstr(exchanged + ": no longer the folder"));
    const std::string rows = ReadFile(dir / "out/training.csv");
    EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 1 + last) << "the header, and every step";
  }
}

// While this object exists, latest.ckpt cannot be updated, so no checkpoint can be completed.
class NoCheckpointCanBeFinished {
 public:
  explicit NoCheckpointCanBeFinished(const std::filesystem::path& out_dir)
      : obstacle_(CheckpointsDir(out_dir) / "latest.ckpt.tmp") {
    std::filesystem::create_directories(obstacle_);
  }
  void End() const { std::filesystem::remove(obstacle_); }

 private:
  const std::filesystem::path obstacle_;
};

// The texts of a rank's CHECKPOINT_FAILED events.
std::vector<std::string> Failures(const RankResult& result) {
  std::vector<std::string> texts;
  for (const v1::WorkerEvent& event : result.events) {
    if (event.reason() == "CHECKPOINT_FAILED") texts.push_back(event.text());
  }
  return texts;
}

TEST(Trainer, TheLastCheckpointIsTriedAgainUntilItCanBeWritten) {
  for (const bool asked : {false, true}) {
    const TempDir dir;
    const NoCheckpointCanBeFinished obstacle(dir / "out");
    v1::JobSpec spec = asked ? EndlessJob(dir) : Job(dir);
    spec.mutable_train()->set_save_every(0);
    const RunOptions options{
        .world = 2,
        .last_save = {.first_wait = absl::Milliseconds(20), .longest_wait = absl::Seconds(1)}};
    const auto folder = RunFolder(dir, options, 0);
    std::thread somebody([&] {
      if (asked) AskToStop(folder / "control.sock");
      EXPECT_TRUE(Within(absl::Seconds(60), [&] {
        return std::filesystem::exists(folder / "journal") &&
               Failures(ReadJournal(folder / "journal")).size() >= 3;
      }));
      const auto page = ReadStatusPage(RunDir{folder}.status());
      EXPECT_TRUE(page.ok()) << page.status();
      // The status page is updated while the rank waits.
      EXPECT_TRUE(Within(absl::Seconds(60), [&] {
        const auto now = ReadStatusPage(RunDir{folder}.status());
        return page.ok() && now.ok() && now->progress > page->progress;
      }));
      EXPECT_EQ(ReadJournal(folder / "journal").finished.reason(), "") << "nothing is given up";
      obstacle.End();
    });
    const auto results = RunJob(dir, spec, options);
    somebody.join();
    for (const RankResult& result : results) {
      EXPECT_EQ(result.finished.outcome(), asked ? v1::OUTCOME_STOPPED : v1::OUTCOME_COMPLETED)
          << result.finished.text();
    }
    const std::vector<std::string> failures = Failures(results[0]);
    ASSERT_GE(failures.size(), 3u);
    EXPECT_THAT(failures[0], HasSubstr("tried again in 20ms"));
    EXPECT_THAT(failures[1], HasSubstr("it is tried again in 40ms"));
    const int64_t last = results[0].finished.step();
    EXPECT_TRUE(VerifyCheckpoint(CheckpointsDir(dir / "out") / CheckpointName(last)).empty());
    EXPECT_EQ(results[0].checkpoints.back().step(), last);
    EXPECT_EQ(results[0].checkpoints.back().error(), "");
  }
}

// A log sink that blocks the thread that logs a line containing `text`, until `released` is set.
class HoldingSink final : public spdlog::sinks::sink {
 public:
  explicit HoldingSink(std::string text) : text_(std::move(text)) {}
  void log(const spdlog::details::log_msg& message) override {
    const std::string_view line(message.payload.data(), message.payload.size());
    if (line.find(text_) == std::string_view::npos) return;
    holds = true;
    released.wait(false);
  }
  void flush() override {}
  void set_pattern(const std::string&) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}

  std::atomic<bool> holds{false}, released{false};

 private:
  const std::string text_;
};

// Rank 0's last checkpoint waits for the telemetry, ten seconds at most, and the telemetry waits
// for the blocked log.
TEST(Trainer, RanksThatHaveWrittenShowThatTheyWaitForTheOneThatHasNot) {
  const TempDir dir;
  const auto sink = std::make_shared<HoldingSink>("step 12/12 |");
  spdlog::default_logger()->sinks().push_back(sink);
  v1::JobSpec spec = Job(dir);
  spec.mutable_train()->set_save_every(0);
  const RunOptions options{.world = 2};
  std::thread somebody([&] {
    EXPECT_TRUE(Within(absl::Seconds(60), [&] { return sink->holds.load(); }));
    const auto meetings = [&](int rank) -> int64_t {
      const auto page = ReadStatusPage(RunDir{RunFolder(dir, options, rank)}.status());
      return page.ok() && page->phase == Phase::kCheckpoint ? page->collective_sequence : 0;
    };
    std::vector<int64_t> before(2);
    for (const int rank : {0, 1}) {
      EXPECT_TRUE(Within(absl::Seconds(60), [&] { return (before[rank] = meetings(rank)) > 0; }));
    }
    // Twice a second, and both at once: of the ten seconds this takes two.
    EXPECT_TRUE(
        Within(absl::Seconds(5),
               [&] { return meetings(0) >= before[0] + 3 && meetings(1) >= before[1] + 3; }))
        << meetings(0) - before[0] << " and " << meetings(1) - before[1];
    EXPECT_FALSE(HasCheckpointAfter(dir / "out", 0)) << "it is being held back";
    sink->released = true;
    sink->released.notify_all();
  });
  const auto results = RunJob(dir, spec, options);
  somebody.join();
  spdlog::default_logger()->sinks().pop_back();
  for (const RankResult& result : results) {
    EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_COMPLETED) << result.finished.text();
  }
  EXPECT_TRUE(HasCheckpointAfter(dir / "out", 11));
}

TEST(Trainer, PatienceWithTheLastCheckpointEnds) {
  const TempDir dir;
  const NoCheckpointCanBeFinished obstacle(dir / "out");
  v1::JobSpec spec = Job(dir);
  spec.mutable_train()->set_save_every(0);
  const absl::Duration brief = absl::Milliseconds(1);
  const auto results = RunJob(
      dir, spec,
      {.world = 2, .last_save = {.first_wait = brief, .longest_wait = brief, .total = 3 * brief}});
  for (const RankResult& result : results) {
    EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_FAILED);
    EXPECT_EQ(result.finished.reason(), "CHECKPOINT_FAILED") << result.finished.text();
  }
  const std::vector<std::string> failures = Failures(results[0]);
  ASSERT_EQ(failures.size(), 4u) << "and three repetitions";
  EXPECT_THAT(failures[2], HasSubstr("it is tried again in 1ms"));
  EXPECT_THAT(failures[3], HasSubstr("it is not tried again"));
}

TEST(WaitAfter, DoublesUpToTheLongestAndEndsWithPatience) {
  const LastSavePatience patience;
  absl::Duration waited;
  int failures = 1;
  for (; const auto wait = WaitAfter(failures, patience); ++failures) {
    const absl::Duration doubled = patience.first_wait * (failures <= 5 ? 1 << (failures - 1) : 16);
    EXPECT_EQ(*wait, std::min(doubled, patience.longest_wait));
    waited += *wait;
  }
  EXPECT_LE(waited, patience.total);
  EXPECT_GT(waited + patience.longest_wait, patience.total);
}

// Replaces folders and files by links as fast as possible, until many checkpoints have been written
// or have failed.
TEST(Trainer, WritesThroughNoLinkWhateverMomentItComesAt) {
  const TempDir dir;
  const PreciousFolder precious(dir / "precious");
  v1::JobSpec spec = EndlessJob(dir);
  spec.mutable_train()->set_save_every(1);
  spec.mutable_train()->set_eval_every(1);
  const std::filesystem::path out = dir / "out";
  int folders = 0, files = 0;
  // Replaces `path` by a link for a moment.
  const auto exchange = [&](const std::filesystem::path& target,
                            const std::filesystem::path& path) {
    const std::filesystem::path link = dir / ("link-" + std::to_string(folders + files));
    std::filesystem::create_symlink(target, link);
    const auto swap = [&] {
      return renameat2(AT_FDCWD, link.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0;
    };
    const bool swapped = swap();
    if (swapped) swap();
    std::filesystem::rename(link, dir / "used");  // it may be a folder that was not put back
    std::filesystem::remove_all(dir / "used");
    return swapped;
  };
  std::thread somebody([&] {
    EXPECT_TRUE(Within(absl::Seconds(60), [&] { return HasCheckpointAfter(out, 0); }));
    EXPECT_TRUE(Within(absl::Seconds(60), [&] {
      for (int round = 0; round < 20; ++round) {
        const auto newest = ListCheckpoints(out);
        const int64_t next = newest.ok() && !newest->empty() ? newest->back().step + 1 : 1;
        const auto temporary = CheckpointsDir(out) / (CheckpointName(next) + ".tmp-1");
        for (const auto& path : {out, CheckpointsDir(out), temporary}) {
          folders += exchange(precious.path(), path);
        }
        for (const char* name : {"metrics.json", "training.csv"}) {
          files += exchange(precious.path() / name, out / name);
        }
        std::error_code taken;
        std::filesystem::create_symlink(precious.path() / "metrics.json", out / "metrics.json.tmp",
                                        taken);
      }
      return ReadJournal(RunFolder(dir, {}, 0) / "journal").checkpoints.size() > 40;
    }));
    AskToStop(RunFolder(dir, {}, 0) / "control.sock");
  });
  RunJob(dir, spec);
  somebody.join();
  precious.ExpectUntouched();
  EXPECT_GT(folders, 80);
  EXPECT_GT(files, 40);
}

TEST(Trainer, SaysWhyItCannotUseItsOutDirThoughThereIsNoFileToSayItIn) {
  const TempDir dir;
  std::ofstream(dir / "out") << "a file";
  const RankResult result = RunJob(dir, Job(dir))[0];
  EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_FAILED_FINAL);
  EXPECT_THAT(result.finished.text(), HasSubstr("train.out_dir: " + (dir / "out").string()));

  const TempDir other;
  const PreciousFolder precious(other / "precious");
  std::filesystem::create_directory(other / "out");
  std::filesystem::create_symlink(precious.path() / "training.csv", other / "out/training.csv");
  const RankResult linked = RunJob(other, Job(other))[0];
  EXPECT_EQ(linked.finished.outcome(), v1::OUTCOME_FAILED_FINAL);
  EXPECT_THAT(linked.finished.text(), HasSubstr("out/training.csv: leads through"));
  precious.ExpectUntouched();
}

}  // namespace
}  // namespace nsa::train
