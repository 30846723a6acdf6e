#include "worker/train/score/sample.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "worker/train/data/random.h"

namespace nsa::train {
namespace {

constexpr char kReplacement[] = "\xef\xbf\xbd";

// The length of a UTF-8 character that begins with this byte; 0 if the byte cannot begin one.
size_t LengthFrom(unsigned char first) {
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return 2;
  if (first >= 0xe0 && first <= 0xef) return 3;
  return first >= 0xf0 && first <= 0xf4 ? 4 : 0;
}

// The length of the UTF-8 character at the start of `bytes`; 0 when there is none.
size_t CharacterLength(std::string_view bytes) {
  const auto at = [&](size_t i) {
    return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0;
  };
  const auto first = at(0);
  const size_t length = LengthFrom(static_cast<unsigned char>(first));
  if (length == 1) return 1;
  for (size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (first == 0xe0 && at(1) < 0xa0) || (first == 0xf0 && at(1) < 0x90);
  const bool surrogate = first == 0xed && at(1) > 0x9f;
  const bool too_large = first == 0xf4 && at(1) > 0x8f;
  return overlong || surrogate || too_large ? 0 : length;
}

}  // namespace

int32_t DrawToken(std::span<const float> logits, double temperature, double uniform,
                  int32_t excluded) {
  int32_t best = excluded == 0 ? 1 : 0;
  for (int32_t v = 0; v < static_cast<int32_t>(logits.size()); ++v) {
    if (v != excluded && logits[v] > logits[best]) best = v;
  }
  if (temperature <= 0) return best;
  std::vector<double> weights(logits.size());
  double sum = 0;
  for (size_t v = 0; v < logits.size(); ++v) {
    const bool out = static_cast<int32_t>(v) == excluded;
    weights[v] = out ? 0 : std::exp((double{logits[v]} - double{logits[best]}) / temperature);
    sum += weights[v];
  }
  double left = uniform * sum;
  for (size_t v = 0; v < logits.size(); ++v) {
    left -= weights[v];
    if (left < 0) return static_cast<int32_t>(v);
  }
  return best;  // reached only because of rounding errors in `left`
}

absl::StatusOr<std::string> Sample(const Exec& exec, const TrainedModel& trained,
                                   const SampleOptions& options,
                                   const std::function<void(std::string_view)>& on_bytes) {
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature) || options.bytes < 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "sample: temperature %g, bytes %d (neither negative)", options.temperature, options.bytes));
  }
  const int32_t separator = trained.tokenizer().separator();
  std::vector<uint16_t> prompt;
  NSA_RETURN_IF_ERROR(trained.tokenizer().Encode(options.prompt, &prompt));
  std::vector<int32_t> context = {separator};
  context.insert(context.end(), prompt.begin(), prompt.end());

  const auto needed = static_cast<int64_t>(context.size()) + options.bytes;
  const auto seq_len = static_cast<int32_t>(std::min<int64_t>(trained.seq_len(), needed));
  NSA_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, trained.MakeModel(1, seq_len));
  std::vector<float> logits(static_cast<size_t>(trained.vocab()));
  KeyedRandom random(static_cast<uint64_t>(options.seed));
  std::string text;
  while (static_cast<int64_t>(text.size()) < options.bytes) {
    const size_t seen = std::min(context.size(), static_cast<size_t>(seq_len));
    std::vector<int32_t> window(context.end() - static_cast<ptrdiff_t>(seen), context.end());
    window.resize(static_cast<size_t>(seq_len), separator);
    NSA_RETURN_IF_ERROR(model->NextLogits(exec, window, static_cast<int32_t>(seen) - 1, logits));
    const double uniform = static_cast<double>(random.Next() >> 11) * 0x1p-53;
    const std::span<const float> known(logits.data(),
                                       static_cast<size_t>(trained.tokenizer().vocab()));
    const int32_t token = DrawToken(known, options.temperature, uniform, separator);
    context.push_back(token);
    const std::string bytes = trained.tokenizer().Decode(token);
    if (on_bytes) on_bytes(bytes);
    text += bytes;
  }
  return text;
}

std::string PrintableUtf8(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const size_t length = CharacterLength(bytes);
    const auto first = static_cast<unsigned char>(bytes[0]);
    const bool control =
        length == 1 && (first < 0x20 || first == 0x7f) && first != '\n' && first != '\t';
    const bool c1_control =
        length == 2 && first == 0xc2 && static_cast<unsigned char>(bytes[1]) < 0xa0;
    if (length == 0 || control || c1_control) {
      text += kReplacement;
    } else {
      text += bytes.substr(0, length);
    }
    bytes.remove_prefix(std::max<size_t>(1, length));
  }
  return text;
}

std::string PrintableStream::Add(std::string_view bytes) {
  waiting_ += bytes;
  size_t done = 0;
  while (done < waiting_.size()) {
    const std::string_view rest = std::string_view(waiting_).substr(done);
    if (LengthFrom(static_cast<unsigned char>(rest[0])) > rest.size()) break;
    done += std::max<size_t>(1, CharacterLength(rest));
  }
  std::string text = PrintableUtf8(std::string_view(waiting_).substr(0, done));
  waiting_.erase(0, done);
  return text;
}

std::string PrintableStream::Finish() {
  std::string text = PrintableUtf8(waiting_);
  waiting_.clear();
  return text;
}

}  // namespace nsa::train
