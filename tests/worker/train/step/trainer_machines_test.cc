// Ranks on several machines that share no folder: each rank has an out_dir of its own here.
#include <gmock/gmock.h>

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/characters/byte_characters.h"
#include "nlohmann/json.hpp"
#include "tests/worker/train/step/trainer_jobs.h"

namespace nsa::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kSteps = 12;  // of Job()

// Two ranks as on two machines. `out(rank)` is the out_dir of a rank.
RunOptions TwoMachines(const std::function<std::string(int rank)>& out, int64_t generation = 1) {
  return {.world = 2, .generation = generation, .launch = [=](v1::WorkerLaunch* launch) {
            launch->set_rank_address("127.0.0.1");
            v1::TrainSpec* train = launch->mutable_spec()->mutable_train();
            train->set_out_dir(out(launch->rank()));
            // As the coordinator names the checkpoint that it knows of (server/act/desired.h).
            if (generation > 1) launch->set_resume_from_step(kSteps);
          }};
}

std::vector<std::string> FilesIn(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

std::filesystem::path Checkpoint(const std::filesystem::path& out, int64_t step) {
  return CheckpointsDir(out) / CheckpointName(step);
}

class MachinesTest : public ::testing::Test {
 protected:
  MachinesTest() {
    const TempDir runs;
    const RankResult result = RunJob(runs, Job(dir_, "whole"), {.world = 2})[0];
    EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_COMPLETED) << result.finished.text();
    whole_ = Losses(result);
  }

  std::string In(const std::string& name) const { return dir_ / name; }
  std::string Out(int rank) const { return In("machine-" + std::to_string(rank)); }

  // Stops both ranks after step 5, where both machines then have a checkpoint.
  void StopAtFive() {
    const TempDir runs;
    RunOptions options = TwoMachines([this](int rank) { return Out(rank); });
    options.before = StopAt(5, 0).before;
    const RankResult result = RunJob(runs, Job(dir_), options)[0];
    ASSERT_EQ(result.finished.reason(), "STOPPED_AT_STEP") << result.finished.text();
  }

  // Starts again after the stop; expects the bits of the run that was not stopped.
  std::vector<RankResult> ExpectToGoOnFromFive(const std::function<std::string(int rank)>& out) {
    const TempDir runs;
    const std::vector<RankResult> ranks = RunJob(runs, Job(dir_), TwoMachines(out, 2));
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(ranks[rank].finished.outcome(), v1::OUTCOME_COMPLETED)
          << ranks[rank].finished.text();
      EXPECT_EQ(ranks[rank].started.resumed_step(), 5);
      EXPECT_TRUE(Weights(out(rank), kSteps) == Weights(dir_ / "whole", kSteps)) << rank;
    }
    EXPECT_EQ(Losses(ranks[0]), std::vector<double>(whole_.begin() + 5, whole_.end()));
    return ranks;
  }

  const TempDir dir_;
  std::vector<double> whole_;
};

TEST_F(MachinesTest, EachMachineWritesWholeCheckpointsWithTheSameWeights) {
  const TempDir runs;
  const std::vector<RankResult> ranks =
      RunJob(runs, Job(dir_), TwoMachines([this](int rank) { return Out(rank); }));
  EXPECT_EQ(Losses(ranks[0]), whole_);
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(ranks[rank].finished.outcome(), v1::OUTCOME_COMPLETED) << ranks[rank].finished.text();
    EXPECT_THAT(
        FilesIn(Checkpoint(Out(rank), kSteps)),
        ElementsAre("model.safetensors", "optimizer-00000-of-00001.safetensors", "state.json"));
    EXPECT_TRUE(Weights(Out(rank), kSteps) == Weights(dir_ / "whole", kSteps)) << rank;
    EXPECT_THAT(VerifyCheckpoint(Checkpoint(Out(rank), kSteps)), IsEmpty());
    for (const std::string& name : FilesIn(Out(rank))) EXPECT_FALSE(name.starts_with(".ranks"));
  }
  EXPECT_EQ(ranks[0].checkpoints.size(), 3u) << "after steps 5, 10 and 12";
  EXPECT_THAT(ranks[1].checkpoints, IsEmpty()) << "a copy is not a second checkpoint";
}

TEST_F(MachinesTest, MachinesThatShareTheFolderWriteOneCheckpoint) {
  const TempDir runs;
  const std::vector<RankResult> ranks =
      RunJob(runs, Job(dir_), TwoMachines([this](int) { return Out(7); }));
  EXPECT_EQ(Losses(ranks[0]), whole_);
  EXPECT_THAT(FilesIn(Checkpoint(Out(7), kSteps)),
              ElementsAre("model.safetensors", "optimizer-00000-of-00002.safetensors",
                          "optimizer-00001-of-00002.safetensors", "state.json"));
}

TEST_F(MachinesTest, ResumesWhereBothMachinesHaveTheCheckpoint) {
  StopAtFive();
  ExpectToGoOnFromFive([this](int rank) { return Out(rank); });
}

TEST_F(MachinesTest, ANewMachineReceivesTheCheckpointWhicheverRankItRuns) {
  StopAtFive();
  std::filesystem::copy(
      Out(1), dir_ / "kept",
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
  ExpectToGoOnFromFive([this](int rank) { return rank == 0 ? In("new-0") : Out(1); });
  ExpectToGoOnFromFive([this](int rank) { return rank == 0 ? In("kept") : In("new-1"); });
}

TEST_F(MachinesTest, AMachineWithADamagedCheckpointSaysSoAndReceivesTheOther) {
  StopAtFive();
  {
    std::ofstream damaged(Checkpoint(Out(0), 5) / "model.safetensors", std::ios::app);
    damaged << "more";
  }
  const std::vector<RankResult> ranks =
      ExpectToGoOnFromFive([this](int rank) { return Out(rank); });
  EXPECT_TRUE(ranks[0].HasEvent("CHECKPOINT_CORRUPT"));
  EXPECT_FALSE(ranks[1].HasEvent("CHECKPOINT_CORRUPT"));
}

TEST_F(MachinesTest, TheNewestCheckpointOfAnyMachineCounts) {
  StopAtFive();
  std::filesystem::copy(
      Out(1), In("at-five"),
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
  {
    const TempDir runs;
    RunOptions options = TwoMachines([this](int rank) { return Out(rank); }, 2);
    options.before = StopAt(8, 0).before;
    ASSERT_EQ(RunJob(runs, Job(dir_), options)[0].finished.reason(), "STOPPED_AT_STEP");
  }
  const TempDir runs;
  const auto out = [this](int rank) { return rank == 0 ? In("at-five") : Out(1); };
  const std::vector<RankResult> ranks = RunJob(runs, Job(dir_), TwoMachines(out, 3));
  EXPECT_EQ(ranks[0].started.resumed_step(), 8);
  EXPECT_EQ(ranks[1].started.resumed_step(), 8);
  EXPECT_TRUE(Weights(out(0), kSteps) == Weights(dir_ / "whole", kSteps));
}

TEST_F(MachinesTest, AJobWhoseCheckpointsAreGoneEverywhereDoesNotBeginAnew) {
  StopAtFive();
  const auto elsewhere = [this](int rank) { return In("empty-" + std::to_string(rank)); };
  const auto shared = [this](int) { return In("empty"); };
  using Out = std::function<std::string(int)>;
  for (const Out& out : {Out(elsewhere), Out(shared)}) {
    const TempDir runs;
    for (const RankResult& rank : RunJob(runs, Job(dir_), TwoMachines(out, 2))) {
      EXPECT_EQ(rank.finished.reason(), "CHECKPOINTS_MISSING") << rank.finished.text();
      EXPECT_THAT(rank.finished.text(), HasSubstr("has no checkpoint"));
    }
  }
}

TEST_F(MachinesTest, ARestartDoesNotBeginAgainAtTheCheckpointThatItsJobNames) {
  StopAtFive();
  std::ofstream(Checkpoint(Out(0), 5) / "model.safetensors", std::ios::app) << "more";
  v1::JobSpec spec = Job(dir_);
  spec.mutable_restart()->set_resume(Checkpoint(dir_ / "whole", 5).string());
  const TempDir runs;
  const auto out = [this](int rank) { return rank == 0 ? Out(0) : In("new-1"); };
  for (const RankResult& rank : RunJob(runs, spec, TwoMachines(out, 2))) {
    EXPECT_EQ(rank.finished.reason(), "NO_VALID_CHECKPOINT") << rank.finished.text();
    EXPECT_TRUE(rank.steps.empty());
  }
}

// Each machine has a text.txt of its own.
class DataOfMachinesTest : public ::testing::Test {
 protected:
  std::filesystem::path In(int rank, const std::string& name) const {
    return dir_ / ("machine-" + std::to_string(rank)) / name;
  }

  void Write(int rank, const std::string& name, const std::string& content) const {
    std::filesystem::create_directories(In(rank, name).parent_path());
    std::ofstream(In(rank, name), std::ios::trunc) << content;
  }

  // How two ranks end that train on the texts; `change` changes the data of a rank.
  std::vector<v1::WorkerFinished> Run(const std::function<void(int rank, v1::DataSpec*)>& change =
                                          [](int, v1::DataSpec*) {}) {
    const TempDir runs, outs;
    RunOptions options = TwoMachines([&](int rank) { return outs / std::to_string(rank); });
    options.launch = [&, two = options.launch](v1::WorkerLaunch* launch) {
      two(launch);
      launch->mutable_spec()->mutable_model()->set_vocab(320);
      launch->mutable_spec()->mutable_train()->set_eval_every(0);
      v1::DataSpec* data = launch->mutable_spec()->mutable_data();
      data->set_source(v1::DATA_SOURCE_TEXT);
      data->set_val_fraction(0);
      data->add_path(In(launch->rank(), "text.txt"));
      change(launch->rank(), data);
    };
    std::vector<v1::WorkerFinished> ends;
    for (const RankResult& rank : RunJob(runs, Job(dir_), options)) {
      const bool claimed =
          std::filesystem::exists(outs / std::to_string(ends.size()) / "owner.json");
      ends.push_back(rank.finished);
      EXPECT_EQ(claimed, ends.back().outcome() == v1::OUTCOME_COMPLETED);
    }
    return ends;
  }

  const TempDir dir_;
};

void ExpectToComplete(const std::vector<v1::WorkerFinished>& ends) {
  for (const auto& end : ends) EXPECT_EQ(end.outcome(), v1::OUTCOME_COMPLETED) << end.text();
}

void ExpectToFailForGood(const std::vector<v1::WorkerFinished>& ends, const std::string& text) {
  for (const v1::WorkerFinished& end : ends) {
    EXPECT_EQ(end.outcome(), v1::OUTCOME_FAILED_FINAL);
    EXPECT_THAT(end.text(), HasSubstr("data differs between machines: " + text));
  }
}

std::string Text() {
  std::string text(20'000, 'a');
  for (size_t i = 0; i < text.size(); i += 7) text[i] = static_cast<char>('a' + i % 23);
  return text;
}

TEST_F(DataOfMachinesTest, ADifferenceEndsTheJobForGoodAndIsNamed) {
  for (int rank = 0; rank < 2; ++rank) Write(rank, "text.txt", Text());
  ExpectToComplete(Run());
  std::string other = Text();
  other[10'000] = 'X';
  Write(1, "text.txt", other);
  ExpectToFailForGood(Run(), In(1, "text.txt").string() + " on rank 1 has documents");
  Write(1, "text.txt", Text() + "!");
  ExpectToFailForGood(Run(), In(1, "text.txt").string() + " on rank 1 has 20001 bytes, " +
                                 In(0, "text.txt").string() +
                                 " on rank 0 has 20000 bytes; copy the same files");
}

TEST_F(DataOfMachinesTest, AnotherTokenizerIsADifference) {
  const auto write = [&](int rank, const std::string& left, const std::string& right) {
    nlohmann::json vocab = nlohmann::json::object();
    for (const std::string& character : BytesAsCharacters()) vocab[character] = vocab.size();
    vocab[left + right] = vocab.size();
    const std::vector<std::pair<std::string, std::string>> merges = {{left, right}};
    const nlohmann::json json = {
        {"added_tokens", {{{"id", 300}, {"content", "<|end_of_text|>"}, {"special", true}}}},
        {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
        {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
    Write(rank, "text.txt", Text());
    Write(rank, "tokenizer.json", json.dump());
  };
  const auto bpe = [&](int rank, v1::DataSpec* data) {
    data->set_tokenizer(v1::TOKENIZER_BPE);
    data->set_tokenizer_path(In(rank, "tokenizer.json"));
  };
  for (int rank = 0; rank < 2; ++rank) write(rank, "a", "b");
  ExpectToComplete(Run(bpe));
  write(1, "a", "c");
  ExpectToFailForGood(Run(bpe), "the tokenizer " + In(1, "tokenizer.json").string() +
                                    " on rank 1 has the SHA-256 ");
}

TEST_F(MachinesTest, AFolderOfAnotherJobIsRefusedOnEitherMachine) {
  StopAtFive();
  for (const int foreign : {0, 1}) {
    const TempDir runs;
    RunOptions options = TwoMachines(
        [&](int rank) { return rank == foreign ? Out(0) : In("own-" + std::to_string(foreign)); });
    options.job_id = "another";
    const std::vector<RankResult> ranks = RunJob(runs, Job(dir_), options);
    EXPECT_EQ(ranks[foreign].finished.outcome(), v1::OUTCOME_FAILED_FINAL);
    EXPECT_THAT(ranks[foreign].finished.text(), HasSubstr("belongs to job job-1"));
    EXPECT_NE(ranks[1 - foreign].finished.outcome(), v1::OUTCOME_COMPLETED);
  }
}

}  // namespace
}  // namespace nsa::train
