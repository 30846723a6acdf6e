#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/data/data_files.h"
#include "worker/train/data/loader.h"
#include "worker/train/data/mix.h"

namespace nsa::train {
namespace {

using testing::HasSubstr;

const std::vector<std::vector<double>>& SomeWeights() {
  static const std::vector<std::vector<double>> all = {{1},
                                                       {1, 1},
                                                       {7, 2, 1},
                                                       {0.7, 0.2, 0.1},
                                                       {1, 1, 1},
                                                       {1e-3, 1e-3},
                                                       {1e6, 2e5},
                                                       {5, 3, 3, 1},
                                                       {999, 1},
                                                       {0.333, 0.333, 0.334},
                                                       {2, 3, 5, 7, 11, 13, 17, 19},
                                                       {10, 1, 1, 1},
                                                       {0.5, 0.4999, 1.7},
                                                       {31, 0.7, 0.7, 0.7}};
  return all;
}

TEST(MixSchedule, OfAnyThousandSequencesEachSourceHasItsShareToWithinOne) {
  for (const std::vector<double>& weights : SomeWeights()) {
    const MixSchedule schedule(weights);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<int64_t> turns(weights.size(), 0);
    std::vector<int32_t> sources;
    for (int64_t q = 0; q < 3500; ++q) {
      sources.push_back(schedule.At(q).source);
      ++turns[static_cast<size_t>(sources.back())];
      if (q >= 1000) --turns[static_cast<size_t>(sources[static_cast<size_t>(q) - 1000])];
      if (q < 999) continue;
      for (size_t i = 0; i < weights.size(); ++i) {
        ASSERT_LT(std::abs(static_cast<double>(turns[i]) - 1000 * weights[i] / sum), 1)
            << "source " << i << " of " << weights.size() << ", the 1,000 up to " << q;
      }
    }
  }
}

TEST(MixSchedule, TurnsAreSpreadEvenly) {
  for (const std::vector<double>& weights : SomeWeights()) {
    const MixSchedule schedule(weights);
    for (int32_t i = 0; i < schedule.sources(); ++i) {
      for (int64_t q = 0; q <= 2000; ++q) {
        const double quota = static_cast<double>(schedule.share(i) * q) / 1000;
        ASSERT_LT(std::abs(static_cast<double>(schedule.CountBefore(i, q)) - quota), 1)
            << "source " << i << " before " << q;
      }
    }
  }
}

TEST(MixSchedule, CountsTheTurnsOfASourceAtAnyDistance) {
  for (const std::vector<double>& weights : SomeWeights()) {
    const MixSchedule schedule(weights);
    std::vector<int64_t> counts(weights.size(), 0);
    for (int64_t q = 0; q < 5000; ++q) {
      const MixSchedule::Turn turn = schedule.At(q);
      ASSERT_EQ(turn.index, counts[static_cast<size_t>(turn.source)]++) << q;
    }
    // A billion periods later it is the same turn.
    constexpr int64_t kFar = int64_t{1'000'000'000} * MixSchedule::kPeriod;
    const MixSchedule::Turn near = schedule.At(123), far = schedule.At(kFar + 123);
    EXPECT_EQ(far.source, near.source);
    EXPECT_EQ(far.index, near.index + 1'000'000'000 * schedule.share(near.source));
  }
}

// Row i of source s has the tokens 1000·s + i.
class NumberedRows final : public RowSource {
 public:
  NumberedRows(int32_t source, int64_t rows) : source_(source), rows_(rows) {}
  int64_t rows() const override { return rows_; }
  int32_t separator() const override { return 0; }
  v1::DataSource source() const override { return v1::DATA_SOURCE_TEXT; }
  absl::Status Read(int64_t row, std::span<int32_t> tokens) override {
    std::fill(tokens.begin(), tokens.end(), 1000 * source_ + static_cast<int32_t>(row));
    return absl::OkStatus();
  }

 private:
  const int32_t source_;
  const int64_t rows_;
};

MixedRows Mixed(bool in_order) {
  return MixedRows(
      {.sources = {std::make_shared<NumberedRows>(0, 50), std::make_shared<NumberedRows>(1, 7)},
       .rows = int64_t{1} << 40,
       .seq_len = 4,
       .seed = 3,
       .in_order = in_order},
      MixSchedule(std::vector<double>{3, 1}));
}

TEST(MixedRows, EachSourceHasEpochsAndAnOrderOfItsOwn) {
  MixedRows rows = Mixed(/*in_order=*/false);
  std::vector<std::vector<int32_t>> given(2);
  for (int64_t q = 0; q < 200; ++q) {
    std::vector<int32_t> tokens(5);
    ASSERT_OK(rows.Read(q, tokens));
    ASSERT_EQ(tokens[0] / 1000, rows.PartOf(q));
    given[static_cast<size_t>(*rows.PartOf(q))].push_back(tokens[0] % 1000);
  }
  ASSERT_EQ(given[0].size(), 150u);
  ASSERT_EQ(given[1].size(), 50u);
  for (const auto& [source, size] : {std::pair<size_t, size_t>{0, 50}, {1, 7}}) {
    std::set<std::vector<int32_t>> orders;
    for (size_t begin = 0; begin + size <= given[source].size(); begin += size) {
      const std::vector<int32_t> epoch(
          given[source].begin() + static_cast<ptrdiff_t>(begin),
          given[source].begin() + static_cast<ptrdiff_t>(begin + size));
      EXPECT_EQ(std::set<int32_t>(epoch.begin(), epoch.end()).size(), size) << "each row once";
      orders.insert(epoch);
    }
    EXPECT_GT(orders.size(), 1u) << "epochs differ";
  }
  EXPECT_EQ(rows.EpochAfter(0, 0), 0);
  EXPECT_EQ(rows.EpochAfter(0, 200), 2);
  EXPECT_EQ(rows.EpochAfter(1, 200), 7);
}

TEST(MixedRows, InOrderForValidation) {
  MixedRows rows = Mixed(/*in_order=*/true);
  std::vector<int32_t> second;
  for (int64_t q = 0; second.size() < 9; ++q) {
    std::vector<int32_t> tokens(5);
    ASSERT_OK(rows.Read(q, tokens));
    if (rows.PartOf(q) == 1) second.push_back(tokens[0]);
  }
  EXPECT_THAT(second, testing::ElementsAre(1000, 1001, 1002, 1003, 1004, 1005, 1006, 1000, 1001));
}

// Sources a, b and c, whose texts consist of these letters.
LoaderOptions Options(const TempDir& dir, int32_t batch_size = 4) {
  LoaderOptions options;
  options.vocab = 256;
  v1::TrainSpec* const train = options.spec.mutable_train();
  train->set_seq_len(16);
  train->set_batch_size(batch_size);
  train->set_accumulate_grad_batches(1);
  train->set_eval_batches(3);
  train->set_seed(11);
  v1::DataSpec* const data = options.spec.mutable_data();
  data->set_tokenizer(v1::TOKENIZER_BYTE);
  data->set_val_fraction(0.2);
  for (const auto& [name, weight] : std::map<std::string, double>{{"a", 5}, {"b", 3}, {"c", 2}}) {
    std::string lines;
    for (int i = 0; i < 60; ++i) {
      absl::StrAppend(&lines, "{\"text\": \"", std::string(40 + static_cast<size_t>(i), name[0]),
                      "\"}\n");
    }
    Write(dir / (name + ".jsonl"), lines);
    v1::MixSource* const mix = data->add_mix();
    mix->set_name(name);
    mix->set_source(v1::DATA_SOURCE_JSONL);
    mix->add_path(dir / (name + ".jsonl"));
    mix->set_weight(weight);
  }
  return options;
}

std::unique_ptr<DataLoader> OpenMix(const LoaderOptions& options) {
  auto loader = DataLoader::Open(options);
  EXPECT_OK(loader);
  return *std::move(loader);
}

TEST(MixedLoader, BatchesSayWhichSourceEachRowIsOf) {
  const TempDir dir;
  const auto loader = OpenMix(Options(dir));
  std::vector<int> rows(3, 0);
  for (int i = 0; i < 250; ++i) {
    const auto batch = loader->Next();
    ASSERT_OK(batch);
    ASSERT_EQ(batch->parts.size(), 4u);
    for (int32_t b = 0; b < batch->rows; ++b) {
      const int32_t part = batch->parts[static_cast<size_t>(b)];
      ++rows[static_cast<size_t>(part)];
      for (int32_t t = 0; t < 16; ++t) {
        const int32_t token = batch->tokens[static_cast<size_t>(b * 16 + t)];
        ASSERT_TRUE(token == 0 || token == 'a' + part) << token;
      }
    }
  }
  EXPECT_THAT(rows, testing::ElementsAre(500, 300, 200));
  EXPECT_GT(loader->mix_epoch(0), 0);
  EXPECT_EQ(loader->cursor().epoch(), 0);
  EXPECT_EQ(loader->cursor().sequence(), 1000);
}

TEST(MixedLoader, GoesOnFromASavedCursorWithTheSameRows) {
  const TempDir dir;
  const auto whole = OpenMix(Options(dir));
  std::vector<std::vector<int32_t>> expected;
  for (int i = 0; i < 80; ++i) expected.push_back(whole->Next()->tokens);
  for (const int64_t from : {1, 17, 79}) {
    const auto resumed = OpenMix(Options(dir));
    v1::DataCursor cursor = resumed->cursor();
    cursor.set_sequence(4 * from);
    ASSERT_OK(resumed->Seek(cursor));
    for (size_t i = static_cast<size_t>(from); i < expected.size(); ++i) {
      ASSERT_EQ(resumed->Next()->tokens, expected[i]) << i;
    }
  }
}

TEST(MixedLoader, TheOrderDoesNotDependOnTheNumberOfRanks) {
  const TempDir dir;
  const auto one = OpenMix(Options(dir));
  std::vector<std::unique_ptr<DataLoader>> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    LoaderOptions options = Options(dir);
    options.rank = rank;
    options.world_size = 4;
    ranks.push_back(OpenMix(options));
  }
  for (int i = 0; i < 60; ++i) {
    std::vector<int32_t> tokens, parts;
    for (const auto& rank : ranks) {
      const auto batch = rank->Next();
      ASSERT_OK(batch);
      tokens.insert(tokens.end(), batch->tokens.begin(), batch->tokens.end());
      parts.insert(parts.end(), batch->parts.begin(), batch->parts.end());
    }
    const auto batch = one->Next();
    ASSERT_EQ(batch->tokens, tokens);
    ASSERT_EQ(batch->parts, parts);
  }
}

TEST(MixedLoader, ValidatesInTheProportionsOfTheMixture) {
  const TempDir dir;
  const auto loader = OpenMix(Options(dir, /*batch_size=*/10));
  ASSERT_EQ(loader->eval_batches(), 3);
  std::map<char, int> rows;
  for (int i = 0; i < 3; ++i) {
    const auto batch = loader->Eval(i);
    ASSERT_OK(batch);
    EXPECT_TRUE(batch->parts.empty());
    for (int32_t b = 0; b < batch->rows; ++b) {
      const auto* const begin = batch->tokens.data() + b * 16;
      ++rows[static_cast<char>(*std::max_element(begin, begin + 16))];
    }
  }
  EXPECT_EQ(rows, (std::map<char, int>{{'a', 15}, {'b', 9}, {'c', 6}}));
}

TEST(MixedLoader, RefusesASourceThatIsTooSmallOrHasTooLittleWeight) {
  const TempDir dir;
  LoaderOptions options = Options(dir);
  Write(dir / "c.jsonl", "{\"text\": \"ccc\"}\n");
  options.spec.mutable_data()->set_val_fraction(0);
  EXPECT_THAT(DataLoader::Open(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("data.mix: c: 4 tokens")));
  options = Options(dir);
  options.spec.mutable_data()->mutable_mix(2)->set_weight(1e-4);
  EXPECT_THAT(DataLoader::Open(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("data.mix[2].weight")));
}

TEST(MixedLoader, ASetOfValidationIsReadByItsEndingAndNeverTrainedOn) {
  const TempDir dir;
  LoaderOptions options = Options(dir);
  const std::string line = "{\"text\": \"" + std::string(50, 'a') + "\"}\n";  // also in a.jsonl
  Write(dir / "set.jsonl", line + "{\"text\": \"" + std::string(50, 's') + "\"}\n");
  Write(dir / "plain.txt", std::string(100, 'p'));
  auto& sets = *options.spec.mutable_data()->mutable_val();
  sets["set"] = dir / "set.jsonl";
  sets["plain"] = dir / "pl*.txt";
  const auto loader = OpenMix(options);
  ASSERT_EQ(loader->eval_sets(), 2);
  EXPECT_EQ(loader->eval_set_name(0), "plain");
  EXPECT_EQ(loader->eval_set_name(1), "set");
  EXPECT_EQ(loader->info().dropped_documents, 1);
  EXPECT_EQ(loader->eval_set_batches(1), 1);  // 6 rows are a whole batch
  const auto batch = loader->EvalSet(0, 0);
  ASSERT_OK(batch);
  EXPECT_EQ(batch->tokens[1], 'p');
  EXPECT_THAT(loader->EvalSet(1, 1), StatusIs(absl::StatusCode::kOutOfRange));
  Write(dir / "plain.txt", "short");
  EXPECT_THAT(DataLoader::Open(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("data.val.plain: 6 tokens")));
}

}  // namespace
}  // namespace nsa::train
