#include "worker/train/serve/choice.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "worker/train/score/draw.h"
#include "worker/train/score/utf8.h"

namespace nsa::train::serve {
namespace {

constexpr char kSeparatorName[] = "<|endoftext|>";

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

bool AddedSpace(const Task& task, size_t prompt) {
  return prompt < task.added_space.size() && task.added_space[prompt];
}

// The characters in front of the text: those of a prompt that is not part of it.
int64_t CharactersBefore(const TextTokenizer& tokenizer, const Task& task, size_t prompt) {
  if (task.request.echo) return 0;
  std::string before;
  for (const int32_t token : task.prompts[prompt]) before += tokenizer.Decode(token);
  return Utf8Characters(ValidUtf8(before)) - (AddedSpace(task, prompt) ? 1 : 0);
}

}  // namespace

Choice::Choice(const TextTokenizer* tokenizer, const Task* task, size_t index, uint64_t seed)
    : tokenizer_(*tokenizer),
      task_(*task),
      prompt_(task->prompts[index / task->request.n]),
      most_(task->most[index / task->request.n]),
      added_(prompt_.empty() || prompt_[0] != tokenizer->separator() ? 1 : 0),
      scored_(task->request.echo && task->request.logprobs.has_value()),
      text_(added_, tokenizer->separator()),
      out_(static_cast<int32_t>(index), task->request.stops,
           CharactersBefore(*tokenizer, *task, index / task->request.n),
           task->request.logprobs.has_value()),
      random_(index == 0 ? seed : Mix(seed, index)) {
  text_.insert(text_.end(), prompt_.begin(), prompt_.end());
  if (!task->request.echo) return;
  // A prompt that is scored is echoed as it is read. Its first token has no logprob.
  const size_t echoed = scored_ ? std::min<size_t>(prompt_.size(), 1) : prompt_.size();
  for (size_t i = 0; i < echoed; ++i) {
    AnswerToken token = Named(prompt_[i]);
    if (i == 0 && AddedSpace(*task, index / task->request.n)) token.bytes.erase(0, 1);
    out_.AddPrompt(std::move(token));
  }
}

bool Choice::finished() const { return !scores() && (generated_ >= most_ || out_.stopped()); }

void Choice::Read(size_t rows, std::span<const float> logits) {
  const size_t last = scores() ? rows - 1 : 0;
  const size_t vocab = logits.size() / (last + 1);
  if (scores()) Score(rows, logits);
  read_ += rows;
  if (read_ == text_.size() && !finished()) Draw(logits.subspan(last * vocab, vocab));
}

// Echoes the tokens of the prompt that follow these rows.
void Choice::Score(size_t rows, std::span<const float> logits) {
  const size_t vocab = logits.size() / rows;
  for (size_t row = 0; row < rows; ++row) {
    const size_t next = read_ + row + 1;
    if (next < text_.size() && next > added_) {
      out_.AddPrompt(Scored(text_[next], logits.subspan(row * vocab, vocab)));
    }
  }
}

// Writes the token after these logits.
void Choice::Draw(std::span<const float> logits) {
  const std::vector<int32_t>& ends = task_.stop_tokens;
  const int32_t separator = tokenizer_.separator();
  const int32_t excluded = std::ranges::count(ends, separator) > 0 ? -1 : separator;
  const double uniform = random_.Uniform();
  const int32_t token = DrawToken(logits.first(static_cast<size_t>(tokenizer_.vocab())),
                                  task_.request.draw, uniform, excluded);
  if (std::ranges::count(ends, token) > 0) {
    out_.Stop();
  } else {
    AnswerToken written = task_.request.logprobs.has_value() ? Scored(token, logits) : Named(token);
    if (generated_ == 0 && written.bytes.starts_with(task_.lead)) {
      written.bytes.erase(0, task_.lead.size());
    }
    out_.Add(std::move(written));
  }
  text_.push_back(token);
  ++generated_;
}

AnswerToken Choice::Named(int32_t token) const {
  AnswerToken named{.bytes = tokenizer_.Decode(token), .name = {}, .logprob = {}};
  if (token == tokenizer_.separator()) {
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

// The token with its logprob after these logits, and with as many of the most probable ones as the
// request wants.
AnswerToken Choice::Scored(int32_t token, std::span<const float> logits) const {
  const double sum = LogSum(logits);
  const auto logprob = [&](int32_t v) { return static_cast<float>(double{logits[v]} - sum); };
  AnswerToken scored = Named(token);
  scored.logprob = logprob(token);
  const int32_t top = *task_.request.logprobs;
  if (top == 0) return scored;
  bool listed = false;
  const auto vocab = static_cast<size_t>(tokenizer_.vocab());
  for (const int32_t v : Largest(logits.first(vocab), top)) {
    scored.top.emplace_back(Named(v).name, logprob(v));
    listed = listed || v == token;
  }
  if (!listed) scored.top.emplace_back(scored.name, *scored.logprob);
  return scored;
}

}  // namespace nsa::train::serve
