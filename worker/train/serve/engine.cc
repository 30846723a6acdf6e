#include "worker/train/serve/engine.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/machine_memory.h"
#include "common/base/status.h"
#include "common/chat/render.h"
#include "common/job/data/conversations.h"
#include "kernels/cuda/device.h"
#include "worker/train/data/tokenize/chat_tokens.h"
#include "worker/train/serve/limits.h"

namespace nsa::train::serve {
namespace {

// The slots that EngineOptions asks for with 0.
absl::StatusOr<int32_t> SlotsFor(const TrainedModel& trained, int32_t context) {
  const Backend backend = trained.exec().backend;
  const auto bytes = [&](int32_t slots) {
    return Decoder::BytesFor(trained.spec(), backend, {.context = context, .slots = slots});
  };
  NSA_ASSIGN_OR_RETURN(const int64_t one, bytes(1));
  NSA_ASSIGN_OR_RETURN(const int64_t two, bytes(2));
  int64_t free = ReadMachineMemory().free_bytes;
  if (backend == Backend::kCuda) {
    NSA_ASSIGN_OR_RETURN(free, cuda::FreeBytes());
  }
  return SlotsThatFit(free / 2, one, two - one);
}

absl::Status CheckTokens(const std::vector<int32_t>& prompt, int32_t vocab) {
  for (const int32_t token : prompt) {
    if (token < vocab) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "prompt: token %d (from 0 to %d); use the model's tokenizer", token, vocab - 1));
  }
  return absl::OkStatus();
}

// Where the request leaves the number of tokens open, it is what kTokens has room for, too.
void FitOpenRequest(Task* task) {
  const CompletionRequest& request = task->request;
  if (request.max_tokens.has_value() || task->prompts.empty()) return;
  int64_t read = 0;
  for (const std::vector<int32_t>& prompt : task->prompts) read += std::ssize(prompt);
  const int64_t tokens = kTokens / (1 + request.logprobs.value_or(0)) / request.n - read;
  const int64_t each = tokens / std::ssize(task->prompts);
  for (int64_t& most : task->most) {
    most = std::min(most, std::max<int64_t>(each, request.chat() ? 1 : 0));
  }
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

int32_t SlotsThatFit(int64_t bytes, int64_t first, int64_t further) {
  const int64_t more = (bytes - first) / further;
  return static_cast<int32_t>(1 + std::clamp<int64_t>(more, 0, kUsualSlots - 1));
}

absl::Status CheckCaches(int64_t bytes, int64_t free, int32_t slots, int32_t context) {
  if (free == 0 || bytes <= free) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("caches: %.1f GiB for %d slots of %d tokens (%.1f GiB are free); choose a "
                      "smaller --context or fewer --slots",
                      std::ldexp(bytes, -30), slots, context, std::ldexp(free, -30)));
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const TrainedModel* trained,
                                                       const EngineOptions& options) {
  const int32_t context = options.context > 0 ? options.context : trained->seq_len();
  int32_t slots = options.slots;
  if (slots == 0) {
    NSA_ASSIGN_OR_RETURN(slots, SlotsFor(*trained, context));
  }
  if (trained->exec().backend == Backend::kCpu) {
    NSA_ASSIGN_OR_RETURN(
        const int64_t bytes,
        Decoder::BytesFor(trained->spec(), Backend::kCpu, {.context = context, .slots = slots}));
    NSA_RETURN_IF_ERROR(CheckCaches(bytes, ReadMachineMemory().free_bytes, slots, context));
  }
  NSA_ASSIGN_OR_RETURN(std::unique_ptr<Decoder> decoder, trained->MakeDecoder(context, slots));
  return std::unique_ptr<Engine>(new Engine(trained, std::move(decoder)));
}

Engine::Engine(const TrainedModel* trained, std::unique_ptr<Decoder> decoder)
    : trained_(*trained),
      decoder_(std::move(decoder)),
      format_(ChatFormatOf(trained->spec().data())),
      batch_(&trained->tokenizer(), decoder_.get()) {}

absl::StatusOr<Task> Engine::Prepare(CompletionRequest request) const {
  const TextTokenizer& tokenizer = trained_.tokenizer();
  Task task{.request = std::move(request), .prompts = {}, .most = {}};
  if (task.request.chat()) NSA_RETURN_IF_ERROR(AddChat(&task));
  for (Prompt& prompt : task.request.prompts) {
    std::vector<int32_t> tokens;
    bool added_space = false;
    if (const auto* text = std::get_if<std::string>(&prompt); text != nullptr) {
      NSA_RETURN_IF_ERROR(tokenizer.Encode(*text, &tokens));
      added_space = AddsSpace(tokenizer, tokens, text->size());
    } else {
      tokens = std::move(std::get<std::vector<int32_t>>(prompt));
      NSA_RETURN_IF_ERROR(CheckTokens(tokens, tokenizer.vocab()));
    }
    NSA_RETURN_IF_ERROR(AddPrompt(std::move(tokens), &task));
    task.added_space.push_back(added_space);
  }
  task.request.prompts.clear();
  FitOpenRequest(&task);
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

}  // namespace nsa::train::serve
