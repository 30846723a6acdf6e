#include "worker/train/data/split.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/job/data_source.h"
#include "worker/train/data/mix.h"
#include "worker/train/data/packed_rows.h"
#include "worker/train/data/random.h"
#include "worker/train/data/stream/plan.h"
#include "worker/train/data/stream/stream_rows.h"

namespace nsa::train {
namespace {

constexpr uint64_t kStreamKey = 0x73747265616d;  // apart from the keys of other uses of the seed

class CorpusSplitter {
 public:
  CorpusSplitter(const v1::JobSpec& spec, int32_t vocab, const Corpus& corpus,
                 std::shared_ptr<Remote> remote)
      : data_(spec.data()),
        train_(spec.train()),
        vocab_(vocab),
        corpus_(corpus),
        remote_(std::move(remote)) {}

  absl::StatusOr<LoadedRows> Rows() const {
    if (LearnsAnswers(data_)) return Packed();
    LoadedRows rows;
    for (const CorpusSet& set : corpus_.sets) {
      auto one = RowsOf(set.tokens, v1::DATA_SOURCE_TEXT);
      if (one->rows() < 1) return TooFew(absl::StrCat("data.val.", set.name), *set.tokens);
      rows.sets.emplace_back(set.name, std::move(one));
    }
    if (!data_.mix().empty()) {
      NSA_ASSIGN_OR_RETURN(rows.train, MixedTraining());
      NSA_ASSIGN_OR_RETURN(rows.val, MixedValidation());
      return rows;
    }
    const CorpusPart& only = corpus_.parts.front();
    rows.train = TrainingSources().front();
    if (only.val->size() > 0) rows.val = RowsOf(only.val, only.source);
    return rows;
  }

 private:
  // The rows of conversations, which neither a mixture nor a stream has.
  absl::StatusOr<LoadedRows> Packed() const {
    LoadedRows rows;
    for (const CorpusSet& set : corpus_.sets) {
      NSA_ASSIGN_OR_RETURN(
          auto one, Pack(absl::StrCat("data.val.", set.name), set.tokens, v1::DATA_SOURCE_TEXT));
      rows.sets.emplace_back(set.name, std::move(one));
    }
    const CorpusPart& only = corpus_.parts.front();
    NSA_ASSIGN_OR_RETURN(const auto train, Pack("data.path", only.train, only.source));
    rows.packing = train->summary();
    rows.train = train;
    if (only.val->size() == 0) return rows;
    NSA_ASSIGN_OR_RETURN(rows.val, Pack("the validation data", only.val, only.source));
    return rows;
  }

  absl::StatusOr<std::shared_ptr<PackedRows>> Pack(const std::string& field,
                                                   std::shared_ptr<TokenStore> store,
                                                   v1::DataSource source) const {
    NSA_ASSIGN_OR_RETURN(auto rows,
                         PackedRows::Pack(std::move(store), seq_len(), corpus_.separator, source));
    if (rows->rows() > 0) return rows;
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d conversations, none with an answer among its first %d tokens (train.seq_len + 1); "
        "add conversations, or use a larger train.seq_len",
        field, rows->summary().unlearned_documents(), seq_len() + 1));
  }

  using Sources = std::vector<std::shared_ptr<RowSource>>;

  std::shared_ptr<RowSource> RowsOf(std::shared_ptr<TokenStore> store,
                                    v1::DataSource source) const {
    return std::make_shared<CorpusRows>(std::move(store), seq_len(), corpus_.separator, source);
  }

  // One for each part of the corpus.
  Sources TrainingSources() const {
    if (corpus_.stream != nullptr) return Streams();
    Sources sources;
    for (const CorpusPart& part : corpus_.parts) {
      sources.push_back(RowsOf(part.train, part.source));
    }
    return sources;
  }

  // All of them share what says how far they have come.
  Sources Streams() const {
    auto progress = std::make_shared<ReadProgress>();
    progress->remote = remote_;
    Sources streams;
    for (size_t i = 0; i < corpus_.stream->sources.size(); ++i) {
      StreamRows::Options stream = {.plan = corpus_.stream, .source = i, .progress = progress};
      stream.windows = {
          .seq_len = seq_len(),
          .size = std::max(1, data_.shuffle_window()),
          .vocab = vocab_,
          .seed = static_cast<int64_t>(Mix(static_cast<uint64_t>(train_.seed()), kStreamKey, i))};
      stream.one_epoch = data_.on_exhausted() == v1::ON_EXHAUSTED_STOP;
      streams.push_back(std::make_shared<StreamRows>(std::move(stream)));
    }
    return streams;
  }

  int32_t seq_len() const { return train_.seq_len(); }

  absl::Status TooFew(const std::string& field, const TokenStore& store) const {
    return TooFewTokens(field, store.size(), seq_len());
  }

  absl::StatusOr<std::shared_ptr<RowSource>> MixedTraining() const {
    MixedRows::Options mix = {.sources = TrainingSources(),
                              .rows = kEndlessRows,
                              .seq_len = seq_len(),
                              .seed = train_.seed()};
    std::vector<double> weights;
    for (size_t i = 0; i < corpus_.parts.size(); ++i) {
      const CorpusPart& part = corpus_.parts[i];
      weights.push_back(part.weight);
      if (mix.sources[i]->rows() >= 1) continue;
      return TooFew(absl::StrCat("data.mix: ", part.name), *part.train);
    }
    MixSchedule schedule(weights);
    for (int32_t i = 0; i < schedule.sources(); ++i) {
      if (schedule.share(i) > 0) continue;
      return absl::InvalidArgumentError(absl::StrFormat(
          "data.mix[%d].weight: %g is less than one in 1,000 sequences; give it a larger one", i,
          weights[static_cast<size_t>(i)]));
    }
    return std::make_shared<MixedRows>(std::move(mix), std::move(schedule));
  }

  // The held-out documents of the sources in the same proportions. Sources that hold out less than
  // a row are left out; one that holds out little repeats it.
  absl::StatusOr<std::shared_ptr<RowSource>> MixedValidation() const {
    MixedRows::Options mix = {.seq_len = seq_len(), .seed = train_.seed(), .in_order = true};
    std::vector<double> weights;
    if (corpus_.info.val_tokens == 0) return nullptr;
    for (const CorpusPart& part : corpus_.parts) {
      auto rows = RowsOf(part.val, part.source);
      if (rows->rows() < 1) continue;
      mix.rows += rows->rows();
      mix.sources.push_back(std::move(rows));
      weights.push_back(part.weight);
    }
    if (weights.empty()) {
      return TooFewTokens("data.mix: validation", corpus_.info.val_tokens, seq_len());
    }
    return std::make_shared<MixedRows>(std::move(mix), MixSchedule(weights));
  }

  const v1::DataSpec& data_;
  const v1::TrainSpec& train_;
  const int32_t vocab_;
  const Corpus& corpus_;
  const std::shared_ptr<Remote> remote_;
};

}  // namespace

absl::Status TooFewTokens(std::string_view field, int64_t tokens, int32_t seq_len) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: %d tokens (at least train.seq_len + 1 = %d); add text or use a smaller train.seq_len",
      field, tokens, seq_len + 1));
}

absl::StatusOr<LoadedRows> SplitCorpus(const v1::JobSpec& spec, int32_t vocab, const Corpus& corpus,
                                       const std::shared_ptr<Remote>& remote) {
  return CorpusSplitter(spec, vocab, corpus, remote).Rows();
}

}  // namespace nsa::train
