// Remote files as the readers of data see them: blocks, read-ahead, the cache, every format.
#include "worker/train/data/remote/remote_file.h"

#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/data/data_files.h"
#include "tests/worker/train/data/remote/remote_fixture.h"
#include "worker/train/data/corpus.h"
#include "worker/train/data/read/token_reader.h"

namespace nsa::train {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Request = DataServer::Request;
using Reply = DataServer::Reply;

const std::string kContent = Content(20'500);

DataServer::Handler Serving(const std::string& content) {
  return [content](const Request& request) { return DataServer::Serve(request, content); };
}

std::vector<std::string> RangesOf(DataServer& server) {
  std::vector<std::string> ranges;
  for (const Request& request : server.seen()) ranges.push_back(request.header("range").substr(6));
  return ranges;
}

TEST(RemoteFile, AStretchInTheMiddleFetchesItsBlocksOnly) {
  DataServer server(Serving(kContent));
  ReadProgress progress;
  progress.remote = std::make_shared<Remote>(QuickOptions());
  const auto file = DataFile::Open(server.url("/a"), &progress);
  ASSERT_OK(file);
  EXPECT_EQ(file->size(), 20'500);
  std::string bytes(1200, '\0');
  ASSERT_OK(file->ReadAt(5900, bytes));
  EXPECT_EQ(bytes, kContent.substr(5900, 1200));
  EXPECT_THAT(RangesOf(server), ElementsAre("0-0", "5000-5999", "6000-6999", "7000-7999"));
}

TEST(RemoteFile, NothingIsFetchedBehindWhatIsExpected) {
  DataServer server(Serving(kContent));
  ReadProgress progress;
  progress.remote = std::make_shared<Remote>(QuickOptions());
  const auto file = DataFile::Open(server.url("/a"), &progress);
  ASSERT_OK(file);
  file->ExpectUpTo(2000);
  std::string bytes(10, '\0');
  ASSERT_OK(file->ReadAt(0, bytes));
  while (server.seen().size() < 3) absl::SleepFor(absl::Milliseconds(1));
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_THAT(RangesOf(server), ElementsAre("0-0", "0-999", "1000-1999"));
}

TEST(RemoteFile, ReadsAheadOfTheReaderAndNotMore) {
  DataServer server(Serving(kContent));
  ReadProgress progress;
  progress.remote = std::make_shared<Remote>(QuickOptions());
  const auto file = DataFile::Open(server.url("/a"), &progress);
  ASSERT_OK(file);
  file->ExpectUpTo(file->size());
  std::string bytes(10, '\0');
  ASSERT_OK(file->ReadAt(0, bytes));
  while (server.seen().size() < 5) absl::SleepFor(absl::Milliseconds(1));
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_THAT(RangesOf(server), ElementsAre("0-0", "0-999", "1000-1999", "2000-2999", "3000-3999"));
}

TEST(RemoteFile, ReadingBeyondItsEndIsAnError) {
  DataServer server(Serving(kContent));
  ReadProgress progress;
  progress.remote = std::make_shared<Remote>(QuickOptions());
  const auto file = DataFile::Open(server.url("/a"), &progress);
  ASSERT_OK(file);
  std::string bytes(2, '\0');
  EXPECT_THAT(file->ReadAt(20'499, bytes),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("ends at byte 20500")));
}

TEST(RemoteFile, IsNotReadWhereOnlyLocalFilesAre) {
  ReadProgress progress;
  EXPECT_THAT(
      DataFile::Open("https://example.com/a", &progress),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("https://example.com/a: is a URL")));
}

std::vector<fs::path> BlocksIn(const fs::path& folder) {
  std::vector<fs::path> blocks;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) blocks.push_back(entry.path());
  }
  return blocks;
}

RemoteOptions Cached(const TempDir& dir) {
  RemoteOptions options = QuickOptions();
  options.cache = dir / "cache";
  return options;
}

TEST(RemoteCache, ASecondReadFetchesNothingButTheVersion) {
  const TempDir dir;
  DataServer server(Serving(kContent));
  EXPECT_EQ(*ReadAll(server.url("/a"), Cached(dir)), kContent);
  const size_t first = server.seen().size();
  EXPECT_EQ(first, 22u);
  EXPECT_EQ(*ReadAll(server.url("/a"), Cached(dir)), kContent);
  EXPECT_EQ(server.seen().size(), first + 1);
  EXPECT_EQ(BlocksIn(dir / "cache").size(), 21u);
  struct stat info {};
  ASSERT_EQ(stat((dir / "cache").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST(RemoteCache, AnotherVersionIsNotTakenFromIt) {
  const TempDir dir;
  std::string content = kContent, etag = "\"one\"";
  DataServer server(
      [&](const Request& request) { return DataServer::Serve(request, content, etag); });
  EXPECT_EQ(*ReadAll(server.url("/a"), Cached(dir)), content);
  content[100] = '#';
  etag = "\"two\"";
  EXPECT_EQ(*ReadAll(server.url("/a"), Cached(dir)), content);
}

TEST(RemoteCache, WhatHasNoVersionIsNotKept) {
  const TempDir dir;
  DataServer server(
      [](const Request& request) { return DataServer::Serve(request, kContent, ""); });
  EXPECT_EQ(*ReadAll(server.url("/a"), Cached(dir)), kContent);
  EXPECT_FALSE(fs::exists(dir / "cache"));
}

TEST(RemoteCache, ADamagedBlockIsFetchedAgain) {
  const TempDir dir;
  DataServer server(Serving(kContent));
  EXPECT_EQ(*ReadAll(server.url("/a"), Cached(dir)), kContent);
  const std::vector<fs::path> blocks = BlocksIn(dir / "cache");
  std::fstream(blocks[0], std::ios::in | std::ios::out | std::ios::binary).seekp(50).put('#');
  fs::resize_file(blocks[1], 10);
  fs::resize_file(blocks[2], 0);
  const size_t before = server.seen().size();
  EXPECT_EQ(*ReadAll(server.url("/a"), Cached(dir)), kContent);
  EXPECT_EQ(server.seen().size(), before + 4);
}

TEST(RemoteCache, StaysBelowItsSizeAndKeepsWhatWasUsedLast) {
  const TempDir dir;
  BlockCache cache(dir / "cache", 10'240);
  const std::string block(1000, 'x');
  for (int i = 0; i < 30; ++i) {
    cache.Keep(absl::StrCat("block ", i), block);
    EXPECT_EQ(cache.Find("block 0").has_value(), true) << "it is used all the time: " << i;
    int64_t total = 0;
    for (const fs::path& path : BlocksIn(dir / "cache")) total += fs::file_size(path);
    EXPECT_LE(total, 10'240);
    absl::SleepFor(absl::Milliseconds(5));  // times of files differ
  }
  EXPECT_TRUE(cache.Find("block 29").has_value());
  EXPECT_FALSE(cache.Find("block 1").has_value());
  cache.Keep("large", std::string(20'000, 'x'));
  EXPECT_FALSE(cache.Find("large").has_value());
}

TEST(RemoteCache, AFolderThatCannotBeWrittenIsNoError) {
  const TempDir dir;
  Write(dir / "cache", "a file");
  DataServer server(Serving(kContent));
  EXPECT_EQ(*ReadAll(server.url("/a"), Cached(dir)), kContent);
}

// Every third request fails.
DataServer::Handler Flaky(const fs::path& folder) {
  return [folder](const Request& request) {
    if (request.number % 3 == 0) return Reply{.status = 503};
    std::ifstream in(folder / request.target.substr(1), std::ios::binary);
    if (!in) return Reply{.status = 404};
    return DataServer::Serve(request, std::string(std::istreambuf_iterator<char>(in), {}));
  };
}

std::vector<std::string> Documents(v1::DataSource source, const std::string& path) {
  DocumentOptions options{.source = source, .files = {path}, .separator = 0};
  ReadProgress progress;
  RemoteOptions remote = QuickOptions();
  remote.block_bytes = 32768;
  progress.remote = std::make_shared<Remote>(remote);
  DocumentReader reader(options, &progress);
  std::vector<std::string> texts;
  Document document;
  while (true) {
    const auto found = reader.Next(&document);
    EXPECT_OK(found);
    if (!found.ok() || !*found) return texts;
    texts.push_back(document.text);
    for (const Token token : document.tokens) texts.back() += absl::StrCat(token, ",");
  }
}

TEST(RemoteDocuments, AreThoseOfTheLocalFile) {
  const TempDir dir;
  const std::string lines = ManyLines(200);
  Write(dir / "a.txt", lines);
  Write(dir / "a.jsonl", lines);
  Write(dir / "a.jsonl.gz", Gzip(lines));
  Write(dir / "a.jsonl.zst", Zstd(lines));
  std::string tokens = Content(40'000);
  for (size_t i = 0; i < tokens.size(); i += 500) tokens[i] = tokens[i + 1] = '\0';
  Write(dir / "a.bin", tokens);
  DataServer server(Flaky(dir.path()));
  for (const char* name : {"a.txt", "a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.bin"}) {
    const auto source = std::string(name) == "a.bin" ? v1::DATA_SOURCE_TOKENS : TextSourceOf(name);
    const auto local = Documents(source, dir / name);
    EXPECT_FALSE(local.empty());
    EXPECT_EQ(Documents(source, server.url("/") + name), local) << name;
  }
}

TEST(RemoteDocuments, AMegatronFileHasItsIndexBesideIt) {
  DataServer server([](const Request& request) {
    return DataServer::Serve(
        request, request.target == "/a.idx" ? "no index, but 34 bytes or more…" : kContent);
  });
  ReadProgress progress;
  progress.remote = std::make_shared<Remote>(QuickOptions());
  EXPECT_THAT(TokenReader::Open(server.url("/a.bin"), &progress),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("/a.idx"), HasSubstr("does not begin with MMIDIDX"))));
}

// A store whose keys may not be listed answers 403 for an object that is not there.
TEST(RemoteDocuments, AnIndexThatMayNotBeSeenIsNeededOnlyByAFileWithoutAHeader) {
  // llm.c: 256 int32, of which the first three are a magic number, a version and the tokens.
  std::string with_header(1'024 + 2'000, '\1');
  const int32_t head[] = {20240520, 1, 1'000};
  std::memcpy(with_header.data(), head, sizeof(head));
  DataServer server([&](const Request& request) -> Reply {
    if (request.target.ends_with(".idx")) return {.status = 403};
    return DataServer::Serve(request, request.target == "/c.bin" ? with_header : kContent);
  });
  ReadProgress progress;
  progress.remote = std::make_shared<Remote>(QuickOptions());
  EXPECT_OK(TokenReader::Open(server.url("/c.bin"), &progress));
  EXPECT_THAT(TokenReader::Open(server.url("/raw.bin"), &progress),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       AllOf(HasSubstr("/raw.idx"), HasSubstr("s3:ListBucket"))));
}

v1::DataSpec Spec(const std::string& path) {
  v1::DataSpec spec;
  spec.set_source(v1::DATA_SOURCE_JSONL);
  spec.add_path(path);
  spec.set_tokenizer(v1::TOKENIZER_BYTE);
  spec.set_val_fraction(0.1);
  return spec;
}

TEST(RemoteCorpus, HasTheFingerprintOfALocalCopy) {
  const TempDir dir;
  Write(dir / "a.jsonl", ManyLines(200));
  DataServer server(Flaky(dir.path()));
  const auto local = LoadCorpus(Spec(dir / "a.jsonl"), 256, absl::Seconds(20));
  ASSERT_OK(local);
  RemoteOptions options = QuickOptions();
  options.block_bytes = 65'536;
  const auto remote = LoadCorpus(Spec(server.url("/a.jsonl")), 256, absl::Seconds(20), {}, {},
                                 std::make_shared<Remote>(options));
  ASSERT_OK(remote);
  EXPECT_EQ(remote->info.fingerprint, local->info.fingerprint);
  EXPECT_EQ(remote->info.tokens, local->info.tokens);
  EXPECT_EQ(remote->info.val_tokens, local->info.val_tokens);
}

TEST(RemoteCorpus, AFileThatIsNoParquetIsRefusedBeforeAnotherIsRead) {
  const TempDir dir;
  Write(dir / "a.jsonl", ManyLines(200));
  DataServer server(Flaky(dir.path()));
  v1::DataSpec mixed;
  mixed.set_tokenizer(v1::TOKENIZER_BYTE);
  for (const v1::DataSource source : {v1::DATA_SOURCE_JSONL, v1::DATA_SOURCE_PARQUET}) {
    v1::MixSource* const mix = mixed.add_mix();
    mix->set_name(absl::StrCat("part-", source));
    mix->set_source(source);
    mix->add_path(server.url("/a.jsonl"));
    mix->set_weight(1);
  }
  const auto corpus =
      LoadCorpus(mixed, 256, absl::Seconds(20), {}, {}, std::make_shared<Remote>(QuickOptions()));
  EXPECT_THAT(corpus, StatusIs(absl::StatusCode::kInvalidArgument,
                               AllOf(HasSubstr("data.mix[1].path[0]: "),
                                     HasSubstr("/a.jsonl: does not begin with PAR1"))));
  for (const std::string& range : RangesOf(server)) {
    EXPECT_THAT(range, testing::AnyOf("0-0", "0-3", "0-1023"));
  }
}

TEST(RemoteCorpus, AsksForAllFilesBeforeItReadsOne) {
  const TempDir dir;
  Write(dir / "a.jsonl", ManyLines(200));
  Write(dir / "empty.jsonl", "");
  DataServer server(Flaky(dir.path()));
  const auto load = [&](const char* first, const char* second) {
    v1::DataSpec spec = Spec(server.url(first));
    spec.add_path(server.url(second));
    return LoadCorpus(spec, 256, absl::Seconds(20), {}, {},
                      std::make_shared<Remote>(QuickOptions()))
        .status();
  };
  EXPECT_THAT(
      load("/a.jsonl", "/missing.jsonl").message(),
      AllOf(HasSubstr("data.path[1]: "), HasSubstr("/missing.jsonl"), HasSubstr("HTTP 404")));
  EXPECT_THAT(load("/empty.jsonl", "/empty.jsonl").message(),
              AllOf(HasSubstr("data.path[0]: "), HasSubstr("/empty.jsonl: is empty")));
  for (const std::string& range : RangesOf(server)) EXPECT_EQ(range, "0-0");
  EXPECT_OK(load("/empty.jsonl", "/a.jsonl"));
}

}  // namespace
}  // namespace nsa::train
