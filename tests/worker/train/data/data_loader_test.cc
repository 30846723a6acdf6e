#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/fd.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "worker/train/data/loader.h"

namespace nsa::train {
namespace {

using testing::HasSubstr;

// Every token of row i is i. Reading fails after `fail_at` reads and hangs after `hang_at` reads.
class ScriptedRows final : public RowSource {
 public:
  explicit ScriptedRows(int64_t rows) : rows_(rows) {}
  int64_t rows() const override { return rows_; }
  int32_t separator() const override { return 999; }
  v1::DataSource source() const override { return v1::DATA_SOURCE_TOKENS; }
  absl::Status Read(int64_t row, std::span<int32_t> tokens) override {
    const int64_t read = reads_++;
    while (read >= hang_at && !released) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (read >= fail_at) return absl::DataLossError("shard 7: checksum is wrong");
    for (int32_t& token : tokens) token = static_cast<int32_t>(row);
    return absl::OkStatus();
  }

  std::atomic<int64_t> fail_at{1 << 30};
  std::atomic<int64_t> hang_at{1 << 30};
  std::atomic<bool> released{false};

 private:
  const int64_t rows_;
  std::atomic<int64_t> reads_{0};
};

LoaderOptions Options(int32_t batch_size = 2) {
  LoaderOptions options;
  v1::TrainSpec* train = options.spec.mutable_train();
  train->set_seq_len(4);
  train->set_batch_size(batch_size);
  train->set_accumulate_grad_batches(2);
  train->set_eval_batches(3);
  train->set_seed(11);
  options.spec.mutable_data()->set_source(v1::DATA_SOURCE_TOKENS);
  options.spec.mutable_data()->set_loader_timeout_seconds(5);
  options.vocab = 1000;
  return options;
}

std::unique_ptr<DataLoader> Loader(const LoaderOptions& options, std::shared_ptr<RowSource> rows) {
  CorpusInfo info;
  info.fingerprint = "f00d";
  auto loader = DataLoader::FromRows(options, std::move(rows), nullptr, info);
  EXPECT_OK(loader);
  return *std::move(loader);
}

TEST(DataLoader, GoesOnFromASavedCursorWithTheSameRows) {
  auto whole = Loader(Options(), std::make_shared<ScriptedRows>(37));
  std::vector<std::vector<int32_t>> expected;
  std::vector<v1::DataCursor> cursors;
  for (int i = 0; i < 60; ++i) {  // three epochs; some batches contain the end of an epoch
    cursors.push_back(whole->cursor());
    auto batch = whole->Next();
    ASSERT_OK(batch);
    expected.push_back(batch->tokens);
  }
  for (const int from : {0, 2, 18, 36, 58}) {
    auto resumed = Loader(Options(), std::make_shared<ScriptedRows>(37));
    ASSERT_OK(resumed->Seek(cursors[from]));
    EXPECT_EQ(resumed->cursor().SerializeAsString(), cursors[from].SerializeAsString());
    for (int i = from; i < 60; ++i) {
      auto batch = resumed->Next();
      ASSERT_OK(batch);
      ASSERT_EQ(batch->tokens, expected[i]) << "batch " << i << " from " << from;
    }
  }
}

TEST(DataLoader, ShowsEveryRowOnceAnEpoch) {
  auto loader = Loader(Options(), std::make_shared<ScriptedRows>(40));
  std::vector<int> seen(40);
  for (int i = 0; i < 20; ++i) {
    auto batch = loader->Next();
    ASSERT_OK(batch);
    EXPECT_EQ(batch->epoch, 0);
    ++seen[batch->tokens[0]];
    ++seen[batch->tokens[4]];
  }
  EXPECT_THAT(seen, testing::Each(1));
  EXPECT_EQ(loader->cursor().epoch(), 1);
  EXPECT_EQ(loader->cursor().sequence(), 0);
}

TEST(DataLoader, RefusesTheCursorOfAnotherCorpus) {
  auto loader = Loader(Options(), std::make_shared<ScriptedRows>(37));
  v1::DataCursor cursor;
  cursor.set_fingerprint("beef");
  EXPECT_THAT(loader->Seek(cursor),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("f00d")));
}

TEST(DataLoader, StopsBeforeTheFirstStepThatCannotBeDoneWhole) {
  LoaderOptions options = Options();
  options.spec.mutable_data()->set_on_exhausted(v1::ON_EXHAUSTED_STOP);
  auto loader = Loader(
      options, std::make_shared<ScriptedRows>(11));  // a step takes 4 rows: enough for 2 steps
  for (int i = 0; i < 4; ++i) {
    EXPECT_FALSE(loader->exhausted()) << i;
    ASSERT_OK(loader->Next());
  }
  EXPECT_TRUE(loader->exhausted());
  EXPECT_THAT(loader->Next(), StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("DATA_EXHAUSTED")));
  EXPECT_THAT(loader->Next(), StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_EQ(loader->cursor().sequence(), 8);
}

TEST(DataLoader, StopsAtTheVeryEndOfAnEpoch) {
  LoaderOptions options = Options();
  options.spec.mutable_data()->set_on_exhausted(v1::ON_EXHAUSTED_STOP);
  options.spec.mutable_data()->set_allow_synthetic_fallback(
      true);  // the end of the data is not a failure
  auto loader = Loader(options, std::make_shared<ScriptedRows>(8));
  for (int i = 0; i < 4; ++i) ASSERT_OK(loader->Next());
  EXPECT_THAT(loader->Next(), StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_FALSE(loader->fell_back());
}

// Longer than a thread waits for a core on a busy machine.
constexpr double kTimeout = 2;

TEST(DataLoader, AStalledSourceFailsWithDataStalled) {
  LoaderOptions options = Options();
  options.spec.mutable_data()->set_loader_timeout_seconds(kTimeout);
  auto rows = std::make_shared<ScriptedRows>(100);
  rows->hang_at = 5;
  auto loader = Loader(options, rows);
  ASSERT_OK(loader->Next());
  ASSERT_OK(loader->Next());
  EXPECT_THAT(loader->Next(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("DATA_STALLED")));
  rows->released = true;
}

TEST(DataLoader, AFailingSourceFailsTheRun) {
  auto rows = std::make_shared<ScriptedRows>(100);
  rows->fail_at = 4;
  auto loader = Loader(Options(), rows);
  ASSERT_OK(loader->Next());
  ASSERT_OK(loader->Next());
  EXPECT_THAT(loader->Next(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("shard 7")));
  EXPECT_FALSE(loader->fell_back());
}

TEST(DataLoader, AFailingSourceIsReplacedBySyntheticTokensOnlyWhereTheJobSaysSo) {
  for (const bool hangs : {false, true}) {
    LoaderOptions options = Options();
    options.spec.mutable_data()->set_allow_synthetic_fallback(true);
    options.spec.mutable_data()->set_loader_timeout_seconds(kTimeout);
    std::vector<std::string> reasons;
    options.on_fallback = [&](const std::string& why) { reasons.push_back(why); };
    auto rows = std::make_shared<ScriptedRows>(100);
    (hangs ? rows->hang_at : rows->fail_at) = 4;
    auto loader = Loader(options, rows);
    EXPECT_EQ(loader->Next()->source, v1::DATA_SOURCE_TOKENS);
    EXPECT_EQ(loader->Next()->source, v1::DATA_SOURCE_TOKENS);
    EXPECT_THAT(reasons, testing::IsEmpty());
    for (int i = 0; i < 10; ++i) {
      auto batch = loader->Next();
      ASSERT_OK(batch);
      EXPECT_EQ(batch->source, v1::DATA_SOURCE_SYNTHETIC);
    }
    EXPECT_TRUE(loader->fell_back());
    ASSERT_EQ(reasons.size(), 1u);
    EXPECT_THAT(reasons[0], HasSubstr(hangs ? "DATA_STALLED" : "shard 7"));
    // The cursor still names the real data, so a later run can continue in it.
    EXPECT_EQ(loader->cursor().fingerprint(), "f00d");
    rows->released = true;
  }
}

TEST(DataLoader, AnUnreadableFileIsAnErrorUnlessTheJobAllowsTheFallback) {
  LoaderOptions options = Options();
  options.spec.mutable_data()->set_source(v1::DATA_SOURCE_TEXT);
  options.spec.mutable_data()->add_path("/nonexistent/corpus.txt");
  EXPECT_THAT(DataLoader::Open(options), StatusIs(absl::StatusCode::kNotFound));
  options.spec.mutable_data()->set_allow_synthetic_fallback(true);
  std::string reason;
  options.on_fallback = [&](const std::string& why) { reason = why; };
  auto loader = DataLoader::Open(options);
  ASSERT_OK(loader);
  EXPECT_THAT(reason, HasSubstr("/nonexistent/corpus.txt"));
  EXPECT_EQ((*loader)->Next()->source, v1::DATA_SOURCE_SYNTHETIC);
  v1::DataCursor cursor;  // of an earlier run that could read its files
  cursor.set_epoch(1);
  cursor.set_sequence(12);
  cursor.set_fingerprint("f00d");
  auto resumed = DataLoader::Open(options);
  ASSERT_OK(resumed);
  EXPECT_OK((*resumed)->Seek(cursor));
  EXPECT_EQ((*resumed)->cursor().fingerprint(), "f00d");
}

TEST(DataLoader, APipeThatNobodyWritesStallsTheStart) {
  const TempDir dir;
  const std::string pipe = dir / "pipe.jsonl";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  LoaderOptions options = Options();
  options.spec.mutable_data()->set_source(v1::DATA_SOURCE_JSONL);
  options.spec.mutable_data()->set_loader_timeout_seconds(0.1);
  options.spec.mutable_data()->add_path(pipe);
  EXPECT_THAT(DataLoader::Open(options),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("DATA_STALLED")));
  Fd(open(pipe.c_str(), O_WRONLY));  // lets the reading thread end
}

TEST(DataLoader, ReadsTextAndValidatesOnDisjointRowsThatAreAlwaysTheSame) {
  const TempDir dir;
  {
    std::ofstream file(dir / "a.jsonl");
    for (int i = 0; i < 200; ++i) file << "{\"text\": \"this is document " << i << "\"}\n";
  }
  LoaderOptions options = Options();
  v1::DataSpec* data = options.spec.mutable_data();
  data->set_source(v1::DATA_SOURCE_JSONL);
  data->add_path(dir / "a.jsonl");
  data->set_val_fraction(0.2);
  data->set_document_mask(true);
  options.vocab = 256;
  auto loader = DataLoader::Open(options);
  ASSERT_OK(loader);
  EXPECT_EQ((*loader)->eval_batches(), 3);
  const auto first = (*loader)->Eval(1);
  ASSERT_OK(first);
  EXPECT_EQ(first->doc_start.size(), first->tokens.size());
  for (int i = 0; i < 5; ++i) ASSERT_OK((*loader)->Next());
  EXPECT_EQ((*loader)->Eval(1)->tokens, first->tokens);
  EXPECT_NE((*loader)->Eval(2)->tokens, first->tokens);
  EXPECT_THAT((*loader)->Eval(3), StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_GT((*loader)->info().val_documents, 10);
}

// Two groups of two ranks: each group has its rows, each rank its half of their tokens and targets,
// and all documents of the rows.
TEST(DataLoader, RanksThatShareRowsHaveEqualPartsOfTheirTokens) {
  const TempDir dir;
  {
    std::ofstream file(dir / "a.jsonl");
    for (int i = 0; i < 200; ++i) file << "{\"text\": \"doc " << i << "\"}\n";
  }
  const auto open = [&](int32_t rank, int32_t world, int32_t context) {
    LoaderOptions options = Options(4);
    options.spec.mutable_train()->set_seq_len(24);
    v1::DataSpec* data = options.spec.mutable_data();
    data->set_source(v1::DATA_SOURCE_JSONL);
    data->add_path(dir / "a.jsonl");
    data->set_val_fraction(0.2);
    data->set_document_mask(true);
    options.vocab = 256;
    options.rank = rank, options.world_size = world, options.context = context;
    auto loader = DataLoader::Open(options);
    EXPECT_OK(loader);
    return *std::move(loader);
  };
  const auto whole = open(0, 1, 1);
  const Batch training = *whole->Next(), validation = *whole->Eval(1);
  for (int32_t rank = 0; rank < 4; ++rank) {
    const auto loader = open(rank, 4, 2);
    for (const auto& [mine, all] :
         {std::pair(*loader->Next(), training), std::pair(*loader->Eval(1), validation)}) {
      ASSERT_EQ(mine.rows, 2);
      ASSERT_EQ(mine.seq_len, 12);
      ASSERT_EQ(mine.tokens.size(), 24u);
      ASSERT_EQ(mine.targets.size(), 24u);
      const int32_t first_row = rank / 2 * 2, first_token = rank % 2 * 12;
      for (int32_t i = 0; i < 24; ++i) {
        const int32_t at = (first_row + i / 12) * 24 + first_token + i % 12;
        EXPECT_EQ(mine.tokens[i], all.tokens[at]);
        EXPECT_EQ(mine.targets[i], all.targets[at]);
      }
      const auto begin = all.doc_start.begin() + first_row * 24;
      EXPECT_EQ(mine.doc_start, std::vector<int32_t>(begin, begin + 48));
    }
  }
  LoaderOptions options = Options(4);
  options.world_size = options.context = 3;
  EXPECT_THAT(DataLoader::FromRows(options, std::make_shared<ScriptedRows>(50), nullptr, {}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(DataLoader, ValidatesOnTheFirstRowsWhateverTheSeedTheBatchAndTheRanks) {
  const auto rows_of = [](int64_t seed, int32_t batch_size, int32_t world) {
    std::vector<int32_t> rows;
    for (int32_t batch = 0; batch < 2; ++batch) {
      for (int32_t rank = 0; rank < world; ++rank) {
        LoaderOptions options = Options(batch_size);
        options.spec.mutable_train()->set_seed(seed);
        options.rank = rank;
        options.world_size = world;
        CorpusInfo info;
        const auto loader = DataLoader::FromRows(options, std::make_shared<ScriptedRows>(50),
                                                 std::make_shared<ScriptedRows>(30), info);
        EXPECT_OK(loader);
        const auto eval = (*loader)->Eval(batch);
        EXPECT_OK(eval);
        for (int32_t row = 0; row < eval->rows; ++row) rows.push_back(eval->tokens[row * 4]);
      }
    }
    return rows;
  };
  const std::vector<int32_t> eight = {0, 1, 2, 3, 4, 5, 6, 7};
  for (const int64_t seed : {1, 2, 1337}) {
    for (const int32_t world : {1, 2, 4}) EXPECT_EQ(rows_of(seed, 4, world), eight);
  }
  EXPECT_EQ(rows_of(1, 2, 1), (std::vector<int32_t>{0, 1, 2, 3}));
  // A set smaller than a batch is repeated.
  LoaderOptions options = Options(4);
  const auto loader = DataLoader::FromRows(options, std::make_shared<ScriptedRows>(50),
                                           std::make_shared<ScriptedRows>(3), {});
  ASSERT_OK(loader);
  const auto eval = (*loader)->Eval(0);
  ASSERT_OK(eval);
  EXPECT_THAT(eval->tokens, testing::ElementsAre(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0));
}

TEST(DataLoader, RefusesTooLittleText) {
  const TempDir dir;
  std::ofstream(dir / "a.txt") << "abc";  // 4 tokens with the separator; a row takes 5
  LoaderOptions options = Options();
  options.spec.mutable_data()->set_source(v1::DATA_SOURCE_TEXT);
  options.spec.mutable_data()->add_path(dir / "a.txt");
  EXPECT_THAT(DataLoader::Open(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("data.path: 4 tokens")));
  std::ofstream(dir / "a.txt") << "abcd";
  EXPECT_OK(DataLoader::Open(options));
  options.spec.mutable_data()->set_on_exhausted(v1::ON_EXHAUSTED_STOP);
  EXPECT_THAT(DataLoader::Open(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a step takes 4")));
}

TEST(DataLoader, RefusesABatchThatRanksCannotShare) {
  LoaderOptions options = Options(3);
  options.world_size = 2;
  EXPECT_THAT(DataLoader::FromRows(options, std::make_shared<ScriptedRows>(9), nullptr, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("train.batch_size: 3")));
}

TEST(DataLoader, SyntheticAndUniformNeedNoFiles) {
  for (const auto source : {v1::DATA_SOURCE_SYNTHETIC, v1::DATA_SOURCE_UNIFORM}) {
    LoaderOptions options = Options();
    options.spec.mutable_data()->set_source(source);
    auto loader = DataLoader::Open(options);
    ASSERT_OK(loader);
    const auto batch = (*loader)->Next();
    ASSERT_OK(batch);
    EXPECT_EQ(batch->source, source);
    EXPECT_EQ((*loader)->eval_batches(), 3);
    EXPECT_NE((*loader)->Eval(0)->tokens, batch->tokens);
  }
}

}  // namespace
}  // namespace nsa::train
