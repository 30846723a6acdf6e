// How data is prepared, and what is refused: damaged folders, and folders for another job.
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "common/base/job_file.h"
#include "common/job/data/data_files.h"
#include "common/job/data/prepared.h"
#include "common/job/data/sha256.h"
#include "common/run/atomic_file.h"
#include "gmock/gmock.h"
#include "tests/testing/file_size_limit.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/train/data/prepared/prepared_jobs.h"
#include "worker/train/data/corpus.h"
#include "worker/train/data/prepared/folders.h"
#include "worker/train/data/prepared/staging.h"

namespace nsa::train {
namespace {

namespace fs = std::filesystem;

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

v1::JobSpec LinesJob(const TempDir& dir) {
  Write(dir / "train.jsonl", Lines(60));
  return JobOn([&](v1::DataSpec* data) {
    data->set_source(v1::DATA_SOURCE_JSONL);
    data->add_path(dir / "train.jsonl");
    data->set_val_fraction(0.1);
  });
}

absl::Status LoadStatus(const v1::JobSpec& spec) {
  const v1::JobSpec full = Full(spec);
  return LoadCorpus(full.data(), full.model().vocab(), absl::Seconds(20)).status();
}

absl::Status VerifyStatus(const v1::JobSpec& spec) {
  ReadProgress progress;
  const auto folders = PreparedFolders::Open(spec.data(), &progress);
  return folders.ok() ? folders->Verify() : folders.status();
}

// A job, its data in OUT, and the job on that.
class PreparedTest : public testing::Test {
 protected:
  void SetUp() override {
    spec_ = LinesJob(dir_);
    ASSERT_OK(PrepareInto(out_, spec_));
    on_prepared_ = JobOnPrepared(spec_, out_);
    ASSERT_OK(LoadStatus(on_prepared_));
  }

  fs::path File(const std::string& name) const { return out_ / "train.tokens" / name; }

  const TempDir dir_;
  const fs::path out_ = dir_ / "out";
  v1::JobSpec spec_, on_prepared_;
};

void FlipAByte(const fs::path& path, int64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const int byte = file.get();
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 1));
}

TEST_F(PreparedTest, TheManifestSaysWhatWasRead) {
  const auto manifest = ReadPrepared(out_ / "train.tokens");
  ASSERT_OK(manifest);
  EXPECT_EQ(manifest->source(), v1::DATA_SOURCE_JSONL);
  EXPECT_EQ(manifest->tokenizer(), v1::TOKENIZER_BYTE);
  EXPECT_EQ(manifest->token_bytes(), 1);
  EXPECT_EQ(manifest->separator(), 0);
  EXPECT_EQ(manifest->documents(), 60);
  EXPECT_EQ(manifest->tokens(), manifest->text_bytes() + 60);
  EXPECT_EQ(manifest->shards_size(), 4);  // of 17 documents
  ASSERT_EQ(manifest->sources_size(), 1);
  EXPECT_EQ(manifest->sources(0).path(), dir_ / "train.jsonl");
  EXPECT_EQ(manifest->sources(0).bytes(), static_cast<int64_t>(Lines(60).size()));
  EXPECT_GT(manifest->sources(0).version().size(), 15u);  // nanoseconds since 1970
}

TEST_F(PreparedTest, TheManifestSaysWhichRecordsWereChosenAndTheJobNoLonger) {
  Write(dir_ / "kinds.jsonl", LinesOfKinds(60));
  v1::DataSpec& data = *spec_.mutable_data();
  data.set_path(0, dir_ / "kinds.jsonl");
  (*data.mutable_where())["kind"].add_value("1");
  ASSERT_OK(PrepareInto(dir_ / "ones", spec_));
  const auto manifest = ReadPrepared(dir_ / "ones/train.tokens");
  ASSERT_OK(manifest);
  EXPECT_EQ(manifest->documents(), 20);
  EXPECT_EQ(manifest->filter().where().at("kind").value(0), "1");
  EXPECT_EQ(manifest->filter().left_out(), 40);
  EXPECT_TRUE(JobOnPrepared(spec_, dir_ / "ones").data().where().empty());
  EXPECT_FALSE(ReadPrepared(out_ / "train.tokens")->has_filter());

  EXPECT_EQ(manifest->filter().warnings_size(), 0);
  (*data.mutable_where())["kind"].add_value("7");
  const auto warned = PrepareInto(dir_ / "warned", spec_);
  ASSERT_OK(warned);
  ASSERT_EQ(warned->sets(0).warnings_size(), 1);
  EXPECT_EQ(WarningText(warned->sets(0).warnings(0)),
            "data.where.kind: none of 60 records has the value '7'; check the spelling: the first "
            "other values are '0', '2'");
  (*data.mutable_where())["kind"].mutable_value()->RemoveLast();

  (*data.mutable_where())["kind"].set_value(0, "3");
  EXPECT_THAT(PrepareInto(dir_ / "none", spec_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("data.where.kind: none of 60 records has the value '3'; check the "
                                 "spelling: the first other values are '0', '1', '2'")));
}

TEST_F(PreparedTest, PreparingAgainGivesTheSameBytes) {
  ASSERT_OK(PrepareInto(dir_ / "again", spec_));
  for (const fs::directory_entry& entry : fs::directory_iterator(out_ / "train.tokens")) {
    const auto name = entry.path().filename();
    EXPECT_EQ(ReadWholeFile(entry.path()).value(),
              ReadWholeFile(dir_ / "again/train.tokens" / name).value())
        << name;
  }
}

TEST_F(PreparedTest, AMovedFolderIsReadAtItsNewPlace) {
  const fs::path moved = dir_ / "moved [2]";
  fs::rename(out_, moved);
  const auto job = LoadJobFile(moved / "job.yaml", "/elsewhere");
  ASSERT_OK(job);
  EXPECT_EQ(job->spec.data().path(0), (moved / "train.tokens").string());
  EXPECT_OK(LoadStatus(job->spec));
  const auto says = ReadWholeFile(moved / kPreparedJob);
  ASSERT_OK(says);
  EXPECT_THAT(*says, Not(HasSubstr(out_.string())));
}

TEST_F(PreparedTest, TheJobThatIsWrittenHasAnOutDirThatIsFree) {
  spec_.mutable_train()->set_out_dir((dir_ / "run").string());
  const auto out_dir = [&] {
    EXPECT_OK(PrepareInto(out_, spec_));
    const auto job = LoadJobFile(out_ / "job.yaml", dir_.path());
    EXPECT_OK(job);
    return job.ok() ? job->spec.train().out_dir() : std::string();
  };
  EXPECT_EQ(out_dir(), (dir_ / "run-prepared").string());
  fs::create_directory(dir_ / "run-prepared");
  EXPECT_EQ(out_dir(), (dir_ / "run-prepared-2").string());
}

TEST_F(PreparedTest, AFileOfAnotherLengthIsRefusedAtTheStart) {
  for (const char* name : {"tokens-00001.bin", "tokens-00002.idx", "tokens-00003.hash"}) {
    const auto whole = ReadWholeFile(File(name)).value();
    fs::resize_file(File(name), whole.size() - 1);
    EXPECT_THAT(
        LoadStatus(on_prepared_),
        StatusIs(absl::StatusCode::kDataLoss,
                 AllOf(HasSubstr("data.path[0]: "), HasSubstr(name), HasSubstr("the manifest says"),
                       HasSubstr("prepare the data again"))));
    fs::remove(File(name));
    EXPECT_THAT(LoadStatus(on_prepared_), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(name)));
    Write(File(name), whole);
  }
  EXPECT_OK(LoadStatus(on_prepared_));
}

TEST_F(PreparedTest, VerifyingFindsAFlippedBitInEveryFile) {
  EXPECT_OK(VerifyStatus(on_prepared_));
  for (const char* name : {"tokens-00000.bin", "tokens-00001.idx", "tokens-00003.hash"}) {
    FlipAByte(File(name), 40);
    EXPECT_THAT(VerifyStatus(on_prepared_), StatusIs(absl::StatusCode::kDataLoss,
                                                     AllOf(HasSubstr(name), HasSubstr("SHA-256"))));
    FlipAByte(File(name), 40);
  }
  EXPECT_OK(VerifyStatus(on_prepared_));
}

// Tokens that were exchanged for others of the same length, as by a link to another file.
TEST_F(PreparedTest, TokensThatAreNotThoseOfTheManifestAreNotTrainedOn) {
  FlipAByte(File("tokens-00001.bin"), 40);
  EXPECT_THAT(LoadStatus(on_prepared_),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("tokens-00001.bin"), HasSubstr("SHA-256"))));
}

// A worker that knows allowed_roots follows no link below them, whatever the hashes say.
TEST_F(PreparedTest, AShardThatIsALinkIsNotReadBelowAllowedRoots) {
  fs::rename(File("tokens-00001.bin"), dir_ / "outside");
  fs::create_symlink(dir_ / "outside", File("tokens-00001.bin"));
  EXPECT_OK(LoadStatus(on_prepared_)) << "without allowed_roots";
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // threads have been started in this process
  const auto limited = [&] {
    LimitJobFiles({out_});
    const absl::Status status = LoadStatus(on_prepared_);
    const bool refused = status.message().find("symbolic link") != absl::string_view::npos;
    fs::remove(File("tokens-00001.bin"));
    fs::rename(dir_ / "outside", File("tokens-00001.bin"));
    _exit(refused && LoadStatus(on_prepared_).ok() ? 0 : 1);
  };
  EXPECT_EXIT(limited(), ::testing::ExitedWithCode(0), "");
}

TEST_F(PreparedTest, AnIndexThatDoesNotFitItsTokensIsRefusedAtTheStart) {
  FlipAByte(File("tokens-00001.idx"), 34);  // the length of the first document
  EXPECT_THAT(LoadStatus(on_prepared_),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("tokens-00001.idx")));
}

TEST_F(PreparedTest, AManifestIsRefusedWithEveryChange) {
  const auto text = ReadWholeFile(File(kPreparedManifest)).value();
  for (size_t at = 0; at < text.size(); at += 7) {
    FlipAByte(File(kPreparedManifest), static_cast<int64_t>(at));
    EXPECT_THAT(LoadStatus(on_prepared_),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(kPreparedManifest)))
        << at;
    FlipAByte(File(kPreparedManifest), static_cast<int64_t>(at));
  }
  fs::remove(File(kPreparedManifest));
  EXPECT_THAT(LoadStatus(on_prepared_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("train.tokens"), HasSubstr("nsactl data prepare"))));
}

TEST_F(PreparedTest, ANewerFormatIsRefused) {
  auto text = ReadWholeFile(File(kPreparedManifest)).value();
  const size_t version = text.find("\"format_version\": 1");
  ASSERT_NE(version, std::string::npos);
  v1::PreparedManifest newer = *ReadPrepared(out_ / "train.tokens");
  std::string written = SerializePrepared(newer).value();
  EXPECT_EQ(written, text);  // so that what follows differs in the version only
  text.replace(version, 19, "\"format_version\": 2");
  const size_t hash = text.rfind("\"manifest_sha256\": \"") + 20;
  text.replace(hash, 64, 64, '0');
  Sha256Sum sum;
  sum.Add(text);
  text.replace(hash, 64, sum.Hex());
  Write(File(kPreparedManifest), text);
  EXPECT_THAT(LoadStatus(on_prepared_),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("format_version 2")));
}

TEST_F(PreparedTest, AnotherTokenizerVocabularySeparatorOrDivisionIsRefused) {
  v1::JobSpec job = on_prepared_;
  job.mutable_data()->set_tokenizer(v1::TOKENIZER_GPT2);
  EXPECT_THAT(LoadStatus(job), StatusIs(absl::StatusCode::kInvalidArgument,
                                        AllOf(HasSubstr("with the tokenizer byte"),
                                              HasSubstr("data.tokenizer is gpt2"))));
  job = on_prepared_;
  job.mutable_model()->set_vocab(100);
  EXPECT_THAT(LoadStatus(job),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("model.vocab is 100")));
  job = on_prepared_;
  job.mutable_data()->set_separator("7");
  EXPECT_THAT(LoadStatus(job),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("begin with token 0 (7,")));
  // Passages matter to texts only.
  job = on_prepared_;
  job.mutable_data()->set_val_fraction(0);
  EXPECT_OK(LoadStatus(job));
  Write(dir_ / "a.txt", std::string(100000, 'a'));
  v1::JobSpec text = JobOn([&](v1::DataSpec* data) {
    data->set_source(v1::DATA_SOURCE_TEXT);
    data->add_path(dir_ / "a.txt");
  });
  ASSERT_OK(PrepareInto(dir_ / "text", text));
  text = JobOnPrepared(text, dir_ / "text");
  EXPECT_OK(LoadStatus(text));
  text.mutable_data()->set_val_fraction(0);
  EXPECT_THAT(LoadStatus(text), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("passages of 16384 bytes (0")));
}

TEST_F(PreparedTest, AShardThatBecomesShorterDuringARunIsAnErrorAndNoCrash) {
  const v1::JobSpec full = Full(on_prepared_);
  const auto corpus = LoadCorpus(full.data(), 256, absl::Seconds(20));
  ASSERT_OK(corpus);
  std::vector<int32_t> tokens(static_cast<size_t>(corpus->parts[0].train->size()));
  EXPECT_OK(corpus->parts[0].train->Copy(0, tokens));
  fs::resize_file(File("tokens-00002.bin"), 0);
  EXPECT_THAT(corpus->parts[0].train->Copy(0, tokens),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("tokens-00002.bin: 0 bytes"), HasSubstr("during a run"))));
}

TEST_F(PreparedTest, ReplacesAnEarlierPreparationButNothingElse) {
  Write(dir_ / "train.jsonl", Lines(90));
  ASSERT_OK(PrepareInto(out_, spec_));
  EXPECT_EQ(ReadPrepared(out_ / "train.tokens")->documents(), 90);
  EXPECT_FALSE(fs::exists(out_.string() + ".partial"));
  fs::create_directory(dir_ / "mine");
  EXPECT_OK(PrepareInto(dir_ / "mine", spec_)) << "an empty folder may be used";
  fs::create_directory(dir_ / "other");
  Write(dir_ / "other/thesis.tex", "years of work");
  for (const char* taken : {"other", "train.jsonl"}) {
    EXPECT_THAT(PrepareInto(dir_ / taken, spec_),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr(taken), HasSubstr("name another one"))));
  }
  EXPECT_EQ(ReadWholeFile(dir_ / "other/thesis.tex").value(), "years of work");
}

TEST_F(PreparedTest, WhatAKilledProcessLeftIsRemovedAndNothingElse) {
  const fs::path partial = dir_ / "new.partial";
  fs::create_directories(partial / "train.tokens");
  Write(partial / "train.tokens/tokens-00000.bin", "half");
  EXPECT_THAT(PrepareInto(dir_ / "new", spec_),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("new.partial: exists")));
  Write(partial / ".lock", "");
  ASSERT_OK(PrepareInto(dir_ / "new", spec_));
  EXPECT_FALSE(fs::exists(partial));
  EXPECT_OK(VerifyStatus(JobOnPrepared(spec_, dir_ / "new")));
}

TEST_F(PreparedTest, TwoProcessesDoNotWriteTheSameFolder) {
  const auto first = Staging::Create(dir_ / "new");
  ASSERT_OK(first);
  EXPECT_THAT(PrepareInto(dir_ / "new", spec_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("is being written by process"), HasSubstr("wait for it"))));
}

// Before the training data is tokenized, which may take hours.
TEST_F(PreparedTest, AMissingFileIsNamedWithItsKeyAndWhatToDo) {
  const std::string none = dir_ / "none.jsonl";
  const std::string said = ": " + none + ": No such file or directory; give a file that exists";
  const auto refused = [&](const std::function<void(v1::DataSpec*)>& change) {
    v1::JobSpec spec = spec_;
    spec.mutable_data()->clear_val_fraction();
    change(spec.mutable_data());
    const absl::Status status = PrepareInto(dir_ / "new", spec).status();
    EXPECT_EQ(LoadStatus(spec).message(), status.message());
    return std::string(status.message());
  };
  EXPECT_THAT(refused([&](v1::DataSpec* data) { data->add_path(none); }),
              StartsWith("data.path[1]" + said));
  EXPECT_THAT(refused([&](v1::DataSpec* data) { data->add_val_path(none); }),
              StartsWith("data.val_path[0]" + said));
  EXPECT_THAT(refused([&](v1::DataSpec* data) { (*data->mutable_val())["books"] = none; }),
              StartsWith("data.val.books" + said));
  EXPECT_THAT(refused([&](v1::DataSpec* data) {
                data->set_source(v1::DATA_SOURCE_TOKENS);
                data->set_path(0, dir_ / "none.tokens");
                data->set_separator("none");
              }),
              StartsWith("data.path[0]: " + std::string(dir_ / "none.tokens") + ": No such file"));
  EXPECT_THAT(refused([&](v1::DataSpec* data) {
                data->set_tokenizer(v1::TOKENIZER_BPE);
                data->set_tokenizer_path(dir_ / "bpe");
              }),
              StartsWith("data.tokenizer_path: " + std::string(dir_ / "bpe/tokenizer.json") +
                         ": No such file or directory; name a tokenizer.json"));
  EXPECT_FALSE(fs::exists(dir_ / "new"));
}

TEST_F(PreparedTest, LeavesNothingAfterAFailure) {
  Write(dir_ / "train.jsonl", Lines(60) + "{\"text\": 7}\n");
  EXPECT_THAT(PrepareInto(dir_ / "new", spec_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("train.jsonl:61:")));
  Write(dir_ / "train.jsonl", "");
  EXPECT_THAT(PrepareInto(dir_ / "new", spec_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("data.path: no document")));
  Write(dir_ / "train.jsonl", Lines(60));
  {
    const FileSizeLimit limit(500);
    EXPECT_THAT(PrepareInto(dir_ / "new", spec_), Not(IsOk()));
  }
  EXPECT_FALSE(fs::exists(dir_ / "new"));
  EXPECT_FALSE(fs::exists(dir_ / "new.partial"));
  EXPECT_THAT(PrepareInto(dir_ / "new", on_prepared_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("prepared already")));
  v1::JobSpec generated;
  EXPECT_THAT(PrepareInto(dir_ / "new", generated),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nothing to prepare")));
}

TEST_F(PreparedTest, AFullDiskIsSaidAndLeavesTheOldDataInPlace) {
  fs::create_directory(dir_ / "disk");
  if (mount("tmpfs", (dir_ / "disk").c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "a small file system cannot be mounted here";
  }
  ASSERT_OK(PrepareInto(dir_ / "disk/out", spec_));
  Write(dir_ / "train.jsonl", Lines(60000));
  EXPECT_THAT(PrepareInto(dir_ / "disk/out", spec_),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("No space left"), HasSubstr("free space there"))));
  EXPECT_FALSE(fs::exists(dir_ / "disk/out.partial"));
  EXPECT_OK(VerifyStatus(JobOnPrepared(spec_, dir_ / "disk/out")));
  EXPECT_OK(LoadStatus(JobOnPrepared(spec_, dir_ / "disk/out")));
  umount((dir_ / "disk").c_str());
}

}  // namespace
}  // namespace nsa::train
