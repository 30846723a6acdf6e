#include "worker/train/serve/batch.h"

#include <algorithm>
#include <random>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/log.h"
#include "worker/train/serve/limits.h"

namespace nsa::train::serve {
namespace {

uint64_t RandomSeed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

Batch::Batch(const TextTokenizer* tokenizer, Decoder* decoder)
    : tokenizer_(*tokenizer), decoder_(*decoder), slots_(decoder->slots()) {}

bool Batch::open() const {
  const auto waits = [](const auto& answer) { return answer->waits(); };
  return used() < decoder_.slots() && std::ranges::none_of(answers_, waits);
}

int Batch::used() const {
  return static_cast<int>(
      std::ranges::count_if(slots_, [](const Slot& slot) { return slot.choice.has_value(); }));
}

void Batch::Add(std::shared_ptr<Call> call) {
  const Task& task = call->task();
  auto answer = std::make_unique<Answer>();
  answer->seed =
      task.request.seed.has_value() ? static_cast<uint64_t>(*task.request.seed) : RandomSeed();
  for (const std::vector<int32_t>& prompt : task.prompts) {
    answer->usage.prompt_tokens += std::ssize(prompt);
  }
  answer->call = std::move(call);
  answers_.push_back(std::move(answer));
  Fill();
}

bool Batch::Compute() {
  Sweep();
  Fill();
  const bool stepped = Step();
  const bool read = ReadTexts();
  return stepped || read;
}

// Forgets the calls that have ended, and those that nobody waits for.
void Batch::Sweep() {
  const auto gone = [](const Answer& answer) {
    return answer.ended == answer.call->task().choices() || !answer.call->wanted();
  };
  for (Slot& slot : slots_) {
    if (slot.choice.has_value() && gone(*slot.answer)) slot.choice.reset();
  }
  std::erase_if(answers_, [&](const std::unique_ptr<Answer>& answer) {
    if (!gone(*answer)) return false;
    answer->call->End(absl::CancelledError("nobody waits for the answer"));
    return true;
  });
}

// Gives free slots to the choices that wait.
void Batch::Fill() {
  for (const std::unique_ptr<Answer>& answer : answers_) {
    while (answer->waits()) {
      Slot* const slot = FreeSlot();
      if (slot == nullptr) return;
      Begin(answer.get(), slot);
    }
  }
}

Batch::Slot* Batch::FreeSlot() {
  const auto free =
      std::ranges::find_if(slots_, [](const Slot& slot) { return !slot.choice.has_value(); });
  return free == slots_.end() ? nullptr : &*free;
}

void Batch::Begin(Answer* answer, Slot* slot) {
  decoder_.Reset(NumberOf(slot));
  slot->answer = answer;
  slot->turn = ++turns_;
  slot->choice.emplace(&tokenizer_, &answer->call->task(), answer->begun++, answer->seed);
  if (slot->choice->finished()) End(slot);
}

// Takes a token for every choice that writes.
bool Batch::Step() {
  std::vector<SlotToken> tokens;
  for (const Slot& slot : slots_) {
    if (slot.runs() && !slot.reads()) tokens.push_back({NumberOf(&slot), slot.choice->unread()[0]});
  }
  if (tokens.empty()) return false;
  const absl::StatusOr<std::span<const float>> logits = decoder_.Step(tokens);
  const auto vocab = static_cast<size_t>(decoder_.vocab());
  for (size_t i = 0; i < tokens.size(); ++i) {
    Slot& slot = slots_[tokens[i].slot];
    if (!logits.ok()) {
      Fail(*slot.answer, logits.status());
      continue;
    }
    slot.choice->Read(1, logits->subspan(i * vocab, vocab));
    Proceed(&slot);
  }
  return true;
}

// Reads prompts, and texts that are begun again.
bool Batch::ReadTexts() {
  int64_t tokens = 0;
  while (tokens < kTokensBetweenSteps) {
    Slot* const slot = NextToRead();
    if (slot == nullptr) break;
    tokens += ReadRows(slot);
  }
  return tokens > 0;
}

// The one that has waited longest for its turn.
Batch::Slot* Batch::NextToRead() {
  Slot* next = nullptr;
  for (Slot& slot : slots_) {
    if (!slot.runs() || !slot.reads()) continue;
    if (next == nullptr || slot.turn < next->turn) next = &slot;
  }
  return next;
}

int64_t Batch::ReadRows(Slot* slot) {
  Choice& choice = *slot->choice;
  slot->turn = ++turns_;
  const std::span<const int32_t> unread = choice.unread();
  const std::span<const int32_t> rows =
      unread.first(std::min(unread.size(), static_cast<size_t>(Decoder::kMostRows)));
  const auto count = std::ssize(rows);
  const absl::StatusOr<std::span<const float>> logits =
      choice.scores() ? decoder_.PrefillEach(NumberOf(slot), rows)
                      : decoder_.Prefill(NumberOf(slot), rows);
  if (!logits.ok()) {
    Fail(*slot->answer, logits.status());
  } else {
    choice.Read(rows.size(), *logits);
    Proceed(slot);
  }
  return count;
}

// Hands over what was written, and sees to what comes next.
void Batch::Proceed(Slot* slot) {
  Choice& choice = *slot->choice;
  if (AnswerPiece piece = choice.Take(); !piece.empty()) slot->answer->call->Put(std::move(piece));
  if (choice.finished()) {
    End(slot);
  } else if (decoder_.tokens(NumberOf(slot)) == decoder_.context()) {
    decoder_.Reset(NumberOf(slot));
    choice.BeginAgain(static_cast<size_t>(std::max(1, decoder_.context() / 2)));
  }
}

// The choice is complete.
void Batch::End(Slot* slot) {
  Answer& answer = *slot->answer;
  answer.call->Put(slot->choice->Finish());
  answer.usage.completion_tokens += slot->choice->generated();
  slot->choice.reset();
  if (++answer.ended == answer.call->task().choices()) answer.call->End(answer.usage);
}

void Batch::Fail(const Answer& answer, const absl::Status& status) {
  if (!answer.call->wanted()) return;  // another choice has failed, in the same step
  spdlog::error("completion: {}", status.ToString());
  answer.call->End(status);
  answer.call->Cancel();
}

}  // namespace nsa::train::serve
