#include "worker/train/serve/engine.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/chat/render.h"
#include "common/job/data/conversations.h"
#include "worker/train/data/random.h"
#include "worker/train/data/tokenize/chat_tokens.h"
#include "worker/train/score/utf8.h"
#include "worker/train/serve/limits.h"

namespace nsa::train::serve {
namespace {

constexpr char kSeparatorName[] = "<|endoftext|>";

absl::Status Cancelled() { return absl::CancelledError("nobody waits for the answer"); }

uint64_t RandomSeed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

// ln Σ exp(logits).
double LogSum(std::span<const float> logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - most);
  return most + std::log(sum);
}

// The `count` tokens with the largest logits, the largest first and the lower of two equal ones.
std::vector<int32_t> Largest(std::span<const float> logits, int32_t count) {
  std::vector<int32_t> best;
  for (int32_t v = 0; v < static_cast<int32_t>(logits.size()); ++v) {
    if (static_cast<int32_t>(best.size()) == count && logits[v] <= logits[best.back()]) continue;
    const auto place = std::find_if(best.begin(), best.end(),
                                    [&](int32_t other) { return logits[v] > logits[other]; });
    best.insert(place, v);
    if (static_cast<int32_t>(best.size()) > count) best.pop_back();
  }
  return best;
}

absl::Status CheckTokens(const std::vector<int32_t>& prompt, int32_t vocab) {
  for (const int32_t token : prompt) {
    if (token < vocab) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "prompt: token %d (from 0 to %d); use the model's tokenizer", token, vocab - 1));
  }
  return absl::OkStatus();
}

// What the request costs: its tokens, and what is written beside each.
absl::Status CheckCost(const Task& task) {
  const CompletionRequest& request = task.request;
  int64_t tokens = 0;
  for (size_t i = 0; i < task.prompts.size(); ++i) {
    tokens += request.n * (static_cast<int64_t>(task.prompts[i].size()) + task.most[i]);
  }
  const int64_t entries = tokens * (1 + request.logprobs.value_or(0));
  if (entries <= kTokens) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("max_tokens: %d tokens in all prompts and choices, %d with their logprobs "
                      "(at most %d); send fewer prompts at a time or ask for less",
                      tokens, entries, kTokens));
}

}  // namespace

// One choice while it is written.
struct Engine::Choice {
  const Task& task;
  const CompletionRequest& request;
  const std::vector<int32_t>& prompt;
  const int64_t most;         // tokens to generate
  size_t added = 0;           // 1: the separator was put in front of the prompt
  std::vector<int32_t> text;  // what the model reads
  CompletionText out;
  KeyedRandom random;
  int64_t generated = 0;
};

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const TrainedModel* trained,
                                                       int32_t context) {
  NSA_ASSIGN_OR_RETURN(std::unique_ptr<Decoder> decoder,
                       trained->MakeDecoder(context > 0 ? context : trained->seq_len()));
  return std::unique_ptr<Engine>(new Engine(trained, std::move(decoder)));
}

Engine::Engine(const TrainedModel* trained, std::unique_ptr<Decoder> decoder)
    : trained_(*trained),
      decoder_(std::move(decoder)),
      format_(ChatFormatOf(trained->spec().data())) {}

absl::StatusOr<Task> Engine::Prepare(CompletionRequest request) const {
  const TextTokenizer& tokenizer = trained_.tokenizer();
  Task task{.request = std::move(request), .prompts = {}, .most = {}};
  if (task.request.chat()) NSA_RETURN_IF_ERROR(AddChat(&task));
  for (Prompt& prompt : task.request.prompts) {
    std::vector<int32_t> tokens;
    if (const auto* text = std::get_if<std::string>(&prompt); text != nullptr) {
      NSA_RETURN_IF_ERROR(tokenizer.Encode(*text, &tokens));
    } else {
      tokens = std::move(std::get<std::vector<int32_t>>(prompt));
      NSA_RETURN_IF_ERROR(CheckTokens(tokens, tokenizer.vocab()));
    }
    NSA_RETURN_IF_ERROR(AddPrompt(std::move(tokens), &task));
  }
  task.request.prompts.clear();
  NSA_RETURN_IF_ERROR(CheckCost(task));
  return task;
}

absl::Status Engine::AddPrompt(std::vector<int32_t> tokens, Task* task) const {
  const bool begun = !tokens.empty() && tokens[0] == trained_.tokenizer().separator();
  const int64_t read = std::ssize(tokens) + (begun ? 0 : 1);
  if (read > context()) {
    return absl::OutOfRangeError(absl::StrFormat(
        "prompt: %d tokens with the separator that begins a text (the model's context: %d); "
        "shorten it",
        read, context()));
  }
  task->prompts.push_back(std::move(tokens));
  task->most.push_back(task->request.max_tokens.value_or(context() - read));
  return absl::OkStatus();
}

// The prompt of a chat, and what ends its answer: the tokens of the format's stops, and the others
// as texts.
absl::Status Engine::AddChat(Task* task) const {
  if (!format_.ok()) {
    return HttpError(400, absl::StrCat("chat: the model's format is not known: ",
                                       format_.status().message(), ", or use /v1/completions"));
  }
  const TextTokenizer& tokenizer = trained_.tokenizer();
  NSA_ASSIGN_OR_RETURN(const std::vector<ChatPiece> pieces,
                       RenderPrompt(*format_, task->request.messages));
  std::vector<int32_t>& tokens = task->prompts.emplace_back();
  NSA_RETURN_IF_ERROR(EncodeChat(
      tokenizer, pieces,
      [&](std::span<const int32_t> part, bool) {
        tokens.insert(tokens.end(), part.begin(), part.end());
        return absl::OkStatus();
      },
      nullptr));
  const int64_t room = context() - std::ssize(tokens);
  if (room < 1) {
    return absl::OutOfRangeError(
        absl::StrFormat("messages: %d tokens, and one to answer with (the model's context: %d); "
                        "shorten the conversation",
                        tokens.size(), context()));
  }
  task->most.push_back(std::min(task->request.max_tokens.value_or(room), room));
  for (const std::string& stop : format_->stops) {
    if (const std::optional<int32_t> token = tokenizer.TokenSpelled(stop); token.has_value()) {
      task->stop_tokens.push_back(*token);
    } else {
      task->request.stops.push_back(stop);
    }
  }
  for (const ChatPiece& piece : format_->assistant.before) {
    if (piece.answer) task->lead += piece.text;
  }
  return absl::OkStatus();
}

AnswerToken Engine::Named(int32_t token) const {
  AnswerToken named{.bytes = trained_.tokenizer().Decode(token), .name = {}, .logprob = {}};
  if (token == trained_.tokenizer().separator()) {
    named.name = kSeparatorName;
  } else if (const std::string text = ValidUtf8(named.bytes); text == named.bytes) {
    named.name = text;
  } else {  // as OpenAI's API writes a part of a character
    named.name = "bytes:";
    for (const char c : named.bytes) {
      absl::StrAppendFormat(&named.name, "\\x%02x", static_cast<unsigned char>(c));
    }
  }
  return named;
}

// The token with its logprob after these logits, and with the `top` most probable ones.
AnswerToken Engine::Scored(int32_t token, std::span<const float> logits, int32_t top) const {
  const double sum = LogSum(logits);
  const auto logprob = [&](int32_t v) { return static_cast<float>(double{logits[v]} - sum); };
  AnswerToken scored = Named(token);
  scored.logprob = logprob(token);
  if (top == 0) return scored;
  bool listed = false;
  const auto vocab = static_cast<size_t>(trained_.tokenizer().vocab());
  for (const int32_t v : Largest(logits.first(vocab), top)) {
    scored.top.emplace_back(Named(v).name, logprob(v));
    listed = listed || v == token;
  }
  if (!listed) scored.top.emplace_back(scored.name, *scored.logprob);
  return scored;
}

absl::StatusOr<Usage> Engine::Complete(const Task& task, const Client& client) {
  const CompletionRequest& request = task.request;
  const uint64_t seed =
      request.seed.has_value() ? static_cast<uint64_t>(*request.seed) : RandomSeed();
  const int32_t separator = trained_.tokenizer().separator();
  Usage usage;
  int32_t index = 0;
  for (size_t p = 0; p < task.prompts.size(); ++p) {
    const std::vector<int32_t>& prompt = task.prompts[p];
    usage.prompt_tokens += static_cast<int64_t>(prompt.size());
    std::string before;  // the prompt, where it is not part of the text
    for (const int32_t token : prompt) before += trained_.tokenizer().Decode(token);
    const int64_t offset = request.echo ? 0 : Utf8Characters(ValidUtf8(before));
    for (int32_t i = 0; i < request.n; ++i, ++index) {
      Choice choice{
          .task = task,
          .request = request,
          .prompt = prompt,
          .most = task.most[p],
          .added = prompt.empty() || prompt[0] != separator ? size_t{1} : size_t{0},
          .text = {},
          .out = CompletionText(index, request.stops, offset, request.logprobs.has_value()),
          .random = KeyedRandom(index == 0 ? seed : Mix(seed, static_cast<uint64_t>(index)))};
      NSA_RETURN_IF_ERROR(Write(client, &choice));
      usage.completion_tokens += choice.generated;
    }
  }
  return usage;
}

// Writes one choice.
absl::Status Engine::Write(const Client& client, Choice* choice) {
  const CompletionRequest& request = choice->request;
  const TextTokenizer& tokenizer = trained_.tokenizer();
  const std::vector<int32_t>& ends = choice->task.stop_tokens;
  const int32_t excluded =
      std::ranges::count(ends, tokenizer.separator()) > 0 ? -1 : tokenizer.separator();
  decoder_->Reset();
  choice->text.assign(choice->added, tokenizer.separator());
  choice->text.insert(choice->text.end(), choice->prompt.begin(), choice->prompt.end());
  NSA_ASSIGN_OR_RETURN(std::span<const float> logits, ReadPrompt(client, choice));
  while (choice->generated < choice->most && !choice->out.stopped()) {
    if (choice->generated > 0) {
      NSA_ASSIGN_OR_RETURN(logits, ReadNext(client, *choice));
    }
    const double uniform = static_cast<double>(choice->random.Next() >> 11) * 0x1p-53;
    const int32_t token = DrawToken(logits.first(static_cast<size_t>(tokenizer.vocab())),
                                    request.draw, uniform, excluded);
    if (std::ranges::count(ends, token) > 0) {
      choice->out.Stop();
    } else {
      AnswerToken written =
          request.logprobs.has_value() ? Scored(token, logits, *request.logprobs) : Named(token);
      if (choice->generated == 0 && written.bytes.starts_with(choice->task.lead)) {
        written.bytes.erase(0, choice->task.lead.size());
      }
      choice->out.Add(std::move(written));
    }
    choice->text.push_back(token);
    ++choice->generated;
    if (AnswerPiece piece = choice->out.Take(); !piece.empty()) client.take(std::move(piece));
  }
  client.take(choice->out.Finish());
  return absl::OkStatus();
}

// Reads the prompt, echoes it if wanted, and returns the logits after it.
absl::StatusOr<std::span<const float>> Engine::ReadPrompt(const Client& client, Choice* choice) {
  if (choice->request.echo && choice->request.logprobs.has_value()) {
    return ScorePrompt(client, choice);
  }
  if (choice->request.echo) {
    for (const int32_t token : choice->prompt) choice->out.AddPrompt(Named(token));
    if (choice->most == 0) return std::span<const float>();
  }
  return Read(client, choice->text);
}

// The same with the logprob of every token of the prompt but the first, which has none.
absl::StatusOr<std::span<const float>> Engine::ScorePrompt(const Client& client, Choice* choice) {
  const std::span<const int32_t> text = choice->text;
  const int32_t top = *choice->request.logprobs;
  if (!choice->prompt.empty()) choice->out.AddPrompt(Named(choice->prompt[0]));
  std::span<const float> last;
  for (size_t begin = 0; begin < text.size(); begin += Decoder::kMostRows) {
    if (!client.wanted()) return Cancelled();
    const size_t rows = std::min(text.size() - begin, static_cast<size_t>(Decoder::kMostRows));
    NSA_ASSIGN_OR_RETURN(const std::span<const float> logits,
                         decoder_->PrefillEach(text.subspan(begin, rows)));
    const size_t vocab = logits.size() / rows;
    for (size_t row = 0; row < rows; ++row) {
      last = logits.subspan(row * vocab, vocab);
      const size_t next = begin + row + 1;
      if (next < text.size() && next > choice->added) {
        choice->out.AddPrompt(Scored(text[next], last, top));
      }
    }
    if (AnswerPiece piece = choice->out.Take(); !piece.empty()) client.take(std::move(piece));
  }
  return last;
}

// The logits after tokens that fit what is left of the context.
absl::StatusOr<std::span<const float>> Engine::Read(const Client& client,
                                                    std::span<const int32_t> tokens) {
  std::span<const float> logits;
  while (!tokens.empty()) {
    if (!client.wanted()) return Cancelled();
    const size_t rows = std::min(tokens.size(), static_cast<size_t>(Decoder::kMostRows));
    NSA_ASSIGN_OR_RETURN(logits, decoder_->Prefill(tokens.first(rows)));
    tokens = tokens.subspan(rows);
  }
  return logits;
}

// The logits after the token that was generated last.
absl::StatusOr<std::span<const float>> Engine::ReadNext(const Client& client,
                                                        const Choice& choice) {
  const std::span<const int32_t> text = choice.text;
  if (decoder_->tokens() < context()) return Read(client, text.last(1));
  decoder_->Reset();
  return Read(client, text.last(static_cast<size_t>(std::max(1, context() / 2))));
}

}  // namespace nsa::train::serve
