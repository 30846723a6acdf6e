// Several sources in fixed proportions (data.mix).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "worker/train/data/order.h"
#include "worker/train/data/rows.h"

namespace nsa::train {

// Which source each sequence comes from. The weights become whole shares of 1,000 sequences, each
// less than one sequence from its exact share, and the sources take turns with a period of 1,000:
// any 1,000 consecutive sequences have exactly these shares. Within a period, the first q sequences
// have between ⌊share·q / 1000⌋ and ⌈share·q / 1000⌉ of each source, so that turns are spread
// evenly. A pure function of the weights: nothing has to be stored to continue.
class MixSchedule {
 public:
  static constexpr int64_t kPeriod = 1000;

  // At least one weight, all above 0.
  explicit MixSchedule(std::span<const double> weights);

  // The source of a sequence, and how many sequences before it have the same one. Constant time.
  struct Turn {
    int32_t source = 0;
    int64_t index = 0;
  };
  Turn At(int64_t sequence) const;

  // How many of the first `sequences` sequences have this source. Constant time.
  int64_t CountBefore(int32_t source, int64_t sequences) const;

  // Sequences of a source in a period; 0 if its weight is too small.
  int64_t share(int32_t source) const { return shares_[static_cast<size_t>(source)]; }
  int32_t sources() const { return static_cast<int32_t>(shares_.size()); }

 private:
  void TakeTurns();

  std::vector<int64_t> shares_;
  std::vector<int32_t> turns_;   // [kPeriod]: the source of each sequence
  std::vector<int16_t> before_;  // [kPeriod + 1, sources]: turns of each source before a sequence
};

// The sequences of a mixture as rows: row q is sequence q. Every source has epochs and an order of
// its own: its k-th turn takes row k mod its rows, in the order of (seed, source, epoch).
class MixedRows final : public RowSource {
 public:
  // One source for each of the schedule's; each has at least one row. `rows`: how many sequences
  // there are. in_order: all sources give their rows 0, 1, 2, …, cut at the same places.
  struct Options {
    std::vector<std::shared_ptr<RowSource>> sources;
    int64_t rows = 0;
    int32_t seq_len = 0;
    int64_t seed = 0;
    bool in_order = false;
  };
  MixedRows(Options options, MixSchedule schedule);

  int64_t rows() const override { return options_.rows; }
  int64_t counted_rows() const override;
  bool in_order() const override { return true; }
  int32_t separator() const override { return options_.sources.front()->separator(); }
  v1::DataSource source() const override { return v1::DATA_SOURCE_UNSPECIFIED; }
  std::optional<int32_t> PartOf(int64_t row) const override { return schedule_.At(row).source; }
  absl::Status Read(int64_t row, std::span<int32_t> tokens) override;

  absl::Status PassTo(int64_t row) override;
  std::vector<SourceMark> Marks(int64_t row) const override;
  absl::Status Seek(int64_t row, std::span<const v1::StreamPosition> windows) override;
  int64_t progress() const override;
  void Cancel() override;

  // The epoch in which a source that gives its rows by number is after the first `sequences`
  // sequences, 0-based.
  int64_t EpochAfter(int32_t source, int64_t sequences) const;

 private:
  RowSource& SourceAt(int32_t source) const {
    return *options_.sources[static_cast<size_t>(source)];
  }
  bool InOrder(size_t source) const {
    return options_.in_order || options_.sources[source]->in_order();
  }

  const Options options_;
  const MixSchedule schedule_;
  std::vector<int64_t> seeds_;
  std::vector<RowOrder> orders_;
};

}  // namespace nsa::train
