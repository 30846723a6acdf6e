// What a user sees when the data of a stream is wrong, changes or does not come.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "common/base/fd.h"
#include "common/base/reason.h"
#include "tests/testing/net/data_server.h"
#include "tests/worker/train/data/stream/stream_jobs.h"
#include "worker/train/data/prepared/prepare.h"

namespace nsa::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::unique_ptr<DataLoader> Open(const LoaderOptions& options) {
  auto loader = DataLoader::Open(options);
  EXPECT_OK(loader);
  return *std::move(loader);
}

// How many batches come before the error, and the error.
std::pair<int, absl::Status> ReadToTheError(DataLoader* loader) {
  for (int batches = 0; batches < 10'000; ++batches) {
    const auto batch = loader->Next();
    if (!batch.ok()) return {batches, batch.status()};
    if (loader->fell_back()) return {batches, absl::OkStatus()};
  }
  return {10'000, absl::OkStatus()};
}

TEST(StreamFaults, ABadLineEndsTheRunAtTheSameRowOnEachRank) {
  const TempDir dir;
  const Texts texts = SomeTexts(1, 60);
  LoaderOptions options = StreamOn(dir, texts, 10);
  std::string lines = LinesOf(texts[0]);
  size_t at = 0;
  for (int line = 1; line < 50; ++line) at = lines.find('\n', at) + 1;
  Write(options.spec.data().path(0), lines.insert(at, "{\"text\": 5}\n"));
  std::vector<std::pair<int, absl::Status>> ends;
  for (const int32_t world : {1, 4}) {
    for (const auto& rank : OpenRanks(options, world)) ends.push_back(ReadToTheError(rank.get()));
  }
  for (const auto& [batches, status] : ends) {
    EXPECT_EQ(batches, ends[0].first);
    EXPECT_GT(batches, 5) << "complete windows are given";
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("part-0.jsonl:50: ")));
  }
  options.spec.mutable_data()->set_allow_synthetic_fallback(true);
  std::string why;
  options.on_fallback = [&](const std::string& text) { why = text; };
  const auto loader = Open(options);
  EXPECT_EQ(ReadToTheError(loader.get()).first, ends[0].first);
  EXPECT_THAT(why, HasSubstr("part-0.jsonl:50: "));
  const v1::DataCursor cursor = loader->cursor();
  EXPECT_EQ(cursor.stream_size(), 1) << "so that a later start may go on in the data";
  EXPECT_LE(cursor.stream(0).sequence(), cursor.sequence());

  // That start reads the rows that the fallback replaced, and those after them.
  Write(options.spec.data().path(0), LinesOf(texts[0]));
  LoaderOptions repaired = options;
  repaired.spec.mutable_data()->set_allow_synthetic_fallback(false);
  v1::DataCursor there = cursor;
  there.set_fingerprint(Open(repaired)->cursor().fingerprint());
  const Loaders resumed = OpenRanks(repaired, 1, &there);
  const std::vector<TokenRow> all = PlainRows(texts, 10, 400);
  const std::vector<TokenRow> rows = Take(resumed, 20);
  EXPECT_TRUE(std::equal(rows.begin(), rows.end(), all.begin() + there.sequence()));
}

TEST(StreamFaults, AMissingFileIsToldByItsName) {
  const TempDir dir;
  LoaderOptions options = StreamOn(dir, SomeTexts(3, 10), 5);
  std::filesystem::remove(options.spec.data().path(1));
  EXPECT_THAT(DataLoader::Open(options),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("part-1.jsonl")));
}

TEST(StreamFaults, AFileThatChangesIsAnError) {
  const TempDir dir;
  const LoaderOptions options = StreamOn(dir, SomeTexts(2, 400), 20);
  for (const bool replaced : {false, true}) {
    const auto loader = Open(options);
    ASSERT_OK(loader->Next());
    for (const std::string& path : options.spec.data().path()) {
      if (replaced) {
        std::filesystem::copy(path, path + ".new");
        std::filesystem::rename(path + ".new", path);  // the same bytes: it may be other text
      } else {
        std::ofstream(path, std::ios::app) << "{\"text\": \"more\"}\n";
      }
    }
    EXPECT_THAT(ReadToTheError(loader.get()).second,
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("changed while it was streamed"),
                               HasSubstr("do not change data files during a run"))));
  }
}

TEST(StreamFaults, ACheckpointOfOtherDataOrAnotherWindowIsRefused) {
  const TempDir dir;
  const Texts texts = SomeTexts(3, 20);
  LoaderOptions options = StreamOn(dir, texts, 5);
  const auto loader = Open(options);
  for (int i = 0; i < 9; ++i) ASSERT_OK(loader->Next());
  const v1::DataCursor cursor = loader->cursor();

  options.spec.mutable_data()->set_shuffle_window(6);
  EXPECT_THAT(Open(options)->Seek(cursor), StatusIs(absl::StatusCode::kFailedPrecondition));
  options.spec.mutable_data()->set_shuffle_window(5);
  options.spec.mutable_data()->set_stream(false);
  EXPECT_THAT(Open(options)->Seek(cursor), StatusIs(absl::StatusCode::kFailedPrecondition));
  options.spec.mutable_data()->set_stream(true);
  EXPECT_OK(Open(options)->Seek(cursor));
  (*options.spec.mutable_data()->mutable_except())["text"].add_value("none of them");
  EXPECT_THAT(Open(options)->Seek(cursor), StatusIs(absl::StatusCode::kFailedPrecondition));
  options.spec.mutable_data()->clear_except();

  const auto refused = [&](const std::function<void(v1::DataCursor*)>& change) {
    v1::DataCursor bad = cursor;
    change(&bad);
    const auto fresh = Open(options);
    EXPECT_THAT(fresh->Seek(bad), testing::Not(StatusIs(absl::StatusCode::kOk)));
    // The loader begins at the beginning, as for a job that goes on with other data.
    const auto batch = fresh->Next();
    ASSERT_OK(batch);
    EXPECT_EQ(batch->tokens, Open(options)->Next()->tokens);
  };
  refused([](v1::DataCursor* c) { c->clear_stream(); });
  refused([](v1::DataCursor* c) { *c->add_stream() = c->stream(0); });
  refused([](v1::DataCursor* c) { c->mutable_stream(0)->set_file(3); });
  refused([](v1::DataCursor* c) { c->mutable_stream(0)->set_file(-1); });
  refused([](v1::DataCursor* c) { c->mutable_stream(0)->set_document(-1); });
  refused([](v1::DataCursor* c) { c->mutable_stream(0)->set_token(-1); });
  refused([](v1::DataCursor* c) { c->mutable_stream(0)->set_epoch(-1); });
  refused([](v1::DataCursor* c) { c->mutable_stream(0)->set_source(1); });
  refused([](v1::DataCursor* c) { c->mutable_stream(0)->set_sequence(c->sequence() + 1); });

  // Files of the same sizes and other documents: what can be seen is seen.
  v1::DataCursor beyond = cursor;
  beyond.mutable_stream(0)->set_token(100'000);
  const auto fresh = Open(options);
  ASSERT_OK(fresh->Seek(beyond));
  EXPECT_THAT(fresh->Next(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                      HasSubstr("where the checkpoint has more")));
}

TEST(StreamFaults, TooLittleDataIsRefused) {
  const TempDir dir;
  LoaderOptions options = StreamOn(dir, {{"short"}}, 5);
  EXPECT_THAT(Open(options)->Next(), StatusIs(absl::StatusCode::kInvalidArgument,
                                              HasSubstr("data.path: 6 tokens for training")));
  Write(options.spec.data().path(0), "\n");
  EXPECT_THAT(Open(options)->Next(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 tokens")));

  options = StreamOn(dir, SomeTexts(1, 6), 5);
  (*options.spec.mutable_data()->mutable_where())["kind"].add_value("x");
  EXPECT_THAT(Open(options)->Next(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("data.where.kind: none of 6 records has a text, number or bool")));

  options = StreamOn(dir, SomeTexts(1, 6), 5);
  options.spec.mutable_data()->set_val_fraction(1e-9);
  EXPECT_THAT(DataLoader::Open(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("holds out 0 tokens")));
}

TEST(StreamFaults, PreparedDataIsNotStreamed) {
  const TempDir dir;
  LoaderOptions options = StreamOn(dir, SomeTexts(1, 6), 5);
  ReadProgress progress;
  ASSERT_OK(PrepareData({.spec = options.spec, .out = dir / "out"}, &progress));
  const v1::JobSpec prepared = JobOnPrepared(options.spec, dir / "out");
  EXPECT_FALSE(prepared.data().stream());
  options.spec = prepared;
  EXPECT_OK(DataLoader::Open(options));
  options.spec.mutable_data()->set_stream(true);
  EXPECT_THAT(DataLoader::Open(options), StatusIs(absl::StatusCode::kInvalidArgument,
                                                  HasSubstr("train.tokens: is prepared data")));
}

// A file that sends nothing: the error of the loader, after data.loader_timeout_seconds. Bytes
// that come slowly are no stall.
TEST(StreamFaults, AStallIsTold) {
  const TempDir dir;
  LoaderOptions options = StreamOn(dir, {}, 1000, /*batch_size=*/1);
  options.spec.mutable_data()->set_loader_timeout_seconds(3);
  const std::string pipe = dir / "pipe.jsonl";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  options.spec.mutable_data()->add_path(pipe);
  const auto loader = Open(options);
  std::promise<void> stalled;
  std::thread writer([&] {
    const Fd fd(open(pipe.c_str(), O_WRONLY | O_CLOEXEC));
    const std::string line = LinesOf({std::string(100, 'x')});
    for (int i = 0; i < 6; ++i) {
      EXPECT_EQ(write(fd.get(), line.data(), line.size()), std::ssize(line));
      std::this_thread::sleep_for(std::chrono::milliseconds(700));
    }
    stalled.get_future().wait();  // a pipe that is closed would be the end of the data
  });
  const absl::Time began = absl::Now();
  EXPECT_EQ(ReasonOf(loader->Next().status()), Reason::kDataStalled);
  stalled.set_value();
  EXPECT_GT(absl::Now() - began, absl::Seconds(4)) << "while bytes came";
  writer.join();
}

// A server that answers for one file with ranges, until the file changes.
TEST(StreamFaults, AFileAtAUrlThatChangesIsAnError) {
  unsetenv("http_proxy");
  const Texts texts = SomeTexts(1, 500'000);
  const std::string content = LinesOf(texts[0]);
  std::atomic<bool> changed = false;
  DataServer server([&](const DataServer::Request& request) {
    return DataServer::Serve(request, content, changed ? "\"two\"" : "\"one\"");
  });
  const TempDir dir;
  LoaderOptions options = StreamOn(dir, {}, 50);
  options.spec.mutable_data()->add_path(server.url("/a.jsonl"));
  options.spec.mutable_train()->set_seq_len(4096);
  options.allowed_urls = {"*"};
  setenv("NSA_DATA_CACHE_DIR", dir.path().c_str(), 1);
  const auto loader = Open(options);
  std::vector<TokenRow> rows;
  for (int i = 0; i < 50; ++i) ASSERT_OK(loader->Next());
  changed = true;
  EXPECT_THAT(ReadToTheError(loader.get()).second,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("/a.jsonl"), HasSubstr("changed while it was read"))));
  const std::string one = loader->cursor().fingerprint();
  EXPECT_NE(Open(options)->cursor().fingerprint(), one) << "the ETag counts";
  unsetenv("NSA_DATA_CACHE_DIR");
}

}  // namespace
}  // namespace nsa::train
