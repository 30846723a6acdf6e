#include "worker/train/serve/request.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clean_text.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "worker/train/serve/limits.h"

namespace nsa::train::serve {
namespace {

using RequestJson = nlohmann::json;

constexpr size_t kShownValueBytes = 60;
constexpr size_t kModelBytes = 256;

absl::Status Refuse(std::string_view what) {
  return absl::InvalidArgumentError(absl::string_view(what.data(), what.size()));
}

// A value as a message shows it.
std::string Shown(const RequestJson& value) {
  if (value.is_array()) return absl::StrCat("a list of ", value.size());
  if (value.is_object()) return "an object";
  if (value.is_string() && value.get_ref<const std::string&>().size() > kShownValueBytes) {
    return absl::StrCat("a string of ", value.get_ref<const std::string&>().size(), " bytes");
  }
  return value.dump(-1, ' ', false, RequestJson::error_handler_t::replace);
}

absl::Status Wrong(const std::string& name, const RequestJson& value, std::string_view wanted,
                   std::string_view advice) {
  return Refuse(absl::StrCat(name, ": ", Shown(value), " (",
                             absl::string_view(wanted.data(), wanted.size()), "); ",
                             absl::string_view(advice.data(), advice.size())));
}

// Refuses text that would take much more memory as JSON than as bytes, before it is read: counts
// brackets and commas outside strings.
absl::Status CheckShape(std::string_view body) {
  int level = 0;
  int64_t values = 1;
  bool inside = false;  // a string
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (inside) {
      if (c == '\\') ++i;
      if (c == '"') inside = false;
      continue;
    }
    if (c == '"') inside = true;
    if (c == '[' || c == '{') ++level;
    if (c == ']' || c == '}') --level;
    if (c == ',' || c == '[' || c == '{') ++values;
    if (level > kJsonLevels) {
      return Refuse(
          absl::StrFormat("body: more than %d levels of nesting (at most %d); a prompt is a "
                          "string, or a list of strings or of lists of tokens",
                          kJsonLevels, kJsonLevels));
    }
  }
  if (values <= kJsonValues) return absl::OkStatus();
  return Refuse(absl::StrFormat("body: about %d values (at most %d); send fewer prompts at a time",
                                values, kJsonValues));
}

// The value as a whole number, if it is one. Some languages write 4 as 4.0.
std::optional<int64_t> Whole(const RequestJson& value) {
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (!(number >= -0x1p63 && number < 0x1p63) || std::trunc(number) != number) return {};
    return static_cast<int64_t>(number);
  }
  const bool fits =
      value.is_number_integer() &&
      (!value.is_number_unsigned() ||
       value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
  return fits ? std::optional(value.get<int64_t>()) : std::nullopt;
}

absl::Status ReadInteger(const std::string& name, const RequestJson& value, int64_t least,
                         int64_t most, int64_t* to) {
  const std::optional<int64_t> whole = Whole(value);
  if (whole.has_value() && *whole >= least && *whole <= most) {
    *to = *whole;
    return absl::OkStatus();
  }
  return Wrong(name, value, absl::StrFormat("must be a whole number from %d to %d", least, most),
               "change it or leave it out");
}

absl::Status ReadBool(const std::string& name, const RequestJson& value, bool* to) {
  if (!value.is_boolean())
    return Wrong(name, value, "must be true or false", "leave it out for false");
  *to = value.get<bool>();
  return absl::OkStatus();
}

absl::Status ReadNumber(const std::string& name, const RequestJson& value, double* to) {
  if (!value.is_number())
    return Wrong(name, value, "must be a number", "change it or leave it out");
  *to = value.get<double>();
  return absl::OkStatus();
}

// Parameters that have no effect here may only say so.
absl::Status ReadNeutral(const std::string& name, const RequestJson& value, bool neutral) {
  if (neutral) return absl::OkStatus();
  return Wrong(name, value, "not supported", "leave it out");
}

bool IsZero(const RequestJson& value) { return value.is_number() && value.get<double>() == 0; }

bool IsEmpty(const RequestJson& value) {
  return (value.is_string() && value.get_ref<const std::string&>().empty()) ||
         (value.is_object() && value.empty());
}

bool AreTokens(const RequestJson& list) {
  return std::all_of(list.begin(), list.end(), [](const RequestJson& token) {
    const std::optional<int64_t> whole = Whole(token);
    return whole.has_value() && *whole >= 0 && *whole <= std::numeric_limits<int32_t>::max();
  });
}

absl::Status WrongPrompt(const RequestJson& value) {
  return Wrong(
      "prompt", value,
      "must be a string, a list of strings, a list of tokens, or a list of lists of tokens",
      "a token is a whole number from 0");
}

// One element of a list of prompts.
absl::Status AddPrompt(const RequestJson& value, CompletionRequest* to) {
  if (value.is_string()) {
    to->prompts.emplace_back(value.get<std::string>());
  } else if (value.is_array() && AreTokens(value)) {
    to->prompts.emplace_back(value.get<std::vector<int32_t>>());
  } else {
    return WrongPrompt(value);
  }
  return absl::OkStatus();
}

absl::Status ReadPrompt(const RequestJson& value, CompletionRequest* to) {
  const bool list =
      value.is_array() && !value.empty() && (value.front().is_string() || value.front().is_array());
  if (!list) {
    if (value.is_array() && value.empty()) {
      return Refuse("prompt: an empty list (at least 1 prompt); send \"\" to begin a text");
    }
    return AddPrompt(value, to);
  }
  if (static_cast<int64_t>(value.size()) > kChoices) {
    return Refuse(absl::StrFormat("prompt: %d prompts (at most %d); send fewer at a time",
                                  value.size(), kChoices));
  }
  for (const RequestJson& one : value) NSA_RETURN_IF_ERROR(AddPrompt(one, to));
  return absl::OkStatus();
}

absl::Status AddStop(const RequestJson& value, CompletionRequest* to) {
  const bool good = value.is_string() && !value.get_ref<const std::string&>().empty() &&
                    value.get_ref<const std::string&>().size() <= kStopBytes;
  if (!good) {
    return Wrong("stop", value, absl::StrFormat("must be a string of 1 to %d bytes", kStopBytes),
                 "change it or leave it out");
  }
  to->stops.push_back(value.get<std::string>());
  return absl::OkStatus();
}

absl::Status ReadStop(const RequestJson& value, CompletionRequest* to) {
  if (!value.is_array()) return AddStop(value, to);
  if (value.size() > kStops) {
    return Wrong("stop", value, absl::StrFormat("at most %d strings", kStops), "send fewer");
  }
  for (const RequestJson& one : value) NSA_RETURN_IF_ERROR(AddStop(one, to));
  return absl::OkStatus();
}

absl::Status ReadText(const std::string& name, const RequestJson& value, std::string* to) {
  if (!value.is_string() || value.get_ref<const std::string&>().size() > kModelBytes) {
    return Wrong(name, value, absl::StrFormat("must be a string of at most %d bytes", kModelBytes),
                 "leave it out");
  }
  *to = value.get<std::string>();
  return absl::OkStatus();
}

// What is read before it can be checked against the rest.
struct Draft {
  CompletionRequest request;
  int64_t n = 1, logprobs = 0, seed = 0;
  std::optional<int64_t> best_of;
  std::string user;
  bool has_stream_options = false;
};

absl::Status ReadBestOf(const RequestJson& value, Draft* draft) {
  return ReadInteger("best_of", value, 1, kChoices, &draft->best_of.emplace());
}

absl::Status ReadMaxTokens(const RequestJson& value, Draft* draft) {
  int64_t most = -1;
  if (!value.is_null()) NSA_RETURN_IF_ERROR(ReadInteger("max_tokens", value, -1, kTokens, &most));
  draft->request.max_tokens = most < 0 ? std::nullopt : std::optional(most);
  return absl::OkStatus();
}

absl::Status ReadLogprobs(const RequestJson& value, Draft* draft) {
  NSA_RETURN_IF_ERROR(ReadInteger("logprobs", value, 0, kMostLogprobs, &draft->logprobs));
  draft->request.logprobs = static_cast<int32_t>(draft->logprobs);
  return absl::OkStatus();
}

absl::Status ReadSeed(const RequestJson& value, Draft* draft) {
  NSA_RETURN_IF_ERROR(ReadInteger("seed", value, std::numeric_limits<int64_t>::min(),
                                  std::numeric_limits<int64_t>::max(), &draft->seed));
  draft->request.seed = draft->seed;
  return absl::OkStatus();
}

absl::Status ReadTemperature(const RequestJson& value, Draft* draft) {
  return ReadNumber("temperature", value, &draft->request.draw.temperature);
}

absl::Status ReadTopK(const RequestJson& value, Draft* draft) {
  return ReadInteger("top_k", value, 0, std::numeric_limits<int32_t>::max(),
                     &draft->request.draw.top_k);
}

absl::Status ReadStreamOptions(const RequestJson& value, Draft* draft) {
  draft->has_stream_options = true;
  if (!value.is_object()) {
    return Wrong("stream_options", value, "must be an object with include_usage", "leave it out");
  }
  for (const auto& [name, option] : value.items()) {
    if (name != "include_usage") {
      return Wrong("stream_options", name, "must be include_usage", "leave it out");
    }
    NSA_RETURN_IF_ERROR(
        ReadBool("stream_options.include_usage", option, &draft->request.include_usage));
  }
  return absl::OkStatus();
}

using Reader = absl::Status (*)(const RequestJson& value, Draft* draft);

// Every parameter.
const std::map<std::string, Reader>& Readers() {
  static const auto* const kReaders = new std::map<std::string, Reader>{
      {"best_of", [](const RequestJson& v, Draft* d) { return ReadBestOf(v, d); }},
      {"echo",
       [](const RequestJson& v, Draft* d) { return ReadBool("echo", v, &d->request.echo); }},
      {"frequency_penalty",
       [](const RequestJson& v, Draft*) { return ReadNeutral("frequency_penalty", v, IsZero(v)); }},
      {"logit_bias",
       [](const RequestJson& v, Draft*) { return ReadNeutral("logit_bias", v, IsEmpty(v)); }},
      {"logprobs", [](const RequestJson& v, Draft* d) { return ReadLogprobs(v, d); }},
      {"max_tokens", [](const RequestJson& v, Draft* d) { return ReadMaxTokens(v, d); }},
      {"model",
       [](const RequestJson& v, Draft* d) { return ReadText("model", v, &d->request.model); }},
      {"n", [](const RequestJson& v, Draft* d) { return ReadInteger("n", v, 1, kChoices, &d->n); }},
      {"presence_penalty",
       [](const RequestJson& v, Draft*) { return ReadNeutral("presence_penalty", v, IsZero(v)); }},
      {"prompt", [](const RequestJson& v, Draft* d) { return ReadPrompt(v, &d->request); }},
      {"seed", [](const RequestJson& v, Draft* d) { return ReadSeed(v, d); }},
      {"stop", [](const RequestJson& v, Draft* d) { return ReadStop(v, &d->request); }},
      {"stream",
       [](const RequestJson& v, Draft* d) { return ReadBool("stream", v, &d->request.stream); }},
      {"stream_options", [](const RequestJson& v, Draft* d) { return ReadStreamOptions(v, d); }},
      {"suffix", [](const RequestJson& v, Draft*) { return ReadNeutral("suffix", v, IsEmpty(v)); }},
      {"temperature", [](const RequestJson& v, Draft* d) { return ReadTemperature(v, d); }},
      {"top_k", [](const RequestJson& v, Draft* d) { return ReadTopK(v, d); }},
      {"top_p", [](const RequestJson& v,
                   Draft* d) { return ReadNumber("top_p", v, &d->request.draw.top_p); }},
      {"user", [](const RequestJson& v, Draft* d) { return ReadText("user", v, &d->user); }}};
  return *kReaders;
}

absl::Status UnknownParameter(const std::string& name) {
  const std::string shown = CutText(name, kShownValueBytes);
  std::string known;
  for (const auto& [one, reader] : Readers())
    absl::StrAppend(&known, known.empty() ? "" : ", ", one);
  return Refuse(absl::StrCat(shown, ": unknown parameter (", known, "); leave it out"));
}

absl::Status CheckDrawing(const DrawOptions& draw) {
  if (!(draw.temperature >= 0 && draw.temperature <= 100)) {
    return Refuse(
        absl::StrFormat("temperature: %g (from 0 to 100); leave it out for 1", draw.temperature));
  }
  if (!(draw.top_p > 0 && draw.top_p <= 1)) {
    return Refuse(
        absl::StrFormat("top_p: %g (more than 0, at most 1); leave it out for 1", draw.top_p));
  }
  return absl::OkStatus();
}

// What several parameters must keep together.
absl::Status CheckTogether(const Draft& draft) {
  const CompletionRequest& request = draft.request;
  if (request.prompts.empty()) {
    return Refuse("prompt: missing (must be a string or a list); send \"\" to begin a text");
  }
  if (request.max_tokens == 0 && !request.echo) {
    return Refuse("max_tokens: 0 (at least 1, without echo); set echo to score a prompt");
  }
  if (draft.has_stream_options && !request.stream) {
    return Refuse("stream_options: set (only with stream); leave it out");
  }
  if (draft.best_of.value_or(draft.n) != draft.n) {
    return Refuse(
        absl::StrFormat("best_of: %d (must be n = %d); leave it out", *draft.best_of, draft.n));
  }
  const auto prompts = static_cast<int64_t>(request.prompts.size());
  if (prompts * draft.n > kChoices) {
    return Refuse(absl::StrFormat("n: %d for each of %d prompts (%d choices in all); send fewer",
                                  draft.n, prompts, kChoices));
  }
  return CheckDrawing(request.draw);
}

}  // namespace

absl::StatusOr<CompletionRequest> ReadRequest(std::string_view body) {
  NSA_RETURN_IF_ERROR(CheckShape(body));
  const RequestJson document = RequestJson::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) {
    return Refuse("body: not a JSON object in UTF-8; send {\"prompt\": \"…\"}");
  }
  Draft draft;
  for (const auto& [name, value] : document.items()) {
    const auto reader = Readers().find(name);
    if (reader == Readers().end()) return UnknownParameter(name);
    if (value.is_null() && name != "max_tokens") continue;
    NSA_RETURN_IF_ERROR(reader->second(value, &draft));
  }
  NSA_RETURN_IF_ERROR(CheckTogether(draft));
  draft.request.n = static_cast<int32_t>(draft.n);
  return std::move(draft.request);
}

}  // namespace nsa::train::serve
