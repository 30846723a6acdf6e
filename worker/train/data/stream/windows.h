// Cuts the tokens of a stream into rows and shuffles these within windows.
//
// The tokens of all epochs follow each other without a gap. Row q of the source is tokens
// [q·S, q·S + S] of them, so that every token but the very first is predicted exactly once; it is
// of the epoch of its last token. Rows that follow each other are a window, and come in an order
// that depends only on (seed, first row of the window, rows of the window). A window ends with its
// last row of an epoch, so that no epoch begins before the one before has been given whole.
//
// The window that begins with row q has at most min(size, q + F) rows, F those of half a million
// tokens: the first windows of a run are small, so that it can begin at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "worker/train/data/stream/place.h"
#include "worker/train/data/tokens/token.h"

namespace nsa::train {

// Memory: TokenBytes(vocab) · (S + 1) bytes for each row that was appended and not passed. Not
// thread-safe.
class Windows {
 public:
  struct Options {
    int32_t seq_len = 0;
    int64_t size = 1;   // most rows of a window
    int32_t vocab = 0;  // every token is below it
    int64_t seed = 0;
  };
  explicit Windows(Options options) : options_(options), width_(TokenBytes(options.vocab)) {}

  // Drops everything: the next token is the first one of row `sequence`, with which a window
  // begins, and has this place.
  void Begin(const StreamPlace& place, int64_t sequence);

  // The next tokens, of one document; `at` is the place of the first of them.
  void Append(std::span<const Token> tokens, StreamPlace at);

  // The tokens that follow are of the next epoch.
  void EndEpoch();

  // Rows before this one have been appended.
  int64_t appended() const { return open_.begin + std::ssize(open_.rows); }
  // Rows before this one can be read: those of the windows that are complete.
  int64_t complete() const { return open_.begin; }

  // Frees the rows before `row`, which is at most complete().
  void PassTo(int64_t row);
  int64_t passed() const { return passed_; }

  // The first window that has rows left, which may be the one that is being filled: the place of
  // its first token, and its first row.
  const StreamPlace& place() const { return first().place; }
  int64_t first_row() const { return first().begin; }

  // Reads row `row`, to which PassTo() has gone and which is below complete(), into S + 1 tokens.
  // Returns its epoch.
  int64_t Read(int64_t row, std::span<Token> tokens) const;
  // The epoch of the row before the one that PassTo() has gone to.
  int64_t passed_epoch() const { return passed_epoch_; }

  // Whether the next window should have more rows when row `row` of the first one is read, so that
  // it is complete when this one ends: as large a share of them as of this window has been read.
  bool WantsMore(int64_t row) const;

 private:
  using Row = std::unique_ptr<std::byte[]>;  // S + 1 tokens
  struct Window {
    int64_t end() const { return begin + std::ssize(rows); }
    StreamPlace place;
    int64_t begin = 0;  // its first row
    int64_t epoch = 0;  // of its rows
    std::vector<Row> rows;
  };

  const Window& first() const { return full_.empty() ? open_ : full_.front(); }
  int64_t Limit() const;  // of rows of open_
  size_t IndexOf(const Window& window, int64_t row) const;
  void AddRow(const StreamPlace& last);
  void Close();

  const Options options_;
  const int width_;
  std::deque<Window> full_;
  Window open_;
  std::vector<Token> partial_;  // of the next row
  StreamPlace last_;            // the last token of the last row
  int64_t passed_ = 0;          // rows before this one are freed
  int64_t passed_epoch_ = 0;
  std::vector<Row> free_;
};

}  // namespace nsa::train
