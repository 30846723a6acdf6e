#include "worker/train/serve/call.h"

#include <utility>

#include "worker/train/serve/limits.h"

namespace nsa::train::serve {
namespace {

size_t BytesOf(const AnswerPiece& piece) {
  size_t bytes = sizeof(AnswerPiece) + piece.text.size();
  for (const PlacedToken& placed : piece.tokens) {
    bytes += sizeof(PlacedToken) + placed.token.bytes.size() + placed.token.name.size();
    for (const auto& top : placed.token.top) bytes += sizeof(top) + top.first.size();
  }
  return bytes;
}

}  // namespace

bool Call::wanted() const {
  const MutexLock lock(&mutex_);
  return !cancelled_;
}

bool Call::ready() const {
  const MutexLock lock(&mutex_);
  return !cancelled_ && unsent_ < kUnsentBytes;
}

void Call::Put(AnswerPiece piece) {
  const MutexLock lock(&mutex_);
  if (cancelled_) return;
  unsent_ += BytesOf(piece);
  pieces_.push_back(std::move(piece));
  changed_.SignalAll();
}

void Call::End(absl::StatusOr<Usage> result) {
  const MutexLock lock(&mutex_);
  if (!result_.has_value()) result_ = std::move(result);
  changed_.SignalAll();
}

std::optional<AnswerPiece> Call::Take(absl::Duration patience) {
  std::optional<AnswerPiece> piece;
  bool room = false;  // again
  {
    const MutexLock lock(&mutex_);
    if (pieces_.empty() && !result_.has_value()) changed_.WaitFor(&mutex_, patience);
    if (pieces_.empty()) return std::nullopt;
    piece = std::move(pieces_.front());
    pieces_.pop_front();
    const bool full = unsent_ >= kUnsentBytes;
    unsent_ -= BytesOf(*piece);
    room = full && unsent_ < kUnsentBytes;
  }
  if (room) on_change_();
  return piece;
}

bool Call::ended() const {
  const MutexLock lock(&mutex_);
  return pieces_.empty() && result_.has_value();
}

absl::StatusOr<Usage> Call::result() const {
  const MutexLock lock(&mutex_);
  return result_.value_or(absl::InternalError("the answer has not ended"));
}

void Call::Cancel() {
  {
    const MutexLock lock(&mutex_);
    cancelled_ = true;
  }
  on_change_();
}

}  // namespace nsa::train::serve
