// The batch with a decoder that only counts.
#include "worker/train/serve/batch.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "worker/train/serve/limits.h"

namespace nsa::train::serve {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::Ge;
using testing::Le;
using testing::SizeIs;

// Its likeliest token depends on all tokens of the slot's sequence, and on nothing else.
class CountingDecoder final : public Decoder {
 public:
  CountingDecoder(int32_t slots, int32_t context) : context_(context), sequences_(slots) {}

  absl::StatusOr<std::span<const float>> Prefill(int32_t slot,
                                                 std::span<const int32_t> tokens) override {
    rows_since_step_ += std::ssize(tokens);
    reads_.push_back(slot);
    if (refused_ == slot) return absl::InternalError("refused");
    Append(slot, tokens);
    logits_.clear();
    AddLogits(sequences_[slot].size(), slot);
    return logits_;
  }
  absl::StatusOr<std::span<const float>> PrefillEach(int32_t slot,
                                                     std::span<const int32_t> tokens) override {
    rows_since_step_ += std::ssize(tokens);
    const size_t before = sequences_[slot].size();
    Append(slot, tokens);
    logits_.clear();
    for (size_t i = 1; i <= tokens.size(); ++i) AddLogits(before + i, slot);
    return logits_;
  }
  absl::StatusOr<std::span<const float>> Step(std::span<const SlotToken> tokens) override {
    rows_between_steps_.push_back(std::exchange(rows_since_step_, 0));
    std::vector<int32_t>& slots = steps_.emplace_back();
    logits_.clear();
    for (const auto& [slot, token] : tokens) {
      slots.push_back(slot);
      if (refused_ == slot) return absl::InternalError("refused");
      Append(slot, {&token, 1});
      AddLogits(sequences_[slot].size(), slot);
    }
    return logits_;
  }
  void Reset(int32_t slot) override { sequences_[slot].clear(); }
  int32_t vocab() const override { return 256; }
  int32_t context() const override { return context_; }
  int32_t slots() const override { return static_cast<int32_t>(sequences_.size()); }
  int32_t tokens(int32_t slot) const override {
    return static_cast<int32_t>(sequences_[slot].size());
  }
  absl::StatusOr<std::array<int64_t, kBranches>> keys_read(int32_t, int32_t) const override {
    return std::array<int64_t, kBranches>{};
  }
  int64_t bytes() const override { return 0; }

  std::vector<std::vector<int32_t>> steps_;  // slots of each
  std::vector<int64_t> rows_between_steps_;  // that were read before each
  std::vector<int32_t> reads_;               // slots of Prefill()
  int32_t refused_ = -1;                     // slot that it cannot compute

 private:
  void Append(int32_t slot, std::span<const int32_t> tokens) {
    std::vector<int32_t>& sequence = sequences_[slot];
    sequence.insert(sequence.end(), tokens.begin(), tokens.end());
    EXPECT_LE(std::ssize(sequence), context_);
  }
  void AddLogits(size_t tokens, int32_t slot) {
    const auto& sequence = sequences_[slot];
    const auto end = sequence.begin() + static_cast<int64_t>(tokens);
    const int64_t sum = std::accumulate(sequence.begin(), end, int64_t{7} * std::ssize(sequence));
    const size_t begin = logits_.size();
    logits_.resize(begin + 256);
    logits_[begin + 'a' + sum % 26] = 1;
  }

  const int32_t context_;
  int64_t rows_since_step_ = 0;
  std::vector<std::vector<int32_t>> sequences_;
  std::vector<float> logits_;
};

std::shared_ptr<Call> CallOf(size_t prompt, int64_t most, int32_t n = 1) {
  return std::make_shared<Call>(
      Task{.request = {.draw = {.temperature = 0}, .n = n},
           .prompts = {std::vector<int32_t>(prompt, static_cast<int32_t>('a' + prompt % 26))},
           .most = {most}});
}

// The texts that were not taken yet, by choice.
std::map<int32_t, std::string> Taken(Call* call) {
  std::map<int32_t, std::string> texts;
  while (const auto piece = call->Take(absl::ZeroDuration())) texts[piece->choice] += piece->text;
  return texts;
}

class BatchTest : public testing::Test {
 protected:
  void Start(int32_t slots, int32_t context = 4096) {
    decoder_ = std::make_unique<CountingDecoder>(slots, context);
    batch_ = std::make_unique<Batch>(tokenizer_.get(), decoder_.get());
  }
  std::shared_ptr<Call> Add(size_t prompt, int64_t most, int32_t n = 1) {
    auto call = CallOf(prompt, most, n);
    batch_->Add(call);
    return call;
  }
  void ComputeAll() {
    while (batch_->Compute()) {
    }
  }

  const std::unique_ptr<TextTokenizer> tokenizer_ = ByteTokenizer();
  std::unique_ptr<CountingDecoder> decoder_;
  std::unique_ptr<Batch> batch_;
};

TEST_F(BatchTest, EveryRequestHasTheTextThatItHasAlone) {
  const std::vector<std::pair<size_t, int64_t>> requests = {{3, 20},  {0, 5},   {750, 100},
                                                            {64, 30}, {65, 30}, {1, 1}};
  std::vector<std::map<int32_t, std::string>> alone;
  for (const auto& [prompt, most] : requests) {
    Start(1, 800);
    const auto call = Add(prompt, most, 2);
    ComputeAll();
    ASSERT_OK(call->result());
    alone.push_back(Taken(call.get()));
    EXPECT_EQ(alone.back()[0].size(), static_cast<size_t>(most));
  }
  Start(3, 800);
  std::vector<std::shared_ptr<Call>> calls;
  for (const auto& [prompt, most] : requests) {
    calls.push_back(Add(prompt, most, 2));
    batch_->Compute();
  }
  ComputeAll();
  for (size_t i = 0; i < calls.size(); ++i) {
    ASSERT_OK(calls[i]->result());
    EXPECT_EQ(calls[i]->result()->completion_tokens, 2 * requests[i].second);
    EXPECT_EQ(Taken(calls[i].get()), alone[i]) << i;
  }
}

TEST_F(BatchTest, SlotsGoToRequestsInTheOrderOfTheirArrival) {
  Start(2);
  const auto first = Add(1, 9), second = Add(1, 3);
  EXPECT_FALSE(batch_->open());
  const auto third = Add(1, 2), fourth = Add(1, 2);
  for (int round = 0; round < 3; ++round) batch_->Compute();
  EXPECT_TRUE(second->wanted() && !Taken(second.get()).empty() && second->ended());
  EXPECT_TRUE(Taken(third.get()).empty()) << "begins when a slot is free";
  for (int round = 0; round < 2; ++round) batch_->Compute();
  EXPECT_FALSE(Taken(third.get()).empty());
  EXPECT_TRUE(third->ended());
  EXPECT_TRUE(Taken(fourth.get()).empty());
  ComputeAll();
  EXPECT_OK(first->result());
  EXPECT_OK(fourth->result());
  EXPECT_TRUE(batch_->open());
  EXPECT_EQ(batch_->used(), 0);
}

TEST_F(BatchTest, ChoicesOfOneRequestAreWrittenTogether) {
  Start(4);
  const auto call = Add(1, 5, 3);
  batch_->Compute();
  EXPECT_EQ(batch_->used(), 3);
  EXPECT_TRUE(batch_->open());
  EXPECT_THAT(Taken(call.get()), SizeIs(3));
  ComputeAll();
  EXPECT_EQ(call->result()->completion_tokens, 15);
  // Two tokens of the prompt, then steps of all three.
  EXPECT_THAT(decoder_->steps_, AllOf(SizeIs(4), Each(ElementsAre(0, 1, 2))));
}

TEST_F(BatchTest, ALongPromptIsReadInPiecesBetweenSteps) {
  Start(3, 8'192);
  const auto writing = Add(0, 100);
  batch_->Compute();
  const auto lengthy = Add(6'000, 1), brief = Add(64, 5);
  while (!brief->ended() && batch_->Compute()) Taken(brief.get());
  EXPECT_TRUE(Taken(lengthy.get()).empty()) << "is still being read";
  ComputeAll();
  EXPECT_OK(lengthy->result());
  EXPECT_OK(writing->result());
  EXPECT_THAT(decoder_->rows_between_steps_,
              Each(Le(kTokensBetweenSteps + Decoder::kMostRows - 1)));
  EXPECT_THAT(decoder_->rows_between_steps_, testing::Contains(Ge(kTokensBetweenSteps)));
  EXPECT_THAT(std::vector<int32_t>(decoder_->reads_.begin(), decoder_->reads_.begin() + 4),
              ElementsAre(1, 2, 1, 1))
      << "in turn, until the last token of the brief one is left for a step";
}

TEST_F(BatchTest, ARequestWhoseClientTakesNothingRestsAndDelaysNobody) {
  Start(2);
  const auto slow = Add(0, 30'000);
  ComputeAll();
  EXPECT_FALSE(slow->ready());
  EXPECT_FALSE(slow->ended());
  int changes = 0;
  const size_t steps = decoder_->steps_.size();
  const auto other = Add(0, 10);
  ComputeAll();
  EXPECT_OK(other->result());
  EXPECT_THAT(
      std::vector(decoder_->steps_.begin() + static_cast<int64_t>(steps), decoder_->steps_.end()),
      Each(ElementsAre(1)));
  slow->Watch([&] { ++changes; });
  std::string text = Taken(slow.get())[0];
  EXPECT_EQ(changes, 1);
  EXPECT_TRUE(batch_->Compute());
  while (!slow->ended()) {
    ComputeAll();
    text += Taken(slow.get())[0];
  }
  EXPECT_EQ(text.size(), 30'000U);
}

TEST_F(BatchTest, ASlotOfACancelledRequestIsFreeForTheNext) {
  Start(1);
  const auto first = Add(2'000, 1'000'000), second = Add(0, 2);
  batch_->Compute();
  first->Cancel();
  ComputeAll();
  EXPECT_EQ(first->result().status().code(), absl::StatusCode::kCancelled);
  EXPECT_OK(second->result());
}

TEST_F(BatchTest, AnErrorEndsTheRequestsThatItConcerns) {
  Start(2);
  const auto first = Add(100, 5);
  decoder_->refused_ = 0;
  ComputeAll();
  EXPECT_EQ(first->result().status().code(), absl::StatusCode::kInternal);
  decoder_->refused_ = -1;
  const auto second = Add(0, 100), third = Add(0, 100), fourth = Add(0, 2);
  batch_->Compute();
  decoder_->refused_ = 1;
  batch_->Compute();
  EXPECT_EQ(second->result().status().code(), absl::StatusCode::kInternal) << "of the same step";
  EXPECT_EQ(third->result().status().code(), absl::StatusCode::kInternal);
  decoder_->refused_ = -1;
  ComputeAll();
  EXPECT_OK(fourth->result());
}

TEST_F(BatchTest, AChoiceOfNoTokensEndsAtOnce) {
  Start(1);
  const auto call = Add(5, 0, 3);
  EXPECT_OK(call->result());
  EXPECT_EQ(batch_->used(), 0);
  EXPECT_THAT(Taken(call.get()), SizeIs(3));
  EXPECT_TRUE(decoder_->steps_.empty() && decoder_->reads_.empty());
}

}  // namespace
}  // namespace nsa::train::serve
