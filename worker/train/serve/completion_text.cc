#include "worker/train/serve/completion_text.h"

#include <algorithm>

#include "worker/train/score/utf8.h"

namespace nsa::train::serve {

void CompletionText::AddPrompt(AnswerToken token) {
  Append(std::move(token));
  prompt_ = held_.size();
}

void CompletionText::Add(AnswerToken token) {
  if (stopped_) return;
  Append(std::move(token));
  LookForStop();
}

void CompletionText::Stop() {
  Settle(partial_.size());
  LookForStop();
  stopped_ = true;
}

void CompletionText::Append(AnswerToken token) {
  partial_ += token.bytes;
  if (tokens_wanted_) {
    const int64_t begin = taken_ + static_cast<int64_t>(held_.size());
    waiting_.push_back({{std::move(token), characters_}, begin});
  }
  Settle(SettledUtf8(partial_));
}

// Moves bytes from partial_ to held_.
void CompletionText::Settle(size_t bytes) {
  const std::string text = ValidUtf8(std::string_view(partial_).substr(0, bytes));
  partial_.erase(0, bytes);
  characters_ += Utf8Characters(text);
  held_ += text;
}

// Ends the text before the first stop string in it.
void CompletionText::LookForStop() {
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, held_.find(stop, prompt_));
  if (first == std::string::npos) return;
  held_.resize(first);
  partial_.clear();
  stopped_ = true;
  const int64_t end = taken_ + static_cast<int64_t>(first);
  while (!waiting_.empty() && waiting_.back().begin >= end) waiting_.pop_back();
}

// The bytes of held_ that no stop string can take back.
size_t CompletionText::Sendable() const {
  if (stopped_) return held_.size();
  size_t kept = 0;
  for (const std::string& stop : stops_) {
    const size_t most = std::min(stop.size() - 1, held_.size() - prompt_);
    for (size_t length = most; length > kept; --length) {
      if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, length))) {
        kept = length;
      }
    }
  }
  return held_.size() - kept;
}

AnswerPiece CompletionText::Cut(size_t bytes, bool all_tokens) {
  AnswerPiece piece{.choice = choice_, .text = held_.substr(0, bytes)};
  held_.erase(0, bytes);
  prompt_ -= std::min(prompt_, bytes);
  taken_ += static_cast<int64_t>(bytes);
  while (!waiting_.empty() && (all_tokens || waiting_.front().begin < taken_)) {
    piece.tokens.push_back(std::move(waiting_.front().placed));
    waiting_.pop_front();
  }
  return piece;
}

AnswerPiece CompletionText::Take() { return Cut(Sendable(), false); }

AnswerPiece CompletionText::Finish() {
  if (!stopped_) {
    Settle(partial_.size());
    LookForStop();
  }
  AnswerPiece piece = Cut(held_.size(), true);
  piece.finish_reason = stopped_ ? "stop" : "length";
  return piece;
}

}  // namespace nsa::train::serve
