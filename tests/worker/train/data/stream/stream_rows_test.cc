// The rows of a stream: those of a plain computation, for any number of ranks and after any stop.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/base/reason.h"
#include "tests/worker/train/data/stream/stream_jobs.h"
#include "worker/train/data/mix.h"

namespace nsa::train {
namespace {

using testing::HasSubstr;

TEST(StreamRows, AreThoseOfAPlainComputation) {
  const TempDir dir;
  const Texts texts = SomeTexts(5, 12);
  for (const int32_t window : {1, 3, 8, 50, 1'000'000}) {
    const LoaderOptions options = StreamOn(dir, texts, window);
    EXPECT_EQ(Take(options, 150), PlainRows(texts, window, 600)) << window;
  }
}

TEST(StreamRows, AWindowOfOneKeepsTheOrderOfTheFilesAndDocuments) {
  const TempDir dir;
  const Texts texts = SomeTexts(1, 40);
  std::string all;
  for (const std::string& text : texts[0]) absl::StrAppend(&all, std::string(1, '\0'), text);
  std::string read;
  for (const TokenRow& row : Take(StreamOn(dir, texts, 1), 10)) {
    read.append(row.begin(), row.end() - 1);
  }
  EXPECT_EQ(read, all.substr(0, read.size()));
}

// Every position of the text is told apart by its token.
TEST(StreamRows, EachTokenIsPredictedOnceAnEpoch) {
  const TempDir dir;
  constexpr int kTokens = 9001;
  std::string bytes;
  for (int i = 0; i < kTokens; ++i) {
    bytes += static_cast<char>(i & 0xff);
    bytes += static_cast<char>(i >> 8);
  }
  for (const int32_t window : {1, 7, 64, 5000}) {
    LoaderOptions options = StreamOn(dir, {}, window, /*batch_size=*/1);
    options.vocab = kTokens;
    v1::DataSpec* const data = options.spec.mutable_data();
    data->set_source(v1::DATA_SOURCE_TOKENS);
    data->clear_tokenizer();
    data->set_separator("none");
    for (int file = 0; file < 3; ++file) {
      const std::string path = dir / absl::StrCat("part-", file, ".bin");
      Write(path,
            bytes.substr(static_cast<size_t>(file) * 6000, file == 2 ? std::string::npos : 6000));
      data->add_path(path);
    }
    const Loaders loader = OpenRanks(options, 1);
    std::map<int32_t, int> predicted;
    int64_t rows = 0;
    for (int64_t epoch = 1; epoch <= 4; ++epoch) {
      const int64_t end = (kTokens * epoch - 1) / kSeqLen;  // rows of the epochs up to this one
      for (const TokenRow& row : Take(loader, static_cast<int>(end - rows))) {
        for (size_t i = 1; i < row.size(); ++i) ++predicted[row[i]];
      }
      rows = end;
      int64_t often = 0, seldom = 0;
      for (const auto& [token, times] : predicted) {
        ASSERT_TRUE(times == epoch || times == epoch - 1) << token << " " << times;
        ++(times == epoch ? often : seldom);
      }
      EXPECT_EQ(often + seldom, epoch == 1 ? end * kSeqLen : kTokens);
      EXPECT_LE(kTokens - often, kSeqLen) << "what is left for the next epoch";
    }
    EXPECT_EQ(loader[0]->Next()->epoch, 4);
  }
}

TEST(StreamRows, AreTheSameForAnyNumberOfRanks) {
  const TempDir dir;
  const Texts texts = SomeTexts(4, 10);
  for (const int32_t window : {1, 5, 40, 10'000}) {
    const LoaderOptions options = StreamOn(dir, texts, window);
    const std::vector<TokenRow> expected = PlainRows(texts, window, 400);
    for (const int32_t world : {1, 2, 4}) {
      EXPECT_EQ(Take(OpenRanks(options, world), 100), expected) << window << " " << world;
    }
  }
}

TEST(StreamRows, GoOnAtAnyPlaceWithTheSameRowsAndAnyNumberOfRanks) {
  const TempDir dir;
  const Texts texts = SomeTexts(4, 10);
  std::minstd_rand random(5);
  for (const int32_t window : {1, 6, 30, 10'000}) {
    const LoaderOptions options = StreamOn(dir, texts, window);
    const std::vector<TokenRow> expected = PlainRows(texts, window, 480);
    for (int i = 0; i < 8; ++i) {
      const int first = static_cast<int>(random() % 60), second = static_cast<int>(random() % 30);
      const int32_t world = 1 << random() % 3;
      Loaders ranks = OpenRanks(options, world);
      std::vector<TokenRow> rows = Take(ranks, first);
      const v1::DataCursor once = ranks[0]->cursor();
      for (const auto& rank : ranks) {
        EXPECT_EQ(rank->cursor().SerializeAsString(), once.SerializeAsString());
      }
      EXPECT_EQ(once.sequence(), 4 * first);
      ASSERT_EQ(once.stream_size(), 1);
      EXPECT_LE(once.stream(0).sequence(), once.sequence());
      ranks = OpenRanks(options, 1 << random() % 3, &once);
      for (TokenRow& row : Take(ranks, second)) rows.push_back(std::move(row));
      const v1::DataCursor twice = ranks[0]->cursor();
      ranks = OpenRanks(options, 4, &twice);
      for (TokenRow& row : Take(ranks, 120 - first - second)) rows.push_back(std::move(row));
      ASSERT_EQ(rows, expected) << window << ": " << first << ", " << second;
    }
  }
}

// A document that is longer than many rows is the hardest place to begin at.
TEST(StreamRows, GoOnWithinALongDocument) {
  const TempDir dir;
  Texts texts = SomeTexts(2, 3);
  for (int i = 0; i < 500; ++i) absl::StrAppend(&texts[0][1], i, " ");
  const LoaderOptions options = StreamOn(dir, texts, 4);
  const std::vector<TokenRow> expected = PlainRows(texts, 4, 200);
  for (int from = 0; from < 40; ++from) {
    Loaders loader = OpenRanks(options, 1);
    Take(loader, from);
    const v1::DataCursor cursor = loader[0]->cursor();
    loader = OpenRanks(options, 1, &cursor);
    const std::vector<TokenRow> rows = Take(loader, 10);
    ASSERT_TRUE(std::equal(rows.begin(), rows.end(), expected.begin() + 4 * from)) << from;
  }
}

TEST(StreamRows, EachSourceOfAMixtureHasAStreamOfItsOwn) {
  const TempDir dir;
  LoaderOptions options = StreamOn(dir, {}, 6);
  v1::DataSpec* const data = options.spec.mutable_data();
  data->clear_source();
  const std::vector<Texts> sources = {SomeTexts(3, 9, 1), SomeTexts(1, 5, 2), SomeTexts(2, 30, 3)};
  const std::vector<double> weights = {5, 3, 2};
  for (size_t i = 0; i < sources.size(); ++i) {
    v1::MixSource* const mix = data->add_mix();
    mix->set_name(absl::StrCat("s", i));
    mix->set_source(v1::DATA_SOURCE_JSONL);
    mix->set_weight(weights[i]);
    for (size_t file = 0; file < sources[i].size(); ++file) {
      mix->add_path(dir / absl::StrCat("mix-", i, "-", file, ".jsonl"));
      Write(mix->path(static_cast<int>(file)), LinesOf(sources[i][file]));
    }
  }
  std::vector<std::vector<TokenRow>> plain;
  for (size_t i = 0; i < sources.size(); ++i) plain.push_back(PlainRows(sources[i], 6, 500, i));
  const MixSchedule schedule(weights);
  std::vector<TokenRow> expected;
  for (int64_t q = 0; q < 480; ++q) {
    const MixSchedule::Turn turn = schedule.At(q);
    expected.push_back(plain[static_cast<size_t>(turn.source)][static_cast<size_t>(turn.index)]);
  }
  EXPECT_EQ(Take(options, 120), expected);
  for (const int from : {1, 7, 30, 77}) {
    Loaders ranks = OpenRanks(options, 2);
    std::vector<TokenRow> rows = Take(ranks, from);
    const v1::DataCursor cursor = ranks[0]->cursor();
    ASSERT_EQ(cursor.stream_size(), 3);
    EXPECT_EQ(cursor.stream(2).source(), 2);
    ranks = OpenRanks(options, 4, &cursor);
    for (TokenRow& row : Take(ranks, 120 - from)) rows.push_back(std::move(row));
    EXPECT_EQ(rows, expected) << from;
    EXPECT_GT(ranks[0]->mix_epoch(1), ranks[0]->mix_epoch(2)) << "a small source is repeated";
  }
}

TEST(StreamRows, StopAtTheLastWholeStepOfTheData) {
  const TempDir dir;
  const Texts texts = SomeTexts(2, 8);
  int64_t tokens = 0;
  for (const auto& file : texts) {
    for (const std::string& text : file) tokens += 1 + std::ssize(text);
  }
  const int64_t rows = (tokens - 1) / kSeqLen;
  for (const int32_t window : {1, 10, 1000}) {
    for (const int32_t micro_steps : {1, 3}) {
      LoaderOptions options = StreamOn(dir, texts, window, /*batch_size=*/2);
      options.spec.mutable_data()->set_on_exhausted(v1::ON_EXHAUSTED_STOP);
      options.spec.mutable_train()->set_accumulate_grad_batches(micro_steps);
      const int64_t steps = rows / (2 * micro_steps);
      const Loaders ranks = OpenRanks(options, 2);
      for (int64_t step = 0; step < steps; ++step) {
        for (const auto& rank : ranks) ASSERT_FALSE(rank->exhausted()) << step << " of " << steps;
        Take(ranks, micro_steps);
      }
      for (const auto& rank : ranks) {
        EXPECT_TRUE(rank->exhausted());
        EXPECT_EQ(ReasonOf(rank->Next().status()), Reason::kDataExhausted);
      }
      // So does a run that continues there.
      const v1::DataCursor cursor = ranks[0]->cursor();
      EXPECT_TRUE(OpenRanks(options, 1, &cursor)[0]->exhausted());
    }
  }
  LoaderOptions options = StreamOn(dir, texts, 10, /*batch_size=*/1024);
  options.spec.mutable_data()->set_on_exhausted(v1::ON_EXHAUSTED_STOP);
  const auto loader = DataLoader::Open(options);
  ASSERT_OK(loader);
  EXPECT_FALSE((*loader)->exhausted());
  EXPECT_THAT((*loader)->Next(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a step takes 1024")));
}

TEST(StreamRows, HeldOutDocumentsAreNeverTrainedOn) {
  const TempDir dir;
  const Texts texts = SomeTexts(4, 60);
  LoaderOptions options = StreamOn(dir, texts, 20);
  options.spec.mutable_data()->set_val_fraction(0.2);
  Texts kept(texts.size());
  size_t held_out = 0;
  for (size_t file = 0; file < texts.size(); ++file) {
    for (const std::string& text : texts[file]) {
      Document document;
      document.text = text;
      const bool val = static_cast<double>(HashOf(document).second) < 0.2 * 0x1p64;
      if (!val) kept[file].push_back(text);
      held_out += val ? 1 : 0;
    }
  }
  ASSERT_GT(held_out, 20u);
  EXPECT_EQ(Take(options, 150), PlainRows(kept, 20, 600));

  // The first held-out documents in the order of the files, whatever the seed and the ranks.
  const auto validation = [](LoaderOptions changed, int64_t seed, int32_t world) {
    changed.spec.mutable_train()->set_seed(seed);
    std::vector<int32_t> tokens;
    const Loaders ranks = OpenRanks(changed, world);
    EXPECT_EQ(ranks[0]->eval_batches(), 3);
    for (int32_t i = 0; i < 3; ++i) {
      for (const auto& rank : ranks) {
        const auto batch = rank->Eval(i);
        EXPECT_OK(batch);
        tokens.insert(tokens.end(), batch->tokens.begin(), batch->tokens.end());
      }
    }
    return tokens;
  };
  std::string expected;
  for (size_t file = 0; file < texts.size(); ++file) {
    for (const std::string& text : texts[file]) {
      if (std::ranges::find(kept[file], text) != kept[file].end()) continue;
      absl::StrAppend(&expected, std::string(1, '\0'), text);
    }
  }
  const std::vector<int32_t> tokens = validation(options, kSeed, 1);
  EXPECT_EQ(std::string(tokens.begin(), tokens.end()), expected.substr(0, 3 * 4 * kSeqLen));
  EXPECT_EQ(validation(options, 77, 2), tokens);

  // Without validation nothing is looked for, and the training is the same.
  options.spec.mutable_train()->set_eval_every(0);
  EXPECT_EQ(OpenRanks(options, 1)[0]->eval_batches(), 0);
  EXPECT_EQ(Take(options, 10), PlainRows(kept, 20, 40));
}

TEST(StreamRows, CopiesOfValidationDocumentsAreDropped) {
  const TempDir dir;
  Texts texts = SomeTexts(3, 20);
  LoaderOptions options = StreamOn(dir, texts, 9);
  Write(dir / "val.jsonl", LinesOf({texts[0][3], texts[2][7], std::string(500, 'v')}));
  Write(dir / "set.jsonl", LinesOf({texts[1][5], std::string(500, 's')}));
  options.spec.mutable_data()->add_val_path(dir / "val.jsonl");
  (*options.spec.mutable_data()->mutable_val())["set"] = dir / "set.jsonl";
  texts[0].erase(texts[0].begin() + 3);
  texts[1].erase(texts[1].begin() + 5);
  texts[2].erase(texts[2].begin() + 7);
  EXPECT_EQ(Take(options, 60), PlainRows(texts, 9, 240));
  const Loaders loader = OpenRanks(options, 1);
  EXPECT_EQ(loader[0]->info().val_documents, 3);
  EXPECT_EQ(loader[0]->eval_sets(), 1);
}

TEST(StreamRows, AreOfTheRecordsThatPassAFilter) {
  const TempDir dir;
  Texts texts = SomeTexts(3, 40);
  LoaderOptions options = StreamOn(dir, texts, 9);
  for (size_t file = 0; file < texts.size(); ++file) {
    std::string lines;
    std::vector<std::string> passing;
    for (size_t i = 0; i < texts[file].size(); ++i) {
      absl::StrAppend(&lines, "{\"kind\": ", i % 3, ", \"text\": \"", texts[file][i], "\"}\n");
      if (i % 3 != 1) passing.push_back(texts[file][i]);
    }
    Write(options.spec.data().path(static_cast<int>(file)), lines);
    texts[file] = std::move(passing);
  }
  (*options.spec.mutable_data()->mutable_except())["kind"].add_value("1");
  EXPECT_EQ(Take(options, 60), PlainRows(texts, 9, 240));
  // A run goes on at the same document.
  const Loaders loader = OpenRanks(options, 1);
  const std::vector<TokenRow> before = Take(loader, 17);
  const v1::DataCursor cursor = loader[0]->cursor();
  EXPECT_EQ(Take(OpenRanks(options, 1, &cursor), 10), Take(loader, 10));
}

}  // namespace
}  // namespace nsa::train
