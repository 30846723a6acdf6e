// Data from a web server is prepared as local data is, and can then be trained on without one.
#include <atomic>

#include "common/job/data/prepared.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/train/data/prepared/prepared_jobs.h"
#include "tests/worker/train/data/remote/remote_fixture.h"
#include "worker/train/data/corpus.h"

namespace nsa::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Reply = DataServer::Reply;
using Request = DataServer::Request;

v1::JobSpec JobOnFile(const std::string& path) {
  return JobOn([&](v1::DataSpec* data) {
    data->set_source(v1::DATA_SOURCE_JSONL);
    data->add_path(path);
    data->set_val_fraction(0.1);
  });
}

absl::StatusOr<v1::PreparedData> PrepareRemotely(const std::filesystem::path& out,
                                                 const v1::JobSpec& spec,
                                                 const std::string& endpoint = "") {
  ReadProgress progress;
  RemoteOptions options = QuickOptions();
  options.endpoint = endpoint;
  options.block_bytes = 4096;
  progress.remote = std::make_shared<Remote>(options);
  return PrepareData({.spec = spec, .out = out}, &progress);
}

TEST(PrepareRemote, GivesTheShardsOfALocalCopyAndNamesItsVersionButNoSecret) {
  const TempDir dir;
  const std::string lines = Lines(300);
  Write(dir / "a.jsonl", lines);
  DataServer server([&](const Request& request) {
    if (request.number % 3 == 0) return Reply{.status = 503};
    return DataServer::Serve(request, lines, "\"version 7\"");
  });
  ASSERT_OK(PrepareInto(dir / "local", JobOnFile(dir / "a.jsonl")));
  ASSERT_OK(PrepareRemotely(dir / "remote", JobOnFile(server.url("/a.jsonl?key=secret"))));
  const auto local = ReadPrepared(dir / "local/train.tokens");
  const auto remote = ReadPrepared(dir / "remote/train.tokens");
  ASSERT_OK(local);
  ASSERT_OK(remote);
  EXPECT_EQ(remote->tokens(), local->tokens());
  EXPECT_EQ(remote->documents(), local->documents());
  ASSERT_EQ(remote->sources_size(), 1);
  EXPECT_EQ(remote->sources(0).path(), server.url("/a.jsonl"));
  EXPECT_EQ(remote->sources(0).bytes(), static_cast<int64_t>(lines.size()));
  EXPECT_EQ(remote->sources(0).version(), "\"version 7\"");
  // Without the server: the corpus of the local file, its fingerprint too.
  const auto corpus_of = [](const v1::JobSpec& spec) {
    const v1::JobSpec full = Full(spec);
    return LoadCorpus(full.data(), 256, absl::Seconds(20));
  };
  const auto from_file = corpus_of(JobOnFile(dir / "a.jsonl"));
  const auto prepared =
      corpus_of(JobOnPrepared(JobOnFile(server.url("/a.jsonl?key=secret")), dir / "remote"));
  ASSERT_OK(from_file);
  ASSERT_OK(prepared);
  EXPECT_EQ(prepared->info.fingerprint, from_file->info.fingerprint);
  EXPECT_EQ(prepared->info.val_tokens, from_file->info.val_tokens);
}

TEST(PrepareRemote, AFileThatChangesWhileItIsReadLeavesNothing) {
  const TempDir dir;
  const std::string lines = Lines(300);
  DataServer server([&](const Request& request) {
    return DataServer::Serve(request, lines, request.number < 4 ? "\"one\"" : "\"two\"");
  });
  EXPECT_THAT(PrepareRemotely(dir / "out", JobOnFile(server.url("/a.jsonl"))),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("/a.jsonl")));
  EXPECT_FALSE(std::filesystem::exists(dir / "out"));
  EXPECT_FALSE(std::filesystem::exists(dir / "out.partial"));
}

// Two files of a branch that is elsewhere whenever one asks.
TEST(PrepareRemote, NamesTheCommitAtWhichABranchOfTheHubWasRead) {
  const TempDir dir;
  std::atomic<int> asked = 0;
  const std::string commit(40, 'c');
  DataServer server([&](const Request& request) {
    if (request.target == "/api/datasets/o/n/revision/v1?expand=sha") {
      const std::string now(40, static_cast<char>('c' + asked++));
      return Reply{.body = absl::StrCat(R"({"sha": ")", now, R"("})")};
    }
    const bool there = request.target.starts_with("/datasets/o/n/resolve/" + commit + "/");
    return there ? DataServer::Serve(request, Lines(300)) : Reply{.status = 404};
  });
  v1::JobSpec spec = JobOnFile("hf://datasets/o/n@v1/a.jsonl");
  spec.mutable_data()->add_path("hf://datasets/o/n@v1/b.jsonl");
  spec.mutable_data()->add_path(absl::StrCat("hf://datasets/o/n@", commit, "/a.jsonl"));
  ASSERT_OK(PrepareRemotely(dir / "out", spec, server.url("")));
  const auto manifest = ReadPrepared(dir / "out/train.tokens");
  ASSERT_OK(manifest);
  ASSERT_EQ(manifest->sources_size(), 3);
  for (const v1::PreparedSource& source : manifest->sources()) EXPECT_EQ(source.commit(), commit);
  EXPECT_EQ(asked, 1);
}

TEST(PrepareRemote, AMissingFileIsSaidBeforeAnythingIsWritten) {
  const TempDir dir;
  DataServer server([](const Request&) { return Reply{.status = 404}; });
  EXPECT_THAT(PrepareRemotely(dir / "out", JobOnFile(server.url("/a.jsonl"))),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("data.path[0]: "), HasSubstr("HTTP 404"))));
  EXPECT_FALSE(std::filesystem::exists(dir / "out.partial"));
}

}  // namespace
}  // namespace nsa::train
