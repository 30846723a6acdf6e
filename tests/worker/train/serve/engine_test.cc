#include "worker/train/serve/engine.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/paths.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/data/tokenize/byte_fallback.h"
#include "tests/worker/train/score/small_trained.h"
#include "worker/train/score/sample.h"
#include "worker/train/score/score.h"
#include "worker/train/score/utf8.h"
#include "worker/train/serve/call.h"

namespace nsa::train::serve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

// As decoder_test.cc has it.
constexpr double kRounding = 2e-4;

// The pieces of each choice, put together.
struct Answered {
  std::vector<AnswerPiece> choices;
  Usage usage;
};

// What a call has written.
absl::StatusOr<Answered> Collect(Call* call) {
  Answered answered;
  while (std::optional<AnswerPiece> piece = call->Take(absl::ZeroDuration())) {
    EXPECT_FALSE(piece->empty());
    EXPECT_EQ(ValidUtf8(piece->text), piece->text);
    const auto index = static_cast<size_t>(piece->choice);
    if (answered.choices.size() <= index) answered.choices.resize(index + 1);
    AnswerPiece& choice = answered.choices[index];
    EXPECT_EQ(choice.finish_reason, "") << "the last piece has it";
    choice.text += piece->text;
    std::move(piece->tokens.begin(), piece->tokens.end(), std::back_inserter(choice.tokens));
    choice.finish_reason = piece->finish_reason;
  }
  NSA_ASSIGN_OR_RETURN(answered.usage, call->result());
  return answered;
}

absl::StatusOr<Answered> AnswerTo(Engine* engine, const Task& task) {
  const auto call = std::make_shared<Call>(task);
  engine->batch()->Add(call);
  while (engine->batch()->Compute()) {
  }
  return Collect(call.get());
}

class EngineTest : public testing::Test {
 protected:
  EngineTest() : trained_(SmallModel(dir_)), engine_(*Engine::Create(trained_.get(), {})) {}

  absl::StatusOr<Answered> Try(CompletionRequest request) {
    NSA_ASSIGN_OR_RETURN(const Task task, engine_->Prepare(std::move(request)));
    return AnswerTo(engine_.get(), task);
  }

  Answered Complete(CompletionRequest request) {
    const auto answered = Try(std::move(request));
    EXPECT_OK(answered);
    return answered.value_or(Answered{.choices = std::vector<AnswerPiece>(1), .usage = {}});
  }

  // What Sample() writes.
  std::string Sampled(const std::string& prompt, int64_t tokens, DrawOptions draw, int64_t seed) {
    const auto text =
        Sample(*trained_, {.prompt = prompt, .tokens = tokens, .draw = draw, .seed = seed});
    EXPECT_OK(text);
    return ValidUtf8(text.value_or(""));
  }

  const TempDir dir_;
  const std::unique_ptr<TrainedModel> trained_;
  const std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTest, WritesWhatSampleWritesAlsoBeyondTheContext) {
  for (const std::string& prompt : {std::string(), std::string("To be"), std::string(31, 'a')}) {
    for (const DrawOptions& draw : {DrawOptions{.temperature = 0}, DrawOptions{.temperature = 1},
                                    DrawOptions{.temperature = 0.7, .top_k = 20, .top_p = 0.9}}) {
      const Answered answered =
          Complete({.prompts = {prompt}, .max_tokens = 100, .draw = draw, .seed = 5});
      EXPECT_EQ(answered.choices[0].text, Sampled(prompt, 100, draw, 5)) << prompt;
      EXPECT_EQ(answered.choices[0].finish_reason, "length");
      EXPECT_EQ(answered.usage.completion_tokens, 100);
      EXPECT_EQ(answered.usage.prompt_tokens, static_cast<int64_t>(prompt.size()));
    }
  }
}

TEST_F(EngineTest, ScoresAPromptAsScoreTokensDoes) {
  const std::string prompt = "To be, or not to be: a test";
  const auto scores = ScoreTokens(*trained_, Bytes(prompt));
  ASSERT_OK(scores);
  const Answered answered =
      Complete({.prompts = {prompt}, .max_tokens = 0, .echo = true, .logprobs = 1});
  const AnswerPiece& choice = answered.choices[0];
  EXPECT_EQ(choice.text, prompt);
  EXPECT_EQ(choice.finish_reason, "length");
  EXPECT_EQ(answered.usage.completion_tokens, 0);
  ASSERT_EQ(choice.tokens.size(), prompt.size());
  EXPECT_FALSE(choice.tokens[0].token.logprob.has_value());
  for (size_t i = 1; i < prompt.size(); ++i) {
    EXPECT_EQ(choice.tokens[i].token.name, prompt.substr(i, 1));
    EXPECT_EQ(choice.tokens[i].offset, static_cast<int64_t>(i));
    EXPECT_NEAR(*choice.tokens[i].token.logprob, scores->at(i), kRounding) << i;
  }
}

TEST_F(EngineTest, ScoresTheFirstTokenBehindASeparatorThatTheClientSends) {
  const std::string text = "To be";
  const auto scores = ScoreTokens(*trained_, Bytes(text));
  ASSERT_OK(scores);
  std::vector<int32_t> prompt = {0};
  prompt.insert(prompt.end(), text.begin(), text.end());
  const Answered answered =
      Complete({.prompts = {prompt}, .max_tokens = 0, .echo = true, .logprobs = 0});
  const AnswerPiece& choice = answered.choices[0];
  EXPECT_EQ(choice.text, text);
  ASSERT_EQ(choice.tokens.size(), 6u);
  EXPECT_EQ(choice.tokens[0].token.name, "<|endoftext|>");
  EXPECT_FALSE(choice.tokens[0].token.logprob.has_value());
  for (size_t i = 0; i < text.size(); ++i) {
    EXPECT_NEAR(*choice.tokens[i + 1].token.logprob, scores->at(i), kRounding) << i;
    EXPECT_TRUE(choice.tokens[i + 1].token.top.empty()) << "with logprobs 0";
  }
}

TEST_F(EngineTest, TheTopTokensAreTheMostProbableAndTheTokenItself) {
  const Answered answered = Complete({.prompts = {"To be, or not"},
                                      .max_tokens = 4,
                                      .draw = {.temperature = 0},
                                      .echo = true,
                                      .logprobs = 3});
  const auto& tokens = answered.choices[0].tokens;
  ASSERT_EQ(tokens.size(), 17u);
  int listed = 0;
  for (size_t i = 1; i < tokens.size(); ++i) {
    const AnswerToken& token = tokens[i].token;
    ASSERT_GE(token.top.size(), 3u);
    EXPECT_TRUE(std::is_sorted(token.top.begin(), token.top.begin() + 3,
                               [](const auto& a, const auto& b) { return a.second > b.second; }));
    const auto own = std::find_if(token.top.begin(), token.top.end(),
                                  [&](const auto& top) { return top.first == token.name; });
    ASSERT_NE(own, token.top.end());
    EXPECT_EQ(own->second, *token.logprob);
    EXPECT_EQ(token.top.size(), own < token.top.begin() + 3 ? 3u : 4u);
    if (own < token.top.begin() + 3) ++listed;
  }
  EXPECT_LT(listed, 16) << "some token of the prompt is not among the three";
  for (size_t i = 13; i < tokens.size(); ++i) {
    const auto& top = tokens[i].token.top;
    const size_t first = top[0].first == "<|endoftext|>" ? 1 : 0;  // never generated
    EXPECT_EQ(top[first].first, tokens[i].token.name) << "greedy";
  }
}

// The probabilities of all tokens add up to one.
TEST_F(EngineTest, LogprobsAreThoseOfTheWholeVocabulary) {
  double sum = 0;
  for (int32_t v = 0; v < 256; ++v) {
    const Answered answered = Complete(
        {.prompts = {std::vector<int32_t>{'T', v}}, .max_tokens = 0, .echo = true, .logprobs = 0});
    sum += std::exp(*answered.choices[0].tokens[1].token.logprob);
  }
  EXPECT_NEAR(sum, 1, 1e-4);
}

TEST_F(EngineTest, AnswersEveryPromptNTimesInOrder) {
  const Answered answered = Complete({.prompts = {"To be", std::vector<int32_t>{'a', 'b'}},
                                      .max_tokens = 20,
                                      .n = 2,
                                      .echo = true,
                                      .seed = 3});
  ASSERT_EQ(answered.choices.size(), 4u);
  EXPECT_THAT(answered.choices[0].text, StartsWith("To be"));
  EXPECT_THAT(answered.choices[1].text, StartsWith("To be"));
  EXPECT_THAT(answered.choices[2].text, StartsWith("ab"));
  EXPECT_NE(answered.choices[0].text, answered.choices[1].text);
  EXPECT_NE(answered.choices[2].text.substr(2), answered.choices[0].text.substr(5));
  EXPECT_EQ(answered.usage.prompt_tokens, 7);
  EXPECT_EQ(answered.usage.completion_tokens, 80);
  const Answered again = Complete({.prompts = {"To be", std::vector<int32_t>{'a', 'b'}},
                                   .max_tokens = 20,
                                   .n = 2,
                                   .echo = true,
                                   .seed = 3});
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(again.choices[i].text, answered.choices[i].text);
}

TEST_F(EngineTest, WithoutASeedEveryAnswerIsAnother) {
  const CompletionRequest request = {.prompts = {"To be"}, .max_tokens = 40};
  EXPECT_NE(Complete(request).choices[0].text, Complete(request).choices[0].text);
}

TEST_F(EngineTest, EndsBeforeAStopString) {
  const std::string whole =
      Complete({.prompts = {"To be"}, .max_tokens = 60, .seed = 1}).choices[0].text;
  size_t at = 20;  // of ASCII
  while (static_cast<unsigned char>(whole[at]) >= 0x80 ||
         static_cast<unsigned char>(whole[at + 1]) >= 0x80)
    ++at;
  const std::string stop = whole.substr(at, 2);
  const Answered answered =
      Complete({.prompts = {"To be"}, .max_tokens = 60, .logprobs = 1, .stops = {stop}, .seed = 1});
  EXPECT_EQ(answered.choices[0].text, whole.substr(0, whole.find(stop)));
  EXPECT_EQ(answered.choices[0].finish_reason, "stop");
  EXPECT_LT(answered.usage.completion_tokens, 60);
  EXPECT_LT(static_cast<int64_t>(answered.choices[0].tokens.size()),
            answered.usage.completion_tokens)
      << "those of the stop string are counted and not shown";
}

TEST_F(EngineTest, TokensThatArePartsOfACharacterShowTheirBytes) {
  const Answered answered =
      Complete({.prompts = {"é"}, .max_tokens = 0, .echo = true, .logprobs = 1});
  const AnswerPiece& choice = answered.choices[0];
  EXPECT_EQ(choice.text, "é");
  ASSERT_EQ(choice.tokens.size(), 2u);
  EXPECT_EQ(choice.tokens[0].token.name, "bytes:\\xc3");
  EXPECT_EQ(choice.tokens[1].token.name, "bytes:\\xa9");
  EXPECT_EQ(choice.tokens[1].offset, 0);
}

TEST_F(EngineTest, RefusesWhatDoesNotFitTheModel) {
  const auto message = [&](CompletionRequest request, absl::StatusCode code) {
    const absl::Status status = engine_->Prepare(std::move(request)).status();
    EXPECT_EQ(status.code(), code);
    return std::string(status.message());
  };
  EXPECT_OK(engine_->Prepare({.prompts = {std::string(31, 'a')}}));
  EXPECT_THAT(
      message({.prompts = {std::string(32, 'a')}}, absl::StatusCode::kOutOfRange),
      StartsWith(
          "prompt: 33 tokens with the separator that begins a text (the model's context: 32)"));
  std::vector<int32_t> begun(32, 'a');
  begun[0] = 0;
  EXPECT_OK(engine_->Prepare({.prompts = {begun}}));
  EXPECT_THAT(message({.prompts = {std::vector<int32_t>{256}}}, absl::StatusCode::kInvalidArgument),
              StartsWith("prompt: token 256 (from 0 to 255)"));
  EXPECT_THAT(message({.prompts = {"a"}, .max_tokens = 100'000, .n = 3},
                      absl::StatusCode::kInvalidArgument),
              StartsWith("max_tokens: 300003 tokens in all prompts and choices"));
  EXPECT_THAT(message({.prompts = {"a"}, .max_tokens = 100'000, .logprobs = 5},
                      absl::StatusCode::kInvalidArgument),
              HasSubstr("600006 with their logprobs"));
}

TEST_F(EngineTest, WritesAsMuchAsTheContextHasRoomFor) {
  const Answered answered = Complete(
      {.prompts = {"To be", std::string(20, 'a'), std::string(31, 'a')}, .max_tokens = {}});
  ASSERT_EQ(answered.choices.size(), 3u);
  EXPECT_EQ(answered.usage.completion_tokens, (32 - 6) + (32 - 21) + 0);
  EXPECT_EQ(answered.choices[2].text, "");
  for (const AnswerPiece& choice : answered.choices) EXPECT_EQ(choice.finish_reason, "length");
  // What the request leaves open fits into what all choices may have.
  const auto many = engine_->Prepare({.prompts = {"a"}, .max_tokens = {}, .n = 10'000});
  ASSERT_OK(many);
  EXPECT_THAT(many->most, ElementsAre(262'144 / 10'000 - 1));
  const auto wide = Engine::Create(trained_.get(), {.context = 300'000, .slots = 1});
  ASSERT_OK(wide);
  const auto chat = (*wide)->Prepare({.messages = {{"user", "Hi"}}, .max_tokens = {}});
  ASSERT_OK(chat);
  EXPECT_EQ(chat->most.at(0), 262'144 - std::ssize(chat->prompts.at(0)));
  const auto scored =
      (*wide)->Prepare({.messages = {{"user", "Hi"}}, .max_tokens = {}, .logprobs = 20});
  ASSERT_OK(scored);
  EXPECT_EQ(scored->most.at(0), 262'144 / 21 - std::ssize(scored->prompts.at(0)));
  EXPECT_THAT(
      std::string((*wide)->Prepare({.prompts = {"a"}, .max_tokens = 299'990}).status().message()),
      StartsWith("max_tokens: 299991 tokens in all prompts and choices"));
}

TEST_F(EngineTest, CachesThatDoNotFitAreRefused) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  EXPECT_OK(CheckCaches(3 * kGiB, 3 * kGiB, 64, 1'024));
  EXPECT_OK(CheckCaches(3 * kGiB, 0, 64, 1'024)) << "not known";
  EXPECT_THAT(
      CheckCaches(3 * kGiB, kGiB, 64, 1'024),
      StatusIs(absl::StatusCode::kResourceExhausted,
               StartsWith("caches: 3.0 GiB for 64 slots of 1024 tokens (1.0 GiB are free)")));
}

TEST_F(EngineTest, SeesAsMuchAsTheContextSays) {
  const auto engine = Engine::Create(trained_.get(), {.context = 64});
  ASSERT_OK(engine);
  EXPECT_EQ((*engine)->context(), 64);
  EXPECT_OK((*engine)->Prepare({.prompts = {std::string(63, 'a')}}));
  EXPECT_EQ(Engine::Create(trained_.get(), {.context = 2'000'000}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(EngineTest, AChatIsItsConversationInTheFormatOfTheModel) {
  const auto engine = Engine::Create(trained_.get(), {.context = 128});
  ASSERT_OK(engine);
  const auto task = (*engine)->Prepare({.messages = {{"user", "Hi"}}, .max_tokens = 1000});
  ASSERT_OK(task);
  const std::string text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_THAT(task->prompts, ElementsAre(Bytes(std::string(1, '\0') + text)));
  EXPECT_THAT(task->most, ElementsAre(128 - 1 - std::ssize(text))) << "not beyond the context";
  EXPECT_THAT(task->stop_tokens, ElementsAre()) << "the bytes have no markers";
  EXPECT_THAT(task->request.stops, ElementsAre("<|im_end|>", "<|endoftext|>"));
  EXPECT_THAT(std::string(engine_->Prepare({.messages = {{"user", "Hi"}}}).status().message()),
              StartsWith("messages: 53 tokens, and one to answer with (the model's context: 32)"));
}

TEST_F(EngineTest, AnAnswerEndsBeforeAStopTokenAndHasNoLead) {
  const auto engine = Engine::Create(trained_.get(), {.context = 128});
  ASSERT_OK(engine);
  auto task = (*engine)->Prepare(
      {.messages = {{"user", "Hi"}}, .max_tokens = 60, .logprobs = 0, .seed = 1});
  ASSERT_OK(task);
  const auto whole = AnswerTo(engine->get(), *task);
  ASSERT_OK(whole);
  const auto& tokens = whole->choices[0].tokens;
  ASSERT_EQ(tokens.size(), 60u);
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(tokens[i].token.bytes[0]); };
  size_t end = 20;  // a byte that is not among those before it
  while (
      std::any_of(tokens.begin(), tokens.begin() + static_cast<int64_t>(end),
                  [&](const PlacedToken& t) { return t.token.bytes == tokens[end].token.bytes; }))
    ++end;
  ASSERT_LT(end, 60u);
  task->stop_tokens = {byte(end)};
  task->lead = tokens[0].token.bytes;
  const auto ended = AnswerTo(engine->get(), *task);
  ASSERT_OK(ended);
  EXPECT_EQ(ended->choices[0].finish_reason, "stop");
  EXPECT_EQ(ended->usage.completion_tokens, static_cast<int64_t>(end) + 1) << "counted, not shown";
  std::string shown;
  for (size_t i = 1; i < end; ++i) shown += tokens[i].token.bytes;
  EXPECT_EQ(ended->choices[0].text, ValidUtf8(shown));
}

TEST_F(EngineTest, TheSeparatorIsGeneratedWhereItEndsAnAnswer) {
  const auto engine = Engine::Create(trained_.get(), {.context = 128});
  ASSERT_OK(engine);
  // Whether one of so many answers ends by itself.
  const auto ends = [&](const std::vector<int32_t>& stops, int64_t answers) {
    for (int64_t seed = 0; seed < answers; ++seed) {
      auto task =
          (*engine)->Prepare({.messages = {{"user", "Hi"}}, .max_tokens = 70, .seed = seed});
      EXPECT_OK(task);
      task->stop_tokens = stops;
      if (AnswerTo(engine->get(), *task)->choices[0].finish_reason == "stop") return true;
    }
    return false;
  };
  EXPECT_TRUE(ends({0}, 200));
  EXPECT_FALSE(ends({}, 10));
}

// A model with a tokenizer that has <s> and </s>, and this template.
std::unique_ptr<TrainedModel> ModelOfTemplate(const TempDir& dir, const std::string& jinja,
                                              const nlohmann::json& normalizer = nullptr) {
  nlohmann::json json = byte_fallback::Tokenizer({byte_fallback::kMark}, {});
  json["normalizer"] = normalizer;
  std::ofstream(dir / "tokenizer.json") << json.dump();
  std::ofstream(dir / "chat_template.jinja") << jinja;
  SaveSmallModel(dir, [&](v1::JobSpec* spec) {
    spec->mutable_data()->set_tokenizer(v1::TOKENIZER_BPE);
    spec->mutable_data()->set_tokenizer_path((dir / "tokenizer.json").string());
    spec->mutable_model()->set_vocab(static_cast<int32_t>(json["model"]["vocab"].size()));
  });
  auto trained = TrainedModel::Load(dir.path());
  EXPECT_OK(trained);
  return *std::move(trained);
}

TEST(EngineOfATemplate, AChatBeginsOnceAndEndsAtTheTokensOfItsFormat) {
  const TempDir dir;
  std::ifstream file(SourceDir() + "/tests/common/chat/templates/llama2.jinja");
  const auto trained = ModelOfTemplate(dir, {std::istreambuf_iterator<char>(file), {}});
  const auto engine = Engine::Create(trained.get(), {.context = 128});
  ASSERT_OK(engine);
  const auto task = (*engine)->Prepare({.messages = {{"user", "Hi"}}});
  ASSERT_OK(task);
  const std::vector<int32_t>& prompt = task->prompts.at(0);
  EXPECT_EQ(std::ranges::count(prompt, byte_fallback::kBegin), 1);
  EXPECT_EQ(prompt.front(), byte_fallback::kBegin);
  EXPECT_THAT(task->stop_tokens, ElementsAre(byte_fallback::kEnd));
  EXPECT_THAT(task->request.stops, ElementsAre());
  EXPECT_EQ(task->lead, " ");
  EXPECT_OK((*engine)->Prepare({.prompts = {"Hi"}}));
}

// Its tokenizer puts a space in front of a text, which is no part of what was sent.
TEST(EngineOfATemplate, AnEchoIsThePromptAsItWasSent) {
  const TempDir dir;
  const auto trained = ModelOfTemplate(dir, "{{ messages }}", byte_fallback::SpaceInFront());
  const auto engine = Engine::Create(trained.get(), {.context = 128});
  ASSERT_OK(engine);
  for (const bool echo : {true, false}) {
    for (const char* const prompt : {"Hi", " Hi"}) {
      const auto task =
          (*engine)->Prepare({.prompts = {prompt}, .max_tokens = 1, .echo = echo, .logprobs = 0});
      ASSERT_OK(task);
      const AnswerPiece choice = AnswerTo(engine->get(), *task)->choices.at(0);
      EXPECT_EQ(choice.text.starts_with(prompt), echo) << choice.text;
      const auto offset = static_cast<int64_t>(std::string_view(prompt).size());
      EXPECT_EQ(choice.tokens.back().offset, offset) << prompt << echo;
    }
  }
}

TEST(EngineOfATemplate, AChatInAFormatThatIsNotKnownIsRefusedAndCompletionsAreNot) {
  const TempDir dir;
  const auto trained = ModelOfTemplate(dir, "{{ messages }}");
  const auto engine = Engine::Create(trained.get(), {.context = 128});
  ASSERT_OK(engine);
  const absl::Status refused = (*engine)->Prepare({.messages = {{"user", "Hi"}}}).status();
  EXPECT_EQ(HttpStatusOf(refused), 400);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("chat_template: '{{ messages }}'"));
  EXPECT_OK((*engine)->Prepare({.prompts = {"Hi"}}));
}

// As in training: a conversation is one document, though Llama 2 begins each of its questions with
// the separator.
TEST(EngineOfConversations, ASeparatorHidesNothingThatIsBeforeIt) {
  const auto last_logprob = [](v1::LossOn loss_on, std::vector<int32_t> prompt) {
    const TempDir dir;
    SaveSmallModel(dir, [&](v1::JobSpec* spec) {
      spec->mutable_data()->set_document_mask(true);
      spec->mutable_data()->set_loss_on(loss_on);
    });
    const auto trained = TrainedModel::Load(dir.path());
    EXPECT_OK(trained);
    const auto engine = Engine::Create(trained->get(), {});
    EXPECT_OK(engine);
    const auto task = (*engine)->Prepare(
        {.prompts = {std::move(prompt)}, .max_tokens = 0, .echo = true, .logprobs = 0});
    EXPECT_OK(task);
    const auto answered = AnswerTo(engine->get(), *task);
    EXPECT_OK(answered);
    return *answered->choices[0].tokens.back().token.logprob;
  };
  const std::vector<int32_t> alone = {0, 'b', 'c'}, behind = {0, 'a', 'x', 0, 'b', 'c'};
  EXPECT_NEAR(last_logprob(v1::LOSS_ON_ALL, behind), last_logprob(v1::LOSS_ON_ALL, alone),
              kRounding);
  EXPECT_GT(std::abs(last_logprob(v1::LOSS_ON_ASSISTANT, behind) -
                     last_logprob(v1::LOSS_ON_ASSISTANT, alone)),
            10 * kRounding);
}

TEST_F(EngineTest, HasAsManySlotsAsMemoryAllows) {
  EXPECT_EQ(engine_->slots(), 8) << "the caches are small";
  const auto one = Engine::Create(trained_.get(), {.context = 64, .slots = 1});
  const auto three = Engine::Create(trained_.get(), {.context = 64, .slots = 3});
  ASSERT_OK(one);
  ASSERT_OK(three);
  EXPECT_EQ((*three)->slots(), 3);
  EXPECT_GT((*three)->bytes(), (*one)->bytes());
  EXPECT_EQ(Engine::Create(trained_.get(), {.slots = 65}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SlotsThatFit(1'000, 400, 200), 4);
  EXPECT_EQ(SlotsThatFit(999, 400, 200), 3);
  EXPECT_EQ(SlotsThatFit(100, 400, 200), 1) << "the user has asked for this context";
  EXPECT_EQ(SlotsThatFit(1'000'000, 400, 200), 8);
}

TEST_F(EngineTest, ManyRequestsAtOnceHaveTheTextsThatEachHasAlone) {
  std::vector<Task> tasks;
  for (int i = 0; i < 12; ++i) {
    const auto task = engine_->Prepare({.prompts = {std::string(static_cast<size_t>(i) * 2, 'a')},
                                        .max_tokens = 10 + i * 7,
                                        .n = 1 + i % 3,
                                        .echo = i % 4 == 0,
                                        .logprobs = i % 2,
                                        .seed = i});
    ASSERT_OK(task);
    tasks.push_back(*task);
  }
  std::vector<std::shared_ptr<Call>> calls;
  for (const Task& task : tasks) {
    calls.push_back(std::make_shared<Call>(task));
    engine_->batch()->Add(calls.back());
  }
  while (engine_->batch()->Compute()) {
  }
  const auto one = Engine::Create(trained_.get(), {.slots = 1});
  ASSERT_OK(one);
  for (size_t i = 0; i < tasks.size(); ++i) {
    const auto alone = AnswerTo(one->get(), tasks[i]);
    const auto together = Collect(calls[i].get());
    ASSERT_OK(alone);
    ASSERT_OK(together);
    ASSERT_EQ(together->choices.size(), alone->choices.size());
    for (size_t c = 0; c < alone->choices.size(); ++c) {
      EXPECT_EQ(together->choices[c].text, alone->choices[c].text) << i;
      ASSERT_EQ(together->choices[c].tokens.size(), alone->choices[c].tokens.size());
      for (size_t t = 0; t < alone->choices[c].tokens.size(); ++t) {
        EXPECT_EQ(together->choices[c].tokens[t].token.logprob,
                  alone->choices[c].tokens[t].token.logprob);
      }
    }
    EXPECT_EQ(together->usage.completion_tokens, alone->usage.completion_tokens);
  }
}

// One request leaves nothing behind for the next.
TEST_F(EngineTest, TheSameRequestGivesTheSameAnswerAfterAnyOther) {
  const CompletionRequest request = {
      .prompts = {"To be"}, .max_tokens = 50, .draw = {.temperature = 0}};
  const std::string text = Complete(request).choices[0].text;
  Complete({.prompts = {std::string(31, 'x')}, .max_tokens = 3, .echo = true, .logprobs = 5});
  EXPECT_EQ(Complete(request).choices[0].text, text);
}

}  // namespace
}  // namespace nsa::train::serve
