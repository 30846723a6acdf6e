// The tokens of large data are made once for a machine, and are those of the files.
#include "worker/train/data/prepared/token_cache.h"

#include <sys/mount.h>

#include <fstream>

#include "common/job/data/data_files.h"
#include "common/job/data/prepared.h"
#include "common/run/atomic_file.h"
#include "gmock/gmock.h"
#include "tests/testing/open_watch.h"
#include "tests/worker/train/data/prepared/token_cache_jobs.h"
#include "tests/worker/train/data/remote/remote_fixture.h"

namespace nsa::train {
namespace {

namespace fs = std::filesystem;

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

// The index of a Megatron file of uint16 whose documents have so many tokens.
std::string MegatronIndex(const std::vector<int32_t>& sizes) {
  std::string index("MMIDIDX\0\0\1\0\0\0\0\0\0\0\x08", 18);
  const auto add = [&index](auto value) {
    index.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  add(static_cast<int64_t>(sizes.size()));
  add(static_cast<int64_t>(sizes.size()) + 1);
  for (const int32_t size : sizes) add(size);
  int64_t bytes = 0;
  for (const int32_t size : sizes) add(std::exchange(bytes, bytes + 2 * size));
  for (size_t i = 0; i <= sizes.size(); ++i) add(static_cast<int64_t>(i));
  return index;
}

class TokenCacheTest : public testing::Test {
 protected:
  // A job on `name` with so many lines.
  v1::JobSpec LinesJob(int lines = 60, const std::string& name = "train.jsonl") {
    Write(dir_ / name, Lines(lines));
    return JobOnLines(dir_ / name);
  }

  const TempDir dir_;
  const TempDir cache_dir_;
  const fs::path cache_ = cache_dir_ / "cache";
};

TEST_F(TokenCacheTest, GivesTheCorpusOfTheFilesAndDoesNotOpenThemAgain) {
  for (const auto& [name, spec] : JobsOfEverySource(dir_)) {
    const std::string wanted = CorpusOfFiles(spec);
    EXPECT_THAT(wanted, HasSubstr("documents")) << name;
    fs::remove_all(cache_);
    EXPECT_EQ(CorpusWith(spec, CacheIn(cache_)), wanted) << name;
    EXPECT_THAT(EntriesIn(cache_), Not(IsEmpty())) << name;
    EXPECT_THAT(EntriesIn(cache_, ".partial"), IsEmpty()) << name;
    OpenWatch watch(dir_.path());
    EXPECT_EQ(CorpusWith(spec, CacheIn(cache_)), wanted) << name;
    const bool pattern = name == "jsonl, fraction";  // the folder is opened
    EXPECT_EQ(watch.WasOpened(), pattern) << name;
  }
}

TEST_F(TokenCacheTest, SmallDataIsHeldInMemory) {
  const v1::JobSpec spec = LinesJob();
  TokenCacheOptions cache = CacheIn(cache_);
  cache.large_bytes = static_cast<int64_t>(Lines(60).size()) + 1;
  EXPECT_EQ(CorpusWith(spec, cache), CorpusOfFiles(spec));
  EXPECT_FALSE(fs::exists(cache_));
  cache.large_bytes -= 1;
  EXPECT_EQ(CorpusWith(spec, cache), CorpusOfFiles(spec));
  EXPECT_THAT(EntriesIn(cache_), SizeIs(1));
  EXPECT_EQ(fs::status(cache_).permissions(), fs::perms::owner_all);
}

TEST_F(TokenCacheTest, OtherJobsOnTheSameFilesShareTheTokens) {
  v1::JobSpec spec = LinesJob();
  CorpusWith(spec, CacheIn(cache_));
  spec.mutable_data()->set_val_fraction(0.3);
  spec.mutable_model()->set_vocab(200);
  spec.mutable_train()->set_seed(5);
  EXPECT_EQ(CorpusWith(spec, CacheIn(cache_)), CorpusOfFiles(spec));
  EXPECT_THAT(EntriesIn(cache_), SizeIs(1));
  // Validation files are a list of their own.
  spec.mutable_data()->clear_val_fraction();
  Write(dir_ / "val.jsonl", Lines(20));
  spec.mutable_data()->add_val_path(dir_ / "val.jsonl");
  EXPECT_EQ(CorpusWith(spec, CacheIn(cache_)), CorpusOfFiles(spec));
  EXPECT_THAT(EntriesIn(cache_), SizeIs(2));
}

TEST_F(TokenCacheTest, WhateverDecidesTheTokensMakesOthers) {
  Write(dir_ / "a.txt", std::string(100'000, 'a') + "\n\nb");
  Write(dir_ / "t.bin", TokenFile(2000, 99));
  Write(dir_ / "val.txt", "c");
  const auto text = [&](bool passages) {
    return JobOn([&](v1::DataSpec* data) {
      data->set_source(v1::DATA_SOURCE_TEXT);
      data->add_path(dir_ / "a.txt");
      if (!passages) data->add_val_path(dir_ / "val.txt");
    });
  };
  const auto tokens = [&](const std::string& separator, int32_t vocab) {
    return JobOn(
        [&](v1::DataSpec* data) {
          data->set_source(v1::DATA_SOURCE_TOKENS);
          data->add_path(dir_ / "t.bin");
          data->set_separator(separator);
          data->set_val_fraction(0.4);
        },
        vocab);
  };
  size_t entries = 0;
  const auto others = [&](const v1::JobSpec& spec) {
    CorpusWith(spec, CacheIn(cache_));
    const size_t before = std::exchange(entries, EntriesIn(cache_).size());
    return entries - before;
  };
  EXPECT_EQ(others(text(true)), 1u);
  EXPECT_EQ(others(text(false)), 2u);  // the whole file is a document; and the validation file
  EXPECT_EQ(others(tokens("99", 1000)), 1u);
  EXPECT_EQ(others(tokens("99", 2000)), 0u);
  EXPECT_EQ(others(tokens("98", 1000)), 1u);
  EXPECT_EQ(others(tokens("none", 1000)), 1u);
  EXPECT_EQ(others(tokens("99", 70'000)), 1u);  // four bytes a token
  // An index that comes, and one that changes: the documents are others.
  for (const int32_t first : {15'000, 5'000}) {
    Write(dir_ / "t.idx", MegatronIndex({first, 43'000 - first}));
    EXPECT_EQ(others(tokens("99", 1000)), 1u);
    EXPECT_EQ(others(tokens("99", 1000)), 0u);
  }
  v1::JobSpec lines = LinesJob();
  EXPECT_EQ(others(lines), 1u);
  Write(dir_ / "train.jsonl", Lines(60));  // the same bytes at another time
  EXPECT_EQ(others(lines), 1u);
  Write(dir_ / "kinds.jsonl", LinesOfKinds(90));
  lines = JobOnLines(dir_ / "kinds.jsonl");
  EXPECT_EQ(others(lines), 1u);
  (*lines.mutable_data()->mutable_where())["kind"].add_value("1");
  EXPECT_EQ(others(lines), 1u);
  EXPECT_EQ(others(lines), 0u);
  (*lines.mutable_data()->mutable_where())["kind"].add_value("0");
  EXPECT_EQ(others(lines), 1u);
  lines.mutable_data()->mutable_where()->swap(*lines.mutable_data()->mutable_except());
  EXPECT_EQ(others(lines), 1u);
}

TEST_F(TokenCacheTest, KeptTokensWarnAsTheirFilesDo) {
  Write(dir_ / "kinds.jsonl", LinesOfKinds(90));
  v1::JobSpec spec = JobOnLines(dir_ / "kinds.jsonl");
  (*spec.mutable_data()->mutable_except())["kind"].add_value("1");
  EXPECT_THAT(LoadWith(spec, CacheIn(cache_))->info.warnings, IsEmpty());
  (*spec.mutable_data()->mutable_except())["kind"].add_value("7");
  for (int round = 0; round < 2; ++round) {
    const auto corpus = LoadWith(spec, CacheIn(cache_));
    ASSERT_OK(corpus);
    ASSERT_EQ(corpus->info.warnings.size(), 1u) << round;
    EXPECT_EQ(WarningText(corpus->info.warnings[0]),
              "data.except.kind: none of 90 records has the value '7'; check the spelling: the "
              "first other values are '0', '2'");
  }
}

TEST_F(TokenCacheTest, AWarningNamesTheKeyOfTheJobThatReads) {
  Write(dir_ / "kinds.jsonl", LinesOfKinds(90));
  v1::JobSpec spec = JobOnLines(dir_ / "kinds.jsonl");
  (*spec.mutable_data()->mutable_where())["kind"].add_value("1");
  (*spec.mutable_data()->mutable_where())["kind"].add_value("7");
  ASSERT_OK(LoadWith(spec, CacheIn(cache_)));
  v1::JobSpec set = LinesJob();
  (*set.mutable_data()->mutable_val())["ones"] = (dir_ / "kinds.jsonl").string();
  auto& fields = (*set.mutable_data()->mutable_val_where())["ones"];
  fields.mutable_field()->insert(spec.data().where().begin(), spec.data().where().end());
  const auto corpus = LoadWith(set, CacheIn(cache_));
  ASSERT_OK(corpus);
  ASSERT_EQ(corpus->info.warnings.size(), 1u);
  EXPECT_EQ(corpus->info.warnings[0].field(), "data.val_where.ones.kind");
}

// Size and time of the last change are easily the same; the time of the inode's change is not.
TEST_F(TokenCacheTest, AChangedFileOfTheSameSizeAndTimeIsNoticed) {
  const v1::JobSpec spec = LinesJob();
  CorpusWith(spec, CacheIn(cache_));
  std::string lines = Lines(60);
  const fs::file_time_type time = fs::last_write_time(dir_ / "train.jsonl");
  lines[lines.find("document 0") + 9] = '5';
  Write(dir_ / "train.jsonl", lines);
  fs::last_write_time(dir_ / "train.jsonl", time);
  EXPECT_EQ(CorpusWith(spec, CacheIn(cache_)), CorpusOfFiles(spec));
  EXPECT_THAT(EntriesIn(cache_), SizeIs(2));
}

TEST_F(TokenCacheTest, AFileThatChangesWhileItIsReadIsNeverKept) {
  LinesJob();
  const fs::file_time_type time = fs::last_write_time(dir_ / "train.jsonl");
  ReadProgress progress;
  const auto kept = OpenWith(
      CacheIn(cache_), dir_ / "train.jsonl",
      [&] {
        Write(dir_ / "train.jsonl", Lines(60));
        fs::last_write_time(dir_ / "train.jsonl", time);
      },
      &progress);
  ASSERT_OK(kept);
  EXPECT_FALSE(kept->has_value());
  EXPECT_THAT(EntriesIn(cache_), IsEmpty());
  EXPECT_THAT(EntriesIn(cache_, ".partial"), IsEmpty());
}

TEST_F(TokenCacheTest, ErrorsAreThoseOfTheFilesAndLeaveNothing) {
  Write(dir_ / "train.jsonl", Lines(60) + "{\"txt\": 1}\n");
  const v1::JobSpec bad = JobOnLines(dir_ / "train.jsonl");
  const absl::Status wanted = LoadWith(bad, {}).status();
  EXPECT_THAT(wanted, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("train.jsonl:61")));
  EXPECT_EQ(LoadWith(bad, CacheIn(cache_)).status(), wanted);
  Write(dir_ / "empty.jsonl", "\n");
  const v1::JobSpec empty = JobOnLines(dir_ / "empty.jsonl");
  EXPECT_EQ(LoadWith(empty, CacheIn(cache_)).status(), LoadWith(empty, {}).status());
  const v1::JobSpec missing = JobOnLines(dir_ / "none.jsonl");
  EXPECT_EQ(LoadWith(missing, CacheIn(cache_)).status().code(),
            LoadWith(missing, {}).status().code());
  EXPECT_THAT(EntriesIn(cache_), IsEmpty());
  EXPECT_THAT(EntriesIn(cache_, ".partial"), IsEmpty());
}

TEST_F(TokenCacheTest, ATokenThatIsNotInTheVocabularyIsNamedWithItsPlace) {
  v1::JobSpec spec = LinesJob();
  CorpusWith(spec, CacheIn(cache_));
  spec.mutable_model()->set_vocab(100);
  EXPECT_EQ(LoadWith(spec, CacheIn(cache_)).status(), LoadWith(spec, {}).status());
  EXPECT_THAT(LoadWith(spec, CacheIn(cache_)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("train.jsonl:1"), HasSubstr("model.vocab is 100"))));
}

TEST_F(TokenCacheTest, DamagedTokensAreMadeAgain) {
  const v1::JobSpec spec = LinesJob();
  const std::string wanted = CorpusWith(spec, CacheIn(cache_));
  const fs::path folder = EntriesIn(cache_).at(0).tokens();
  const auto in_use = LoadWith(spec, CacheIn(cache_));  // does not keep it from being replaced
  ASSERT_OK(in_use);
  const std::function<void(const fs::path&)> damages[] = {
      [](const fs::path& at) { fs::resize_file(at / "tokens-00001.bin", 10); },
      [](const fs::path& at) { fs::remove(at / "tokens-00002.hash"); },
      [](const fs::path& at) { fs::remove(at / kPreparedManifest); },
      [](const fs::path& at) { Write(at / kPreparedManifest, "{}"); },
      [](const fs::path& at) {
        std::string hashes = ReadWholeFile(at / "tokens-00000.hash").value();
        hashes[3] = static_cast<char>(hashes[3] ^ 1);
        Write(at / "tokens-00000.hash", hashes);
      },
  };
  for (const auto& damage : damages) {
    damage(folder);
    EXPECT_EQ(CorpusWith(spec, CacheIn(cache_)), wanted);
    ReadProgress progress;
    const auto made = PreparedFolder::Open(folder, &progress);
    ASSERT_OK(made);
    EXPECT_OK(made->Verify());
  }
}

TEST_F(TokenCacheTest, DeletingTheCacheHarmsNoRun) {
  const v1::JobSpec spec = LinesJob();
  const auto corpus = LoadWith(spec, CacheIn(cache_));
  ASSERT_OK(corpus);
  fs::remove_all(cache_);
  EXPECT_EQ(Described(*corpus), CorpusOfFiles(spec));
}

TEST_F(TokenCacheTest, WhatWasNotUsedForTheLongestTimeGoesFirstAndNeverWhatIsInUse) {
  const v1::JobSpec one = LinesJob(300, "one.jsonl");
  const v1::JobSpec two = LinesJob(301, "two.jsonl");
  const v1::JobSpec three = LinesJob(302, "three.jsonl");
  CorpusWith(one, CacheIn(cache_));
  const TokenEntry first = EntriesIn(cache_).at(0);
  int64_t bytes = 0;
  for (const auto& file : fs::directory_iterator(first.tokens())) bytes += file.file_size();
  const TokenCacheOptions cache = CacheIn(cache_, bytes * 5 / 2);
  CorpusWith(two, cache);
  EXPECT_THAT(EntriesIn(cache_), SizeIs(2));
  // Using it makes it the younger of the two.
  for (const TokenEntry& entry : EntriesIn(cache_)) {
    fs::last_write_time(entry.manifest(), fs::file_time_type::clock::now() - std::chrono::hours(1));
  }
  CorpusWith(one, cache);
  CorpusWith(three, cache);
  EXPECT_THAT(EntriesIn(cache_), SizeIs(2));
  EXPECT_TRUE(fs::exists(first.manifest()));
  // Now the oldest is in use.
  const auto corpus = LoadWith(one, cache);
  ASSERT_OK(corpus);
  fs::last_write_time(first.manifest(), fs::file_time_type::clock::now() - std::chrono::hours(1));
  CorpusWith(two, cache);
  EXPECT_THAT(EntriesIn(cache_), SizeIs(2));
  EXPECT_TRUE(fs::exists(first.manifest()));
}

TEST_F(TokenCacheTest, TokensThatDoNotFitAreHeldInMemoryUntilThereIsMoreRoom) {
  const v1::JobSpec spec = LinesJob(600);
  const std::string wanted = CorpusOfFiles(spec);
  EXPECT_EQ(CorpusWith(spec, CacheIn(cache_, 10'000)), wanted);
  EXPECT_THAT(EntriesIn(cache_), IsEmpty());
  EXPECT_THAT(EntriesIn(cache_, ".partial"), IsEmpty());
  ASSERT_THAT(EntriesIn(cache_, ".needs"), SizeIs(1));
  // The files are not tokenized in vain again: nothing is written.
  const fs::path needs = EntriesIn(cache_, ".needs").at(0).needs();
  const std::string said = ReadWholeFile(needs).value();
  EXPECT_EQ(said.find_first_not_of("0123456789"), std::string::npos) << said;
  const fs::file_time_type time = fs::last_write_time(needs);
  EXPECT_EQ(CorpusWith(spec, CacheIn(cache_, 10'500)), wanted);
  EXPECT_EQ(fs::last_write_time(needs), time);
  EXPECT_EQ(CorpusWith(spec, CacheIn(cache_)), wanted);
  EXPECT_THAT(EntriesIn(cache_), SizeIs(1));
  EXPECT_FALSE(fs::exists(needs));
}

TEST_F(TokenCacheTest, AFullDiskIsNoObstacle) {
  fs::create_directory(dir_ / "disk");
  if (mount("tmpfs", (dir_ / "disk").c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "a small file system cannot be mounted here";
  }
  const v1::JobSpec spec = LinesJob(60'000);
  const std::string wanted = CorpusOfFiles(spec);
  EXPECT_EQ(CorpusWith(spec, CacheIn(dir_ / "disk/cache")), wanted);
  EXPECT_THAT(EntriesIn(dir_ / "disk/cache"), IsEmpty());
  EXPECT_THAT(EntriesIn(dir_ / "disk/cache", ".partial"), IsEmpty());
  TokenCacheOptions careful = CacheIn(dir_ / "disk/cache");
  careful.least_free_bytes = int64_t{1} << 40;
  EXPECT_EQ(CorpusWith(LinesJob(), careful), CorpusOfFiles(LinesJob()));
  EXPECT_THAT(EntriesIn(dir_ / "disk/cache"), IsEmpty());
  umount((dir_ / "disk").c_str());
}

TEST_F(TokenCacheTest, AFolderThatCannotBeWrittenIsNoObstacle) {
  Write(cache_, "a file");
  const v1::JobSpec spec = LinesJob();
  EXPECT_EQ(CorpusWith(spec, CacheIn(cache_)), CorpusOfFiles(spec));
  EXPECT_EQ(CorpusWith(spec, CacheIn("/proc/none")), CorpusOfFiles(spec));
}

TEST_F(TokenCacheTest, RemoteFilesAreNotFetchedAgainUntilTheyChange) {
  const std::string lines = Lines(300);
  std::atomic<int> version = 1;
  DataServer server([&](const DataServer::Request& request) {
    return DataServer::Serve(request, lines, absl::StrCat("\"", version.load(), "\""));
  });
  const auto load = [&] {
    const auto corpus = LoadWith(JobOnLines(server.url("/a.jsonl")), CacheIn(cache_), {},
                                 absl::Seconds(20), std::make_shared<Remote>(QuickOptions()));
    EXPECT_OK(corpus);
    return corpus.ok() ? Described(*corpus) : "";
  };
  Write(dir_ / "a.jsonl", lines);
  const std::string wanted = CorpusOfFiles(JobOnLines(dir_ / "a.jsonl"));
  EXPECT_EQ(load(), wanted);
  const size_t before = server.seen().size();
  EXPECT_GT(before, 10u);
  EXPECT_EQ(load(), wanted);
  EXPECT_EQ(server.seen().size(), before + 1);  // which version it is
  version = 2;
  EXPECT_EQ(load(), wanted);
  EXPECT_GT(server.seen().size(), before + 10);
  EXPECT_THAT(EntriesIn(cache_), SizeIs(2));
}

TEST_F(TokenCacheTest, ARemoteFileWithoutAVersionIsNotKept) {
  const std::string lines = Lines(300);
  DataServer server(
      [&](const DataServer::Request& request) { return DataServer::Serve(request, lines, ""); });
  EXPECT_OK(LoadWith(JobOnLines(server.url("/a.jsonl")), CacheIn(cache_), {}, absl::Seconds(20),
                     std::make_shared<Remote>(QuickOptions())));
  EXPECT_THAT(EntriesIn(cache_), IsEmpty());
}

}  // namespace
}  // namespace nsa::train
