#include "worker/train/score/sample.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/characters/utf8.h"
#include "common/base/status.h"
#include "worker/train/data/random.h"
#include "worker/train/decode/decoder.h"
#include "worker/train/score/trained_model.h"
#include "worker/train/score/utf8.h"

namespace nsa::train {
namespace {

constexpr int64_t kDefaultBytes = 200;

absl::Status Check(const SampleOptions& options) {
  NSA_RETURN_IF_ERROR(Annotate(CheckDraw(options.draw), "sample"));
  const int64_t bytes = options.bytes.value_or(0), tokens = options.tokens.value_or(0);
  if (bytes >= 0 && tokens >= 0 && options.context >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("sample: bytes %d, tokens %d, context %d (none negative); leave it out",
                      bytes, tokens, options.context));
}

// Where the text ends.
struct Length {
  int64_t bytes, tokens;
};

Length MostOf(const SampleOptions& options) {
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  const int64_t bytes = options.tokens.has_value() ? kAny : kDefaultBytes;
  return {options.bytes.value_or(bytes), options.tokens.value_or(kAny)};
}

// The context that this text needs, at most the one that is wanted. A token has a byte at least.
int32_t ContextFor(const TextModel& model, const SampleOptions& options, const Length& most,
                   size_t prompt) {
  const int64_t wanted = options.context > 0 ? options.context : model.seq_len();
  const int64_t to_come = std::min({most.bytes, most.tokens, wanted});
  return static_cast<int32_t>(std::min(wanted, static_cast<int64_t>(prompt) + to_come));
}

// The logits after `text`; the decoder has its tokens before `read` already.
absl::StatusOr<std::span<const float>> LogitsAfter(std::span<const int32_t> text, Decoder* decoder,
                                                   size_t* read) {
  const auto context = static_cast<size_t>(decoder->context());
  if (decoder->tokens() + text.size() - *read > context) {
    const size_t keep = decoder->tokens() == 0 ? context : std::max<size_t>(1, context / 2);
    decoder->Reset();
    *read = text.size() - keep;
  }
  const std::span<const int32_t> unread = text.subspan(*read);
  *read = text.size();
  return decoder->Prefill(unread);
}

}  // namespace

absl::StatusOr<std::string> Sample(const TrainedModel& trained, const SampleOptions& options,
                                   const OnBytes& on_bytes) {
  return Sample(trained.text_model(), options, on_bytes);
}

absl::StatusOr<std::string> Sample(const TextModel& model, const SampleOptions& options,
                                   const OnBytes& on_bytes) {
  NSA_RETURN_IF_ERROR(Check(options));
  const TextTokenizer& tokenizer = *model.tokenizer;
  std::vector<Token> prompt;
  NSA_RETURN_IF_ERROR(tokenizer.Encode(options.prompt, &prompt));
  std::vector<int32_t> text = {tokenizer.separator()};
  text.insert(text.end(), prompt.begin(), prompt.end());

  const Length most = MostOf(options);
  NSA_ASSIGN_OR_RETURN(const std::unique_ptr<Decoder> decoder,
                       model.MakeDecoder(ContextFor(model, options, most, text.size())));
  KeyedRandom random(static_cast<uint64_t>(options.seed));
  // The separator may be the token that ends an answer; otherwise no text has one.
  const int32_t separator = tokenizer.separator();
  const bool may_separate = std::ranges::any_of(options.ends, [&](const std::string& end) {
    return tokenizer.TokenSpelled(end) == separator;
  });
  std::string written;
  size_t read = 0;  // tokens of the text that the decoder has
  for (int64_t i = 0; i < most.tokens && static_cast<int64_t>(written.size()) < most.bytes; ++i) {
    NSA_ASSIGN_OR_RETURN(const std::span<const float> logits,
                         LogitsAfter(text, decoder.get(), &read));
    const double uniform = random.Uniform();
    const int32_t token = DrawToken(logits.first(static_cast<size_t>(tokenizer.vocab())),
                                    options.draw, uniform, may_separate ? -1 : separator);
    if (may_separate && token == separator) break;
    text.push_back(token);
    const std::string bytes = tokenizer.Decode(token);
    if (on_bytes) NSA_RETURN_IF_ERROR(on_bytes(bytes));
    written += bytes;
    if (std::ranges::any_of(options.ends,
                            [&](const std::string& end) { return written.ends_with(end); })) {
      break;
    }
  }
  return written;
}

std::string PrintableUtf8(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const auto [code, length] = FirstUtf8(bytes);
    const bool control =
        (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7f && code < 0xa0);
    if (code == '\r') {
      if (!bytes.substr(1).starts_with('\n')) text += '\n';
    } else if (length == 0 || control) {
      text += kReplacementCharacter;
    } else {
      text += bytes.substr(0, length);
    }
    bytes.remove_prefix(std::max<size_t>(1, length));
  }
  return text;
}

std::string PrintableStream::Shown(std::string_view bytes) const {
  return terminal_ ? PrintableUtf8(bytes) : ValidUtf8(bytes);
}

std::string PrintableStream::Add(std::string_view bytes) {
  waiting_ += bytes;
  size_t done = SettledUtf8(waiting_);
  if (terminal_ && done == waiting_.size() && waiting_.ends_with('\r')) --done;
  std::string text = Shown(std::string_view(waiting_).substr(0, done));
  waiting_.erase(0, done);
  return text;
}

std::string PrintableStream::Finish() {
  std::string text = Shown(waiting_);
  waiting_.clear();
  return text;
}

}  // namespace nsa::train
