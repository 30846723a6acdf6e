// Jobs with data.stream for tests, and what they must give, computed without the stream's code.
#pragma once

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/data/data_files.h"
#include "worker/train/data/loader.h"
#include "worker/train/data/order.h"
#include "worker/train/data/random.h"

namespace nsa::train {

using TokenRow = std::vector<int32_t>;                     // S + 1 tokens
using Texts = std::vector<std::vector<std::string>>;       // the documents of each file
using Loaders = std::vector<std::unique_ptr<DataLoader>>;  // one for each rank

constexpr int32_t kSeqLen = 16;
constexpr int64_t kSeed = 11;

// Documents of many lengths, no two of them alike.
inline Texts SomeTexts(int files, int documents, uint32_t seed = 1) {
  std::minstd_rand random(seed);
  Texts texts(static_cast<size_t>(files));
  for (int file = 0; file < files; ++file) {
    for (int i = 0; i < documents + file; ++i) {
      std::string text = absl::StrCat("f", file, "d", i, ":");
      const size_t length = random() % 90;
      while (text.size() < length) text += static_cast<char>('a' + random() % 26);
      texts[static_cast<size_t>(file)].push_back(text);
    }
  }
  return texts;
}

inline std::string LinesOf(const std::vector<std::string>& texts) {
  std::string lines;
  for (const std::string& text : texts) absl::StrAppend(&lines, "{\"text\": \"", text, "\"}\n");
  return lines;
}

// A job on these texts as JSON lines; nothing is held out.
inline LoaderOptions StreamOn(const TempDir& dir, const Texts& texts, int32_t window,
                              int32_t batch_size = 4) {
  LoaderOptions options;
  options.vocab = 256;
  v1::TrainSpec* const train = options.spec.mutable_train();
  train->set_seq_len(kSeqLen);
  train->set_batch_size(batch_size);
  train->set_accumulate_grad_batches(1);
  train->set_eval_every(1);
  train->set_eval_batches(3);
  train->set_seed(kSeed);
  v1::DataSpec* const data = options.spec.mutable_data();
  data->set_source(v1::DATA_SOURCE_JSONL);
  data->set_tokenizer(v1::TOKENIZER_BYTE);
  data->set_val_fraction(0);
  data->set_stream(true);
  data->set_shuffle_window(window);
  data->set_loader_timeout_seconds(20);
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string path = dir / absl::StrCat("part-", i, ".jsonl");
    Write(path, LinesOf(texts[i]));
    data->add_path(path);
  }
  return options;
}

inline Loaders OpenRanks(LoaderOptions options, int32_t world,
                         const v1::DataCursor* cursor = nullptr) {
  Loaders ranks;
  for (int32_t rank = 0; rank < world; ++rank) {
    options.rank = rank;
    options.world_size = world;
    auto loader = DataLoader::Open(options);
    EXPECT_OK(loader);
    if (!loader.ok()) return {};
    if (cursor != nullptr) {
      EXPECT_OK((*loader)->Seek(*cursor));
    }
    ranks.push_back(*std::move(loader));
  }
  return ranks;
}

// The rows of the next micro-batches, in the order of the job's sequences.
inline std::vector<TokenRow> Take(const Loaders& ranks, int batches) {
  std::vector<TokenRow> rows;
  for (int i = 0; i < batches; ++i) {
    for (const auto& rank : ranks) {
      const auto batch = rank->Next();
      EXPECT_OK(batch);
      if (!batch.ok()) return rows;
      for (int32_t row = 0; row < batch->rows; ++row) {
        const auto begin = batch->tokens.begin() + row * batch->seq_len;
        rows.emplace_back(begin, begin + batch->seq_len);
        rows.back().push_back(batch->targets[static_cast<size_t>((row + 1) * batch->seq_len - 1)]);
      }
    }
  }
  return rows;
}

inline std::vector<TokenRow> Take(const LoaderOptions& options, int batches) {
  return Take(OpenRanks(options, 1), batches);
}

// The first `count` rows of a source, whose index in the mixture is `source`.
inline std::vector<TokenRow> PlainRows(const Texts& texts, int64_t window, size_t count,
                                       uint64_t source = 0) {
  const auto files = static_cast<int64_t>(texts.size());
  const uint64_t seed = Mix(kSeed, 0x73747265616d, source);
  const RowOrder order(static_cast<int64_t>(Mix(seed, 0x66696c6573)), files);
  TokenRow tokens;
  std::vector<int64_t> ends;  // of the epochs
  while (tokens.size() < (2 * count + 2) * kSeqLen + static_cast<size_t>(window) * kSeqLen &&
         ends.size() < 200) {
    for (int64_t turn = 0; turn < files; ++turn) {
      const int64_t file = order.Row(std::ssize(ends), turn);
      for (const std::string& text : texts[static_cast<size_t>(file)]) {
        tokens.push_back(0);
        tokens.insert(tokens.end(), text.begin(), text.end());
      }
    }
    ends.push_back(std::ssize(tokens));
  }
  const auto epoch_of = [&](int64_t row) {
    return std::upper_bound(ends.begin(), ends.end(), (row + 1) * kSeqLen) - ends.begin();
  };
  std::vector<TokenRow> rows;
  for (int64_t begin = 0; rows.size() < count;) {
    int64_t end = begin;
    while (end - begin < window && epoch_of(end) == epoch_of(begin)) ++end;
    const RowOrder shuffled(static_cast<int64_t>(seed), end - begin);
    for (int64_t turn = 0; turn < end - begin && rows.size() < count; ++turn) {
      const auto at = tokens.begin() + (begin + shuffled.Row(begin, turn)) * kSeqLen;
      rows.emplace_back(at, at + kSeqLen + 1);
    }
    begin = end;
  }
  return rows;
}

}  // namespace nsa::train
