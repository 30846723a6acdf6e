#include "worker/train/decode/decoder.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/train/decode/batch_bits.h"
#include "tests/worker/train/decode/decode_case.h"
#include "tests/worker/train/decode/variants.h"
#include "worker/train/model/model_config.h"

namespace nsa::train {
namespace {

using testing::HasSubstr;

// Some hundred roundings of 2^-24 each, of numbers of magnitude below 16, one after the other.
constexpr double kRounding = 2e-4;

class DecoderVariants : public testing::TestWithParam<Variant> {
 protected:
  static v1::JobSpec Spec() {
    v1::JobSpec spec = TinyJob();
    GetParam().change(&spec);
    return spec;
  }
};

TEST_P(DecoderVariants, PrefillAndStepsEqualTheWholeForwardAtEverySplit) {
  const DecodeCase example(Spec(), 40, 1);
  const auto expected = example.WholeForward();
  const auto decoder = example.MakeDecoder();
  ASSERT_NE(decoder, nullptr);
  for (size_t split = 1; split <= example.text().size(); ++split) {
    decoder->Reset();
    auto logits = decoder->Prefill(example.text().first(split));
    for (size_t t = split - 1;; ++t) {
      ASSERT_OK(logits);
      ASSERT_LT(ErrorOf(*logits, expected[t]), kRounding) << "split " << split << ", token " << t;
      if (t + 1 == example.text().size()) break;
      logits = decoder->Step(example.text()[t + 1]);
    }
  }
}

TEST_P(DecoderVariants, PrefillEachGivesTheLogitsOfEveryToken) {
  const DecodeCase example(Spec(), 40, 1);
  const auto expected = example.WholeForward();
  const auto decoder = example.MakeDecoder();
  ASSERT_NE(decoder, nullptr);
  const auto vocab = static_cast<size_t>(example.spec().model().vocab());
  for (const size_t split : {1, 8, 23, 39, 40}) {
    decoder->Reset();
    ASSERT_OK(decoder->Prefill(example.text().first(1)));
    for (size_t begin = 1; begin < example.text().size(); begin += split) {
      const size_t rows = std::min(split, example.text().size() - begin);
      const auto logits = decoder->PrefillEach(example.text().subspan(begin, rows));
      ASSERT_OK(logits);
      ASSERT_EQ(logits->size(), rows * vocab);
      for (size_t row = 0; row < rows; ++row) {
        ASSERT_LT(ErrorOf(logits->subspan(row * vocab, vocab), expected[begin + row]), kRounding)
            << "split " << split << ", token " << begin + row;
      }
    }
  }
}

TEST_P(DecoderVariants, ReadsTheKeysOfTheFormulaHoweverTheTextIsDivided) {
  const DecodeCase example(Spec(), 40, 2);
  const auto decoder = example.MakeDecoder();
  ASSERT_NE(decoder, nullptr);
  for (const size_t split : {1, 2, 7, 8, 9, 23, 40}) {
    decoder->Reset();
    ASSERT_OK(decoder->Prefill(example.text().first(split)));
    while (true) {
      for (int32_t layer = 0; layer < example.spec().model().n_layers(); ++layer) {
        ASSERT_EQ(*decoder->keys_read(layer), example.KeysExpected(layer, decoder->tokens()))
            << "split " << split << ", layer " << layer << ", " << decoder->tokens() << " tokens";
      }
      if (decoder->tokens() == decoder->context()) break;
      ASSERT_OK(decoder->Step(example.text()[decoder->tokens()]));
    }
  }
}

TEST_P(DecoderVariants, InABatchEverySequenceHasTheBitsThatItHasAlone) {
  const DecodeCase example(Spec(), 200, 3);
  const auto alone = example.MakeDecoder(), together = example.MakeDecoder(200, kBatchSlots);
  ASSERT_NE(alone, nullptr);
  ASSERT_NE(together, nullptr);
  ExpectTheBitsOfEachAlone(example, alone.get(), together.get());
  ExpectTheBitsOfTheWhole(example.text(), alone.get());
}

INSTANTIATE_TEST_SUITE_P(Decoder, DecoderVariants, testing::ValuesIn(kVariants),
                         [](const auto& param) { return param.param.name; });

// One of `choices`.
template <class T>
T OneOf(std::mt19937* engine, std::initializer_list<T> choices) {
  return choices.begin()[(*engine)() % choices.size()];
}

v1::JobSpec RandomSpec(std::mt19937* engine) {
  v1::JobSpec spec = TinyJob();
  v1::ModelSpec& model = *spec.mutable_model();
  v1::NsaSpec& nsa = *spec.mutable_nsa();
  const int32_t groups = OneOf(engine, {1, 2, 3}), d = OneOf(engine, {1, 2, 4, 8});
  model.set_n_layers(OneOf(engine, {1, 2, 3}));
  model.set_n_kv_groups(groups);
  model.set_n_heads(groups * OneOf(engine, {1, 2, 5}));
  model.set_d_k(OneOf(engine, {16, 32}));
  model.set_d_v(OneOf(engine, {16, 32}));
  nsa.set_d(d);
  nsa.set_l(d * OneOf(engine, {1, 2, 4, 5}));
  nsa.set_l_sel(d * OneOf(engine, {1, 2, 3, 8}));
  nsa.set_n_sel(OneOf(engine, {3, 4, 7}));
  nsa.set_w(OneOf(engine, {1, 2, 5, 17, 64, 300}));
  nsa.set_phi(OneOf(engine, {v1::PHI_AVG, v1::PHI_MLP}));
  nsa.set_gate(OneOf(engine, {v1::GATE_SOFTMAX, v1::GATE_SIGMOID}));
  spec.mutable_data()->set_document_mask((*engine)() % 3 == 0);
  if ((*engine)() % 2 == 0) {
    const char* const first = OneOf(engine, {"cmp", "sel", "win", "cmp+sel+win"});
    SetLayers(&spec, {first, OneOf(engine, {"cmp+sel", "sel+win", "cmp+win"})});
  }
  return spec;
}

TEST(Decoder, OfAnyShapeEqualsTheWholeForwardHoweverTheTextIsDivided) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    std::mt19937 engine(seed);
    const v1::JobSpec spec = RandomSpec(&engine);
    const auto size = static_cast<int32_t>(1 + engine() % 200);
    const DecodeCase example(spec, size, seed);
    const auto expected = example.WholeForward();
    // Room for more tokens, so that the memory has another layout.
    const auto decoder = example.MakeDecoder(size + OneOf(&engine, {0, 1, 100}));
    ASSERT_NE(decoder, nullptr);
    std::span<const int32_t> left = example.text();
    while (!left.empty()) {
      const size_t rows = std::min<size_t>(left.size(), OneOf(&engine, {1, 1, 1, 2, 9, 64, 130}));
      const auto logits = decoder->Prefill(left.first(rows));
      ASSERT_OK(logits);
      left = left.subspan(rows);
      const int32_t t = decoder->tokens() - 1;
      ASSERT_LT(ErrorOf(*logits, expected[t]), kRounding)
          << "seed " << seed << ", token " << t << ", " << rows << " rows\n"
          << spec.nsa().ShortDebugString() << " " << spec.model().ShortDebugString();
    }
    for (int32_t layer = 0; layer < spec.model().n_layers(); ++layer) {
      EXPECT_EQ(*decoder->keys_read(layer), example.KeysExpected(layer, size)) << "seed " << seed;
    }
  }
}

TEST(Decoder, ReadsTheBlocksAndWindowsOfTheFormulaPerToken) {
  // l = 8, d = 4, l' = 8, n = 3, w = 6, one document: what a token reads, computed here.
  const DecodeCase example(TinyJob(), 100, 5);
  const auto decoder = example.MakeDecoder();
  ASSERT_NE(decoder, nullptr);
  const int64_t groups = example.spec().model().n_kv_groups();
  std::array<int64_t, kBranches> before = {};
  for (int64_t s = 1; s <= 100; ++s) {
    ASSERT_OK(decoder->Step(example.text()[s - 1]));
    const auto after = *decoder->keys_read(1);
    EXPECT_EQ(after[kCmp] - before[kCmp], groups * (s < 8 ? 0 : (s - 8) / 4 + 1)) << s;
    // Three blocks; the last is filled up to this token.
    EXPECT_EQ(after[kSel] - before[kSel], groups * std::min(s, 16 + (s - 1) % 8 + 1)) << s;
    EXPECT_EQ(after[kWin] - before[kWin], groups * std::min<int64_t>(s, 6)) << s;
    before = after;
  }
}

TEST(Decoder, AfterAResetItIsANewOne) {
  const DecodeCase example(TinyJob(), 90, 6);
  const auto decoder = example.MakeDecoder();
  ASSERT_NE(decoder, nullptr);
  const auto run = [&] {
    std::vector<float> all;
    for (const int32_t token : example.text()) {
      const auto logits = decoder->Step(token);
      EXPECT_OK(logits);
      all.insert(all.end(), logits->begin(), logits->end());
    }
    return all;
  };
  const std::vector<float> first = run();
  const auto keys = *decoder->keys_read(0);
  decoder->Reset();
  EXPECT_EQ(decoder->tokens(), 0);
  EXPECT_EQ(*decoder->keys_read(0), (std::array<int64_t, kBranches>{}));
  EXPECT_EQ(run(), first);
  EXPECT_EQ(*decoder->keys_read(0), keys);
}

TEST(Decoder, RefusesWhatDoesNotFitAndKeepsItsSequence) {
  const DecodeCase example(TinyJob(), 24, 7);
  const auto decoder = example.MakeDecoder();
  const auto same = example.MakeDecoder();
  ASSERT_OK(decoder->Prefill(example.text().first(20)));
  ASSERT_OK(same->Prefill(example.text().first(20)));
  EXPECT_THAT(decoder->Prefill(example.text().first(5)),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("decode: 5 tokens after 20")));
  EXPECT_THAT(decoder->Prefill({}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 tokens (at least 1)")));
  for (const int32_t token : {-1, 11}) {
    const std::vector<int32_t> bad = {1, token};
    EXPECT_THAT(decoder->Prefill(bad),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("(from 0 to 10)")));
  }
  EXPECT_EQ(decoder->tokens(), 20);
  const auto logits = decoder->Prefill(example.text().last(4));
  const auto expected = same->Prefill(example.text().last(4));
  ASSERT_OK(logits);
  EXPECT_TRUE(std::ranges::equal(*logits, *expected));
  EXPECT_THAT(decoder->Step(1), StatusIs(absl::StatusCode::kOutOfRange));
}

TEST(Decoder, RefusesAStepThatDoesNotFitAndKeepsItsSequences) {
  const DecodeCase example(TinyJob(), 24, 7);
  const auto decoder = example.MakeDecoder(4, 2);
  ASSERT_OK(decoder->Prefill(1, example.text().first(4)));
  const auto step = [&](std::vector<SlotToken> tokens) { return decoder->Step(tokens).status(); };
  for (const std::vector<SlotToken>& bad :
       {std::vector<SlotToken>{}, {{2, 1}}, {{-1, 1}}, {{0, 1}, {0, 2}}, {{0, 11}}}) {
    EXPECT_THAT(step(bad), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("decode: ")));
  }
  EXPECT_THAT(step({{0, 1}, {1, 1}}), StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_EQ(decoder->tokens(0), 0);
  EXPECT_EQ(decoder->tokens(1), 4);
  EXPECT_OK(step({{0, 1}}));
}

TEST(Decoder, RefusesAContextAndSlotsOutsideTheLimits) {
  const DecodeCase example(TinyJob(), 2, 8);
  for (const int32_t slots : {-1, 0, 65}) {
    EXPECT_THAT(Decoder::BytesFor(example.spec(), Backend::kCpu, {.context = 24, .slots = slots}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("slots (from 1 to 64)")));
  }
  for (const int32_t context : {-1, 0, 1'048'577}) {
    EXPECT_THAT(Decoder::BytesFor(example.spec(), Backend::kCpu, {.context = context}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("seq_len")));
  }
}

TEST(Decoder, NeedsTheMemoryItSays) {
  for (const Variant& variant : kVariants) {
    v1::JobSpec spec = TinyJob();
    variant.change(&spec);
    const DecodeCase example(spec, 2, 9);
    for (const int32_t context : {1, 24, 1000}) {
      for (const int32_t slots : {1, 3}) {
        EXPECT_EQ(*Decoder::BytesFor(spec, Backend::kCpu, {.context = context, .slots = slots}),
                  example.MakeDecoder(context, slots)->bytes())
            << variant.name;
      }
    }
  }
  // A token of a longer context costs its selected keys and values, and a block every d tokens, in
  // each of two layers; the window and the workspace do not grow.
  const auto bytes = [](int32_t context, int32_t slots) {
    return *Decoder::BytesFor(TinyJob(), Backend::kCpu, {.context = context, .slots = slots});
  };
  const int64_t row = 2 * (16 + 16) * 4;
  const int64_t more = 2 * (10'000 * row + 10'000 / 4 * row);
  EXPECT_EQ(bytes(20'000, 1) - bytes(10'000, 1), more);
  EXPECT_EQ(bytes(20'000, 5) - bytes(10'000, 5), 5 * more);
}

}  // namespace
}  // namespace nsa::train
