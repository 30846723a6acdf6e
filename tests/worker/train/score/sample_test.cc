#include "worker/train/score/sample.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/score/small_trained.h"
#include "worker/train/score/score.h"
#include "worker/train/score/utf8.h"

namespace nsa::train {
namespace {

using testing::HasSubstr;

TEST(Sample, TheSameSeedGivesTheSameTextOfTheWantedLength) {
  const TempDir dir;
  const auto trained = SmallModel(dir);
  const SampleOptions options{
      .prompt = "To be", .bytes = 60, .draw = {.temperature = 1}, .seed = 3};
  const auto text = Sample(*trained, options);
  ASSERT_OK(text);
  EXPECT_EQ(text->size(), 60u);
  EXPECT_EQ(text->find('\0'), std::string::npos);
  EXPECT_EQ(*Sample(*trained, options), *text);
  SampleOptions other = options;
  other.seed = 4;
  EXPECT_NE(*Sample(*trained, other), *text);
}

TEST(Sample, HandsOutItsBytesAsTheyAreDrawn) {
  const TempDir dir;
  const auto trained = SmallModel(dir);
  std::vector<std::string> pieces;
  const auto text = Sample(*trained, {.prompt = "To be", .bytes = 20}, [&](std::string_view bytes) {
    pieces.emplace_back(bytes);
    return absl::OkStatus();
  });
  ASSERT_OK(text);
  EXPECT_EQ(pieces.size(), 20u) << "a byte a token";
  std::string joined;
  for (const std::string& piece : pieces) joined += piece;
  EXPECT_EQ(joined, *text);
}

TEST(Sample, AnErrorOfTheOneWhoTakesTheBytesEndsTheText) {
  const TempDir dir;
  const auto trained = SmallModel(dir);
  int taken = 0;
  const auto text = Sample(*trained, {.prompt = "To be", .bytes = 20}, [&](std::string_view) {
    return ++taken < 3 ? absl::OkStatus() : absl::CancelledError("enough");
  });
  EXPECT_EQ(text.status(), absl::CancelledError("enough"));
  EXPECT_EQ(taken, 3);
}

// Bytes, of which the separator can be spelled, as <|endoftext|> can with GPT-2's files.
class SpelledSeparator final : public TextTokenizer {
 public:
  int32_t vocab() const override { return bytes_->vocab(); }
  int32_t separator() const override { return bytes_->separator(); }
  std::string Decode(int32_t token) const override { return bytes_->Decode(token); }
  std::optional<int32_t> TokenSpelled(std::string_view spelling) const override {
    return spelling == "<end>" ? std::optional<int32_t>(separator()) : std::nullopt;
  }

 private:
  class Nothing final : public Encoding {
   public:
    bool done() const override { return true; }
    absl::Status Next(size_t, std::vector<Token>*, ReadProgress*) override {
      return absl::OkStatus();
    }
  };
  std::unique_ptr<Encoding> Begin(std::string_view, TextPlace) const override {
    return std::make_unique<Nothing>();
  }

  const std::unique_ptr<TextTokenizer> bytes_ = ByteTokenizer();
};

TEST(Sample, AnAnswerMayEndWithTheSeparator) {
  const TempDir dir;
  const auto trained = SmallModel(dir);
  const SpelledSeparator tokenizer;
  TextModel model = trained->text_model();
  model.tokenizer = &tokenizer;
  SampleOptions options{.bytes = 5000, .draw = {.temperature = 1}, .seed = 3};
  EXPECT_EQ(Sample(model, options)->size(), 5000u) << "no other text has one";
  options.ends = {"<end>"};
  EXPECT_LT(Sample(model, options)->size(), 5000u);
}

TEST(Sample, AtTemperatureZeroEachByteIsTheLikeliest) {
  const TempDir dir;
  const auto trained = SmallModel(dir);
  const auto text = Sample(*trained, {.prompt = "", .bytes = 1, .draw = {.temperature = 0}});
  ASSERT_OK(text);
  float best = -1e9;
  int likeliest = 0;
  for (int byte = 1; byte < 256; ++byte) {
    const float score =
        ScoreTokens(*trained, Bytes(std::string(1, static_cast<char>(byte))))->at(0);
    if (score > best) {
      best = score;
      likeliest = byte;
    }
  }
  EXPECT_EQ(static_cast<unsigned char>((*text)[0]), likeliest);
}

// The likeliest bytes after `prompt`, by a forward pass over all that the model sees.
std::string Greedy(const TrainedModel& trained, const std::string& prompt, int bytes,
                   int32_t context = kSeqLen) {
  auto model = trained.MakeModel(1, context);
  EXPECT_OK(model);
  std::vector<int32_t> text = {0};
  for (const Token byte : Bytes(prompt)) text.push_back(byte);
  const auto most = static_cast<size_t>(context);
  size_t begin = text.size() > most ? text.size() - most : 0;
  std::vector<float> logits(256);
  for (int i = 0; i < bytes; ++i) {
    if (text.size() - begin > most) begin = text.size() - most / 2;
    std::vector<int32_t> row(text.begin() + static_cast<ptrdiff_t>(begin), text.end());
    const auto last = static_cast<int32_t>(row.size()) - 1;
    row.resize(most, 'x');  // the model does not see later tokens
    EXPECT_OK((*model)->NextLogits(Exec{}, row, last, logits));
    text.push_back(
        static_cast<int32_t>(std::max_element(logits.begin() + 1, logits.end()) - logits.begin()));
  }
  return {text.end() - bytes, text.end()};
}

TEST(Sample, AtTemperatureZeroItIsTheTextOfTheWholeForwardAlsoBeyondTheContext) {
  const TempDir dir;
  const auto trained = SmallModel(dir);
  for (const std::string& prompt :
       {std::string(), std::string("To be"), std::string(31, 'a'), std::string(32, 'b'),
        std::string("a prompt that is longer than the context of the model")}) {
    const auto text =
        Sample(*trained, {.prompt = prompt, .bytes = 100, .draw = {.temperature = 0}});
    ASSERT_OK(text);
    EXPECT_EQ(*text, Greedy(*trained, prompt, 100)) << prompt;
  }
}

TEST(Sample, EndsAfterSoManyTokensOrBytes) {
  const TempDir dir;
  const auto trained = SmallModel(dir);
  const auto size = [&](const SampleOptions& options) {
    const auto text = Sample(*trained, options);
    EXPECT_OK(text);
    return text->size();
  };
  EXPECT_EQ(size({}), 200u);
  EXPECT_EQ(size({.tokens = 300}), 300u);
  EXPECT_EQ(size({.bytes = 7, .tokens = 300}), 7u);
  EXPECT_EQ(size({.bytes = 300, .tokens = 7}), 7u);
  EXPECT_EQ(size({.bytes = 0}), 0u);
}

TEST(Sample, EndsBehindTheFirstOfItsEnds) {
  const TempDir dir;
  const auto trained = SmallModel(dir);
  SampleOptions options{.bytes = 100, .seed = 3};
  const std::string whole = *Sample(*trained, options);
  const std::string first = whole.substr(40, 3), later = whole.substr(60, 5);
  options.ends = {later, first};
  EXPECT_EQ(*Sample(*trained, options), whole.substr(0, whole.find(first) + 3));
  options.ends = {"\n never drawn \n"};
  EXPECT_EQ(*Sample(*trained, options), whole);
}

TEST(Sample, SeesAsMuchAsTheContextSaysAlsoMoreThanItWasTrainedOn) {
  const TempDir dir;
  const auto trained = SmallModel(dir);
  const std::string prompt = "a prompt that is longer than the context of the model";
  std::set<std::string> texts;
  for (const int32_t context : {4, 16, 200}) {
    const auto text = Sample(
        *trained, {.prompt = prompt, .bytes = 100, .draw = {.temperature = 0}, .context = context});
    ASSERT_OK(text);
    EXPECT_EQ(*text, Greedy(*trained, prompt, 100, context)) << context;
    texts.insert(*text);
  }
  EXPECT_EQ(texts.size(), 3u) << "what the model sees makes a difference";
}

TEST(Sample, RefusesNumbersOutOfRange) {
  const TempDir dir;
  const auto trained = SmallModel(dir);
  const auto message = [&](const SampleOptions& options) {
    const absl::Status status = Sample(*trained, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message({.draw = {.temperature = -1}}), HasSubstr("temperature: -1 (at least 0)"));
  EXPECT_THAT(message({.draw = {.temperature = NAN}}), HasSubstr("temperature: nan"));
  EXPECT_THAT(message({.draw = {.top_k = -1}}), HasSubstr("top-k: -1 (at least 0)"));
  EXPECT_THAT(message({.draw = {.top_p = 0}}), HasSubstr("top-p: 0 (more than 0, at most 1)"));
  EXPECT_THAT(message({.draw = {.top_p = 1.5}}), HasSubstr("top-p: 1.5"));
  EXPECT_THAT(message({.bytes = -1}), HasSubstr("bytes -1"));
  EXPECT_THAT(message({.tokens = -2}), HasSubstr("tokens -2"));
  EXPECT_THAT(message({.context = -3}), HasSubstr("context -3"));
}

TEST(PrintableUtf8, ReplacesWhatATerminalMustNotSee) {
  EXPECT_EQ(PrintableUtf8("plain é € 😀\n\t"), "plain é € 😀\n\t");
  const std::string r = "\xef\xbf\xbd";
  EXPECT_EQ(PrintableUtf8("a\x1b[31m"), "a" + r + "[31m");
  EXPECT_EQ(PrintableUtf8("\xc3"), r);
  EXPECT_EQ(PrintableUtf8("\xc3(\xff"), r + "(" + r);
  EXPECT_EQ(PrintableUtf8("\xc0\x80"), r + r);          // overlong
  EXPECT_EQ(PrintableUtf8("\xed\xa0\x80"), r + r + r);  // surrogate
  EXPECT_EQ(PrintableUtf8("\xc2\x9b"), r);              // a C1 control character
  EXPECT_EQ(PrintableUtf8("one\r\ntwo\rthree\r\r\n"), "one\ntwo\nthree\n\n");
}

TEST(PrintableStream, GivesTheSameTextHoweverTheBytesAreCut) {
  const std::string bytes =
      "a é € 😀\x1b\r\n\xc3(\xff\r\xc0\x80\r\r\n\xed\xa0\x80\xe2\x82(\xf0\x9f\x98 end\r\xf0\x9f";
  for (size_t length = 1; length <= 14; ++length) {
    const bool terminal = length % 2 == 0;
    PrintableStream stream(terminal);
    std::string text;
    for (size_t at = 0; at < bytes.size(); at += length) {
      text += stream.Add(std::string_view(bytes).substr(at, length));
    }
    text += stream.Finish();
    EXPECT_EQ(text, terminal ? PrintableUtf8(bytes) : ValidUtf8(bytes)) << length;
  }
  PrintableStream stream(/*terminal=*/true);
  EXPECT_EQ(stream.Add("x"), "x");
  EXPECT_EQ(stream.Add("\xc3"), "") << "waits for its end";
  EXPECT_EQ(stream.Add("\xa9"), "é");
  EXPECT_EQ(stream.Add("\r"), "") << "waits for a newline";
  EXPECT_EQ(stream.Add("\n\r"), "\n");
  EXPECT_EQ(stream.Finish(), "\n");
  PrintableStream pipe(/*terminal=*/false);
  EXPECT_EQ(pipe.Add("one\r"), "one\r") << "as the model wrote it";
  EXPECT_EQ(pipe.Add("\n\x1b"), "\n\x1b");
}

}  // namespace
}  // namespace nsa::train
