// Compares sequences that are decoded together with the same ones alone, on either device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/train/decode/decode_case.h"
#include "worker/train/decode/decoder.h"

namespace nsa::train {

inline constexpr int32_t kBatchSlots = 3;

// A part of the text, which has its slot from `round` on.
struct BatchSequence {
  int32_t slot;
  size_t begin, prompt, size;
  size_t round;
};

// They begin and end at different times, and three of them have the same slot in turn, a shorter
// one after a longer one.
inline constexpr BatchSequence kBatchSequences[] = {
    {0, 0, 130, 170, 0}, {1, 30, 1, 90, 0},   {2, 11, 64, 66, 3},
    {2, 90, 9, 60, 10},  {0, 57, 70, 99, 41}, {2, 8, 65, 80, 70},
};

// The logits after the prompt and after every token behind it, [count, V].
inline std::vector<float> LogitsOf(const BatchSequence& sequence, std::span<const int32_t> text,
                                   Decoder* alone) {
  text = text.subspan(sequence.begin, sequence.size);
  alone->Reset();
  auto logits = alone->Prefill(text.first(sequence.prompt));
  std::vector<float> all;
  for (const int32_t token : text.subspan(sequence.prompt)) {
    EXPECT_OK(logits);
    all.insert(all.end(), logits->begin(), logits->end());
    logits = alone->Step(token);
  }
  EXPECT_OK(logits);
  all.insert(all.end(), logits->begin(), logits->end());
  return all;
}

// The same of all sequences, `together`.
inline std::vector<std::vector<float>> LogitsOfAll(std::span<const int32_t> text,
                                                   Decoder* together) {
  std::vector<std::vector<float>> all(std::size(kBatchSequences));
  for (size_t round = 0; round < 200; ++round) {
    std::vector<SlotToken> tokens;
    std::vector<std::vector<float>*> to;
    for (size_t i = 0; i < all.size(); ++i) {
      const BatchSequence& sequence = kBatchSequences[i];
      const std::span<const int32_t> own = text.subspan(sequence.begin, sequence.size);
      if (round == sequence.round) {
        together->Reset(sequence.slot);
        const auto logits = together->Prefill(sequence.slot, own.first(sequence.prompt));
        EXPECT_OK(logits);
        all[i].assign(logits->begin(), logits->end());
      } else if (round > sequence.round &&
                 sequence.prompt + round - sequence.round <= sequence.size) {
        tokens.push_back({sequence.slot, own[sequence.prompt + round - sequence.round - 1]});
        to.push_back(&all[i]);
      }
    }
    if (tokens.empty()) continue;
    const auto logits = together->Step(tokens);
    EXPECT_OK(logits);
    const size_t vocab = logits->size() / tokens.size();
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto own = logits->subspan(i * vocab, vocab);
      to[i]->insert(to[i]->end(), own.begin(), own.end());
    }
  }
  return all;
}

// `together` has kBatchSlots slots; both have the whole text as their context.
inline void ExpectTheBitsOfEachAlone(const DecodeCase& example, Decoder* alone, Decoder* together) {
  const std::vector<std::vector<float>> all = LogitsOfAll(example.text(), together);
  for (size_t i = 0; i < all.size(); ++i) {
    const BatchSequence& sequence = kBatchSequences[i];
    EXPECT_EQ(all[i], LogitsOf(sequence, example.text(), alone)) << "sequence " << i;
    if (together->tokens(sequence.slot) != alone->tokens()) continue;  // no longer there
    for (int32_t layer = 0; layer < example.spec().model().n_layers(); ++layer) {
      EXPECT_EQ(*together->keys_read(sequence.slot, layer), *alone->keys_read(layer));
    }
  }
}

// A text read in pieces of whole kMostRows tokens has the bits of one that is read at once.
inline void ExpectTheBitsOfTheWhole(std::span<const int32_t> text, Decoder* decoder) {
  decoder->Reset();
  const auto whole = decoder->Prefill(text);
  ASSERT_OK(whole);
  const std::vector<float> expected(whole->begin(), whole->end());
  decoder->Reset();
  ASSERT_OK(decoder->Prefill(text.first(Decoder::kMostRows)));
  const auto rest = decoder->Prefill(text.subspan(Decoder::kMostRows));
  ASSERT_OK(rest);
  EXPECT_EQ(std::vector<float>(rest->begin(), rest->end()), expected);
}

}  // namespace nsa::train
