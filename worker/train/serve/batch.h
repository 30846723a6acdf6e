// The answers that are computed together: every choice has a slot of the decoder while it is
// written.
//
// Slots go to choices in the order of the requests' arrival, and those of one request in their
// order; a slot whose choice has ended, or whose client has gone, goes to the next one at once.
// Compute() is one round: a step takes a token for each choice that writes, and then up to
// kTokensBetweenSteps tokens of prompts are read, kMostRows at a time from each choice in turn. So
// nobody waits longer for a token than one round, and nobody's prompt for the whole of another.
//
// A choice has the same text whatever is computed beside it, because the decoder's logits have the
// same bits (decoder.h). When a client does not take what was written, its choices rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "worker/train/data/tokenize/tokenizer.h"
#include "worker/train/decode/decoder.h"
#include "worker/train/serve/answer.h"
#include "worker/train/serve/call.h"
#include "worker/train/serve/choice.h"

namespace nsa::train::serve {

// One thread at a time.
class Batch {
 public:
  // Both outlive the batch; nobody else uses the decoder.
  Batch(const TextTokenizer* tokenizer, Decoder* decoder);

  // Whether a slot is free that no call has a choice for.
  bool open() const;
  // Slots that have a choice.
  int used() const;

  // Takes a call. Its pieces and its end go to it; it ends with Cancelled once it is not wanted.
  void Add(std::shared_ptr<Call> call);

  // A round. False when there was nothing to compute: no choice has a slot, or those that have one
  // rest.
  bool Compute();

 private:
  struct Answer {
    std::shared_ptr<Call> call;
    uint64_t seed = 0;
    size_t begun = 0, ended = 0;  // choices
    Usage usage;

    bool waits() const { return begun < call->task().choices() && call->ready(); }
  };
  struct Slot {
    Answer* answer = nullptr;
    std::optional<Choice> choice;
    int64_t turn = 0;  // number of the last rows that were read for it

    // Several tokens are to be read: not by a step.
    bool reads() const { return choice->scores() || choice->unread().size() > 1; }
    bool runs() const { return choice.has_value() && answer->call->ready(); }
  };

  void Sweep();
  void Fill();
  Slot* FreeSlot();
  void Begin(Answer* answer, Slot* slot);
  bool Step();
  bool ReadTexts();
  Slot* NextToRead();
  int64_t ReadRows(Slot* slot);
  void Proceed(Slot* slot);
  static void End(Slot* slot);
  static void Fail(const Answer& answer, const absl::Status& status);
  int32_t NumberOf(const Slot* slot) const { return static_cast<int32_t>(slot - slots_.data()); }

  const TextTokenizer& tokenizer_;
  Decoder& decoder_;
  std::vector<Slot> slots_;                       // as the decoder's
  std::vector<std::unique_ptr<Answer>> answers_;  // by arrival
  int64_t turns_ = 0;
};

}  // namespace nsa::train::serve
