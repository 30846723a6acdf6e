// Whole conversations in rows (data.loss_on: assistant).
//
// A row of S + 1 tokens has one or more conversations, one after another, each with its separator
// in front, and behind them padding: separators, which are a document of their own and predict
// nothing. In the order of the store each conversation goes to the fullest row in which it fits, of
// equally full ones to the first, or else to a new one (best fit). So packing depends on nothing
// but the conversations and S, and is the same in every epoch and for any number of ranks.
//
// Of a conversation that is longer than a row its beginning is kept. One without an answer there is
// left out.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nsa/v1/telemetry.pb.h"
#include "worker/train/data/rows.h"
#include "worker/train/data/tokens/token.h"
#include "worker/train/data/tokens/token_store.h"

namespace nsa::train {

// Memory: 24 bytes for each conversation.
class PackedRows final : public RowSource {
 public:
  // Reads the whole store, whose tokens have marks. The errors of TokenStore::Copy().
  static absl::StatusOr<std::shared_ptr<PackedRows>> Pack(std::shared_ptr<const TokenStore> store,
                                                          int32_t seq_len, int32_t separator,
                                                          v1::DataSource source);

  // 0 if no conversation has an answer to learn. The loader refuses that.
  int64_t rows() const override { return std::ssize(begins_) - 1; }
  bool marked() const override { return true; }
  int32_t separator() const override { return separator_; }
  v1::DataSource source() const override { return source_; }
  absl::Status Read(int64_t row, std::span<int32_t> tokens) override;

  const v1::PackingSummary& summary() const { return summary_; }

 private:
  // The tokens of a conversation that are kept.
  struct Piece {
    int64_t begin = 0;  // in the store
    int64_t tokens = 0;
  };
  class Packer;

  PackedRows(std::shared_ptr<const TokenStore> store, int32_t separator, v1::DataSource source)
      : store_(std::move(store)), separator_(separator), source_(source) {}

  const std::shared_ptr<const TokenStore> store_;
  const int32_t separator_;
  const v1::DataSource source_;
  std::vector<Piece> pieces_;          // row by row
  std::vector<int64_t> begins_ = {0};  // of each row in pieces_, and the end of the last
  v1::PackingSummary summary_;
};

}  // namespace nsa::train
