// nsactl data with the worker that it starts.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/run/atomic_file.h"
#include "nlohmann/json.hpp"
#include "tests/client/model/programs_in_folder.h"
#include "tests/testing/file_size_limit.h"
#include "tests/testing/status_matchers.h"

namespace nsa::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A folder with a job on two files of JSON lines.
class DataTest : public ProgramsInFolder {
 protected:
  void SetUp() override {
    std::ofstream lines(dir_ / "text.jsonl");
    for (int i = 0; i < 200; ++i) lines << "{\"text\": \"document number " << i << "\"}\n";
    std::ofstream(dir_ / "val.jsonl") << "{\"text\": \"" << std::string(100, 'v') << "\"}\n";
    std::ofstream(dir_ / "job.yaml")
        << "name: tiny\n"
           "model: {dim: 32, n_layers: 1, n_heads: 2, n_kv_groups: 1, d_k: 16, d_v: 16}\n"
           "nsa: {l: 8, d: 4, l_sel: 8, n_sel: 4, w: 16}\n"
           "data: {source: jsonl, path: text.jsonl, val_path: val.jsonl}\n"
           "train: {steps: 2, seq_len: 32, batch_size: 2, save_every: 2}\n";
  }
};

TEST_F(DataTest, PreparesAJobThatTrainsToTheSameWeights) {
  const Ran prepared = Run({"nsactl", "data", "prepare", "job.yaml", "--out", "tokens"});
  EXPECT_EQ(prepared.exit.code, 0) << prepared.said;
  EXPECT_THAT(prepared.said, AllOf(HasSubstr("train.tokens"), HasSubstr("val.tokens"),
                                   HasSubstr("tokens/job.yaml")));
  const Ran files = Run({"nsa-worker", "--job", "job.yaml", "--out-dir", "files"});
  const Ran folders = Run({"nsa-worker", "--job", "tokens/job.yaml", "--out-dir", "folders"});
  ASSERT_EQ(files.exit.code, 0) << files.said;
  ASSERT_EQ(folders.exit.code, 0) << folders.said;
  const std::string weights = "checkpoints/step-00000002/model.safetensors";
  const auto one = ReadWholeFile(dir_ / "files" / weights);
  const auto other = ReadWholeFile(dir_ / "folders" / weights);
  ASSERT_OK(one);
  ASSERT_OK(other);
  EXPECT_TRUE(*one == *other);
}

TEST_F(DataTest, SaysWhatItPreparedAsJson) {
  const Ran ran = Run({"nsactl", "data", "prepare", "job.yaml", "-o", "json"});
  ASSERT_EQ(ran.exit.code, 0) << ran.said;
  const auto json = nlohmann::json::parse(ran.said, nullptr, false);
  ASSERT_TRUE(json.is_object()) << ran.said;
  EXPECT_EQ(json["folder"], (dir_ / "prepared/job").string());
  EXPECT_EQ(json["sets"][0]["documents"], "200");
  EXPECT_EQ(json["sets"][1]["folder"], "val.tokens");
  EXPECT_TRUE(std::filesystem::exists(json["job_file"].get<std::string>()));
}

TEST_F(DataTest, TheCommandItPrintsIsOneForAShell) {
  const Ran ran = Run({"nsactl", "data", "prepare", "job.yaml", "--out", "Tom's tokens"});
  ASSERT_EQ(ran.exit.code, 0) << ran.said;
  EXPECT_THAT(ran.said, HasSubstr(absl::StrCat("train on it: nsactl submit '", dir_.path().string(),
                                               "/Tom'\\''s tokens/job.yaml'\n")));
}

TEST_F(DataTest, ValidateComparesEveryHash) {
  ASSERT_EQ(Run({"nsactl", "data", "prepare", "job.yaml", "--out", "tokens"}).exit.code, 0);
  const std::vector<std::string> validate = {"nsactl", "validate", "tokens/job.yaml", "--offline",
                                             "--data"};
  const Ran good = Run(validate);
  EXPECT_EQ(good.exit.code, 0) << good.said;
  EXPECT_THAT(good.said, HasSubstr("data: documents"));
  std::fstream shard(dir_ / "tokens/train.tokens/tokens-00000.bin",
                     std::ios::in | std::ios::out | std::ios::binary);
  shard.seekp(100);
  shard.put('\x01');
  shard.close();
  const Ran bad = Run(validate);
  EXPECT_NE(bad.exit.code, 0);
  EXPECT_THAT(bad.said, AllOf(HasSubstr("tokens-00000.bin"), HasSubstr("SHA-256")));
}

TEST_F(DataTest, InspectsJobsFilesAndFolders) {
  ASSERT_EQ(Run({"nsactl", "data", "prepare", "job.yaml", "--out", "tokens"}).exit.code, 0);
  const Ran job = Run({"nsactl", "data", "inspect", "job.yaml"});
  EXPECT_EQ(job.exit.code, 0) << job.said;
  EXPECT_THAT(job.said,
              AllOf(HasSubstr("data.path: jsonl, 1 file\n"), HasSubstr("  documents   200\n"),
                    HasSubstr("data.val_path: jsonl"), HasSubstr("document number 0")));
  const Ran rest = Run({"nsactl", "data", "inspect", "val.jsonl", "tokens", "-o", "json"});
  EXPECT_EQ(rest.exit.code, 0) << rest.said;
  const auto json = nlohmann::json::parse(rest.said, nullptr, false);
  ASSERT_TRUE(json.is_object()) << rest.said;
  ASSERT_EQ(json["sets"].size(), 3u);
  EXPECT_EQ(json["sets"][1]["documents"], "200");
  const Ran none = Run({"nsactl", "data", "inspect", "none.jsonl"});
  EXPECT_EQ(none.exit.code, 2);
  EXPECT_THAT(none.said, StartsWith("nsactl: WHAT: none.jsonl (No such file or directory)"));
  const Ran url = Run({"nsactl", "data", "inspect", "hf://datasets/o/n/a.jsonl"});
  EXPECT_EQ(url.said,
            "nsactl: WHAT: hf://datasets/o/n/a.jsonl (a URL; must be a file of this machine); name "
            "it in data.path of a job file, and inspect that\n");
}

TEST_F(DataTest, InspectsTheFilesOfAFolderByTheirKind) {
  std::filesystem::create_directories(dir_ / "books" / "old");
  std::ofstream(dir_ / "books" / "a.txt") << "First.";
  std::ofstream(dir_ / "books" / "b.txt") << "Second.";
  std::ofstream(dir_ / "books" / "c.jsonl") << "{\"text\": \"Third.\"}\n";
  const Ran folder = Run({"nsactl", "data", "inspect", "books"});
  EXPECT_EQ(folder.exit.code, 0) << folder.said;
  EXPECT_THAT(folder.said, AllOf(HasSubstr("books/*.txt: text, 2 files\n"),
                                 HasSubstr("books/*.jsonl: jsonl, 1 file\n"),
                                 HasSubstr("folders in it are left out, such as books/old")));
  const Ran pattern = Run({"nsactl", "data", "inspect", "books/*.txt"});
  EXPECT_THAT(pattern.said, HasSubstr("books/*.txt: text, 2 files\n"));
  const Ran without = Run({"nsactl", "data", "inspect", "books/old"});
  EXPECT_EQ(without.exit.code, 2);
  EXPECT_THAT(without.said, StartsWith("nsactl: books/old: a folder without data"));
  EXPECT_EQ(Run({"nsactl", "data", "inspect", "books/*.md"}).exit.code, 2) << "no file matches";
}

// Preflight looks into 32 of these files, so it cannot tell.
TEST_F(DataTest, AMisspeltValueIsNamedByWhatReadsEverything) {
  for (int i = 0; i < 40; ++i) {
    std::ofstream file(dir_ / absl::StrCat("part-", i, ".jsonl"));
    for (int line = 0; line < 10; ++line) {
      file << "{\"book\": \"" << (i + line) % 3 << "\", \"text\": \"part " << i << ", line " << line
           << "\"}\n";
    }
  }
  std::string job = *ReadWholeFile(dir_ / "job.yaml");
  job.replace(job.find("text.jsonl"), 10,
              "'part-*.jsonl', val_fraction: 0.1, except: {book: [2, two]}");
  job.erase(job.find(", val_path: val.jsonl"), 21);
  std::ofstream(dir_ / "job.yaml") << job;
  const std::string warning =
      "data.except.book: none of 400 records has the value 'two'; check the spelling: the first "
      "other values are '0', '1'";
  const Ran valid = Run({"nsactl", "validate", "job.yaml", "--offline", "--data"});
  EXPECT_EQ(valid.exit.code, 0) << valid.said;
  EXPECT_THAT(valid.said, AllOf(HasSubstr("warning DATA_WHERE_VALUES: " + warning),
                                HasSubstr("warning DATA_WHERE_RARE: data.except.book: none of the "
                                          "first 320 records has the value 'two'")));
  const Ran inspected = Run({"nsactl", "data", "inspect", "job.yaml"});
  EXPECT_EQ(inspected.exit.code, 0) << inspected.said;
  EXPECT_THAT(inspected.said, HasSubstr("  warning     " + warning));
  const Ran prepared = Run({"nsactl", "data", "prepare", "job.yaml", "--out", "tokens"});
  EXPECT_EQ(prepared.exit.code, 0) << prepared.said;
  EXPECT_THAT(prepared.said, HasSubstr("warning: " + warning + "\n"));
  EXPECT_THAT(Run({"nsactl", "data", "inspect", "tokens"}).said,
              HasSubstr("  warning     " + warning));
}

TEST_F(DataTest, ALimitOfFileSizesIsAnErrorOfItsFile) {
  std::ofstream lines(dir_ / "text.jsonl");
  for (int i = 0; i < 2000; ++i) lines << "{\"text\": \"document number " << i << "\"}\n";
  lines.close();
  const auto run_within = [this](rlim_t bytes, const std::vector<std::string>& words) {
    const FileSizeLimit limit(bytes);
    return Run(words);
  };
  const Ran prepare =
      run_within(8 << 10, {"nsactl", "data", "prepare", "job.yaml", "--out", "tokens"});
  EXPECT_GT(prepare.exit.code, 0) << prepare.said;
  EXPECT_THAT(prepare.said, HasSubstr("tokens-00000.bin"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "tokens"));
  const Ran completion = run_within(100, {"nsactl", "completion", "bash"});
  EXPECT_EQ(completion.exit.signal, 0);
  EXPECT_GT(completion.exit.code, 0);
}

TEST_F(DataTest, AnErrorIsTheWorkersAndLeavesNothing) {
  std::ofstream(dir_ / "text.jsonl") << "{\"text\": 7}\n";
  const Ran ran = Run({"nsactl", "data", "prepare", "job.yaml", "--out", "tokens"});
  EXPECT_EQ(ran.exit.code, 2);
  EXPECT_THAT(ran.said, HasSubstr("text.jsonl:1: the field 'text'"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "tokens"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "tokens.partial"));
}

}  // namespace
}  // namespace nsa::client
